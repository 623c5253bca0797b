//! Any bytes as a frame: every accessor of what parses, and none may panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Frame;

fuzz_target!(|bytes: &[u8]| {
    let _ = wire::dest_qpn(bytes);
    let Ok(frame) = Frame::parse(bytes) else { return };
    assert!(frame.payload().len() <= bytes.len());
    let _ = (frame.icrc_ok(), frame.reth(), frame.aeth(), frame.atomiceth(), frame.atomicacketh(), frame.deth());
    let _ = (
        frame.immdt(),
        frame.ieth(),
        frame.xrceth(),
        frame.sacketh(),
        frame.grh_area(),
        frame.src_ip(),
        frame.dst_ip(),
    );
    assert!(!frame.to_string().is_empty());
});
