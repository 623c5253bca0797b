//! Sockets over RDMA: not offered. Programs that import them start, and hear `ENOSYS` when they use them.

use nix::errno::Errno;

/// Every call returns -1, as a number or a pointer is as wide as a register; what it was given is not looked at.
macro_rules! not_offered {
    ($($export:literal $name:ident,)*) => {
        $(
            /// Not offered: -1 and `ENOSYS`.
            #[unsafe(export_name = $export)]
            pub extern "C" fn $name() -> isize {
                Errno::ENOSYS.set();
                -1
            }
        )*
    };
}

not_offered! {
    "ferroce_raccept" raccept,
    "ferroce_rbind" rbind,
    "ferroce_rclose" rclose,
    "ferroce_rconnect" rconnect,
    "ferroce_rfcntl" rfcntl,
    "ferroce_rgetpeername" rgetpeername,
    "ferroce_rgetsockname" rgetsockname,
    "ferroce_rgetsockopt" rgetsockopt,
    "ferroce_riomap" riomap,
    "ferroce_riounmap" riounmap,
    "ferroce_riowrite" riowrite,
    "ferroce_rlisten" rlisten,
    "ferroce_rpoll" rpoll,
    "ferroce_rread" rread,
    "ferroce_rreadv" rreadv,
    "ferroce_rrecv" rrecv,
    "ferroce_rrecvfrom" rrecvfrom,
    "ferroce_rrecvmsg" rrecvmsg,
    "ferroce_rselect" rselect,
    "ferroce_rsend" rsend,
    "ferroce_rsendmsg" rsendmsg,
    "ferroce_rsendto" rsendto,
    "ferroce_rsetsockopt" rsetsockopt,
    "ferroce_rshutdown" rshutdown,
    "ferroce_rsocket" rsocket,
    "ferroce_rwrite" rwrite,
    "ferroce_rwritev" rwritev,
}
