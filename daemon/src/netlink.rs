//! What the kernel says of a network interface, and word of its changes: rtnetlink(7).
//!
//! A change is only a reason to look again: the state is read as a whole each time, so that notifications may be lost (the kernel
//! drops them when a socket's buffer is full, and says so), merged or in any order.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use wire::MacAddr;

/// Multicast groups of rtnetlink(7): links, IPv4 and IPv6 addresses.
const GROUPS: [u32; 3] = [1, 5, 9];

/// An interface as it is now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct InterfaceState {
    /// Set up, and with a carrier.
    pub(crate) up: bool,
    pub(crate) mtu_bytes: u32,
    /// `None` where it has none of Ethernet's length.
    pub(crate) mac: Option<MacAddr>,
    /// IPv4 first, else in the kernel's order. Without those that duplicate address detection has not let pass (RFC 4862 5.4).
    pub(crate) addresses: Vec<IpAddr>,
}

/// Tells when something has changed on an interface. Its number is what counts: it keeps it when it is renamed.
pub(crate) struct InterfaceWatch {
    index: u32,
    changes: Socket,
}

impl std::fmt::Debug for InterfaceWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InterfaceWatch").field("index", &self.index).finish_non_exhaustive()
    }
}

impl InterfaceWatch {
    /// Watches an interface of this network namespace. What changes from now on is told.
    ///
    /// # Errors
    /// What the operating system says: there is no such interface.
    pub(crate) fn new(interface: &str) -> io::Result<Self> {
        let index = if_nametoindex(interface)?;
        let mut changes = Socket::new(NETLINK_ROUTE)?;
        changes.bind_auto()?;
        GROUPS.iter().try_for_each(|&group| changes.add_membership(group))?;
        changes.set_non_blocking(true)?;
        Ok(Self { index, changes })
    }

    /// The interface's number.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Takes the words of change that have come, of this interface or another. True if there were any.
    pub(crate) fn drain(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.changes.recv_from_full() {
                Ok(_) => any = true,
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => any = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return any,
                Err(error) => {
                    tracing::warn!("word of changes of the network: {error}");
                    return any;
                }
            }
        }
    }

    /// The interface's state now; `None` if it is no more.
    ///
    /// # Errors
    /// What the kernel answers else.
    pub(crate) fn state(&self) -> io::Result<Option<InterfaceState>> {
        let mut link = LinkMessage::default();
        link.header.index = self.index;
        let mut state = match ask(RouteNetlinkMessage::GetLink(link), NLM_F_ACK) {
            Ok(answers) => answers.into_iter().find_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(link) if link.header.index == self.index => Some(link_state(&link)),
                _ => None,
            }),
            Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => None,
            Err(error) => return Err(error),
        };
        if let Some(state) = &mut state {
            let mut address = AddressMessage::default();
            address.header.index = self.index;
            let answers = ask(RouteNetlinkMessage::GetAddress(address), NLM_F_DUMP)?;
            state.addresses = answers.iter().filter_map(|answer| self.address(answer)).collect();
            state.addresses.sort_by_key(IpAddr::is_ipv6);
        }
        Ok(state)
    }

    /// The address that an answer tells, if it is this interface's and may be used.
    fn address(&self, answer: &RouteNetlinkMessage) -> Option<IpAddr> {
        let RouteNetlinkMessage::NewAddress(message) = answer else { return None };
        if message.header.index != self.index {
            return None;
        }
        let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
        let (mut local, mut address) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                // On a point-to-point link the other attribute is the peer's.
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Address(ip) => address = Some(*ip),
                AddressAttribute::Flags(all) => flags = *all,
                _ => {}
            }
        }
        let usable = !flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed);
        local.or(address).filter(|_| usable)
    }
}

impl AsFd for InterfaceWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

fn link_state(link: &LinkMessage) -> InterfaceState {
    let mut state = InterfaceState {
        up: link.header.flags.contains(LinkFlags::Up | LinkFlags::Running),
        ..InterfaceState::default()
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => state.mtu_bytes = *mtu,
            LinkAttribute::Address(bytes) => state.mac = bytes.as_slice().try_into().ok().map(MacAddr),
            _ => {}
        }
    }
    state
}

/// Asks the kernel, which answers at once: with a dump, or with a message and its acknowledgement.
fn ask(question: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // The kernel then dumps what was asked for alone; one that is too old for it dumps everything.
    let _unknown = socket.set_netlink_get_strict_chk(true);
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(question));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let malformed = |error| io::Error::new(ErrorKind::InvalidData, format!("an answer of the kernel's: {error}"));
    let mut answers = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(malformed)?;
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn loopback_is_up_with_its_address() {
        let watch = InterfaceWatch::new("lo").unwrap();
        let state = watch.state().unwrap().unwrap();
        assert!(state.up && state.mtu_bytes >= 1_500, "{state:?}");
        assert_eq!(state.addresses.first(), Some(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn an_interface_that_is_not_there_is_no_state_and_an_unknown_name_an_error() {
        assert_eq!(InterfaceWatch::new("no-such-if").unwrap_err().raw_os_error(), Some(Errno::ENODEV as i32));
        let mut gone = InterfaceWatch::new("lo").unwrap();
        gone.index = 0x7fff_fff0;
        assert_eq!(gone.state().unwrap(), None);
    }
}
