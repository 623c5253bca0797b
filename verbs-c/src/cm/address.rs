//! Socket addresses of C and of Rust.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use nix::errno::Errno;
use nix::libc::{self, c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::entry::Failure;

/// An IP address and port; `None` for NULL.
///
/// # Safety
/// `addr` is NULL, or an address as long as its family has it.
pub(crate) unsafe fn read(addr: *const sockaddr) -> Result<Option<SocketAddr>, Failure> {
    // SAFETY: the caller's promise.
    let Some(family) = (unsafe { addr.as_ref() }).map(|addr| c_int::from(addr.sa_family)) else { return Ok(None) };
    match family {
        libc::AF_INET => {
            // SAFETY: the family says how long it is.
            let sin = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
            Ok(Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: likewise.
            let sin = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(sin.sin6_addr.s6_addr);
            let scope = sin.sin6_scope_id;
            Ok(Some(SocketAddrV6::new(ip, u16::from_be(sin.sin6_port), sin.sin6_flowinfo, scope).into()))
        }
        _ => Err(Errno::EAFNOSUPPORT.into()),
    }
}

/// An address that there must be.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn read_some(addr: *const sockaddr) -> Result<SocketAddr, Failure> {
    // SAFETY: the caller's promise.
    unsafe { read(addr) }?.ok_or(crate::entry::INVALID)
}

/// No address.
pub(crate) const fn none() -> sockaddr_storage {
    // SAFETY: all zeroes are an address of no family.
    unsafe { mem::zeroed() }
}

/// As C has it.
pub(crate) fn storage(addr: SocketAddr) -> sockaddr_storage {
    let mut storage = none();
    match addr {
        SocketAddr::V4(v4) => {
            let sin = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger, and aligned for every family.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(sin) };
        }
        SocketAddr::V6(v6) => {
            let sin = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: likewise.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(sin) };
        }
    }
    storage
}

/// Bytes of an address of its family.
pub(crate) const fn length(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => size_of::<sockaddr_in>() as u32,
        SocketAddr::V6(_) => size_of::<sockaddr_in6>() as u32,
    }
}

/// The port of a stored address, in network order; 0 if there is none.
pub(crate) fn port(storage: &sockaddr_storage) -> u16 {
    // SAFETY: a stored address is as long as any family's.
    unsafe { read((&raw const *storage).cast()) }.ok().flatten().map_or(0, |addr| addr.port().to_be())
}

/// What a daemon is asked for where a program binds: none has the host's loopback address, which is all of them, as with Linux.
pub(crate) const fn of_daemons(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(v4) if v4.ip().is_loopback() => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), v4.port()),
        SocketAddr::V6(v6) if v6.ip().is_loopback() => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), v6.port()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_way_to_c_and_back() {
        for text in ["10.1.2.3:7471", "[fe80::1%3]:1", "[2001:db8::7]:65535"] {
            let addr: SocketAddr = text.parse().unwrap();
            let stored = storage(addr);
            // SAFETY: a whole address.
            let back = unsafe { read((&raw const stored).cast()) };
            assert_eq!(back, Ok(Some(addr)));
            assert_eq!(u16::from_be(port(&stored)), addr.port());
        }
        assert_eq!(port(&none()), 0);
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read(std::ptr::null()) }, Ok(None));
        let other = none();
        // SAFETY: a whole address.
        assert_eq!(unsafe { read((&raw const other).cast()) }, Err(Failure(libc::EAFNOSUPPORT)));
    }

    #[test]
    fn loopback_is_every_device() {
        let asked = |text: &str| of_daemons(text.parse().unwrap()).to_string();
        assert_eq!([asked("127.0.0.1:7"), asked("127.1.2.3:0")], ["0.0.0.0:7", "0.0.0.0:0"]);
        assert_eq!([asked("[::1]:8"), asked("10.0.0.1:9")], ["[::]:8", "10.0.0.1:9"]);
    }
}
