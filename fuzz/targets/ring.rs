//! A client that writes anything into its rings and doorbells: only its own QP may suffer.
//!
//! Input: repeated { offset, value } writes of 8 bytes into the QP's block, a doorbell and a turn after each.
#![no_main]

#[path = "../../engine/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use shm::attr::{SendFlags, WcStatus, WrOpcode};
use shm::layout::SendWqe;
use support::{BASE, CAP, Client, Connect, Pair, connect};

fuzz_target!(|input: &[u8]| {
    let mut pair = Pair::new(Connect::default());
    // A second application on the same engine, whose traffic must not notice.
    let mut bystander = Client::new(&mut pair.hosts[0], 4096);
    let mut peer = Client::new(&mut pair.hosts[1], 4096);
    let mut qp = bystander.qp(&mut pair.hosts[0], CAP);
    let peer_qp = peer.qp(&mut pair.hosts[1], CAP);
    connect(&mut pair.hosts[0], bystander.session, qp.qpn, [10, 0, 0, 2].into(), peer_qp.qpn, Connect::default(), 0);
    connect(&mut pair.hosts[1], peer.session, peer_qp.qpn, [10, 0, 0, 1].into(), qp.qpn, Connect::default(), 1);

    let block = pair.qps[0].block.clone();
    for write in input.chunks_exact(10) {
        let offset = u64::from(u16::from_le_bytes([write[0], write[1]])) % 16_384 / 8 * 8;
        let _ = block.mapping.write(block.offset + offset, &write[2..10]);
        pair.qps[0].page.ring(pair.qps[0].doorbell_index ^ u32::from(write[1] >> 6));
        pair.advance(1_000);
    }
    let wqe = SendWqe {
        wr_id: 1,
        opcode: WrOpcode::RdmaWrite as u8,
        flags: SendFlags::SIGNALED.0,
        remote_addr: BASE,
        rkey: peer.key,
        ..SendWqe::default()
    };
    qp.post(wqe, &[bystander.sge(0, 100)]);
    pair.exchange();
    let done = bystander.poll();
    assert_eq!(done.iter().map(|c| c.status).collect::<Vec<_>>(), [WcStatus::Success.code()]);
});
