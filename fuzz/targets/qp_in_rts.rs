//! A sequence of packets, addressed rightly and with a right ICRC but of any content, at a QP in RTS that has work
//! outstanding. Whatever comes: no panic, and not a byte is written outside the regions.
//!
//! The input's length chooses how the QP makes up for losses. Input: repeated { opcode, flags, PSN offset from the expected one, length of what follows, extension headers and payload }.
#![no_main]

#[path = "../../engine/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use shm::attr::{RecoveryPolicy, SendFlags, WrOpcode};
use shm::layout::SendWqe;
use support::{BASE, Connect, Pair};
use wire::{Bth, MacAddr, Opcode, PathFields, PathTemplate, Psn, Qpn};

/// Bytes of the victim's memory that no region covers: the upper half.
const GUARD_AT: u64 = 32 << 10;

fuzz_target!(|input: &[u8]| {
    let mut pair = Pair::with_region(Connect::default(), 64 << 10, GUARD_AT);
    pair.set_recovery(RecoveryPolicy::ALL[input.len() % RecoveryPolicy::ALL.len()]);
    post_work(&mut pair);
    let template = template();
    let mut rest = input;
    while let Some((&[opcode, flags, psn, length], tail)) = rest.split_first_chunk::<4>() {
        let (body, next) = tail.split_at(usize::from(length).min(tail.len()));
        rest = next;
        if let Some(frame) = build(&pair, &template, opcode, flags, psn, body) {
            pair.hosts[1].receive(pair.now, &frame);
        }
        // What the victim says is lost on the way; time goes on.
        pair.now = pair.now.add_ns(u64::from(flags) << 12);
        pair.hosts[1].turn(pair.now);
    }
    let mut guard = vec![0; 32 << 10];
    pair.clients[1].memory.read(GUARD_AT, &mut guard).unwrap();
    assert!(guard.iter().all(|&b| b == 0), "a byte outside the region changed");
});

/// Requests of each kind wait for answers; receives are posted.
fn post_work(pair: &mut Pair) {
    let sge = pair.clients[1].sge(0, 8);
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaRead, WrOpcode::AtomicFetchAndAdd] {
        let rkey = pair.clients[0].key;
        let wqe = SendWqe {
            opcode: opcode as u8,
            flags: SendFlags::SIGNALED.0,
            remote_addr: BASE,
            rkey,
            ..SendWqe::default()
        };
        pair.qps[1].post(wqe, &[sge]);
    }
    for i in 0..4 {
        let sge = pair.clients[1].sge(i * 64, 40);
        pair.qps[1].post_recv(i, &[sge]);
    }
    pair.hosts[1].turn(pair.now);
}

fn template() -> PathTemplate {
    let fields = PathFields {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src_ip: [10, 0, 0, 1].into(),
        dst_ip: [10, 0, 0, 2].into(),
        traffic_class: 0,
        hop_limit: 64,
        udp_src_port: 0xc000,
        ipv4_ident: 0,
        flow_label: 0,
        roce_v1: false,
    };
    PathTemplate::new(&fields).unwrap()
}

/// A frame for the victim. The low PSN values are around both the expected request and the outstanding answers.
fn build(pair: &Pair, template: &PathTemplate, opcode: u8, flags: u8, psn: u8, body: &[u8]) -> Option<Vec<u8>> {
    let info = Opcode(opcode).info()?;
    let base = if info.kind.is_response() { Connect::default().psn[1] } else { Connect::default().psn[0] };
    let ext_len = usize::from(info.ext_bytes).min(body.len());
    let (ext, payload) = body.split_at(ext_len);
    let mut ext = ext.to_vec();
    ext.resize(usize::from(info.ext_bytes), 0);
    // Half of the keys are right: else nothing would ever be executed.
    if flags & 1 == 1 && ext.len() >= 12 {
        let key = pair.clients[1].key.to_be_bytes();
        ext[8..12].copy_from_slice(&key);
        ext[..6].copy_from_slice(&BASE.to_be_bytes()[..6]);
    }
    let mut bth = Bth::new(Opcode(opcode), Qpn::new(pair.qps[1].qpn), Psn::new(base).add(u32::from(psn)).sub(16));
    bth.ack_req = flags & 2 != 0;
    bth.solicited = flags & 4 != 0;
    // A payload of a path MTU or so is a few bytes of input, repeated.
    let payload: Vec<u8> = if flags & 8 != 0 { vec![7; 1024] } else { payload.to_vec() };
    let mut frame = vec![0; template.frame_len(ext.len(), payload.len())];
    let length = template.write_packet(&mut frame, &bth, &ext, payload.len(), |room, crc| {
        room.copy_from_slice(&payload);
        wire::icrc::update(crc, &payload)
    });
    (length > 0).then_some(frame)
}
