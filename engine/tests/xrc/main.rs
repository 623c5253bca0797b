//! Extended reliable connections (IBTA A14) through the engine's public interface: rings on one side, frames on the other, a
//! clock that the test holds.
//!
//! * [`transfer`]: every operation, to the SRQ that it names; [`hostile`]: what names the wrong one.
//! * [`domain`]: who shares what, and for how long.

#[path = "../rc/peer.rs"]
mod peer;
#[path = "../support/mod.rs"]
mod support;

mod domain;
mod hostile;
mod transfer;

use shm::attr::{AccessFlags, QpType, RecoveryPolicy, SendFlags, WcStatus, WrOpcode};
use shm::control::{Reply, Request};
use shm::layout::{Cqe, SendWqe};
use shm::ring::{CqPoller, RecvPoster};
use wire::{Opcode, Qpn, XrcEthRepr};

use peer::Packet;
use support::{BASE, CAP, Connect, HostOptions, Pair, TestQp, connect};

/// An SRQ with what belongs to it.
struct TestSrq {
    handle: u32,
    srqn: u32,
    poster: RecvPoster,
    cq: u32,
    poller: CqPoller,
    /// A region of its protection domain at [`BASE`]: all of side 1's memory.
    key: u32,
    /// Where its receives go, offset in side 1's memory.
    at: u64,
}

/// Side 0 sends, side 1 receives for two SRQs, each of a protection domain and a CQ of its own.
struct Xrc {
    pair: Pair,
    sender: TestQp,
    receiver: u32,
    xrcd: u32,
    srqs: [TestSrq; 2],
}

impl Xrc {
    fn new() -> Self {
        Self::with(Connect { path_mtu: 1, timeout: 8, ..Connect::default() })
    }

    fn with(c: Connect) -> Self {
        Self::on(c, HostOptions::new(2))
    }

    /// The host that receives is made with these.
    fn on(c: Connect, receives: HostOptions) -> Self {
        let mut pair = Pair::with(c, HostOptions::new(1), receives, 1 << 20);
        let Reply::Xrcd { xrcd, .. } = pair.ask(1, Request::OpenXrcd { create: true, exclusive: false }) else {
            panic!("no domain")
        };
        let srqs = [0, 1].map(|i| make_srq(&mut pair, xrcd, 65_536 << i));
        let sender = pair.clients[0].qp_of(&mut pair.hosts[0], QpType::XrcSend, CAP);
        let Reply::XrcQp { qpn: receiver, .. } = pair.ask(1, Request::CreateXrcQp { xrcd }) else { panic!("no QP") };
        let mut this = Self { pair, sender, receiver, xrcd, srqs };
        this.join();
        this
    }

    /// Connects the two QPs.
    fn join(&mut self) {
        let c = self.pair.connect;
        let pair = &mut self.pair;
        let [ip0, ip1] = [pair.hosts[0].ip, pair.hosts[1].ip];
        let [session0, session1] = [pair.clients[0].session, pair.clients[1].session];
        let send = Connect { kind: QpType::XrcSend, ..c };
        connect(&mut pair.hosts[0], session0, self.sender.qpn, ip1, self.receiver, send, 0);
        let recv = Connect { kind: QpType::XrcRecv, ..c };
        connect(&mut pair.hosts[1], session1, self.receiver, ip0, self.sender.qpn, recv, 1);
        pair.exchange();
        pair.sent.clear();
    }

    /// Both ends make up for lost packets in this way.
    fn set_recovery(&mut self, policy: RecoveryPolicy) {
        for (side, qpn) in [(0, self.sender.qpn), (1, self.receiver)] {
            assert_eq!(self.pair.ask(side, Request::SetRecovery { qpn, policy }), Reply::Done);
        }
    }

    /// Posts a receive of `length` bytes to an SRQ.
    fn receive(&mut self, srq: usize, wr_id: u64, length: u32) {
        let TestSrq { key, at, ref mut poster, .. } = self.srqs[srq];
        let sge = shm::layout::Sge { addr: BASE + at, length, lkey: key };
        poster.post(wr_id, &[sge]).unwrap();
        poster.publish();
    }

    /// A signalled work request for an SRQ, and for offset 4096 of side 1's memory by the key of its protection domain.
    fn wqe(&self, srq: usize, wr_id: u64, opcode: WrOpcode) -> SendWqe {
        SendWqe { rkey: self.srqs[srq].key, ..self.pair.wqe(wr_id, opcode) }.to_srq(self.srqs[srq].srqn)
    }

    /// Posts a work request with `length` bytes at the start of side 0's memory.
    fn post(&mut self, wqe: SendWqe, length: u32) {
        let sge = self.pair.clients[0].sge(0, length);
        self.sender.post(wqe, &[sge]);
    }

    /// The completions of an SRQ's receives.
    fn received(&mut self, srq: usize) -> Vec<Cqe> {
        let poller = &mut self.srqs[srq].poller;
        let found: Vec<Cqe> = std::iter::from_fn(|| poller.next()).collect();
        poller.publish();
        assert!(found.iter().all(|cqe| cqe.qpn == self.receiver));
        found
    }

    fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        self.pair.completions(0)
    }

    /// A request packet of side 0's that names an SRQ by its number.
    fn request(&self, opcode: Opcode, psn: u32, srqn: u32) -> Packet {
        let mut packet = self.pair.packet(0, opcode, psn);
        packet.bth.dest_qpn = Qpn::new(self.receiver);
        packet.ext.extend(XrcEthRepr { srqn }.to_bytes());
        packet
    }
}

/// An SRQ of a protection domain and with a CQ of its own.
fn make_srq(pair: &mut Pair, xrcd: u32, at: u64) -> TestSrq {
    let pd = pair.pd(1);
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let length = pair.clients[1].memory.bytes();
    let key = pair.region(1, pd, 0, length, access | AccessFlags::LOCAL_WRITE);
    let (cq, poller) = pair.clients[1].another_cq(&mut pair.hosts[1], 4, None);
    let (handle, srqn, poster) = pair.clients[1].xrc_srq(&mut pair.hosts[1], pd, xrcd, cq);
    TestSrq { handle, srqn, poster, cq, poller, key, at }
}

/// Flags of a work request that completes silently.
const UNSIGNALED: u8 = SendFlags::NONE.0;
