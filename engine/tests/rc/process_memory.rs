//! Regions of a client's process: every operation in each tier, memory that goes away or moves, and what is refused.

use std::fs::File;
use std::os::fd::OwnedFd;

use engine::ErrorCause;
use engine::config::ProcessMemoryPolicy;
use engine::control::Peer;
use nix::sys::memfd::{MFdFlags, memfd_create};
use shm::attr::{AccessFlags, WcStatus, WrOpcode};
use shm::control::{AsyncEvent, MOVE_CHUNK_BYTES, MOVE_FILE_BYTES_MAX, MrTier, Reply, Request};
use shm::guarded::GuardedMapping;
use shm::layout::Sge;
use shm::mapping::{Mapping, PageSize};
use shm::process_memory::ProcessMemory;
use shm::vma::{Maps, Vma};

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
    /// Memory that the engine can't map: its file is sealed against that.
    fn new(pair: &mut Pair, side: usize) -> Self {
        let mapping = Mapping::create(c"application", 64 << 10, PageSize::Base).unwrap();
        mapping.populate(0, mapping.bytes()).unwrap();
        mapping.keep_pages().unwrap();
        Self::register(pair, side, mapping)
    }

    /// Memory that the engine maps as well, if it may.
    fn shared(pair: &mut Pair, side: usize) -> Self {
        Self::register(pair, side, Mapping::create(c"application", 64 << 10, PageSize::Base).unwrap())
    }

    fn register(pair: &mut Pair, side: usize, mapping: Mapping) -> Self {
        let key = register(pair, side, mapping.as_ptr().addr() as u64, mapping.bytes());
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

fn register(pair: &mut Pair, side: usize, addr: u64, length: u64) -> u32 {
    assert_eq!(attach(pair, side, vec![ProcessMemory::open_own().unwrap()]), Reply::Done);
    let request =
        Request::RegProcessMemory { pd: pair.clients[side].pd, addr, iova: addr, length, access: ALL, share: true };
    match pair.ask(side, request) {
        Reply::Mr { lkey, .. } => lkey,
        other => panic!("{other:?}"),
    }
}

/// How a region of a side is reached, and how much of it through mappings.
fn tier(pair: &mut Pair, side: usize, lkey: u32) -> (MrTier, u64) {
    match pair.ask(side, Request::QueryMr { lkey }) {
        Reply::MrUse { tier, mapped_bytes, .. } => (tier, mapped_bytes),
        other => panic!("{other:?}"),
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
    every_operation(&mut pair, &ours, &theirs);
    let counters = pair.counters(1);
    assert!(counters.process_memory_writes > 9 && counters.process_memory_reads > 8, "{counters:?}");
    assert_eq!((counters.process_memory_faults, counters.process_memory_mapped), (0, 0));
    assert_eq!(tier(&mut pair, 1, theirs.key), (MrTier::Process, 0));
}

#[test]
fn every_operation_reaches_shared_memory_without_a_system_call() {
    let mut pair = Pair::new(Connect::default());
    let (ours, theirs) = (Memory::shared(&mut pair, 0), Memory::shared(&mut pair, 1));
    // Who may not look at other mappings' files (CAP_CHECKPOINT_RESTORE) has the same by system calls.
    let may = nix::unistd::geteuid().is_root();
    let expected = if may { (MrTier::Shared, 64 << 10) } else { (MrTier::Process, 0) };
    assert_eq!(tier(&mut pair, 1, theirs.key), expected);
    every_operation(&mut pair, &ours, &theirs);
    let counters = pair.counters(1);
    assert_eq!(
        (counters.process_memory_writes + counters.process_memory_reads == 0, counters.process_memory_faults),
        (may, 0)
    );
    assert_eq!(counters.process_memory_mapped > 17, may);
}

#[test]
fn shared_memory_that_is_truncated_is_an_error_where_it_is_missing_and_served_where_it_is_not() {
    let mut pair = Pair::new(Connect::default());
    let ours = Memory::new(&mut pair, 0);
    let file = File::from(memfd_create(c"application", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(64 << 10).unwrap();
    let theirs = GuardedMapping::map(file.try_clone().unwrap().into(), 0, 64 << 10).unwrap();
    let (addr, key) = (theirs.addr(), register(&mut pair, 1, theirs.addr(), theirs.bytes()));
    ours.mapping.write(0, &[7; 100]).unwrap();
    let write_to = |pair: &mut Pair, offset: u64| {
        let mut wqe = pair.wqe(7, WrOpcode::RdmaWrite);
        (wqe.remote_addr, wqe.rkey) = (addr + offset, key);
        pair.qps[0].post(wqe, &[ours.sge(0, 100)]);
        pair.exchange();
        pair.failures(0)
    };
    assert_eq!(write_to(&mut pair, 32 << 10), [done(7)]);
    file.set_len(16 << 10).unwrap();
    let refused = failed(7, WcStatus::RemOpErr, ErrorCause::NakRemoteOperation);
    assert_eq!(write_to(&mut pair, 32 << 10), [refused]);
    pair.reconnect();
    assert_eq!(write_to(&mut pair, 8 << 10), [done(7)]);
    let mut out = [0; 100];
    theirs.read(8 << 10, &mut out).unwrap();
    assert_eq!(out, [7; 100]);
    assert_eq!(tier(&mut pair, 1, key), (MrTier::Process, 0), "no longer by the mapping");
}

/// Moves all of `theirs` as a client would; `between` is called when the pages are only to be found in scratch.
fn move_away(pair: &mut Pair, theirs: Memory, between: impl FnOnce(&mut Pair, u64, u32)) -> (Mapping, u32) {
    let session = pair.clients[1].session;
    let (addr, length, key) = (theirs.addr(), theirs.mapping.bytes(), theirs.key);
    let map = || Mapping::create(c"move", length, PageSize::Base).unwrap();
    let (file, scratch) = (map(), map());
    let fd = file.fd().try_clone_to_owned().unwrap();
    assert_eq!(pair.hosts[1].request(session, Request::MoveOpen { bytes: length }, vec![fd]).0, Reply::Done);
    let begin = Request::MoveBegin { addr, length, scratch: scratch.as_ptr().addr() as u64, offset: 0 };
    assert_eq!(pair.ask(1, begin), Reply::Done);
    scratch.write(0, &theirs.bytes(0, length as usize)).unwrap();
    drop(theirs);
    between(pair, addr, key);
    assert_eq!(pair.ask(1, Request::MoveCopy), Reply::Done);
    (file, key)
}

#[test]
fn memory_that_moves_is_reached_before_during_and_after() {
    let mut pair = Pair::new(Connect::default());
    // One piece of the address space has it, wherever it lies.
    let ours = Memory::new(&mut pair, 0);
    let theirs = loop {
        let memory = Memory::new(&mut pair, 1);
        if memory.addr() / MOVE_CHUNK_BYTES == (memory.addr() + memory.mapping.bytes() - 1) / MOVE_CHUNK_BYTES {
            break memory;
        }
    };
    let data = pattern(9001);
    ours.mapping.write(0, &data).unwrap();
    theirs.mapping.write(60_000, b"from before").unwrap();
    let operate = |pair: &mut Pair, opcode, here, addr: u64, key| {
        let mut wqe = pair.wqe(7, opcode);
        (wqe.remote_addr, wqe.rkey, wqe.compare_add) = (addr, key, 5);
        pair.qps[0].post(wqe, &[here]);
        pair.exchange();
        assert_eq!(pair.failures(0), [done(7)], "{opcode}");
    };
    operate(&mut pair, WrOpcode::RdmaWrite, ours.sge(0, 9001), theirs.addr(), theirs.key);
    let (file, key) = move_away(&mut pair, theirs, |pair, addr, key| {
        operate(pair, WrOpcode::RdmaRead, ours.sge(20_000, 9001), addr, key);
        operate(pair, WrOpcode::RdmaWrite, ours.sge(0, 9001), addr + 30_001, key);
        operate(pair, WrOpcode::AtomicFetchAndAdd, ours.sge(40_000, 8), addr + 50_000, key);
        operate(pair, WrOpcode::AtomicFetchAndAdd, ours.sge(40_000, 8), addr + 50_000, key);
    });
    assert_eq!(ours.bytes(20_000, 9001), data);
    let in_file = |offset: u64, length: usize| {
        let mut out = vec![0; length];
        file.read(offset, &mut out).unwrap();
        out
    };
    assert_eq!([in_file(0, 9001), in_file(30_001, 9001)], [data.clone(), data]);
    assert_eq!((in_file(60_000, 11), in_file(50_000, 8)), (b"from before".to_vec(), 10u64.to_ne_bytes().to_vec()));
    assert_eq!(pair.counters(1).process_memory_faults, 0);
    assert_eq!(tier(&mut pair, 1, key), (MrTier::Moved, 64 << 10));
}

#[test]
fn a_move_that_can_not_be_is_refused_and_changes_nothing() {
    let mut pair = Pair::new(Connect::default());
    let session = pair.clients[1].session;
    let refused = |reply| match reply {
        Reply::Refused { errno, message } => (errno, message),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(pair.ask(1, Request::MoveCopy)).1, "MoveCopy needs AttachProcess before it");
    let theirs = Memory::new(&mut pair, 1);
    let addr = theirs.addr();
    let begin = |addr, length, scratch, offset| Request::MoveBegin { addr, length, scratch, offset };
    let scratch = 1 << 40;
    assert_eq!(refused(pair.ask(1, begin(addr, 4096, scratch, 0))).1, "MoveBegin needs MoveOpen before it");
    for bytes in [0, 4097, MOVE_FILE_BYTES_MAX + 4096] {
        let fd = theirs.mapping.fd().try_clone_to_owned().unwrap();
        let (reply, _) = pair.hosts[1].request(session, Request::MoveOpen { bytes }, vec![fd]);
        assert_eq!(refused(reply).0, 22, "{bytes} bytes");
    }
    assert_eq!(refused(pair.ask(1, Request::MoveOpen { bytes: 4096 })).0, 22, "without a file");
    let file = Mapping::create(c"move", 8192, PageSize::Base).unwrap();
    let fd = file.fd().try_clone_to_owned().unwrap();
    assert_eq!(pair.hosts[1].request(session, Request::MoveOpen { bytes: 8192 }, vec![fd]).0, Reply::Done);
    for wrong in [
        begin(addr, 0, scratch, 0),
        begin(addr + 1, 4096, scratch, 0),
        begin(addr, 4095, scratch, 0),
        begin(addr, 4096, scratch, 8192),
        begin(addr, 4096, scratch, u64::MAX - 4095),
        begin(addr, 4096, scratch + 8, 0),
        begin(addr, 4096, addr, 0),
        begin(addr, MOVE_CHUNK_BYTES + 4096, scratch, 0),
        begin(u64::MAX - 4095, 4096, scratch, 0),
        begin(addr, 4096, u64::MAX - 4095, 0),
        begin(1 << 30, 4096, scratch, 0),
    ] {
        assert_eq!(refused(pair.ask(1, wrong.clone())).0, 22, "{wrong:?}");
    }
    assert!(refused(pair.ask(1, Request::MoveAbandon)).1.ends_with("needs MoveBegin before it"));
    assert_eq!(pair.ask(1, begin(addr, 4096, scratch, 0)), Reply::Done);
    assert_eq!(refused(pair.ask(1, begin(addr, 4096, scratch, 0))).0, 16, "one at a time");
    assert_eq!(refused(pair.ask(1, Request::MoveCopy)).0, 14, "scratch is not there");
    assert_eq!(pair.ask(1, Request::MoveAbandon), Reply::Done);
    assert_eq!(refused(pair.ask(1, begin(addr, 4096, scratch, 0))).0, 16, "never again");
    let ours = Memory::new(&mut pair, 0);
    ours.mapping.write(0, &[5; 64]).unwrap();
    operate(&mut pair, WrOpcode::RdmaWrite, ours.sge(0, 64), &theirs, 100);
    assert_eq!((pair.failures(0), theirs.bytes(100, 64)), (vec![done(7)], vec![5; 64]));
    assert_eq!(tier(&mut pair, 1, theirs.key), (MrTier::Process, 0));
    assert_eq!(refused(pair.ask(0, Request::QueryMr { lkey: theirs.key })).0, 22, "another session's");
}

#[test]
fn a_region_that_is_renewed_is_reached_by_its_new_key_only() {
    let mut pair = Pair::new(Connect::default());
    let (ours, theirs) = (Memory::new(&mut pair, 0), Memory::new(&mut pair, 1));
    let (key, mapped) = renew(&mut pair, theirs.key, true);
    assert!(mapped.is_empty(), "{mapped:?}");
    assert_ne!(key >> 8, theirs.key >> 8);
    let Reply::Mrs { mrs, .. } = pair.ask(1, Request::ListMrs { after: None }) else { panic!() };
    assert_eq!((mrs.len(), mrs[1].addr, mrs[1].access), (2, theirs.addr(), ALL));
    let renewed = Memory { key, mapping: theirs.mapping };
    operate(&mut pair, WrOpcode::RdmaWrite, ours.sge(0, 64), &renewed, 0);
    assert_eq!(pair.failures(0), [done(7)]);
    let old = Memory { key: theirs.key, mapping: renewed.mapping };
    operate(&mut pair, WrOpcode::RdmaWrite, ours.sge(0, 64), &old, 0);
    assert_eq!(pair.failures(0), [failed(7, WcStatus::RemAccessErr, ErrorCause::NakRemoteAccess)]);
    let renewed = Request::RenewMr { lkey: old.key, share: true };
    assert!(matches!(pair.ask(1, renewed), Reply::Refused { errno: 22, .. }));
}

/// Has a region of side 1 registered anew: its key, and what of it is mapped.
fn renew(pair: &mut Pair, lkey: u32, share: bool) -> (u32, Vec<Vma>) {
    match pair.ask(1, Request::RenewMr { lkey, share }) {
        Reply::RenewedMr { lkey, rkey, mapped } if lkey == rkey => (lkey, mapped),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_shared_region_that_is_renewed_is_mapped_as_before_and_says_what() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let mut pair = Pair::new(Connect::default());
    let (ours, mut theirs) = (Memory::new(&mut pair, 0), Memory::shared(&mut pair, 1));
    let (key, mapped) = renew(&mut pair, theirs.key, true);
    let vma = Maps::open_own().unwrap().at(theirs.addr()).unwrap().unwrap();
    assert_eq!(mapped, [vma]);
    assert!(matches!(pair.ask(1, Request::QueryMr { lkey: theirs.key }), Reply::Refused { errno: 22, .. }));
    theirs.key = key;
    assert_eq!(tier(&mut pair, 1, key), (MrTier::Shared, 64 << 10));
    every_operation(&mut pair, &ours, &theirs);
    let (key, mapped) = renew(&mut pair, key, false);
    assert_eq!((mapped, tier(&mut pair, 1, key)), (Vec::new(), (MrTier::Process, 0)), "as the client wants it");
}

#[test]
fn what_a_renewed_region_maps_is_let_go_of_once_the_process_has_unmapped_it() {
    const SECOND: u64 = 1_000_000_000;
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let mut pair = Pair::new(Connect::default());
    let after_a_look = |pair: &mut Pair, lkey| {
        pair.advance(2 * SECOND);
        pair.exchange();
        tier(pair, 1, lkey)
    };
    let (first, second) = (Memory::shared(&mut pair, 1), Memory::shared(&mut pair, 1));
    let (first_key, _) = renew(&mut pair, first.key, true);
    // Of the second somebody has another part registered, too.
    let held = register(&mut pair, 1, second.addr() + 4096, 4096);
    let (second_key, _) = renew(&mut pair, second.key, true);
    let all = (MrTier::Shared, 64 << 10);
    for key in [first_key, second_key] {
        assert_eq!(after_a_look(&mut pair, key), all, "it is still there");
    }
    drop((first.mapping, second.mapping));
    assert_eq!(after_a_look(&mut pair, first_key), (MrTier::Process, 0));
    assert_eq!(after_a_look(&mut pair, second_key), all);
    assert_eq!(tier(&mut pair, 1, held), (MrTier::Shared, 4096), "as long as it is registered");
    assert_eq!(pair.ask(1, Request::DeregMr { lkey: held }), Reply::Done);
    assert_eq!(after_a_look(&mut pair, second_key), (MrTier::Process, 0));
}

/// Every operation of side 0 on the memory of side 1.
fn every_operation(pair: &mut Pair, ours: &Memory, theirs: &Memory) {
    let data = pattern(9001);
    ours.mapping.write(3, &data).unwrap();
    operate(pair, WrOpcode::RdmaWrite, ours.sge(3, 9001), theirs, 77);
    assert_eq!((pair.failures(0), theirs.bytes(77, 9001)), (vec![done(7)], data.clone()));

    operate(pair, WrOpcode::RdmaRead, ours.sge(20_000, 9001), theirs, 77);
    assert_eq!((pair.failures(0), ours.bytes(20_000, 9001)), (vec![done(7)], data.clone()));

    pair.qps[1].post_recv(8, &[theirs.sge(30_000, 1000), theirs.sge(40_000, 9000)]);
    operate(pair, WrOpcode::Send, ours.sge(3, 9001), theirs, 0);
    assert_eq!((pair.failures(0), pair.failures(1)), (vec![done(7)], vec![done(8)]));
    assert_eq!([theirs.bytes(30_000, 1000), theirs.bytes(40_000, 8001)].concat(), data);

    for (opcode, before, after) in [
        (WrOpcode::AtomicFetchAndAdd, 40u64, 45u64),
        (WrOpcode::AtomicCmpAndSwp, 45, 45),
        (WrOpcode::AtomicCmpAndSwp, 5, 9),
    ] {
        theirs.mapping.write(64, &before.to_ne_bytes()).unwrap();
        operate(pair, opcode, ours.sge(0, 8), theirs, 64);
        assert_eq!(pair.failures(0), [done(7)]);
        assert_eq!(ours.bytes(0, 8), before.to_ne_bytes(), "{opcode}");
        assert_eq!(theirs.bytes(64, 8), after.to_ne_bytes(), "{opcode}");
    }
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
        let request = Request::RegProcessMemory { pd, addr, iova: addr, length, access: ALL, share: true };
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
    let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
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
