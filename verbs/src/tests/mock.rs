//! A daemon in a few lines: real replies, real segments, the engine's side of real rings. Tests play the engine by hand.

pub(super) mod cm;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{Shutdown, shutdown};
use shm::control::{self, AsyncEvent, CallError, Endpoint, Reply, Request};
use shm::doorbell::{DOORBELL_BYTES, DoorbellPage};
use shm::layout::{Cqe, QueueShape, Sge};
use shm::mapping::Mapping;
use shm::ring::{self, CqWriter, RecvFetcher, SendFetcher};
use shm::segment::{Block, BlockAddress, SegmentAllocator};
use shm::socket;
use shm::wake::Notifier;

use crate::error::lock;
use crate::*;

pub(super) struct MockCq {
    pub(super) writer: CqWriter,
    channel: Option<u32>,
}

pub(super) struct MockQp {
    pub(super) send: SendFetcher,
    pub(super) recv: Option<RecvFetcher>,
    pub(super) block: Block,
    send_cq: u32,
    recv_cq: u32,
    index: u32,
}

#[derive(Default)]
pub(super) struct State {
    segments: Option<SegmentAllocator>,
    shown: BTreeSet<u32>,
    /// Names of the requests, in order.
    pub(super) log: Vec<String>,
    /// Refuses the next request.
    pub(super) refuse: Option<(i32, &'static str)>,
    /// Of this name.
    pub(super) refuse_only: Option<&'static str>,
    /// Answers `Hello` with this version.
    pub(super) abi_version: Option<u32>,
    handles: u32,
    pub(super) events: Option<OwnedFd>,
    channels: BTreeMap<u32, Notifier>,
    memories: BTreeMap<u32, Mapping>,
    pub(super) cqs: BTreeMap<u32, MockCq>,
    pub(super) qps: BTreeMap<u32, MockQp>,
    pub(super) srqs: BTreeMap<u32, RecvFetcher>,
    pub(super) doorbell: Option<(DoorbellPage, BlockAddress)>,
    pub(super) wake: Option<EventFd>,
    pub(super) cm: cm::MockCm,
    /// By QPN: depths as they were set.
    pub(super) modified: BTreeMap<u32, QpAttr>,
}

/// An engine of this process, driven by whoever polls if `polled`.
#[derive(Default)]
pub(super) struct Mock {
    state: Mutex<State>,
    polled: bool,
}

impl Mock {
    pub(super) fn new(polled: bool) -> Arc<Self> {
        let state = State { segments: Some(SegmentAllocator::new(64 << 20)), ..State::default() };
        Arc::new(Self { state: Mutex::new(state), polled })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The names of the requests since the last call.
    pub(super) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    /// Fetches every send posted to a QP: their wr_ids.
    pub(super) fn fetch_sends(&self, qpn: Qpn) -> Vec<u64> {
        let mut state = self.state();
        let qp = state.qps.get_mut(&qpn.value()).unwrap();
        let count = qp.send.available().unwrap();
        (0..count).map(|_| qp.send.fetch(&mut [Sge::default(); 32], &mut [0; 1024]).unwrap().wr_id).collect()
    }

    /// Takes the next receive of a QP.
    pub(super) fn take_recv(&self, qpn: Qpn) -> Option<u64> {
        let mut state = self.state();
        let recv = state.qps.get_mut(&qpn.value()).unwrap().recv.as_mut().unwrap();
        (recv.available().unwrap() > 0).then(|| recv.fetch(&mut [Sge::default(); 32]).unwrap().0)
    }

    /// Completes a work request, and notifies.
    pub(super) fn complete(&self, qpn: Qpn, wr_id: u64, opcode: WcOpcode, status: WcStatus) {
        let mut state = self.state();
        let state = &mut *state;
        let qp = &state.qps[&qpn.value()];
        let cq = if opcode.code() >= 128 { qp.recv_cq } else { qp.send_cq };
        let cq = state.cqs.get_mut(&cq).unwrap();
        let cqe = Cqe { wr_id, status: status.code(), opcode: opcode.code(), qpn: qpn.value(), ..Cqe::default() };
        cq.writer.push(&cqe).unwrap();
        if cq.writer.take_notification(false)
            && let Some(channel) = cq.channel
        {
            state.channels[&channel].notify();
        }
    }

    pub(super) fn retire_sends(&self, qpn: Qpn, count: u32) {
        self.state().qps.get_mut(&qpn.value()).unwrap().send.retire(count);
    }

    /// Takes the doorbells that were rung.
    pub(super) fn take_doorbells(&self) -> Vec<u32> {
        let state = self.state();
        let Some((page, _)) = &state.doorbell else { return Vec::new() };
        let words = (0..DoorbellPage::SUMMARY_WORDS).flat_map(|i| {
            let summary = page.take_summary(i);
            (0..64).filter(move |bit| summary >> bit & 1 == 1).map(move |bit| i * 64 + bit)
        });
        let bits = words.flat_map(|word| {
            let bits = page.take_word(word);
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        });
        bits.collect()
    }

    pub(super) fn send_event(&self, event: AsyncEvent) {
        let state = self.state();
        socket::send(state.events.as_ref().unwrap().as_fd(), &event, &[]).unwrap();
    }

    fn handle(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> (Reply, Vec<OwnedFd>) {
        let mut state = self.state();
        let name = match request {
            Request::Cm(request) => format!("{request:?}"),
            request => format!("{request:?}"),
        };
        let end = name.find([' ', '{', '(']).unwrap_or(name.len());
        state.log.push(name[..end].to_owned());
        if state.refuse_only.is_none_or(|only| name.starts_with(only))
            && let Some((errno, message)) = state.refuse.take()
        {
            return (Reply::Refused { errno, message: message.to_owned() }, Vec::new());
        }
        state.answer(request, fds)
    }
}

fn eventfd() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap()
}

fn copy(fd: &impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

impl State {
    fn new_handle(&mut self) -> u32 {
        self.handles += 1;
        self.handles
    }

    fn allocate(&mut self, bytes: u64) -> (Block, BlockAddress) {
        self.segments.as_mut().unwrap().allocate(bytes).unwrap()
    }

    /// The files of segments that the client has not seen.
    fn show(&mut self, addresses: &mut [BlockAddress]) -> Vec<OwnedFd> {
        addresses.sort_by_key(|address| address.segment);
        let new = addresses.iter().filter(|address| self.shown.insert(address.segment));
        let segments = self.segments.as_ref().unwrap();
        new.map(|address| copy(&segments.mapping(address.segment).unwrap().fd())).collect()
    }

    fn answer(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> (Reply, Vec<OwnedFd>) {
        let just = |reply| (reply, Vec::new());
        match request {
            Request::Hello { .. } => {
                let (ours, theirs) = socket::pair().unwrap();
                self.events = Some(ours);
                let abi_version = self.abi_version.unwrap_or(shm::ABI_VERSION);
                let device = DeviceAttr { name: "mock0".to_owned(), ..DeviceAttr::default() };
                (Reply::Hello { abi_version, session: 1, device }, vec![theirs])
            }
            Request::QueryPort { .. } => just(Reply::Port(PortAttr { active_mtu: 3, ..PortAttr::default() })),
            Request::QueryGids { .. } => {
                let gid = Gid::from_ip("10.0.0.1".parse().unwrap());
                just(Reply::Gids(vec![GidEntry { gid, index: 0, gid_type: GidType::RoceV2, vlan: None }]))
            }
            Request::AttachMemory { bytes } => {
                let handle = self.new_handle();
                self.memories.insert(handle, Mapping::attach(copy(&fds[0]), *bytes).unwrap());
                just(Reply::Handle(handle))
            }
            Request::RegMr { .. } => {
                let key = self.new_handle();
                just(Reply::Mr { lkey: key, rkey: key + 1000 })
            }
            Request::AllocMw { .. } => {
                let mw = self.new_handle();
                just(Reply::Mw { mw, rkey: mw << 8 | 0xfe })
            }
            Request::WhyQp { qpn } => {
                just(Reply::Refused { errno: 2, message: format!("no QP {qpn:#08x} has broken by itself") })
            }
            Request::CreateChannel => {
                let handle = self.new_handle();
                let (notifier, notifications) = shm::wake::channel().unwrap();
                let fds = vec![copy(&notifications), copy(&notifier)];
                self.channels.insert(handle, notifier);
                (Reply::Handle(handle), fds)
            }
            Request::AllocPd | Request::CreateAh { .. } => just(Reply::Handle(self.new_handle())),
            Request::CreateCq { cqe, channel, .. } => self.create_cq(*cqe, *channel),
            Request::ResizeCq { cq, cqe } => self.resize_cq(*cq, *cqe),
            Request::CreateSrq { attr, .. } => self.create_srq(*attr),
            Request::OpenXrcd { .. } => just(Reply::Xrcd { xrcd: self.new_handle(), shard: 3 }),
            Request::CreateXrcSrq { attr, .. } => match self.create_srq(*attr) {
                (Reply::Srq { srq, attr, shape, block }, fds) => {
                    (Reply::XrcSrq { srq, srqn: srq | 3 << 20, attr, shape, block }, fds)
                }
                other => other,
            },
            Request::CreateXrcQp { .. } | Request::OpenXrcQp { .. } => just(Reply::XrcQp { qpn: 0x30_0077, shard: 3 }),
            Request::CreateQp { send_cq, recv_cq, srq, cap, .. } => self.create_qp(*send_cq, *recv_cq, *srq, *cap),
            Request::Cm(request) => self.cm.answer(request),
            Request::DestroyQp { qpn } => {
                self.qps.remove(qpn);
                just(Reply::Done)
            }
            Request::QueryQp { qpn } => just(Reply::QpAttr(self.modified.get(qpn).copied().unwrap_or_default())),
            Request::ModifyQp { qpn, attr, .. } => {
                let modified = self.modified.entry(*qpn).or_default();
                modified.qp_state = attr.qp_state;
                modified.max_rd_atomic |= attr.max_rd_atomic;
                modified.max_dest_rd_atomic |= attr.max_dest_rd_atomic;
                let qp = self.qps.get_mut(qpn).unwrap();
                if attr.qp_state == QpState::Reset {
                    qp.send.reset();
                    qp.recv.iter_mut().for_each(RecvFetcher::reset);
                }
                ring::set_qp_error(&qp.block, attr.qp_state == QpState::Err);
                just(Reply::QpModified { state: attr.qp_state })
            }
            _ => just(Reply::Done),
        }
    }

    fn create_cq(&mut self, cqe: u32, channel: Option<u32>) -> (Reply, Vec<OwnedFd>) {
        let depth = cqe.next_power_of_two();
        let (block, address) = self.allocate(ring::cq_block_bytes(depth));
        let cq = self.new_handle();
        self.cqs.insert(cq, MockCq { writer: CqWriter::new(&block, depth).unwrap(), channel });
        let fds = self.show(&mut [address]);
        (Reply::Cq { cq, shard: 0, depth, block: address }, fds)
    }

    fn resize_cq(&mut self, cq: u32, cqe: u32) -> (Reply, Vec<OwnedFd>) {
        let depth = cqe.next_power_of_two();
        let (block, address) = self.allocate(ring::cq_block_bytes(depth));
        let cq = self.cqs.get_mut(&cq).unwrap();
        let mut writer = CqWriter::new(&block, depth).unwrap();
        writer.succeed(&cq.writer);
        cq.writer = writer;
        let fds = self.show(&mut [address]);
        (Reply::CqRing { depth, block: address }, fds)
    }

    fn create_srq(&mut self, attr: SrqAttr) -> (Reply, Vec<OwnedFd>) {
        let shape = QueueShape::recv(attr.max_wr, attr.max_sge);
        let (block, address) = self.allocate(ring::srq_block_bytes(shape));
        let srq = self.new_handle();
        self.srqs.insert(srq, RecvFetcher::new_srq(&block, shape).unwrap());
        let fds = self.show(&mut [address]);
        (Reply::Srq { srq, attr, shape, block: address }, fds)
    }

    fn create_qp(&mut self, send_cq: u32, recv_cq: u32, srq: Option<u32>, cap: QpCap) -> (Reply, Vec<OwnedFd>) {
        let sq = QueueShape::send(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
        let rq = QueueShape::recv(if srq.is_some() { 0 } else { cap.max_recv_wr }, cap.max_recv_sge);
        // Far more than a segment in between: the doorbell page comes with a segment of its own.
        let (block, address) = self.allocate(ring::qp_block_bytes(sq, rq));
        let wake_fd = self.doorbell.is_none();
        if wake_fd {
            let _ = self.allocate(5 << 20);
            let (block, address) = self.allocate(4 << 20);
            assert!(block.mapping.bytes() >= DOORBELL_BYTES);
            self.doorbell = Some((DoorbellPage::new(&block).unwrap(), address));
            self.wake = Some(eventfd());
        }
        let doorbell = self.doorbell.as_ref().unwrap().1;
        let qpn = (17..).find(|qpn| !self.qps.contains_key(qpn)).unwrap();
        let index = qpn - 17;
        let send = SendFetcher::new(&block, sq).unwrap();
        let recv = (rq.depth > 0).then(|| RecvFetcher::new(&block, sq, rq).unwrap());
        self.qps.insert(qpn, MockQp { send, recv, block, send_cq, recv_cq, index });
        let mut fds = self.show(&mut [address, doorbell]);
        if wake_fd {
            fds.push(copy(self.wake.as_ref().unwrap()));
        }
        let doorbell_index = index;
        (Reply::Qp { qpn, cap, sq, rq, block: address, shard: 0, doorbell, doorbell_index, wake_fd }, fds)
    }
}

impl Endpoint for Mock {
    fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        // Through the codec, as on a socket.
        let request = control::decode(&control::encode(request)?)?;
        let (reply, fds) = self.handle(&request, fds);
        Ok((control::decode(&control::encode(&reply)?)?, fds))
    }

    /// Completes every send of the QPs that rang.
    fn make_progress(&self) {
        for index in self.take_doorbells() {
            let state = self.state();
            let qpn = state.qps.iter().find_map(|(&qpn, qp)| (qp.index == index).then_some(qpn)).unwrap();
            drop(state);
            let qpn = Qpn::new(qpn);
            for wr_id in self.fetch_sends(qpn) {
                self.complete(qpn, wr_id, WcOpcode::Send, WcStatus::Success);
                self.retire_sends(qpn, 1);
            }
        }
    }

    fn is_polled(&self) -> bool {
        self.polled
    }
}

/// A mock behind a socket, on a thread, as a daemon is.
pub(super) struct Daemon {
    pub(super) mock: Arc<Mock>,
    socket: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts it; the other end is for [`Context::from_fd`].
    pub(super) fn start() -> (Self, OwnedFd) {
        let (ours, theirs) = socket::pair().unwrap();
        let (mock, socket) = (Mock::new(false), Arc::new(ours));
        let (server, end) = (Arc::clone(&mock), Arc::clone(&socket));
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; control::MESSAGE_BYTES_MAX];
            while let Ok((length, fds)) = socket::receive(end.as_fd(), &mut buffer) {
                let request = control::decode(&buffer[..length]).unwrap();
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                let (reply, fds) = server.handle(&request, &fds);
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                if socket::send(end.as_fd(), &reply, &fds).is_err() {
                    return;
                }
            }
        });
        (Self { mock, socket, thread: Some(thread) }, theirs)
    }

    /// Ends it as a kill does: both sockets close.
    pub(super) fn kill(&mut self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.mock.state().events = None;
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }
}
