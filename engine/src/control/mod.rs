//! The control side: sessions, their objects, and the requests that make and change them. Sans-IO: requests come in decoded,
//! shards are reached through [`Shards`], entropy is an argument.
//!
//! Every number in a request is hostile. A handle is looked up in the books of the session that names it, so that no session
//! can reach another's objects; sizes are checked against [`crate::config::Limits`]; a request that is refused changes nothing.

mod admin;
mod ah;
mod cm;
mod congestion;
mod ece;
mod gsi;
mod mcast;
mod memory;
mod post_mortem;
mod process;
mod qos;
mod qps;
mod queues;
mod sentence;
mod session;
mod shares;
mod xrc;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use shm::ABI_VERSION;
use shm::attr::{DeviceAttr, GidEntry, PortAttr};
use shm::control::{AsyncEvent, Reply, Request};
use shm::process_memory::AtomicTurns;
use shm::segment::SegmentBudget;
use wire::PathMtu;

use crate::cc::Settings;
use crate::command::{Answer, Command, Shards};
use crate::config::{EngineConfig, PortConfig, eui64};
use crate::mcast::{ATTACHMENTS_MAX, McastTable};
use crate::mr::MrTable;
use crate::slab::IndexAllocator;
use crate::time::Time;
use crate::{QPN_INDEX_COUNT, QPN_RESERVED_COUNT, SHARD_COUNT_MAX};
use cm::CmDesk;
use process::Move;
use session::{QpPlace, Session};

/// Errno values of the verbs' man pages.
mod errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EFAULT: i32 = 14;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EPROTO: i32 = 71;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ENOBUFS: i32 = 105;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const EHOSTUNREACH: i32 = 113;
}

/// A request that is refused: errno and sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Refusal {
    errno: i32,
    message: String,
}

fn refuse<T>(errno: i32, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { errno, message: message.into() })
}

/// What goes back to the client: an answer and the file descriptors that ride along.
type Answered = (Reply, Vec<OwnedFd>);

/// Who is at the other end of a connection, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peer {
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
}

/// Numbers of a shard's objects.
#[derive(Debug)]
struct ShardBook {
    qps: IndexAllocator,
    cqs: IndexAllocator,
    srqs: IndexAllocator,
}

/// The control side of an engine.
pub struct Control {
    config: Arc<EngineConfig>,
    /// As they are now; `config` has them as they were at the start.
    ports: Vec<PortConfig>,
    /// Congestion control of each port.
    congestion: Vec<Settings>,
    entropy: Box<dyn FnMut() -> u64 + Send>,
    started: Time,
    sessions: BTreeMap<u32, Session>,
    next_session: u32,
    /// Protection domains are numbered for the whole engine.
    next_pd: u32,
    shards: Vec<ShardBook>,
    /// Address handles: every shard has them at the same index.
    ahs: IndexAllocator,
    /// The master copy of the shards' tables.
    mcast: McastTable,
    /// The master copy of the shards' tables: the same keys fit all of them.
    mrs: MrTable,
    /// For RDMA atomics in memory of clients' processes.
    turns: AtomicTurns,
    /// When to look whether clients still have what regions map that were registered anew; [`Time::NEVER`] if there are none.
    next_look: Time,
    /// For the rings of all sessions.
    rings: SegmentBudget,
    post_mortems: post_mortem::PostMortems,
    /// The part of it that each user with a session may spend.
    user_rings: BTreeMap<u32, SegmentBudget>,
    xrc: xrc::XrcDesk,
    /// Connections of all sessions.
    cm: CmDesk,
    /// By port.
    qos: Vec<qos::QosBook>,
}

impl Control {
    /// The control side of `config.shard_count` shards. `entropy` must be unpredictable to clients and peers where that matters:
    /// memory keys come from it.
    pub fn new(config: Arc<EngineConfig>, entropy: Box<dyn FnMut() -> u64 + Send>, now: Time) -> Self {
        assert!((1..=SHARD_COUNT_MAX).contains(&config.shard_count), "an engine has 1 to {SHARD_COUNT_MAX} shards");
        let limits = &config.limits;
        let qp_end = limits.max_qp.saturating_add(QPN_RESERVED_COUNT).min(QPN_INDEX_COUNT);
        let book = |_| ShardBook {
            qps: IndexAllocator::new(QPN_RESERVED_COUNT, qp_end),
            cqs: IndexAllocator::new(0, limits.max_cq),
            // An SRQN of 0 is nobody's: it is what a request of XRC names that was not told any.
            srqs: IndexAllocator::new(1, limits.max_srq.saturating_add(1).min(QPN_INDEX_COUNT)),
        };
        let shards = (0..config.shard_count).map(book).collect();
        let mrs = MrTable::new(limits.max_mr);
        let ahs = IndexAllocator::new(0, limits.max_ah.min(ah::INDEX_COUNT));
        let rings = SegmentBudget::new(limits.ring_bytes_total);
        let cm = CmDesk::new(&config);
        let qos = config.ports.iter().map(|_| qos::QosBook::new(&config.qos)).collect();
        let xrc = xrc::XrcDesk::new(rings.clone(), limits);
        Self {
            ports: config.ports.clone(),
            congestion: vec![config.congestion; config.ports.len()],
            config,
            entropy,
            started: now,
            sessions: BTreeMap::new(),
            next_session: 1,
            next_pd: 1,
            shards,
            ahs,
            mcast: McastTable::default(),
            mrs,
            turns: AtomicTurns::default(),
            next_look: Time::NEVER,
            rings,
            post_mortems: post_mortem::PostMortems::default(),
            user_rings: BTreeMap::new(),
            xrc,
            cm,
            qos,
        }
    }

    /// A port is another now. Returns the events to be told to every session, in their order.
    ///
    /// Shards know it once this returns: from then on a QP gets a GID or a path MTU only if the port has it.
    pub fn port_changed<S: Shards>(&mut self, shards: &mut S, port_index: u8, port: PortConfig) -> Vec<AsyncEvent> {
        let Some(known) = self.ports.get_mut(usize::from(port_index)) else { return Vec::new() };
        let port_num = port_index + 1;
        let mut events = Vec::new();
        match (known.active, port.active) {
            (false, true) => events.push(AsyncEvent::PortActive { port_num }),
            (true, false) => events.push(AsyncEvent::PortErr { port_num }),
            _ => {}
        }
        if known.addresses != port.addresses {
            events.push(AsyncEvent::GidChange { port_num });
        }
        *known = port.clone();
        self.cm.set_ports(&self.ports);
        self.command_all(shards, || Command::ChangePort { port: port_index, config: Box::new(port.clone()) });
        events
    }

    /// What is known of the ports, in the order of their numbers.
    pub fn ports(&self) -> &[PortConfig] {
        &self.ports
    }

    /// A client connected: the number of its session, or the sentence that refuses it.
    ///
    /// # Errors
    /// When there are as many sessions as the configuration allows, to all or to the user.
    pub fn open_session(&mut self, peer: Peer) -> Result<u32, String> {
        let limit = self.config.limits.max_session;
        if self.sessions.len() >= limit as usize {
            return Err(format!("{limit} clients are connected, as many as the limit max_session allows"));
        }
        self.check_session_share(peer).map_err(|refusal| refusal.message)?;
        let number = self.next_session;
        self.next_session = self.next_session.wrapping_add(1).max(1);
        let rings = self.rings_of(peer.uid);
        self.sessions.insert(number, Session::new(peer, &self.config, rings));
        Ok(number)
    }

    /// A client is gone: all that it had goes too. Returns once no shard touches its memory.
    ///
    /// The pages of its rings are given back at once: the daemon pays for them, and the client may keep the files.
    pub fn close_session<S: Shards>(&mut self, shards: &mut S, number: u32) {
        if let Some(session) = self.take_session_apart(shards, number) {
            session.segments.discard_all();
        }
    }

    /// The engine ends: all sessions do. Clients still find in their rings what was completed.
    pub fn close_all<S: Shards>(&mut self, shards: &mut S) {
        for number in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.take_session_apart(shards, number);
        }
    }

    fn take_session_apart<S: Shards>(&mut self, shards: &mut S, number: u32) -> Option<Session> {
        let mut session = self.sessions.remove(&number)?;
        self.fetch_all_breaks(shards, number, &session);
        self.close_cm(&mut session);
        for (qpn, book) in std::mem::take(&mut session.qps) {
            match book.place {
                QpPlace::Session { .. } => self.drop_qp(shards, number, &session, qpn),
                QpPlace::Domain { domain, .. } => self.leave_xrc_qp(shards, number, &session, qpn, domain),
            }
        }
        for (key, _) in std::mem::take(&mut session.ahs) {
            self.drop_ah(shards, key);
        }
        for (_, srq) in std::mem::take(&mut session.srqs) {
            shards.command(srq.shard, Command::RemoveSrq { index: srq.index });
            self.shards[usize::from(srq.shard)].srqs.release(srq.index);
        }
        self.close_all_xrcds(&mut session);
        for (_, cq) in std::mem::take(&mut session.cqs) {
            shards.command(cq.shard, Command::RemoveCq { index: cq.index });
            self.shards[usize::from(cq.shard)].cqs.release(cq.index);
        }
        for (handle, _) in std::mem::take(&mut session.mws) {
            self.drop_mw(shards, handle);
        }
        for (key, _) in std::mem::take(&mut session.mrs) {
            self.drop_mr(shards, key);
        }
        for (shard, page) in session.doorbells.iter().enumerate() {
            if page.is_some() {
                shards.command(shard as u8, Command::RemoveSession { session: number });
            }
        }
        self.forget_user(session.peer.uid);
        Some(session)
    }

    /// Answers a request of a session. File descriptors that came with it and are not used are closed.
    pub fn handle<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        now: Time,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> (Reply, Vec<OwnedFd>) {
        // A session's books are taken out while they change: `self` stays free for the engine's own.
        let Some(mut session) = self.sessions.remove(&number) else {
            return refused(Refusal { errno: errno::EPROTO, message: "the session is closed".to_owned() });
        };
        let answer = self.dispatch(shards, number, &mut session, now, request, fds);
        self.sessions.insert(number, session);
        self.deliver_cm_events(now);
        answer.unwrap_or_else(refused)
    }

    fn dispatch<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        now: Time,
        request: Request,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Answered, Refusal> {
        if let Request::Hello { abi_version, client_name } = request {
            return self.hello(number, session, abi_version, client_name);
        }
        if !session.greeted {
            return refuse(errno::EPROTO, "the first message of a client must be Hello");
        }
        let reply = match request {
            Request::Hello { .. } => unreachable!("handled above"),
            Request::QueryDevice => Reply::Device(self.device_attr()),
            Request::QueryPort { port_num } => Reply::Port(port_attr(self.port(port_num)?)),
            Request::QueryGids { port_num } => Reply::Gids(gid_entries(self.port(port_num)?)),
            Request::AllocPd => self.alloc_pd(session)?,
            Request::DeallocPd { pd } => session.dealloc_pd(pd)?,
            Request::AttachMemory { bytes } => session.attach_memory(fds.pop(), bytes)?,
            Request::PopulateMemory { memory } => session.populate_memory(memory)?,
            Request::DetachMemory { memory } => session.detach_memory(memory)?,
            Request::RegMr { pd, memory, offset, addr, length, access } => {
                let range = memory::Range { memory, offset, addr, length };
                self.reg_mr(shards, session, pd, range, access)?
            }
            Request::AllocMw { pd, mw_type } => self.alloc_mw(shards, session, pd, mw_type)?,
            Request::DeallocMw { mw } => self.dealloc_mw(shards, session, mw)?,
            Request::RenewMr { lkey, share } => self.renew_mr(shards, session, now, lkey, share)?,
            Request::QueryMr { lkey } => self.query_mr(session, lkey)?,
            Request::MoveOpen { bytes } => session.move_open(fds.pop(), bytes)?,
            Request::MoveBegin { addr, length, scratch, offset } => {
                self.move_begin(session, &Move { addr, length, scratch, offset })?
            }
            Request::MoveCopy => session.move_copy()?,
            Request::MoveAbandon => session.move_abandon()?,
            Request::AttachProcess => session.attach_process(fds.pop(), &self.turns, self.config.process_memory)?,
            Request::RegProcessMemory { pd, addr, iova, length, access, share } => {
                let range = memory::ProcessRange { addr, iova, length, share };
                self.reg_process_memory(shards, session, pd, range, access)?
            }
            Request::DeregMr { lkey } => self.dereg_mr(shards, session, lkey)?,
            Request::CreateChannel => return session.create_channel(),
            Request::DestroyChannel { channel } => session.destroy_channel(channel)?,
            Request::CreateCq { cqe, channel, comp_vector } => {
                return self.create_cq(shards, number, session, cqe, channel, comp_vector);
            }
            Request::DestroyCq { cq } => self.destroy_cq(shards, session, cq)?,
            Request::CreateSrq { pd, cq, attr } => return self.create_srq(shards, number, session, pd, cq, attr),
            Request::ModifySrq { srq, srq_limit } => self.modify_srq(shards, session, srq, srq_limit)?,
            Request::QuerySrq { srq } => self.query_srq(shards, session, srq)?,
            Request::DestroySrq { srq } => self.destroy_srq(shards, session, srq)?,
            Request::CreateQp { pd, qp_type, send_cq, recv_cq, srq, cap, sq_sig_all } => {
                let wanted = qps::WantedQp { pd, qp_type, send_cq, recv_cq, srq, cap, sq_sig_all };
                return self.create_qp(shards, number, session, wanted);
            }
            Request::ModifyQp { qpn, attr, mask } => self.modify_qp(shards, session, qpn, attr, mask)?,
            Request::QueryQp { qpn } => self.query_qp(shards, session, qpn)?,
            Request::DestroyQp { qpn } => self.destroy_qp(shards, number, session, qpn)?,
            Request::CreateAh { pd, attr } => self.create_ah(shards, session, pd, &attr)?,
            Request::DestroyAh { ah } => self.destroy_ah(shards, session, ah)?,
            Request::AttachMcast { qpn, mgid, mlid: _ } => self.attach_mcast(shards, session, qpn, mgid)?,
            Request::DetachMcast { qpn, mgid, mlid: _ } => self.detach_mcast(shards, session, qpn, mgid)?,
            Request::Stats => self.stats(shards, now),
            Request::ListQps { after } => self.list_qps(shards, number, session, after),
            Request::QpDetail { qpn } => self.qp_detail(shards, number, session, qpn)?,
            Request::ShowCongestion { target } => self.show_congestion(shards, session, target)?,
            Request::SetCongestion { target, change } => {
                self.change_congestion(shards, session, target, &congestion::Change::Set(&change))?
            }
            Request::ResetCongestion { target } => {
                self.change_congestion(shards, session, target, &congestion::Change::Reset)?
            }
            Request::ListSessions => self.list_sessions(number, session),
            Request::WhyQp { qpn } => self.why_qp(shards, number, session, now, qpn)?,
            Request::ListPostMortems => self.list_post_mortems(shards, number, session, now),
            Request::ListMrs { after } => self.list_mrs(number, session, after),
            Request::OpenXrcd { create, exclusive } => self.open_xrcd(session, fds.pop(), create, exclusive)?,
            Request::CloseXrcd { xrcd } => self.close_xrcd(session, xrcd)?,
            Request::CreateXrcSrq { pd, xrcd, cq, attr } => {
                return self.create_xrc_srq(shards, number, session, (pd, xrcd, cq), attr);
            }
            Request::CreateXrcQp { xrcd } => self.create_xrc_qp(shards, number, session, xrcd)?,
            Request::OpenXrcQp { xrcd, qpn } => self.open_xrc_qp(session, xrcd, qpn)?,
            Request::ShowQos { port_num } => self.show_qos(shards, port_num)?,
            Request::SetQos { port_num, change } => self.set_qos(shards, session.peer, port_num, &change)?,
            Request::ResizeCq { cq, cqe } => return self.resize_cq(shards, session, cq, cqe),
            Request::SetRecovery { qpn, policy } => self.set_recovery(shards, number, session, qpn, policy)?,
            Request::QueryEce { qpn } => self.query_ece(session, qpn)?,
            Request::SetEce { qpn, ece } => self.set_ece(shards, session, qpn, ece)?,
            Request::Cm(request) => return self.cm_request(shards, number, session, now, request),
        };
        Ok((reply, Vec::new()))
    }

    fn hello(
        &self,
        number: u32,
        session: &mut Session,
        abi_version: u32,
        client_name: String,
    ) -> Result<Answered, Refusal> {
        if abi_version != ABI_VERSION {
            let message = format!(
                "the client speaks version {abi_version} of the shared-memory ABI, the daemon version {ABI_VERSION}"
            );
            return refuse(errno::EPROTO, message);
        }
        session.greeted = true;
        session.client_name = client_name.chars().filter(|c| !c.is_control()).take(64).collect();
        let device = self.device_attr();
        Ok((Reply::Hello { abi_version: ABI_VERSION, session: number, device }, Vec::new()))
    }

    fn port(&self, port_num: u8) -> Result<&PortConfig, Refusal> {
        let index = usize::from(port_num).checked_sub(1);
        let count = self.ports.len();
        match index.and_then(|index| self.ports.get(index)) {
            Some(port) => Ok(port),
            None => refuse(errno::EINVAL, format!("port {port_num} does not exist: ports are 1 to {count}")),
        }
    }

    fn device_attr(&self) -> DeviceAttr {
        let limits = &self.config.limits;
        DeviceAttr {
            name: self.config.device_name.clone(),
            node_guid: self.config.ports.first().map_or(0, |port| eui64(port.mac)),
            fw_ver: self.config.version.clone(),
            max_mr_size: limits.memory_bytes,
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr,
            max_sge: limits.max_sge,
            max_inline_data: limits.max_inline_data,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_pd: limits.max_pd,
            max_qp_rd_atom: limits.max_rd_atomic,
            max_qp_init_rd_atom: limits.max_rd_atomic,
            max_srq: limits.max_srq,
            max_srq_wr: limits.max_qp_wr,
            max_srq_sge: limits.max_sge,
            max_memory_bytes: limits.memory_bytes,
            phys_port_cnt: self.config.ports.len() as u8,
            num_comp_vectors: u32::from(self.config.shard_count),
            max_ah: limits.max_ah,
            max_mcast_attach: ATTACHMENTS_MAX as u32,
            clock: self.config.clock,
        }
    }

    /// Has every shard execute a command that it answers with `Done`.
    fn command_all<S: Shards>(&self, shards: &mut S, mut command: impl FnMut() -> Command) -> bool {
        let mut done = true;
        for shard in 0..self.config.shard_count {
            done &= !matches!(shards.command(shard, command()), Answer::Missing);
        }
        done
    }
}

fn refused(refusal: Refusal) -> Answered {
    (Reply::Refused { errno: refusal.errno, message: refusal.message }, Vec::new())
}

fn port_attr(port: &PortConfig) -> PortAttr {
    PortAttr {
        active: port.active,
        max_mtu: PathMtu::M4096.code(),
        active_mtu: port.active_mtu().code(),
        gid_tbl_len: port.addresses.len() as u32,
        pkey_tbl_len: 1,
        max_msg_sz: 1 << 31,
        speed_mbps: port.speed_mbps,
        mac: port.mac,
        interface_mtu: port.interface_mtu,
        driver: port.driver.clone(),
        kernel_interface: port.kernel_interface.clone(),
    }
}

fn gid_entries(port: &PortConfig) -> Vec<GidEntry> {
    port.gids().collect()
}
