//! Names of numbers, rates, and files of sysfs.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::device::SYSFS_VARIABLE;
use crate::entry;

/// What the last of a table's strings stands for, too.
fn name(names: &[&'static CStr], number: c_int, other: &'static CStr) -> *const c_char {
    let found = usize::try_from(number).ok().and_then(|number| names.get(number));
    found.unwrap_or(&other).as_ptr()
}

/// The name of a node type.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&NAMES, node_type, c"unknown")
}

/// The name of a port's state.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(port_state: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"in active defer"];
    name(&NAMES, port_state, c"unknown")
}

/// The name of a work request's operation, for providers; NULL for one that has none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    const NAMES: [&CStr; 12] = [
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
    ];
    match opcode {
        0..12 => name(&NAMES, opcode, c""),
        14 => c"flush".as_ptr(),
        15 => c"atomic-write".as_ptr(),
        _ => std::ptr::null(),
    }
}

/// The name of an asynchronous event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    name(&NAMES, event, c"unknown")
}

/// The name of a completion's status.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&NAMES, status, c"unknown")
}

/// Code of a rate, its multiple of 2.5 Gbit/s (0 = none), and Mbit/s.
const RATES: [(c_uint, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 6, 14_062),
    (12, 22, 56_250),
    (13, 45, 112_500),
    (14, 67, 168_750),
    (15, 10, 25_781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// A rate as a multiple of 2.5 Gbit/s; -1 if there is no such rate.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.1)
}

/// The rate of a multiple of 2.5 Gbit/s; `IBV_RATE_MAX` if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_uint {
    RATES.iter().find(|row| row.1 == mult).map_or(0, |row| row.0)
}

/// A rate in Mbit/s; -1 if there is no such rate.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

/// The rate of so many Mbit/s; `IBV_RATE_MAX` if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|row| row.2 == mbps).map_or(0, |row| row.0)
}

/// Where sysfs is: `SYSFS_PATH`, or `/sys`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<std::ffi::CString> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let named = std::env::var_os(SYSFS_VARIABLE).unwrap_or_else(|| "/sys".into());
        let bytes = named.as_bytes();
        std::ffi::CString::new(bytes.strip_suffix(b"/").unwrap_or(bytes)).unwrap_or_else(|_| c"/sys".to_owned())
    });
    path.as_ptr()
}

/// Reads a file of a folder, without the newline at its end; returns how many bytes, or -1.
///
/// # Safety
/// `dir` and `file` are C strings, `size` bytes at `buf` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    entry::number(|| {
        if dir.is_null() || file.is_null() || size == 0 {
            return Err(entry::INVALID);
        }
        // SAFETY: the caller's promise.
        let dir = unsafe { CStr::from_ptr(dir) };
        // SAFETY: the caller's promise.
        let file = unsafe { CStr::from_ptr(file) };
        let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
        let errno = |error: std::io::Error| entry::Failure(error.raw_os_error().unwrap_or(nix::libc::EIO));
        let text = fs::read(path).map_err(errno)?;
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        let length = text.len().min(size);
        // SAFETY: the caller's promise, and no more than `size` bytes.
        unsafe { buf.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length) };
        if length < size {
            // SAFETY: the byte behind the text is inside the buffer.
            let end = unsafe { buf.add(length) };
            // SAFETY: likewise.
            unsafe { end.write(0) };
        }
        Ok(length as c_int)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(pointer: *const c_char) -> &'static str {
        // SAFETY: all names are static C strings.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn numbers_have_names_and_others_have_one_too() {
        assert_eq!(string(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(string(ibv_event_type_str(16)), "last WQE reached");
        assert_eq!(string(ibv_node_type_str(-1)), "unknown");
        assert_eq!(string(ibv_port_state_str(77)), "unknown");
    }

    #[test]
    fn rates_are_found_both_ways() {
        for (rate, mult, mbps) in RATES {
            assert_eq!((ibv_rate_to_mult(rate), ibv_rate_to_mbps(rate)), (mult, mbps));
            assert_eq!((mult_to_ibv_rate(mult), mbps_to_ibv_rate(mbps)), (rate, rate));
        }
        assert_eq!((ibv_rate_to_mult(1), mult_to_ibv_rate(3)), (-1, 0));
    }

    #[test]
    fn a_file_is_read_without_its_newline() {
        let mut buffer = [0x7f; 16];
        // SAFETY: C strings, and a buffer of that size.
        let length =
            unsafe { ibv_read_sysfs_file(c"/proc/sys/kernel".as_ptr(), c"ostype".as_ptr(), buffer.as_mut_ptr(), 16) };
        assert_eq!((length, string(buffer.as_ptr())), (5, "Linux"));
        // SAFETY: likewise.
        let missing = unsafe { ibv_read_sysfs_file(c"/proc".as_ptr(), c"none".as_ptr(), buffer.as_mut_ptr(), 16) };
        assert_eq!(missing, -1);
    }
}
