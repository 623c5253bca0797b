//! Priority flow control on the wire: a PFC frame on a daemon's interface stops one priority and no other.

mod process;
mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use ferroce::control::{Reply, Request};
use ferroce::{AccessFlags, AhAttr, Gid, QpAttr, QpAttrMask, QpInit, QpState, QueuePair, SendWr};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use pmd::{Burst, Port, PortConfig, QueuePair as DeviceQueues, StartedPort, TxBurst, Vdev};
use process::Ferroced;
use shm::qos::{PfcBy, PortQos};
use support::{PATIENCE, Peer};
use wire::buf::{Dest, TxBatch};
use wire::{ArpOperation, ArpRepr, EtherType, EthernetRepr, Frame, MacAddr, PfcRepr};

const CONFIG: &str = "[qos]\npfc_priorities = [3]\n";
const PORT: &str = "[[port]]\nvdev = \"net_af_packet0,iface=eth0\"\n";
const PEER_IP: [u8; 4] = [10, 1, 0, 9];
/// A DSCP of priority 3.
const DSCP_3: u8 = 26;
/// 65535 quanta at 10 Gbit/s, which is what a veth says, rounded down.
const LONGEST_PAUSE: Duration = Duration::from_micros(3_355);

/// The other end of the daemon's link: a device of its own, on which the test plays the peer by hand.
struct Wire {
    _port: StartedPort,
    queues: DeviceQueues,
    tx: TxBurst,
}

/// A network of this thread's own, with eth0 for the daemon and peer0 for the test. `None`, and a word, if that needs more privilege.
fn enter_network() -> Option<Wire> {
    match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => {}
        Err(Errno::EPERM) => {
            println!("skipped: a network namespace needs CAP_SYS_ADMIN");
            return None;
        }
        Err(errno) => panic!("a network namespace: {errno}"),
    }
    ip("link add eth0 mtu 1500 type veth peer name peer0 mtu 1500");
    ip("link set eth0 addrgenmode none");
    ip("link set peer0 addrgenmode none");
    ip("addr add 10.1.0.1/24 dev eth0");
    ip("link set peer0 up");
    ip("link set eth0 up");
    let eal = daemon::embedded::start_dpdk().unwrap();
    let vdev = Vdev::af_packet(7, "peer0", 1, 1_518);
    eal.add_vdev(&vdev).unwrap();
    let config = PortConfig { max_frame_bytes: 1_518, ..PortConfig::default() };
    let mut port = Port::by_name(eal, vdev.name()).unwrap().configure(&config).unwrap();
    let queues = port.take_queue_pairs().pop().unwrap();
    let tx = TxBurst::new(&queues.tx);
    Some(Wire { _port: port, queues, tx })
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

impl Wire {
    fn send(&mut self, frame: &[u8]) {
        let fill = |buf: &mut [u8]| {
            buf.copy_from_slice(frame);
            true
        };
        assert!(self.tx.push(Dest::Wire, frame.len(), fill));
        self.tx.flush(&mut self.queues.tx);
    }

    /// A PFC frame that pauses priority 3 for so many quanta; 0 lifts the pause.
    fn pause(&mut self, quanta: u16) {
        let mut all = [None; 8];
        all[3] = Some(quanta);
        self.send(&PfcRepr::Priority(all).to_bytes(MacAddr([2, 0, 0, 0, 0, 9])));
    }

    /// Takes what has come, and answers who asks for the peer's address. DSCPs of RoCE packets.
    fn serve(&mut self) -> Vec<u8> {
        let mut burst = Burst::new();
        self.queues.rx.burst(&mut burst);
        let frames: Vec<Vec<u8>> = burst.iter().map(|mbuf| mbuf.data().to_vec()).collect();
        frames.iter().filter_map(|frame| arp_answer(frame)).for_each(|answer| self.send(&answer));
        frames.iter().filter_map(|frame| Frame::parse(frame).ok()).map(|frame| frame.traffic_class() >> 2).collect()
    }

    /// DSCPs of the RoCE packets until `done` says so.
    fn serve_until(&mut self, mut done: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
        let (end, mut seen) = (Instant::now() + PATIENCE, Vec::new());
        while !done(&seen) {
            assert!(Instant::now() < end, "within {PATIENCE:?} only {seen:?} came");
            seen.extend(self.serve());
        }
        seen
    }
}

fn arp_answer(frame: &[u8]) -> Option<Vec<u8>> {
    let ethernet = EthernetRepr::parse(frame).filter(|ethernet| ethernet.ether_type == EtherType::ARP)?;
    let request = ArpRepr::parse(&frame[EthernetRepr::LEN..]).filter(|arp| arp.target_ip == Ipv4Addr::from(PEER_IP))?;
    let mac = MacAddr([2, 0, 0, 0, 0, 9]);
    let head = EthernetRepr { dst: ethernet.src, src: mac, ether_type: EtherType::ARP };
    let arp = ArpRepr {
        operation: ArpOperation::Reply,
        sender_mac: mac,
        sender_ip: PEER_IP.into(),
        target_mac: request.sender_mac,
        target_ip: request.sender_ip,
    };
    Some([&head.to_bytes()[..], &arp.to_bytes()[..]].concat())
}

/// An unreliable connection to the peer with this DSCP: its requests are complete once they are sent.
fn connect(peer: &Peer, dscp: u8) -> QueuePair {
    let qp = peer.pd.create_qp(&QpInit { cap: peer.qp.cap(), ..QpInit::uc(&peer.cq) }).unwrap();
    qp.to_init(1, AccessFlags::NONE).unwrap();
    let ah_attr = AhAttr {
        dgid: Gid::from_ip(IpAddr::from(PEER_IP)),
        traffic_class: dscp << 2,
        port_num: 1,
        ..AhAttr::default()
    };
    let attr = QpAttr { qp_state: QpState::Rtr, path_mtu: 3, dest_qp_num: 0x55, ah_attr, ..QpAttr::default() };
    let rtr = QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    qp.modify(&attr, rtr).unwrap();
    qp.modify(&QpAttr { qp_state: QpState::Rts, ..attr }, QpAttrMask::STATE | QpAttrMask::SQ_PSN).unwrap();
    qp
}

fn send(peer: &Peer, qp: &QueuePair, wr_id: u64) {
    let sges = [peer.region.sge(0, 64).unwrap()];
    qp.post_send(&SendWr::write(wr_id, &sges, 0x1000, 7).signaled()).unwrap();
}

fn show(peer: &Peer) -> PortQos {
    match peer.context.call(&Request::ShowQos { port_num: Some(1) }).unwrap() {
        Reply::Qos(mut ports) => ports.pop().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn counter(peer: &Peer, name: &str) -> u64 {
    let state = &show(peer).priorities[3];
    state.counters.iter().find(|(counter, _)| counter == name).unwrap().1
}

/// Pauses priority 3, and waits until the daemon knows. The pause has not begun before the time returned.
fn pause(wire: &mut Wire, peer: &Peer) -> Instant {
    let before = counter(peer, "rx_pause");
    let began = Instant::now();
    wire.pause(0xffff);
    while counter(peer, "rx_pause") == before {
        assert!(began.elapsed() < PATIENCE);
    }
    began
}

#[test]
fn a_pfc_frame_stops_its_priority_until_it_is_lifted_or_over() {
    let Some(mut wire) = enter_network() else { return };
    let daemon = Ferroced::start_on(PORT, CONFIG);
    let peer = Peer::new(daemon.connect(), 4_096, 0);
    let (paused, open) = (connect(&peer, DSCP_3), connect(&peer, 0));
    let mut sent = 0;
    let mut send = |qp: &QueuePair| {
        send(&peer, qp, sent);
        sent += 1;
    };
    send(&paused);
    send(&open);
    wire.serve_until(|seen| seen.contains(&DSCP_3) && seen.contains(&0));
    // The device can't do it: the engine does.
    assert_eq!(show(&peer).pfc_by, PfcBy::Engine);

    // On a busy machine a pause may be over before anything is seen of it: then it shows nothing, and the next one may.
    let (mut overtaken, mut lifted) = (0, 0);
    for _ in 0..200 {
        let began = pause(&mut wire, &peer);
        send(&paused);
        send(&open);
        let mut seen = wire.serve_until(|seen| seen.contains(&0));
        if began.elapsed() < LONGEST_PAUSE {
            assert_eq!(seen, [0], "the other priority goes on, and alone");
            overtaken += 1;
        }
        wire.pause(0);
        if !seen.contains(&DSCP_3) {
            seen.extend(wire.serve_until(|seen| !seen.is_empty()));
            lifted += u32::from(began.elapsed() < LONGEST_PAUSE);
        }
        assert_eq!(seen.len(), 2);
        peer.complete();
        peer.complete();
        if overtaken > 0 && lifted > 0 {
            break;
        }
    }
    assert!(overtaken > 0 && lifted > 0, "{overtaken} {lifted}");

    // One that is neither renewed nor lifted ends by itself, and not before its time.
    let began = pause(&mut wire, &peer);
    send(&paused);
    wire.serve_until(|seen| !seen.is_empty());
    assert!(began.elapsed() >= LONGEST_PAUSE, "{:?}", began.elapsed());
    assert!(!show(&peer).priorities[3].paused);
    assert!(counter(&peer, "rx_pause_duration_ns") >= 3_350_000);
}
