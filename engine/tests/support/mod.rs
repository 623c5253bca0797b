//! Two engines, their clients' rings and a wire between them, on one thread and a clock of their own.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use engine::cc::{Algorithm, Settings};
use engine::command::{Answer, Command, Shards};
use engine::config::{
    EngineConfig, Limits, PortAddress, PortConfig, ProcessMemoryPolicy, RecoveryConfig, TransportConfig,
};
use engine::control::{Control, Peer};
use engine::{Shard, Time};
use shm::attr::{AccessFlags, AhAttr, QpAttr, QpAttrMask, QpCap, QpState, QpType, RecoveryPolicy, SrqAttr, WcStatus};
use shm::clock::DeviceClock;
use shm::control::{Reply, Request};
use shm::doorbell::DoorbellPage;
use shm::layout::{Cqe, QueueShape, SendWqe, Sge};
use shm::mapping::{Mapping, PageSize};
use shm::qos::QosSettings;
use shm::ring::{Body, CqPoller, RecvPoster, SendPoster};
use shm::segment::{Block, BlockAddress};
use shm::wake::WakeFd;
use wire::buf::VecBatch;
use wire::{Gid, MacAddr};

/// Shards that a control side reaches by a call.
pub(crate) struct Direct {
    pub(crate) shards: Vec<Shard>,
    wakes: Vec<Arc<WakeFd>>,
    pub(crate) now: Time,
}

impl Shards for Direct {
    fn command(&mut self, shard: u8, command: Command) -> Answer {
        self.shards[usize::from(shard)].command(self.now, command)
    }

    fn client_wake(&self, shard: u8) -> std::io::Result<OwnedFd> {
        self.wakes[usize::from(shard)].as_fd().try_clone_to_owned()
    }
}

/// One engine.
pub(crate) struct Host {
    pub(crate) control: Control,
    pub(crate) shards: Direct,
    /// That of GID 0.
    pub(crate) ip: IpAddr,
}

/// What a host is made with.
pub(crate) struct HostOptions {
    pub(crate) addresses: Vec<PortAddress>,
    pub(crate) mac: [u8; 6],
    pub(crate) interface_mtu: u16,
    pub(crate) shard_count: u8,
    pub(crate) transport: TransportConfig,
    pub(crate) recovery: RecoveryConfig,
    pub(crate) limits: Limits,
    pub(crate) congestion: Settings,
    pub(crate) process_memory: ProcessMemoryPolicy,
    pub(crate) qos: QosSettings,
    pub(crate) entropy: Box<dyn FnMut() -> u64 + Send>,
}

impl HostOptions {
    /// Host `n` of 10.0.0.0/24.
    pub(crate) fn new(n: u8) -> Self {
        let mut state = u64::from(n);
        let entropy = Box::new(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state
        });
        Self {
            addresses: vec![IpAddr::from([10, 0, 0, n]).into()],
            mac: [2, 0, 0, 0, 0, n],
            interface_mtu: 9000,
            shard_count: 1,
            transport: TransportConfig::default(),
            recovery: RecoveryConfig::default(),
            limits: Limits { user_share_percent: 100, ..Limits::default() },
            congestion: Settings::new(Algorithm::None),
            process_memory: ProcessMemoryPolicy::Everybody,
            qos: QosSettings::default(),
            entropy,
        }
    }
}

impl Host {
    pub(crate) fn new(options: HostOptions) -> Self {
        let ip = options.addresses[0].ip;
        let port = PortConfig {
            active: true,
            mac: MacAddr(options.mac),
            addresses: options.addresses,
            interface_mtu: options.interface_mtu,
            answers_arp: true,
            speed_mbps: 100_000,
            driver: "test".to_owned(),
            kernel_interface: None,
        };
        let config = Arc::new(EngineConfig {
            device_name: "ferroce0".to_owned(),
            version: "test".to_owned(),
            shard_count: options.shard_count,
            ports: vec![port],
            limits: options.limits,
            transport: options.transport,
            recovery: options.recovery,
            congestion: options.congestion,
            process_memory: options.process_memory,
            clock: DeviceClock::Private,
            qos: options.qos,
            operator_uid: 1,
        });
        let shards = (0..options.shard_count).map(|id| Shard::new(id, Arc::clone(&config), Time::ZERO)).collect();
        let wakes = (0..options.shard_count).map(|_| Arc::new(WakeFd::new().unwrap())).collect();
        let control = Control::new(config, options.entropy, Time::ZERO);
        Self { control, shards: Direct { shards, wakes, now: Time::ZERO }, ip }
    }

    pub(crate) fn request(&mut self, session: u32, request: Request, fds: Vec<OwnedFd>) -> (Reply, Vec<OwnedFd>) {
        let now = self.shards.now;
        self.control.handle(&mut self.shards, session, now, request, fds)
    }

    pub(crate) fn shard(&mut self) -> &mut Shard {
        &mut self.shards.shards[0]
    }

    /// One turn without input; what it sends.
    pub(crate) fn turn(&mut self, now: Time) -> Vec<Vec<u8>> {
        self.shards.now = now;
        let mut out = Vec::new();
        for shard in &mut self.shards.shards {
            shard.handle_doorbells(now);
            shard.handle_timers(now);
            let mut batch = VecBatch::new(64);
            shard.poll_transmit(now, 0, &mut batch);
            while let Some(wake) = shard.poll_wake() {
                wake.notify();
            }
            out.extend(batch.take());
        }
        while let Some(mad) = self.shards.shards.iter_mut().find_map(Shard::poll_mad) {
            self.control.handle_mad(&mut self.shards, now, &mad);
        }
        self.control.turn(&mut self.shards, now);
        let mut wire = Vec::new();
        for (dest, frame) in out {
            match dest {
                wire::buf::Dest::Wire => wire.push(frame),
                // The number comes from a client: there may be no such shard.
                wire::buf::Dest::Local { shard } => {
                    if let Some(shard) = self.shards.shards.get_mut(usize::from(shard)) {
                        shard.handle_frame(now, 0, &frame);
                    }
                }
            }
        }
        wire
    }

    /// A frame from the wire, to the shard whose QPN it names: the first if there is no such shard, all if it names none.
    pub(crate) fn receive(&mut self, now: Time, frame: &[u8]) {
        self.shards.now = now;
        let dest = wire::dest_qpn(frame).filter(|&qpn| qpn != engine::MCAST_QPN);
        match dest.map(engine::shard_of) {
            Some(id) => {
                let id = usize::from(id).min(self.shards.shards.len()) % self.shards.shards.len();
                self.shards.shards[id].handle_frame(now, 0, frame);
            }
            None => {
                for shard in &mut self.shards.shards {
                    shard.handle_frame(now, 0, frame);
                }
            }
        }
    }
}

/// An application: a session with a protection domain, a CQ and memory.
pub(crate) struct Client {
    pub(crate) session: u32,
    segments: Vec<Arc<Mapping>>,
    pub(crate) pd: u32,
    pub(crate) cq: u32,
    pub(crate) cq_block: Block,
    pub(crate) poller: CqPoller,
    pub(crate) memory: Mapping,
    /// Handle of `memory` as attached.
    pub(crate) attached: u32,
    /// L_Key and R_Key of the region at [`BASE`].
    pub(crate) key: u32,
}

/// Address at which [`Client::memory`] is registered.
pub(crate) const BASE: u64 = 0x10_0000;

impl Client {
    pub(crate) fn new(host: &mut Host, memory_bytes: u64) -> Self {
        Self::with_region(host, memory_bytes, memory_bytes)
    }

    /// Only the first `region_bytes` of its memory are registered.
    pub(crate) fn with_region(host: &mut Host, memory_bytes: u64, region_bytes: u64) -> Self {
        Self::open(host, 1, memory_bytes, region_bytes)
    }

    /// A client of another user than the others'.
    pub(crate) fn of_user(host: &mut Host, uid: u32, memory_bytes: u64) -> Self {
        Self::open(host, uid, memory_bytes, memory_bytes)
    }

    fn open(host: &mut Host, uid: u32, memory_bytes: u64, region_bytes: u64) -> Self {
        let session = host.control.open_session(Peer { pid: std::process::id(), uid }).unwrap();
        let hello = Request::Hello { abi_version: shm::ABI_VERSION, client_name: "test".to_owned() };
        assert!(matches!(host.request(session, hello, vec![]).0, Reply::Hello { .. }));
        let Reply::Handle(pd) = host.request(session, Request::AllocPd, vec![]).0 else { panic!() };
        let mut segments = Vec::new();
        let (cq, poller, cq_block) = make_cq(host, session, &mut segments, 1024, None, None);
        let memory = Mapping::create(c"test", memory_bytes, PageSize::Base).unwrap();
        memory.populate(0, memory.bytes()).unwrap();
        let fd = memory.fd().try_clone_to_owned().unwrap();
        let request = Request::AttachMemory { bytes: memory.bytes() };
        let Reply::Handle(attached) = host.request(session, request, vec![fd]).0 else { panic!() };
        let mut populated = 0;
        while populated < memory.bytes() {
            let request = Request::PopulateMemory { memory: attached };
            let Reply::Populated { bytes } = host.request(session, request, vec![]).0 else { panic!() };
            populated = bytes;
        }
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let request = Request::RegMr { pd, memory: attached, offset: 0, addr: BASE, length: region_bytes, access };
        let (Reply::Mr { lkey, .. }, _) = host.request(session, request, vec![]) else { panic!() };
        Self { session, segments, pd, cq, cq_block, poller, memory, attached, key: lkey }
    }

    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.key }
    }

    pub(crate) fn poll(&mut self) -> Vec<Cqe> {
        let found = std::iter::from_fn(|| self.poller.next()).collect();
        self.poller.publish();
        found
    }

    /// One more CQ, on a shard of choice.
    pub(crate) fn cq_on(&mut self, host: &mut Host, vector: u32) -> (u32, CqPoller) {
        let (cq, poller, _) = make_cq(host, self.session, &mut self.segments, 64, None, Some(vector));
        (cq, poller)
    }

    /// One more CQ.
    pub(crate) fn another_cq(&mut self, host: &mut Host, cqe: u32, channel: Option<u32>) -> (u32, CqPoller) {
        let (cq, poller, _) = make_cq(host, self.session, &mut self.segments, cqe, channel, None);
        (cq, poller)
    }

    /// The new ring of a CQ.
    pub(crate) fn resized(&mut self, host: &mut Host, cq: u32, cqe: u32, old: &CqPoller) -> CqPoller {
        let (reply, fds) = host.request(self.session, Request::ResizeCq { cq, cqe }, vec![]);
        let Reply::CqRing { depth, block } = reply else { panic!("{reply:?}") };
        attach(&mut self.segments, &[block], fds);
        old.successor(&place(&self.segments, block), depth).unwrap()
    }

    /// An SRQ, what posts to it, and where it lies.
    pub(crate) fn srq(&mut self, host: &mut Host, attr: SrqAttr) -> (u32, RecvPoster, Block) {
        let request = Request::CreateSrq { pd: self.pd, cq: Some(self.cq), attr };
        let (reply, fds) = host.request(self.session, request, vec![]);
        let Reply::Srq { srq, attr, shape, block } = reply else { panic!("{reply:?}") };
        attach(&mut self.segments, &[block], fds);
        let block = place(&self.segments, block);
        (srq, RecvPoster::new_srq(&block, shape, attr.max_wr).unwrap(), block)
    }

    /// An SRQ of an XRC domain: handle, number, and what posts to it.
    pub(crate) fn xrc_srq(&mut self, host: &mut Host, pd: u32, xrcd: u32, cq: u32) -> (u32, u32, RecvPoster) {
        let attr = SrqAttr { max_wr: 8, max_sge: 2, srq_limit: 0 };
        let (reply, fds) = host.request(self.session, Request::CreateXrcSrq { pd, xrcd, cq, attr }, vec![]);
        let Reply::XrcSrq { srq, srqn, attr, shape, block } = reply else { panic!("{reply:?}") };
        attach(&mut self.segments, &[block], fds);
        let block = place(&self.segments, block);
        (srq, srqn, RecvPoster::new_srq(&block, shape, attr.max_wr).unwrap())
    }

    pub(crate) fn qp(&mut self, host: &mut Host, cap: QpCap) -> TestQp {
        self.qp_of(host, QpType::Rc, cap)
    }

    pub(crate) fn qp_of(&mut self, host: &mut Host, qp_type: QpType, cap: QpCap) -> TestQp {
        let request = Request::CreateQp {
            pd: self.pd,
            qp_type,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            cap,
            sq_sig_all: false,
        };
        self.qp_from(host, request)
    }

    pub(crate) fn qp_from(&mut self, host: &mut Host, request: Request) -> TestQp {
        let (reply, fds) = host.request(self.session, request, vec![]);
        let Reply::Qp { qpn, cap, sq, rq, block, doorbell, doorbell_index, .. } = reply else { panic!("{reply:?}") };
        attach(&mut self.segments, &[block, doorbell], fds);
        let block = place(&self.segments, block);
        TestQp {
            qpn,
            send: SendPoster::new(&block, sq, cap.max_send_wr).unwrap(),
            recv: (rq.depth > 0).then(|| RecvPoster::new(&block, sq, rq, cap.max_recv_wr).unwrap()),
            page: DoorbellPage::new(&place(&self.segments, doorbell)).unwrap(),
            doorbell_index,
            block,
            sq,
        }
    }
}

fn make_cq(
    host: &mut Host,
    session: u32,
    segments: &mut Vec<Arc<Mapping>>,
    cqe: u32,
    channel: Option<u32>,
    comp_vector: Option<u32>,
) -> (u32, CqPoller, Block) {
    let request = Request::CreateCq { cqe, channel, comp_vector };
    let (reply, fds) = host.request(session, request, vec![]);
    let Reply::Cq { cq, depth, block, .. } = reply else { panic!("{reply:?}") };
    attach(segments, &[block], fds);
    let block = place(segments, block);
    (cq, CqPoller::new(&block, depth).unwrap(), block)
}

fn attach(segments: &mut Vec<Arc<Mapping>>, addresses: &[BlockAddress], fds: Vec<OwnedFd>) {
    for fd in fds {
        let number = segments.len() as u32;
        if let Some(address) = addresses.iter().find(|a| a.segment == number) {
            segments.push(Arc::new(Mapping::attach(fd, address.segment_bytes).unwrap()));
        }
    }
}

fn place(segments: &[Arc<Mapping>], address: BlockAddress) -> Block {
    Block { mapping: Arc::clone(&segments[address.segment as usize]), offset: address.offset }
}

/// A client's side of a QP.
pub(crate) struct TestQp {
    pub(crate) qpn: u32,
    pub(crate) send: SendPoster,
    pub(crate) recv: Option<RecvPoster>,
    pub(crate) page: DoorbellPage,
    pub(crate) doorbell_index: u32,
    pub(crate) block: Block,
    pub(crate) sq: QueueShape,
}

impl TestQp {
    pub(crate) fn post(&mut self, wqe: SendWqe, sges: &[Sge]) {
        self.send.post(wqe, Body::Sges(sges)).unwrap();
        self.ring();
    }

    pub(crate) fn post_inline(&mut self, wqe: SendWqe, data: &[u8]) {
        self.send.post(wqe, Body::Inline(&[data])).unwrap();
        self.ring();
    }

    pub(crate) fn ring(&mut self) {
        self.send.publish();
        self.page.ring(self.doorbell_index);
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        let recv = self.recv.as_mut().unwrap();
        recv.post(wr_id, sges).unwrap();
        if recv.publish() {
            self.page.ring(self.doorbell_index);
        }
    }
}

/// How two QPs are connected.
#[derive(Clone, Copy)]
pub(crate) struct Connect {
    pub(crate) kind: QpType,
    pub(crate) path_mtu: u8,
    pub(crate) psn: [u32; 2],
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) rd_atomic: u8,
    pub(crate) access: AccessFlags,
    pub(crate) qkey: u32,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            kind: QpType::Rc,
            path_mtu: 3,
            psn: [0x0a_0000, 0x0b_0000],
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 4,
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC,
            qkey: 0x1111_1111,
        }
    }
}

/// The masks of the three steps to RTS.
pub(crate) const INIT: QpAttrMask =
    QpAttrMask(QpAttrMask::STATE.0 | QpAttrMask::PKEY_INDEX.0 | QpAttrMask::PORT.0 | QpAttrMask::ACCESS_FLAGS.0);
pub(crate) const RTR: QpAttrMask = QpAttrMask(
    QpAttrMask::STATE.0
        | QpAttrMask::AV.0
        | QpAttrMask::PATH_MTU.0
        | QpAttrMask::DEST_QPN.0
        | QpAttrMask::RQ_PSN.0
        | QpAttrMask::MAX_DEST_RD_ATOMIC.0
        | QpAttrMask::MIN_RNR_TIMER.0,
);
pub(crate) const RTS: QpAttrMask = QpAttrMask(
    QpAttrMask::STATE.0
        | QpAttrMask::TIMEOUT.0
        | QpAttrMask::RETRY_CNT.0
        | QpAttrMask::RNR_RETRY.0
        | QpAttrMask::SQ_PSN.0
        | QpAttrMask::MAX_QP_RD_ATOMIC.0,
);

/// Brings a QP to RTS towards `peer_qpn` at `peer_ip`. `side` picks the PSNs.
pub(crate) fn connect(
    host: &mut Host,
    session: u32,
    qpn: u32,
    peer_ip: IpAddr,
    peer_qpn: u32,
    c: Connect,
    side: usize,
) {
    let attr = attributes(peer_ip, peer_qpn, c, side);
    for (state, mask) in steps(c.kind) {
        modify(host, session, qpn, QpAttr { qp_state: state, ..attr }, mask).unwrap();
    }
}

/// The way to RTS.
pub(crate) const STEPS: [(QpState, QpAttrMask); 3] = [(QpState::Init, INIT), (QpState::Rtr, RTR), (QpState::Rts, RTS)];

/// The same for a QP of any service.
pub(crate) fn steps(kind: QpType) -> [(QpState, QpAttrMask); 3] {
    use QpAttrMask as Mask;
    let masks = match kind {
        QpType::Rc => return STEPS,
        QpType::Uc => [INIT, Mask(Mask::AV.0 | Mask::PATH_MTU.0 | Mask::DEST_QPN.0 | Mask::RQ_PSN.0), Mask::SQ_PSN],
        QpType::XrcSend => [INIT, Mask(Mask::AV.0 | Mask::PATH_MTU.0 | Mask::DEST_QPN.0 | Mask::RQ_PSN.0), RTS],
        QpType::XrcRecv => [INIT, RTR, Mask(Mask::TIMEOUT.0 | Mask::SQ_PSN.0)],
        QpType::Ud => [Mask(Mask::PKEY_INDEX.0 | Mask::PORT.0 | Mask::QKEY.0), Mask::NONE, Mask::SQ_PSN],
    };
    let [init, rtr, rts] = masks.map(|mask| mask | Mask::STATE);
    [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)]
}

/// What a QP needs on its way to RTS.
pub(crate) fn attributes(peer_ip: IpAddr, peer_qpn: u32, c: Connect, side: usize) -> QpAttr {
    let ah_attr =
        AhAttr { dgid: Gid::from_ip(peer_ip), sgid_index: 0, hop_limit: 64, port_num: 1, ..AhAttr::default() };
    QpAttr {
        port_num: 1,
        qp_access_flags: c.access,
        ah_attr,
        path_mtu: c.path_mtu,
        dest_qp_num: peer_qpn,
        rq_psn: c.psn[1 - side],
        sq_psn: c.psn[side],
        max_rd_atomic: c.rd_atomic,
        max_dest_rd_atomic: c.rd_atomic,
        min_rnr_timer: c.min_rnr_timer,
        timeout: c.timeout,
        retry_cnt: c.retry_cnt,
        rnr_retry: c.rnr_retry,
        qkey: if c.kind == QpType::Ud { c.qkey } else { 0 },
        ..QpAttr::default()
    }
}

pub(crate) fn modify(
    host: &mut Host,
    session: u32,
    qpn: u32,
    attr: QpAttr,
    mask: QpAttrMask,
) -> Result<QpState, String> {
    match host.request(session, Request::ModifyQp { qpn, attr, mask }, vec![]).0 {
        Reply::QpModified { state } => Ok(state),
        Reply::Refused { message, .. } => Err(message),
        other => panic!("{other:?}"),
    }
}

/// Two hosts, an application and a connected QP on each.
pub(crate) struct Pair {
    pub(crate) hosts: [Host; 2],
    pub(crate) clients: [Client; 2],
    pub(crate) qps: [TestQp; 2],
    pub(crate) connect: Connect,
    pub(crate) now: Time,
    /// Every frame that was sent, and by whom.
    pub(crate) sent: Vec<(usize, Vec<u8>)>,
}

/// Sizes that are enough for most tests.
pub(crate) const CAP: QpCap =
    QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 128 };

impl Pair {
    pub(crate) fn new(c: Connect) -> Self {
        Self::with(c, HostOptions::new(1), HostOptions::new(2), 1 << 20)
    }

    pub(crate) fn with(c: Connect, a: HostOptions, b: HostOptions, memory_bytes: u64) -> Self {
        Self::build(c, a, b, memory_bytes, memory_bytes)
    }

    /// Only the first `region_bytes` of each side's memory are registered.
    pub(crate) fn with_region(c: Connect, memory_bytes: u64, region_bytes: u64) -> Self {
        Self::build(c, HostOptions::new(1), HostOptions::new(2), memory_bytes, region_bytes)
    }

    fn build(c: Connect, a: HostOptions, b: HostOptions, memory_bytes: u64, region_bytes: u64) -> Self {
        let mut hosts = [Host::new(a), Host::new(b)];
        let [a, b] = &mut hosts;
        let mut clients =
            [Client::with_region(a, memory_bytes, region_bytes), Client::with_region(b, memory_bytes, region_bytes)];
        let qps = [clients[0].qp_of(a, c.kind, CAP), clients[1].qp_of(b, c.kind, CAP)];
        let ips = [a.ip, b.ip];
        connect(a, clients[0].session, qps[0].qpn, ips[1], qps[1].qpn, c, 0);
        connect(b, clients[1].session, qps[1].qpn, ips[0], qps[0].qpn, c, 1);
        let mut pair = Self { hosts, clients, qps, connect: c, now: Time::ZERO, sent: Vec::new() };
        // Neighbours get to know each other.
        pair.exchange();
        pair.sent.clear();
        pair
    }

    /// Has both sides make up for losses in this way.
    pub(crate) fn set_recovery(&mut self, policy: RecoveryPolicy) {
        for side in 0..2 {
            let request = Request::SetRecovery { qpn: self.qps[side].qpn, policy };
            let (reply, _) = self.hosts[side].request(self.clients[side].session, request, vec![]);
            assert_eq!(reply, Reply::Done);
        }
    }

    /// Passes frames to and fro until neither side has more to say at this time.
    pub(crate) fn exchange(&mut self) {
        self.exchange_with(|_, frame| vec![frame]);
    }

    /// The same; `change` says what becomes of a frame that host `from` sent.
    pub(crate) fn exchange_with(&mut self, mut change: impl FnMut(usize, Vec<u8>) -> Vec<Vec<u8>>) {
        for _ in 0..100_000 {
            let mut quiet = true;
            for from in 0..2 {
                for frame in self.hosts[from].turn(self.now) {
                    quiet = false;
                    self.sent.push((from, frame.clone()));
                    for frame in change(from, frame) {
                        self.hosts[1 - from].receive(self.now, &frame);
                    }
                }
            }
            if quiet && !self.hosts.iter().any(|h| h.shards.shards.iter().any(Shard::wants_transmit)) {
                return;
            }
        }
        panic!("the two sides never fall silent");
    }

    /// Lets time pass, then exchanges.
    pub(crate) fn advance(&mut self, ns: u64) {
        self.now = self.now.add_ns(ns);
        self.exchange();
    }

    /// Statuses of the completions of one side, with their wr_ids.
    pub(crate) fn completions(&mut self, side: usize) -> Vec<(u64, WcStatus)> {
        self.clients[side].poll().iter().map(|c| (c.wr_id, WcStatus::from_code(c.status).unwrap())).collect()
    }

    /// Names of the opcodes that were sent since the last call, with who sent them.
    pub(crate) fn opcodes(&mut self) -> Vec<(usize, &'static str)> {
        let sent = std::mem::take(&mut self.sent);
        sent.iter().filter_map(|(from, f)| wire::Frame::parse(f).ok().map(|f| (*from, f.info().name))).collect()
    }
}

/// What a congested switch does to an IPv4 frame without options.
pub(crate) fn mark(frame: &mut [u8]) {
    frame[15] |= 3;
    frame[24..26].fill(0);
    let sum = frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}
