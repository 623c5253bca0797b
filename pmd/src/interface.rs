//! What the kernel says of an interface that it shares with a port.

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

mod request {
    use nix::libc;

    nix::ioctl_read_bad!(flags, libc::SIOCGIFFLAGS, libc::ifreq);
    nix::ioctl_read_bad!(mtu, libc::SIOCGIFMTU, libc::ifreq);
}

/// The interface's MTU in bytes, in the calling thread's network namespace; `None` when there is no such interface.
#[must_use]
pub fn interface_mtu_bytes(name: &str) -> Option<u32> {
    // SAFETY: an open socket, and a request of the type that SIOCGIFMTU takes.
    let answer = asked(name, |socket, request| unsafe { request::mtu(socket, request) })?;
    // SAFETY: SIOCGIFMTU fills this member of the union.
    u32::try_from(unsafe { answer.ifr_ifru.ifru_mtu }).ok()
}

/// True if the interface is set up and has a carrier, in the calling thread's network namespace; `None` when there is no such interface.
#[must_use]
pub fn interface_is_running(name: &str) -> Option<bool> {
    // SAFETY: an open socket, and a request of the type that SIOCGIFFLAGS takes.
    let answer = asked(name, |socket, request| unsafe { request::flags(socket, request) })?;
    // SAFETY: SIOCGIFFLAGS fills this member of the union.
    let flags = c_int::from(unsafe { answer.ifr_ifru.ifru_flags });
    let both = libc::IFF_UP | libc::IFF_RUNNING;
    Some(flags & both == both)
}

/// What the kernel answers to a request about an interface.
fn asked(name: &str, ask: impl Fn(c_int, *mut libc::ifreq) -> nix::Result<c_int>) -> Option<libc::ifreq> {
    let query = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    // SAFETY: all-zero is a valid value of this plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: it ends the name.
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    ask(query.as_raw_fd(), &raw mut request).ok()?;
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_mtu_and_an_absent_interface_has_none() {
        assert!(interface_mtu_bytes("lo").unwrap() >= 1500);
        assert!(interface_is_running("lo").is_some());
        for absent in ["", "no-such-if", "a-name-longer-than-an-interface-can-have"] {
            assert_eq!(interface_mtu_bytes(absent), None);
            assert_eq!(interface_is_running(absent), None);
        }
    }
}
