//! Embedded engines, polled and on threads: every operation between two of them, and inside one.

mod support;

use std::sync::Mutex;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;

use daemon::embedded::{
    PolledNode, ThreadedNode, engine_config, polled_pair, ring_pair_ports, start_dpdk, threaded_pair,
};
use daemon::{EngineError, IdlePolicy, LcoreSetup};
use ferroce::control::{Reply, Request};
use ferroce::{AccessFlags, Context, OwnRange, SendWr, WcStatus, WorkCompletion};
use support::{Peer, connect, datagrams, every_operation, extended_connection, unreliable_connection};

/// These tests share the machine's two cores: engines that spin would starve each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn polled_context(node: &PolledNode) -> Context {
    Context::from_endpoint(node.connect().unwrap()).unwrap()
}

fn threaded_context(node: &ThreadedNode) -> Context {
    Context::from_fd(node.connect().unwrap()).unwrap()
}

fn adaptive(lcores: usize) -> LcoreSetup {
    LcoreSetup { cores: vec![None; lcores], idle: IdlePolicy::Adaptive }
}

#[test]
fn polled_nodes_do_every_operation_on_one_thread() {
    let [a, b] = polled_pair(&engine_config("ferroce0")).unwrap();
    let (a, b) = (Peer::new(polled_context(&a), 1 << 20, 0), Peer::new(polled_context(&b), 1 << 20, 0));
    connect(&a, &b);
    every_operation(&a, &b);
}

#[test]
fn two_clients_of_one_polled_node_need_no_wire() {
    let [node, _] = polled_pair(&engine_config("ferroce0")).unwrap();
    let (a, b) = (Peer::new(polled_context(&node), 1 << 20, 0), Peer::new(polled_context(&node), 1 << 20, 0));
    connect(&a, &b);
    every_operation(&a, &b);
    assert!(counter(&a.context, "port 1", "local_packets") > 0);
    assert_eq!(counter(&a.context, "port 1", "tx_roce_packets"), 0);
}

#[test]
fn threaded_nodes_do_every_operation() {
    let _alone = ONE_AT_A_TIME.lock();
    let setup = adaptive(1);
    let [a, b] = threaded_pair(&engine_config("ferroce0"), [&setup, &setup]).unwrap();
    let (a, b) = (Peer::new(threaded_context(&a), 1 << 20, 0), Peer::new(threaded_context(&b), 1 << 20, 0));
    connect(&a, &b);
    every_operation(&a, &b);
}

#[test]
fn qps_on_different_lcores_reach_each_other_by_wire_and_without() {
    let _alone = ONE_AT_A_TIME.lock();
    let setup = adaptive(2);
    let [a_node, b_node] = threaded_pair(&engine_config("ferroce0"), [&setup, &setup]).unwrap();
    // A queue of the pair leads to the queue of the same number, so that lcore 0 gets what is for a QP on lcore 1.
    let a = Peer::new(threaded_context(&a_node), 1 << 20, 0);
    let b = Peer::new(threaded_context(&b_node), 1 << 20, 1);
    connect(&a, &b);
    every_operation(&a, &b);
    assert!(counter(&b.context, "lcore 0", "handed_over_packets") > 0);
    // And in one engine, from lcore to lcore.
    let (c, d) = (Peer::new(threaded_context(&a_node), 1 << 20, 0), Peer::new(threaded_context(&a_node), 1 << 20, 1));
    connect(&c, &d);
    every_operation(&c, &d);
    assert!(counter(&c.context, "port 1", "local_packets") > 0);
}

#[test]
fn datagrams_go_to_and_fro_by_address_handle() {
    let [a_node, b_node] = polled_pair(&engine_config("ferroce0")).unwrap();
    let (a, b) = (Peer::new(polled_context(&a_node), 1 << 20, 0), Peer::new(polled_context(&b_node), 1 << 20, 0));
    datagrams(&a, &b);
    // And between two QPs of one engine.
    let c = Peer::new(polled_context(&a_node), 1 << 20, 0);
    datagrams(&a, &c);
}

#[test]
fn unreliable_connections_carry_what_they_may() {
    let [a_node, b_node] = polled_pair(&engine_config("ferroce0")).unwrap();
    let (a, b) = (Peer::new(polled_context(&a_node), 1 << 20, 0), Peer::new(polled_context(&b_node), 1 << 20, 0));
    unreliable_connection(&a, &b);
}

#[test]
fn one_connection_reaches_the_srqs_of_two_processes() {
    let [a_node, b_node] = polled_pair(&engine_config("ferroce0")).unwrap();
    let a = Peer::new(polled_context(&a_node), 1 << 20, 0);
    let [b, c] = [(); 2].map(|()| Peer::new(polled_context(&b_node), 1 << 20, 0));
    extended_connection(&a, [&b, &c]);
    // And inside one engine.
    let d = Peer::new(polled_context(&b_node), 1 << 20, 0);
    extended_connection(&d, [&b, &c]);
}

#[test]
fn an_xrc_domain_of_threaded_nodes_may_be_on_any_lcore() {
    let _alone = ONE_AT_A_TIME.lock();
    let setup = adaptive(2);
    let [a_node, b_node] = threaded_pair(&engine_config("ferroce0"), [&setup, &setup]).unwrap();
    let a = Peer::new(threaded_context(&a_node), 1 << 20, 0);
    let [b, c] = [(); 2].map(|()| Peer::new(threaded_context(&b_node), 1 << 20, 1));
    extended_connection(&a, [&b, &c]);
}

/// One counter out of the daemon's groups.
fn counter(context: &Context, group: &str, name: &str) -> u64 {
    let Reply::Stats(stats) = context.call(&Request::Stats).unwrap() else { panic!("no counters") };
    let (_, entries) = stats.groups.iter().find(|(found, _)| found == group).expect(group);
    entries.iter().find(|(found, _)| found == name).expect(name).1
}

#[test]
fn counters_of_engine_lcore_and_device_are_told() {
    let [node, _] = polled_pair(&engine_config("ferroce7")).unwrap();
    let context = polled_context(&node);
    let Reply::Stats(stats) = context.call(&Request::Stats).unwrap() else { panic!("no counters") };
    assert_eq!(stats.device, "ferroce7");
    let groups: Vec<&str> = stats.groups.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(groups, ["shard 0", "port 1", "cm", "lcore 0", "device 1"]);
}

#[test]
fn a_port_without_a_queue_for_each_lcore_is_refused() {
    let eal = start_dpdk().unwrap();
    let [port, _] = ring_pair_ports(eal, 1).unwrap();
    let error = ThreadedNode::start(eal, engine_config("ferroce0"), vec![port], &adaptive(2)).unwrap_err();
    assert_eq!(error.to_string(), "port 1 has 1 queue pairs for 2 lcores: it must have one for each");
    let none = PolledNode::new(eal, engine_config("ferroce0"), Vec::new()).unwrap_err();
    assert_eq!(none.to_string(), EngineError::PortCount(0).to_string());
}

#[test]
fn the_end_of_a_threaded_engine_flushes_what_is_outstanding() {
    let _alone = ONE_AT_A_TIME.lock();
    let setup = adaptive(1);
    let [a_node, b_node] = threaded_pair(&engine_config("ferroce0"), [&setup, &setup]).unwrap();
    let a = Peer::new(threaded_context(&a_node), 1 << 20, 0);
    let b = Peer::new(threaded_context(&b_node), 1 << 20, 0);
    connect(&a, &b);
    drop(b_node);
    // Its peer is gone: the request stays unanswered until the engine ends, too.
    let here = [a.region.sge(0, 64).unwrap()];
    a.qp.post_send(&SendWr::write(9, &here, b.region.addr(), b.region.rkey()).signaled()).unwrap();
    drop(a_node);
    let mut completions = [WorkCompletion::default()];
    let end = std::time::Instant::now() + support::PATIENCE;
    while a.cq.poll(&mut completions) == 0 {
        assert!(std::time::Instant::now() < end, "the work request is lost");
    }
    assert_eq!((completions[0].wr_id, completions[0].status), (9, WcStatus::WrFlushErr));
    assert!(!a.context.is_alive() && !b.context.is_alive());
}

#[test]
fn any_memory_of_the_process_can_be_registered() {
    let _alone = ONE_AT_A_TIME.lock();
    let setup = adaptive(1);
    let [a, b] = threaded_pair(&engine_config("ferroce0"), [&setup, &setup]).unwrap();
    let (a, b) = (Peer::new(threaded_context(&a), 1 << 20, 0), Peer::new(threaded_context(&b), 1 << 20, 0));
    connect(&a, &b);
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let (mut here, there) = (vec![0u8; 300_000], vec![0u8; 300_000]);
    here.iter_mut().zip(0u32..).for_each(|(byte, i)| *byte = (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    let range = |bytes: &[AtomicU8]| {
        // SAFETY: both vectors are seen as atomics only while the regions live.
        unsafe { OwnRange::new(bytes.as_ptr().cast_mut().cast(), bytes.len()) }
    };
    let (here, there) = (atomics(here), atomics(there));
    let ours = a.pd.register_process_memory(range(&here), 0x7000, rights).unwrap();
    let theirs = range(&there);
    let theirs = b.pd.register_process_memory(theirs, theirs.addr(), rights).unwrap();
    let sge = [ours.sge(1, 299_999).unwrap()];
    assert_eq!(sge[0].addr, 0x7001);
    a.qp.post_send(&SendWr::write(1, &sge, theirs.addr(), theirs.rkey()).signaled()).unwrap();
    assert_eq!(a.complete().wr_id, 1);
    let same = |(a, b): (&AtomicU8, &AtomicU8)| a.load(SeqCst) == b.load(SeqCst);
    assert!(here[1..].iter().zip(&there).all(same));
    assert!(counter(&b.context, "shard 0", "process_memory_writes") > 50);
    drop(ours);
    theirs.dereg().unwrap();
    let Reply::Mrs { mrs, .. } = a.context.call(&Request::ListMrs { after: None }).unwrap() else { panic!() };
    assert_eq!(mrs.len(), 1);
}

fn atomics(bytes: Vec<u8>) -> Vec<AtomicU8> {
    bytes.into_iter().map(AtomicU8::new).collect()
}
