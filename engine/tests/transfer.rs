//! Data crosses between two engines: every operation.

mod support;

use shm::attr::{SendFlags, WcOpcode, WcStatus, WrOpcode};
use shm::layout::SendWqe;
use support::{BASE, Connect, Pair};

fn wqe(pair: &Pair, opcode: WrOpcode) -> SendWqe {
    SendWqe {
        wr_id: 7,
        opcode: opcode as u8,
        flags: SendFlags::SIGNALED.0,
        remote_addr: BASE + 4096,
        rkey: pair.clients[1].key,
        imm: 0x1122_3344u32.to_be(),
        ..SendWqe::default()
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + 3) as u8).collect()
}

#[test]
fn a_write_of_any_size_lands_where_it_should() {
    for mtu in 1..=5 {
        let mut pair = Pair::new(Connect { path_mtu: mtu, ..Connect::default() });
        for length in [0, 1, 255, 256, 257, 4095, 4096, 4097, 100_000] {
            let data = pattern(length);
            pair.clients[0].memory.write(512, &data).unwrap();
            let sge = pair.clients[0].sge(512, length as u32);
            let w = wqe(&pair, WrOpcode::RdmaWrite);
            pair.qps[0].post(w, &[sge]);
            pair.exchange();
            assert_eq!(pair.completions(0), [(7, WcStatus::Success)], "mtu {mtu} length {length}");
            let mut out = vec![0; length];
            pair.clients[1].memory.read(4096, &mut out).unwrap();
            assert!(out == data, "mtu {mtu} length {length}");
        }
    }
}

#[test]
fn a_read_brings_the_bytes_back() {
    let mut pair = Pair::new(Connect::default());
    for length in [0, 1, 1024, 1025, 50_000] {
        let data = pattern(length);
        pair.clients[1].memory.write(4096, &data).unwrap();
        let sge = pair.clients[0].sge(100, length as u32);
        let w = wqe(&pair, WrOpcode::RdmaRead);
        pair.qps[0].post(w, &[sge]);
        pair.exchange();
        assert_eq!(pair.completions(0), [(7, WcStatus::Success)]);
        let mut out = vec![0; length];
        pair.clients[0].memory.read(100, &mut out).unwrap();
        assert!(out == data, "length {length}");
    }
}

#[test]
fn a_send_with_immediate_fills_a_receive() {
    let mut pair = Pair::new(Connect::default());
    let sges = [pair.clients[1].sge(0, 1000), pair.clients[1].sge(8192, 5000)];
    pair.qps[1].post_recv(99, &sges);
    let data = pattern(3000);
    pair.clients[0].memory.write(0, &data).unwrap();
    let sge = pair.clients[0].sge(0, 3000);
    let w = wqe(&pair, WrOpcode::SendWithImm);
    pair.qps[0].post(w, &[sge]);
    pair.exchange();
    assert_eq!(pair.completions(0), [(7, WcStatus::Success)]);
    let [recv] = pair.clients[1].poll()[..] else { panic!() };
    assert_eq!((recv.wr_id, recv.byte_len, recv.opcode), (99, 3000, WcOpcode::Recv as u8));
    assert_eq!(u32::from_be(recv.imm), 0x1122_3344);
    let (mut first, mut second) = (vec![0; 1000], vec![0; 2000]);
    pair.clients[1].memory.read(0, &mut first).unwrap();
    pair.clients[1].memory.read(8192, &mut second).unwrap();
    assert!([first, second].concat() == data);
}

#[test]
fn atomics_return_the_value_before() {
    let mut pair = Pair::new(Connect::default());
    pair.clients[1].memory.write(4096, &5u64.to_ne_bytes()).unwrap();
    let sge = pair.clients[0].sge(0, 8);
    let add = SendWqe { compare_add: 10, ..wqe(&pair, WrOpcode::AtomicFetchAndAdd) };
    let swap = SendWqe { compare_add: 15, swap: 77, ..wqe(&pair, WrOpcode::AtomicCmpAndSwp) };
    for (w, before, after) in [(add, 5u64, 15u64), (swap, 15, 77), (swap, 77, 77)] {
        pair.qps[0].post(w, &[sge]);
        pair.exchange();
        assert_eq!(pair.completions(0), [(7, WcStatus::Success)]);
        let mut word = [0; 8];
        pair.clients[0].memory.read(0, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), before);
        pair.clients[1].memory.read(4096, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), after);
    }
}

#[test]
fn inline_data_is_taken_over_at_once() {
    let mut pair = Pair::new(Connect::default());
    let w = wqe(&pair, WrOpcode::RdmaWrite);
    pair.qps[0].post_inline(w, b"inline bytes");
    pair.exchange();
    let mut out = [0; 12];
    pair.clients[1].memory.read(4096, &mut out).unwrap();
    assert_eq!(&out, b"inline bytes");
}
