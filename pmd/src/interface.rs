//! What the kernel says of an interface that it shares with a port.

use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

mod request {
    use nix::libc;

    nix::ioctl_read_bad!(mtu, libc::SIOCGIFMTU, libc::ifreq);
}

/// The interface's MTU in bytes, in the calling thread's network namespace; `None` when there is no such interface.
#[must_use]
pub fn interface_mtu_bytes(name: &str) -> Option<u32> {
    let query = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    // SAFETY: all-zero is a valid value of this plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: an open socket, and a request of the type that SIOCGIFMTU takes, with a zero-terminated name.
    unsafe { request::mtu(query.as_raw_fd(), &raw mut request) }.ok()?;
    // SAFETY: SIOCGIFMTU fills this member of the union.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_mtu_and_an_absent_interface_has_none() {
        assert!(interface_mtu_bytes("lo").unwrap() >= 1500);
        for absent in ["", "no-such-if", "a-name-longer-than-an-interface-can-have"] {
            assert_eq!(interface_mtu_bytes(absent), None);
        }
    }
}
