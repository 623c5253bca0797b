//! A peer that the test plays by hand: packets are made here, and answers are put in words.
#![allow(dead_code, reason = "each test binary uses its part")]

use engine::ErrorCause;
use engine::counters::{PortCounters, ShardCounters};
use shm::attr::{AccessFlags, QpAttr, QpAttrMask, QpCap, QpState, SendFlags, WcStatus, WrOpcode};
use shm::control::{AsyncEvent, QpDetail, Reply, Request};
use shm::layout::{Cqe, SendWqe, Sge};
use wire::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, Bth, DethRepr, Frame, IethRepr, ImmDtRepr, MacAddr, Msn, Opcode,
    PathFields, PathTemplate, Psn, Qkey, Qpn, RethRepr, Rkey, SackEthRepr, Syndrome, icrc,
};

use crate::support::{BASE, CAP, Client, Pair, connect, modify};

/// A row of a table: its name, and what makes the case.
pub(crate) type Case<T> = (&'static str, fn(&mut Pair) -> T);

/// What makes a packet wrong.
pub(crate) type Change = fn(&mut Packet);

/// A packet on its way to being a frame.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) fields: PathFields,
    pub(crate) bth: Bth,
    pub(crate) ext: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    pub(crate) fn reth(mut self, va: u64, rkey: u32, dma_len: u32) -> Self {
        self.ext.extend(RethRepr { va, rkey: Rkey(rkey), dma_len }.to_bytes());
        self
    }

    pub(crate) fn atomic(mut self, va: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Self {
        self.ext.extend(AtomicEthRepr { va, rkey: Rkey(rkey), swap_or_add, compare }.to_bytes());
        self
    }

    pub(crate) fn aeth(mut self, syndrome: u8, msn: u32) -> Self {
        let syndrome = Syndrome::from_byte(syndrome);
        self.ext.extend(AethRepr { syndrome, msn: Msn::new(msn) }.to_bytes());
        self
    }

    pub(crate) fn original(mut self, original: u64) -> Self {
        self.ext.extend(AtomicAckEthRepr { original }.to_bytes());
        self
    }

    pub(crate) fn imm(mut self, data: u32) -> Self {
        self.ext.extend(ImmDtRepr { data }.to_bytes());
        self
    }

    pub(crate) fn ieth(mut self, rkey: u32) -> Self {
        self.ext.extend(IethRepr { rkey: Rkey(rkey) }.to_bytes());
        self
    }

    pub(crate) fn deth(mut self, qkey: u32, src_qpn: u32) -> Self {
        self.ext.extend(DethRepr { qkey: Qkey(qkey), src_qpn: Qpn::new(src_qpn) }.to_bytes());
        self
    }

    pub(crate) fn bytes(mut self, length: usize) -> Self {
        self.payload = pattern(length);
        self
    }

    pub(crate) fn ack_req(mut self) -> Self {
        self.bth.ack_req = true;
        self
    }

    pub(crate) fn solicited(mut self) -> Self {
        self.bth.solicited = true;
        self
    }

    /// The frame, ICRC and all.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let template = PathTemplate::new(&self.fields).unwrap();
        let mut frame = vec![0; template.frame_len(self.ext.len(), self.payload.len())];
        let length = template.write_packet(&mut frame, &self.bth, &self.ext, self.payload.len(), |payload, crc| {
            payload.copy_from_slice(&self.payload);
            icrc::update(crc, &self.payload)
        });
        assert_eq!(length, frame.len());
        frame
    }
}

/// Bytes that differ from their neighbours.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 256 + 3) as u8).collect()
}

impl Pair {
    /// The first PSN of the requests that a packet of this opcode from `from` belongs to.
    fn base_psn(&self, from: usize, opcode: Opcode) -> Psn {
        let is_response = opcode.info().is_some_and(|info| info.kind.is_response());
        Psn::new(self.connect.psn[if is_response { 1 - from } else { from }])
    }

    /// A packet that `from` could send, `psn` PSNs after the first.
    pub(crate) fn packet(&self, from: usize, opcode: Opcode, psn: u32) -> Packet {
        let [src, dst] = [from, 1 - from];
        let mac = |side: usize| MacAddr([2, 0, 0, 0, 0, side as u8 + 1]);
        let fields = PathFields {
            src_mac: mac(src),
            dst_mac: mac(dst),
            vlan: None,
            src_ip: self.hosts[src].ip,
            dst_ip: self.hosts[dst].ip,
            traffic_class: 0,
            hop_limit: 64,
            udp_src_port: 0xc000,
            ipv4_ident: 0,
            flow_label: 0,
            roce_v1: false,
        };
        let psn = self.base_psn(from, opcode).add(psn);
        let bth = Bth::new(opcode, Qpn::new(self.qps[dst].qpn), psn);
        Packet { fields, bth, ext: Vec::new(), payload: Vec::new() }
    }

    /// An acknowledgement from `from`.
    pub(crate) fn ack(&self, from: usize, syndrome: u8, psn: u32) -> Packet {
        self.packet(from, Opcode::RC_ACK, psn).aeth(syndrome, 0)
    }

    /// A selective acknowledgement from `from`: which PSN is missing, and which after it have come.
    pub(crate) fn sack(&self, from: usize, missing: u32, come: impl IntoIterator<Item = u32>) -> Packet {
        let mut map = SackEthRepr::default();
        for bit in come.into_iter().map(|psn| psn - missing - 1) {
            map.words[bit as usize / 64] |= 1 << (bit % 64);
        }
        let mut packet = self.packet(from, Opcode::SELECTIVE_ACK, missing).aeth(0x1f, 0);
        packet.bth.psn = packet.bth.psn.sub(1);
        packet.ext.extend(map.to_bytes());
        packet
    }

    /// What a host has to say now, in words.
    pub(crate) fn listen(&mut self, side: usize) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            let frames = self.hosts[side].turn(self.now);
            if frames.is_empty() && !self.hosts[side].shard().wants_transmit() {
                return said;
            }
            said.extend(frames.iter().filter_map(|frame| self.words(side, frame)));
        }
    }

    /// Gives a host a packet of its peer's, and listens to the answer.
    pub(crate) fn tell(&mut self, to: usize, packet: &Packet) -> Vec<String> {
        self.hosts[to].receive(self.now, &packet.frame());
        self.listen(to)
    }

    /// Gives a host several packets in one burst, and listens then.
    pub(crate) fn tell_all(&mut self, to: usize, packets: &[Packet]) -> Vec<String> {
        for packet in packets {
            self.hosts[to].receive(self.now, &packet.frame());
        }
        self.listen(to)
    }

    /// Lets time pass, and listens to one host.
    pub(crate) fn wait(&mut self, side: usize, ns: u64) -> Vec<String> {
        self.now = self.now.add_ns(ns);
        self.listen(side)
    }

    /// A frame in words, PSNs relative to the first: `SEND_FIRST +0 len 1024 A`, `NAK PSN sequence error +3 msn 1`. `None` for
    /// ARP.
    pub(crate) fn words(&self, from: usize, frame: &[u8]) -> Option<String> {
        let frame = Frame::parse(frame).ok()?;
        assert!(frame.icrc_ok());
        let bth = frame.bth();
        let psn = bth.psn.distance_from(self.base_psn(from, bth.opcode));
        let mut words = match frame.aeth() {
            Some(aeth) if bth.opcode == Opcode::RC_ACK => format!("{} +{psn}", aeth.syndrome),
            _ => format!("{} +{psn}", frame.info().name.trim_start_matches("RC_").trim_start_matches("UC_")),
        };
        let mut add = |word: String| words = format!("{words} {word}");
        if let Some(reth) = frame.reth() {
            add(format!("va +{} of {}", reth.va.wrapping_sub(BASE), reth.dma_len));
        }
        if let Some(sack) = frame.sacketh() {
            add(format!("names {}", sack.count()));
        }
        if !frame.payload().is_empty() {
            add(format!("len {}", frame.payload().len()));
        }
        if let Some(aeth) = frame.aeth() {
            add(format!("msn {}", aeth.msn.value()));
        }
        if let Some(result) = frame.atomicacketh() {
            add(format!("original {}", result.original));
        }
        if bth.ack_req {
            add("A".to_owned());
        }
        if bth.solicited {
            add("SE".to_owned());
        }
        Some(words)
    }

    pub(crate) fn ask(&mut self, side: usize, request: Request) -> Reply {
        let session = self.clients[side].session;
        self.hosts[side].request(session, request, vec![]).0
    }

    /// The asynchronous events that a side got since the last call.
    pub(crate) fn events(&mut self, side: usize) -> Vec<AsyncEvent> {
        let session = self.clients[side].session;
        let shard = self.hosts[side].shard();
        std::iter::from_fn(|| shard.poll_event()).filter(|e| e.session == session).map(|e| e.event).collect()
    }

    pub(crate) fn detail(&mut self, side: usize) -> QpDetail {
        let qpn = self.qps[side].qpn;
        match self.ask(side, Request::QpDetail { qpn }) {
            Reply::QpDetail(detail) => *detail,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn state(&mut self, side: usize) -> QpState {
        self.detail(side).summary.state
    }

    /// An internal figure of a side's QP.
    pub(crate) fn figure(&mut self, side: usize, name: &str) -> u64 {
        let figures = self.detail(side).figures;
        figures.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name} in {figures:?}")).1
    }

    pub(crate) fn modify(&mut self, side: usize, attr: QpAttr, mask: QpAttrMask) -> Result<QpState, String> {
        let (session, qpn) = (self.clients[side].session, self.qps[side].qpn);
        modify(&mut self.hosts[side], session, qpn, attr, mask)
    }

    pub(crate) fn go_to(&mut self, side: usize, state: QpState) {
        self.modify(side, QpAttr { qp_state: state, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    }

    pub(crate) fn counters(&mut self, side: usize) -> ShardCounters {
        self.hosts[side].shard().counters()
    }

    pub(crate) fn port_counters(&mut self, side: usize) -> PortCounters {
        *self.hosts[side].shard().port_counters(0).unwrap()
    }

    /// Puts a new QP in place of a side's, connected as the old one was; the peer's QP is not told.
    pub(crate) fn fresh_qp(&mut self, side: usize, cap: QpCap) {
        let (ip, peer) = (self.hosts[1 - side].ip, self.qps[1 - side].qpn);
        let qp = self.clients[side].qp_of(&mut self.hosts[side], self.connect.kind, cap);
        connect(&mut self.hosts[side], self.clients[side].session, qp.qpn, ip, peer, self.connect, side);
        self.qps[side] = qp;
    }

    /// New QPs on both sides, connected to each other.
    pub(crate) fn reconnect(&mut self) {
        let ips = [self.hosts[0].ip, self.hosts[1].ip];
        for side in 0..2 {
            self.qps[side] = self.clients[side].qp_of(&mut self.hosts[side], self.connect.kind, CAP);
        }
        for side in 0..2 {
            let (session, qpn, peer) = (self.clients[side].session, self.qps[side].qpn, self.qps[1 - side].qpn);
            connect(&mut self.hosts[side], session, qpn, ips[1 - side], peer, self.connect, side);
        }
    }

    /// Registers a part of a side's memory once more.
    pub(crate) fn region(&mut self, side: usize, pd: u32, offset: u64, length: u64, access: AccessFlags) -> u32 {
        let memory = self.clients[side].attached;
        let request = Request::RegMr { pd, memory, offset, addr: BASE + offset, length, access };
        match self.ask(side, request) {
            Reply::Mr { lkey, .. } => lkey,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn pd(&mut self, side: usize) -> u32 {
        match self.ask(side, Request::AllocPd) {
            Reply::Handle(pd) => pd,
            other => panic!("{other:?}"),
        }
    }

    /// A signalled work request of side 0 for offset 4096 of the other side's region.
    pub(crate) fn wqe(&self, wr_id: u64, opcode: WrOpcode) -> SendWqe {
        SendWqe {
            wr_id,
            opcode: opcode as u8,
            flags: SendFlags::SIGNALED.0,
            remote_addr: BASE + 4096,
            rkey: self.clients[1].key,
            imm: 0x1122_3344u32.to_be(),
            ..SendWqe::default()
        }
    }

    /// Posts a work request of side 0 with `length` bytes at the start of its memory.
    pub(crate) fn post(&mut self, wqe: SendWqe, length: u32) {
        let sge = self.clients[0].sge(0, length);
        self.qps[0].post(wqe, &[sge]);
    }

    /// Posts a receive of side 1 with `length` bytes at offset 65536.
    pub(crate) fn receive(&mut self, wr_id: u64, length: u32) {
        let sge: Sge = self.clients[1].sge(65_536, length);
        self.qps[1].post_recv(wr_id, &[sge]);
    }

    /// Bytes of a side's memory.
    pub(crate) fn read(&self, side: usize, offset: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        self.clients[side].memory.read(offset, &mut out).unwrap();
        out
    }

    pub(crate) fn write(&mut self, side: usize, offset: u64, data: &[u8]) {
        self.clients[side].memory.write(offset, data).unwrap();
    }

    pub(crate) fn word(&self, side: usize, offset: u64) -> u64 {
        u64::from_ne_bytes(self.read(side, offset, 8).try_into().unwrap())
    }

    /// Completions of a side with their causes.
    pub(crate) fn failures(&mut self, side: usize) -> Vec<(u64, WcStatus, u32)> {
        let status = |c: &Cqe| WcStatus::from_code(c.status).unwrap();
        self.clients[side].poll().iter().map(|c| (c.wr_id, status(c), c.vendor_err)).collect()
    }
}

/// A completion's status and cause, for comparison with [`Pair::failures`].
pub(crate) fn failed(wr_id: u64, status: WcStatus, cause: ErrorCause) -> (u64, WcStatus, u32) {
    (wr_id, status, cause.code())
}

/// A completion of the flush.
pub(crate) fn flushed(wr_id: u64) -> (u64, WcStatus, u32) {
    failed(wr_id, WcStatus::WrFlushErr, ErrorCause::Flushed)
}

/// A good completion.
pub(crate) fn done(wr_id: u64) -> (u64, WcStatus, u32) {
    (wr_id, WcStatus::Success, 0)
}

/// The numbers of the completions that a client finds, in order.
pub(crate) fn wr_ids(client: &mut Client) -> Vec<u64> {
    client.poll().iter().map(|c| c.wr_id).collect()
}
