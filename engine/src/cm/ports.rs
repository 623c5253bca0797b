//! Port numbers: who is bound to which, and the choice of a free one. Each port space has its own.

use std::collections::BTreeMap;
use std::net::IpAddr;

use wire::cm::PortSpace;

use super::CmId;

/// Where free ports are looked for (RFC 6335: dynamic ports).
const DYNAMIC_FIRST: u16 = 0xc000;
const DYNAMIC_COUNT: u16 = u16::MAX - DYNAMIC_FIRST;

/// An id that is bound to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Binding {
    id: CmId,
    /// Unspecified: all addresses; of IPv6, those of IPv4 too.
    address: IpAddr,
    listens: bool,
}

impl Binding {
    /// Whether the two would take the same requests.
    fn overlaps(&self, address: IpAddr) -> bool {
        covers(self.address, address) || covers(address, self.address)
    }
}

/// Whether a binding to `bound` takes what is sent to `address`.
fn covers(bound: IpAddr, address: IpAddr) -> bool {
    match (bound, address) {
        (IpAddr::V6(any), _) if any.is_unspecified() => true,
        (IpAddr::V4(any), IpAddr::V4(_)) if any.is_unspecified() => true,
        _ => bound == address,
    }
}

/// The bound ports of all spaces.
#[derive(Debug, Default)]
pub(super) struct PortTable {
    bound: BTreeMap<(PortSpace, u16), Vec<Binding>>,
    /// Where the search for the next free port begins.
    next: u16,
}

impl PortTable {
    /// Binds an id to a port, or with port 0 to a free one. `None` if the port, or every one that may be chosen, is taken.
    pub(super) fn bind(&mut self, id: CmId, space: PortSpace, address: IpAddr, port: u16) -> Option<u16> {
        let port = if port == 0 { self.free_port(space, address)? } else { port };
        let bindings = self.bound.entry((space, port)).or_default();
        if bindings.iter().any(|binding| binding.overlaps(address)) {
            return None;
        }
        bindings.push(Binding { id, address, listens: false });
        Some(port)
    }

    fn free_port(&mut self, space: PortSpace, address: IpAddr) -> Option<u16> {
        for _ in 0..DYNAMIC_COUNT {
            let port = DYNAMIC_FIRST + self.next;
            self.next = (self.next + 1) % DYNAMIC_COUNT;
            let bindings = self.bound.get(&(space, port));
            if bindings.is_none_or(|bindings| !bindings.iter().any(|binding| binding.overlaps(address))) {
                return Some(port);
            }
        }
        None
    }

    /// Takes requests from now on.
    pub(super) fn listen(&mut self, id: CmId, space: PortSpace, port: u16) {
        for binding in self.bound.get_mut(&(space, port)).into_iter().flatten() {
            binding.listens |= binding.id == id;
        }
    }

    /// The port is free again, as far as this id is concerned.
    pub(super) fn release(&mut self, id: CmId, space: PortSpace, port: u16) {
        if let Some(bindings) = self.bound.get_mut(&(space, port)) {
            bindings.retain(|binding| binding.id != id);
            if bindings.is_empty() {
                self.bound.remove(&(space, port));
            }
        }
    }

    /// The id that listens at an address and port.
    pub(super) fn listener(&self, space: PortSpace, address: IpAddr, port: u16) -> Option<CmId> {
        let mut bindings = self.bound.get(&(space, port))?.iter();
        bindings.find(|binding| binding.listens && covers(binding.address, address)).map(|binding| binding.id)
    }

    /// The ids that are bound to a port and do not listen: of them one may be about to connect to whoever asks.
    pub(super) fn bound_to(&self, space: PortSpace, port: u16) -> impl Iterator<Item = CmId> {
        self.bound.get(&(space, port)).into_iter().flatten().filter(|binding| !binding.listens).map(|b| b.id)
    }

    /// Ports that are bound.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.bound.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_port_is_bound_once_an_address_and_space() {
        let mut table = PortTable::default();
        let mut bind = |id, space, address| table.bind(CmId(id), space, ip(address), 7000);
        assert_eq!(bind(1, PortSpace::Tcp, "10.0.0.1"), Some(7000));
        assert_eq!(bind(2, PortSpace::Tcp, "10.0.0.1"), None);
        assert_eq!(bind(3, PortSpace::Tcp, "0.0.0.0"), None);
        assert_eq!(bind(4, PortSpace::Tcp, "::"), None, "IPv6's any is IPv4's as well");
        assert_eq!(bind(5, PortSpace::Tcp, "10.0.0.2"), Some(7000));
        assert_eq!(bind(6, PortSpace::Udp, "0.0.0.0"), Some(7000));
        assert_eq!(bind(7, PortSpace::Udp, "fe80::1"), Some(7000));
        table.listen(CmId(5), PortSpace::Tcp, 7000);
        assert_eq!(table.listener(PortSpace::Tcp, ip("10.0.0.2"), 7000), Some(CmId(5)));
        assert_eq!(table.listener(PortSpace::Tcp, ip("10.0.0.1"), 7000), None, "bound, but does not listen");
        table.release(CmId(1), PortSpace::Tcp, 7000);
        assert_eq!(table.bind(CmId(8), PortSpace::Tcp, ip("10.0.0.1"), 7000), Some(7000));
    }

    #[test]
    fn free_ports_run_out_and_come_back() {
        let mut table = PortTable::default();
        for id in 0..u32::from(DYNAMIC_COUNT) {
            let port = table.bind(CmId(id), PortSpace::Tcp, ip("0.0.0.0"), 0).unwrap();
            assert!(port >= DYNAMIC_FIRST);
        }
        assert_eq!(table.bind(CmId(99_999), PortSpace::Tcp, ip("0.0.0.0"), 0), None);
        assert!(table.bind(CmId(99_999), PortSpace::Udp, ip("0.0.0.0"), 0).is_some(), "spaces are apart");
        table.release(CmId(17), PortSpace::Tcp, DYNAMIC_FIRST + 17);
        assert_eq!(table.bind(CmId(99_999), PortSpace::Tcp, ip("0.0.0.0"), 0), Some(DYNAMIC_FIRST + 17));
    }
}
