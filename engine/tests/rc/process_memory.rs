//! Regions of a client's process: every operation, memory that goes away, and what is refused.

use std::os::fd::OwnedFd;

use engine::ErrorCause;
use engine::config::ProcessMemoryPolicy;
use engine::control::Peer;
use shm::attr::{AccessFlags, WcStatus, WrOpcode};
use shm::control::{AsyncEvent, MrTier, Reply, Request};
use shm::layout::Sge;
use shm::mapping::{Mapping, PageSize};
use shm::process_memory::ProcessMemory;

use crate::peer::{done, failed, pattern};
use crate::support::{Connect, Host, HostOptions, Pair};

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

fn attach(pair: &mut Pair, side: usize, fd: Vec<OwnedFd>) -> Reply {
    let session = pair.clients[side].session;
    pair.hosts[side].request(session, Request::AttachProcess, fd).0
}

/// Memory of this process as the applications of either side have it: nobody attaches it.
struct Memory {
    mapping: Mapping,
    key: u32,
}

impl Memory {
    fn new(pair: &mut Pair, side: usize) -> Self {
        assert_eq!(attach(pair, side, vec![ProcessMemory::open_own().unwrap()]), Reply::Done);
        let mapping = Mapping::create(c"application", 64 << 10, PageSize::Base).unwrap();
        let addr = mapping.as_ptr().addr() as u64;
        let pd = pair.clients[side].pd;
        let request = Request::RegProcessMemory { pd, addr, iova: addr, length: mapping.bytes(), access: ALL };
        let Reply::Mr { lkey: key, .. } = pair.ask(side, request) else { panic!("not registered") };
        Self { mapping, key }
    }

    fn addr(&self) -> u64 {
        self.mapping.as_ptr().addr() as u64
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.addr() + offset, length, lkey: self.key }
    }

    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        self.mapping.read(offset, &mut out).unwrap();
        out
    }
}

/// Side 0 does one operation on the memory of side 1.
fn operate(pair: &mut Pair, opcode: WrOpcode, here: Sge, there: &Memory, offset: u64) {
    let mut wqe = pair.wqe(7, opcode);
    (wqe.remote_addr, wqe.rkey) = (there.addr() + offset, there.key);
    (wqe.compare_add, wqe.swap) = (5, 9);
    pair.qps[0].post(wqe, &[here]);
    pair.exchange();
}

#[test]
fn every_operation_reaches_memory_that_nobody_attached() {
    let mut pair = Pair::new(Connect::default());
    let (ours, theirs) = (Memory::new(&mut pair, 0), Memory::new(&mut pair, 1));
    let data = pattern(9001);
    ours.mapping.write(3, &data).unwrap();
    operate(&mut pair, WrOpcode::RdmaWrite, ours.sge(3, 9001), &theirs, 77);
    assert_eq!((pair.failures(0), theirs.bytes(77, 9001)), (vec![done(7)], data.clone()));

    operate(&mut pair, WrOpcode::RdmaRead, ours.sge(20_000, 9001), &theirs, 77);
    assert_eq!((pair.failures(0), ours.bytes(20_000, 9001)), (vec![done(7)], data.clone()));

    pair.qps[1].post_recv(8, &[theirs.sge(30_000, 1000), theirs.sge(40_000, 9000)]);
    operate(&mut pair, WrOpcode::Send, ours.sge(3, 9001), &theirs, 0);
    assert_eq!((pair.failures(0), pair.failures(1)), (vec![done(7)], vec![done(8)]));
    assert_eq!([theirs.bytes(30_000, 1000), theirs.bytes(40_000, 8001)].concat(), data);

    for (opcode, before, after) in [
        (WrOpcode::AtomicFetchAndAdd, 40u64, 45u64),
        (WrOpcode::AtomicCmpAndSwp, 45, 45),
        (WrOpcode::AtomicCmpAndSwp, 5, 9),
    ] {
        theirs.mapping.write(64, &before.to_ne_bytes()).unwrap();
        operate(&mut pair, opcode, ours.sge(0, 8), &theirs, 64);
        assert_eq!(pair.failures(0), [done(7)]);
        assert_eq!(ours.bytes(0, 8), before.to_ne_bytes(), "{opcode}");
        assert_eq!(theirs.bytes(64, 8), after.to_ne_bytes(), "{opcode}");
    }
    let counters = pair.counters(1);
    assert!(counters.process_memory_writes > 9 && counters.process_memory_reads > 8, "{counters:?}");
    assert_eq!(counters.process_memory_faults, 0);
}

#[test]
fn memory_that_is_gone_fails_the_work_request_and_nothing_else() {
    let gone = WcStatus::LocProtErr;
    let remote = || vec![failed(7, WcStatus::RemOpErr, ErrorCause::NakRemoteOperation)];
    let mut pair = Pair::new(Connect::default());
    // Of the sender's.
    let Memory { mapping, key } = Memory::new(&mut pair, 0);
    let addr = mapping.as_ptr().addr() as u64;
    drop(mapping);
    let wqe = pair.wqe(7, WrOpcode::RdmaWrite);
    pair.qps[0].post(wqe, &[Sge { addr, length: 10, lkey: key }]);
    pair.exchange();
    assert_eq!(pair.failures(0), [failed(7, gone, ErrorCause::NotMapped)]);

    // Of the target of a WRITE and of a READ.
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead, WrOpcode::AtomicFetchAndAdd] {
        pair.reconnect();
        let _ = pair.events(1);
        let Memory { mapping, key } = Memory::new(&mut pair, 1);
        let mut wqe = pair.wqe(7, opcode);
        (wqe.remote_addr, wqe.rkey) = (mapping.as_ptr().addr() as u64, key);
        drop(mapping);
        pair.post(wqe, 8);
        pair.exchange();
        assert_eq!(pair.failures(0), remote(), "{opcode}");
        let qpn = pair.qps[1].qpn;
        assert_eq!(pair.events(1), [AsyncEvent::QpFatal { qpn }], "{opcode}");
        assert_eq!(pair.detail(1).error, Some(ErrorCause::NotMapped.sentence().to_owned()));
    }

    // Of a receive.
    pair.reconnect();
    let theirs = Memory::new(&mut pair, 1);
    pair.qps[1].post_recv(8, &[theirs.sge(0, 100)]);
    drop(theirs);
    let wqe = pair.wqe(7, WrOpcode::Send);
    pair.post(wqe, 10);
    pair.exchange();
    assert_eq!((pair.failures(0), pair.failures(1)), (remote(), vec![failed(8, gone, ErrorCause::NotMapped)]));
    assert!(pair.counters(1).process_memory_faults >= 4);
}

#[test]
fn what_is_not_the_clients_memory_is_refused() {
    let mut pair = Pair::new(Connect::default());
    let pd = pair.clients[0].pd;
    let register = |pair: &mut Pair, addr: u64, length: u64| {
        let request = Request::RegProcessMemory { pd, addr, iova: addr, length, access: ALL };
        match pair.ask(0, request) {
            Reply::Refused { errno, message } => format!("{errno}: {message}"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(register(&mut pair, 4096, 1), "22: RegProcessMemory needs AttachProcess before it");
    let refused = |reply| match reply {
        Reply::Refused { errno, message } => (errno, message),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(attach(&mut pair, 0, vec![])).0, 22);
    let zero = std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap();
    let (errno, message) = refused(attach(&mut pair, 0, vec![zero.into()]));
    assert!(errno == 1 && message.contains("not the client's own /proc/"), "{errno}: {message}");
    let memory = Memory::new(&mut pair, 0);
    let end = memory.addr() + memory.mapping.bytes();
    assert_eq!(register(&mut pair, 4096, 1), "14: address 0x1000 is not mapped in the client's process");
    assert!(register(&mut pair, end - 1, 1 << 40).starts_with("14: address 0x"));
    assert!(register(&mut pair, 1 << 63, 1).ends_with("passes the last address"));
    assert!(register(&mut pair, u64::MAX, 2).ends_with("passes the last address"));
}

#[test]
fn regions_are_listed_with_their_tier_and_without_their_keys() {
    let mut pair = Pair::new(Connect::default());
    let memory = Memory::new(&mut pair, 0);
    let Reply::Mrs { mrs, more: false } = pair.ask(0, Request::ListMrs { after: None }) else { panic!() };
    let tiers: Vec<_> = mrs.iter().map(|mr| (mr.number, mr.tier, mr.length)).collect();
    let attached = pair.clients[0].memory.bytes();
    assert_eq!(tiers, [(1, MrTier::Mapped, attached), (2, MrTier::Process, memory.mapping.bytes())]);
    assert_eq!((mrs[1].addr, mrs[1].access, mrs[1].pid), (memory.addr(), ALL, std::process::id()));
    let after = Some((mrs[0].session, mrs[0].number));
    let Reply::Mrs { mrs: rest, more: false } = pair.ask(0, Request::ListMrs { after }) else { panic!() };
    assert_eq!(rest, mrs[1..]);
}

#[test]
fn the_operator_says_whose_memory_it_may_be() {
    let attach = |process_memory, uid| {
        let mut host = Host::new(HostOptions { process_memory, ..HostOptions::new(1) });
        let session = host.control.open_session(Peer { pid: std::process::id(), uid }).unwrap();
        let hello = Request::Hello { abi_version: shm::ABI_VERSION, client_name: "test".to_owned() };
        host.request(session, hello, vec![]);
        match host.request(session, Request::AttachProcess, vec![ProcessMemory::open_own().unwrap()]).0 {
            Reply::Done => None,
            Reply::Refused { errno: 1, message } => Some(message),
            other => panic!("{other:?}"),
        }
    };
    let ours = ProcessMemoryPolicy::UserAndRoot(7);
    assert_eq!([7, 0].map(|uid| attach(ours, uid)), [None, None]);
    assert_eq!(attach(ProcessMemoryPolicy::Everybody, 8), None);
    for (policy, uid) in [(ours, 8), (ProcessMemoryPolicy::Nobody, 7), (ProcessMemoryPolicy::Nobody, 0)] {
        let sentence = attach(policy, uid).unwrap();
        assert!(sentence.contains(&format!("user {uid} ")) && sentence.contains("process_memory"), "{sentence}");
    }
}
