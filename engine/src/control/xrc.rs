//! XRC domains, and the QPs in them that receive (IBTA A14, `ibv_open_xrcd(3)`). A domain may be of several sessions of one
//! user, and so may its QPs: each goes with the last session that has it. All of a domain lives on one shard.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use shm::attr::{QpCap, QpType, SrqAttr};
use shm::control::Reply;
use shm::inode::Inode;
use shm::layout::QueueShape;
use shm::ring::qp_block_bytes;
use shm::segment::{BlockAddress, SegmentAllocator, SegmentBudget};
use wire::Qpn;

use super::queues::WantedSrq;
use super::session::{QpBook, QpPlace, Session, XrcdBook};
use super::{Answered, Control, Refusal, errno, refuse};
use crate::command::{Answer, Command, Shards};
use crate::config::Limits;
use crate::qp::{Qp, QpConfig};
use crate::srq::XrcPlace;
use crate::{QPN_INDEX_BITS, shard_of};

/// No object of a session has this handle.
const NOBODY: u32 = 0;
/// No CQ of a shard has this index.
const NO_CQ: u32 = u32::MAX;

/// A domain.
struct Domain {
    uid: u32,
    /// The file that it is of; `None` = one session's own.
    inode: Option<Inode>,
    shard: u8,
    /// How often sessions have it open.
    handles: u32,
    /// QPs that receive, by number.
    qps: BTreeMap<u32, DomainQp>,
}

/// A QP that receives, perhaps for several sessions.
struct DomainQp {
    address: BlockAddress,
    /// Sessions that have it.
    sessions: u32,
}

/// The domains of an engine.
pub(super) struct XrcDesk {
    domains: BTreeMap<u32, Domain>,
    /// Domains are numbered for the whole engine, from 1.
    next: u32,
    /// For the error words of QPs, which no client sees: a QP may outlive the session that made it.
    blocks: SegmentAllocator,
}

impl XrcDesk {
    pub(super) fn new(rings: SegmentBudget, limits: &Limits) -> Self {
        Self { domains: BTreeMap::new(), next: 1, blocks: SegmentAllocator::within(rings, limits.ring_bytes) }
    }

    fn of_file(&self, uid: u32, inode: &Inode) -> Option<u32> {
        let same = |domain: &Domain| domain.inode.as_ref().is_some_and(|known| known.is_same(inode));
        self.domains.iter().find(|(_, domain)| domain.uid == uid && same(domain)).map(|(&number, _)| number)
    }

    fn number(&mut self) -> u32 {
        while self.next == 0 || self.domains.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    /// A session has one more, or one less, handle of a domain, which goes with the last.
    fn release(&mut self, number: u32) {
        let Some(domain) = self.domains.get_mut(&number) else { return };
        domain.handles -= 1;
        if domain.handles == 0 {
            self.domains.remove(&number);
        }
    }
}

impl Control {
    pub(super) fn open_xrcd(
        &mut self,
        session: &mut Session,
        fd: Option<OwnedFd>,
        create: bool,
        exclusive: bool,
    ) -> Result<Reply, Refusal> {
        let no_inode = |error| refuse(errno::EINVAL, format!("the file of the XRC domain can't be told: {error}"));
        let inode = fd.map(|fd| Inode::of(&fd)).transpose().or_else(no_inode)?;
        let found = inode.as_ref().and_then(|inode| self.xrc.of_file(session.peer.uid, inode));
        if found.is_some() && exclusive {
            return refuse(errno::EINVAL, "the file has an XRC domain already, and O_EXCL asks for a new one");
        }
        if found.is_none() && inode.is_some() && !create {
            return refuse(errno::EAGAIN, "the file has no XRC domain, and O_CREAT does not ask for one");
        }
        let max = self.config.limits.max_xrcd;
        self.check_share(session, "XRC domains open", max, |s| s.xrcds.len())?;
        if self.xrc.domains.values().map(|domain| u64::from(domain.handles)).sum::<u64>() >= u64::from(max) {
            return refuse(errno::ENOMEM, format!("the limit of {max} open XRC domains is reached"));
        }
        let number = found.unwrap_or_else(|| {
            let (uid, shard) = (session.peer.uid, self.place_cq(session, None));
            let number = self.xrc.number();
            self.xrc.domains.insert(number, Domain { uid, inode, shard, handles: 0, qps: BTreeMap::new() });
            number
        });
        let handle = session.handle();
        let Some(domain) = self.xrc.domains.get_mut(&number) else { unreachable!("found or made above") };
        domain.handles += 1;
        session.xrcds.insert(handle, XrcdBook { domain: number, users: 0 });
        Ok(Reply::Xrcd { xrcd: handle, shard: domain.shard })
    }

    /// The shard of one of the session's domains, if it has any.
    pub(super) fn xrc_shard(&self, session: &Session) -> Option<u8> {
        let book = session.xrcds.values().next()?;
        Some(self.xrc.domains.get(&book.domain)?.shard)
    }

    pub(super) fn close_xrcd(&mut self, session: &mut Session, handle: u32) -> Result<Reply, Refusal> {
        match session.xrcds.get(&handle) {
            None => no_such_xrcd(handle),
            Some(XrcdBook { users: users @ 1.., .. }) => {
                refuse(errno::EBUSY, format!("XRC domain {handle} is used by {users} objects: destroy them first"))
            }
            Some(&XrcdBook { domain, .. }) => {
                session.xrcds.remove(&handle);
                self.xrc.release(domain);
                Ok(Reply::Done)
            }
        }
    }

    /// The session ends: it has neither SRQs nor QPs any more.
    pub(super) fn close_all_xrcds(&mut self, session: &mut Session) {
        for (_, book) in std::mem::take(&mut session.xrcds) {
            self.xrc.release(book.domain);
        }
    }

    /// A domain's number in the engine and its shard.
    fn domain_of(&self, session: &Session, handle: u32) -> Result<(u32, u8), Refusal> {
        let number = session.xrcds.get(&handle).map(|book| book.domain);
        match number.and_then(|number| Some((number, self.xrc.domains.get(&number)?.shard))) {
            Some(found) => Ok(found),
            None => no_such_xrcd(handle),
        }
    }

    pub(super) fn create_xrc_srq<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        (pd, xrcd, cq): (u32, u32, u32),
        attr: SrqAttr,
    ) -> Result<Answered, Refusal> {
        let (domain, shard) = self.domain_of(session, xrcd)?;
        let cq_index = match session.cqs.get(&cq) {
            None => return refuse(errno::EINVAL, format!("CQ {cq} does not exist")),
            Some(book) if book.shard != shard => {
                let message = format!(
                    "CQ {cq} is on lcore {}, the XRC domain on {shard}: make it with comp_vector {shard}",
                    book.shard
                );
                return refuse(errno::EINVAL, message);
            }
            Some(book) => book.index,
        };
        let place = |index| XrcPlace { srqn: u32::from(shard) << QPN_INDEX_BITS | index, xrcd: domain, cq: cq_index };
        let wanted = WantedSrq { pd, shard, attr, place: Some(&place) };
        let (made, fds) = self.make_srq(shards, number, session, &wanted)?;
        session.use_xrc_srq((xrcd, cq), true);
        if let Some(book) = session.srqs.get_mut(&made.srq) {
            book.xrc = Some((xrcd, cq));
        }
        let srqn = u32::from(shard) << QPN_INDEX_BITS | made.index;
        let reply = Reply::XrcSrq { srq: made.srq, srqn, attr: made.attr, shape: made.shape, block: made.address };
        Ok((reply, fds))
    }

    pub(super) fn create_xrc_qp<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        xrcd: u32,
    ) -> Result<Reply, Refusal> {
        let (domain, shard) = self.domain_of(session, xrcd)?;
        let limits = &self.config.limits;
        let max = limits.max_qp;
        let srq_max_sge = QueueShape::recv(1, limits.max_sge).max_sge;
        let max_rd_atomic = limits.max_rd_atomic;
        self.check_share(session, "QPs on an lcore", max, |s| s.qp_count_on(shard))?;
        // It has no queue, but an engine's QP has a send queue: of one slot, which nobody can post to.
        let sq = QueueShape::send(1, 1, 0);
        let made = self.xrc.blocks.allocate(qp_block_bytes(sq, QueueShape::default()));
        let (block, address) = made.or_else(|error| refuse(errno::ENOMEM, error.to_string()))?;
        let Some(index) = self.shards[usize::from(shard)].qps.allocate() else {
            self.xrc.blocks.release(address);
            return refuse(errno::ENOMEM, format!("the limit of {max} QPs is reached"));
        };
        let qpn = Qpn::new(u32::from(shard) << QPN_INDEX_BITS | index);
        let config = QpConfig {
            qpn,
            index,
            session: number,
            pd: 0,
            kind: QpType::XrcRecv,
            send_cq: NO_CQ,
            recv_cq: NO_CQ,
            srq: None,
            xrcd: domain,
            sq_sig_all: false,
            cap: QpCap::default(),
            sq,
            rq: QueueShape::default(),
            srq_max_sge,
            block,
            max_rd_atomic,
            recovery: self.config.recovery.unasked,
        };
        let qp = Qp::new(config).unwrap_or_else(|error| unreachable!("the block is as large as the queue: {error}"));
        let answer = shards.command(shard, Command::AddQp { qp, doorbell_index: None });
        assert!(matches!(answer, Answer::Done), "a shard takes a QP at a free index");
        if let Some(domain) = self.xrc.domains.get_mut(&domain) {
            domain.qps.insert(qpn.value(), DomainQp { address, sessions: 1 });
        }
        session.add_xrc_qp(qpn.value(), xrcd, domain);
        Ok(Reply::XrcQp { qpn: qpn.value(), shard })
    }

    pub(super) fn open_xrc_qp(&mut self, session: &mut Session, xrcd: u32, qpn: u32) -> Result<Reply, Refusal> {
        let (number, shard) = self.domain_of(session, xrcd)?;
        if session.qps.contains_key(&qpn) {
            return refuse(errno::EINVAL, format!("QP {qpn:#08x} is the session's already"));
        }
        let max = self.config.limits.max_qp;
        self.check_share(session, "QPs on an lcore", max, |s| s.qp_count_on(shard))?;
        let domain = self.xrc.domains.get_mut(&number);
        let Some(qp) = domain.and_then(|domain| domain.qps.get_mut(&qpn)) else {
            return refuse(errno::EINVAL, format!("QP {qpn:#08x} does not exist in XRC domain {xrcd}"));
        };
        qp.sessions += 1;
        session.add_xrc_qp(qpn, xrcd, number);
        Ok(Reply::XrcQp { qpn, shard })
    }

    /// A session, which has forgotten the QP, has no use for it any more. It goes with the last one.
    pub(super) fn leave_xrc_qp<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &Session,
        qpn: u32,
        domain: u32,
    ) {
        let Some(domain) = self.xrc.domains.get_mut(&domain) else { return };
        let Some(qp) = domain.qps.get_mut(&qpn) else { return };
        qp.sessions -= 1;
        if qp.sessions == 0 {
            let address = qp.address;
            domain.qps.remove(&qpn);
            self.drop_qp(shards, number, session, qpn);
            self.xrc.blocks.release(address);
        }
    }
}

impl Session {
    fn add_xrc_qp(&mut self, qpn: u32, xrcd: u32, domain: u32) {
        let place = QpPlace::Domain { xrcd, domain };
        let (kind, cq) = (QpType::XrcRecv, NOBODY);
        let book =
            QpBook { kind, pd: NOBODY, send_cq: cq, recv_cq: cq, srq: None, place, neighbour: None, agreed: None };
        self.qps.insert(qpn, book);
        self.use_xrcd(xrcd, true);
    }

    /// Counts a user of an XRC domain up or down.
    pub(super) fn use_xrcd(&mut self, handle: u32, up: bool) {
        if let Some(book) = self.xrcds.get_mut(&handle) {
            book.users = if up { book.users + 1 } else { book.users.saturating_sub(1) };
        }
    }

    /// Counts an SRQ as a user of its XRC domain and its CQ, up or down.
    pub(super) fn use_xrc_srq(&mut self, (xrcd, cq): (u32, u32), up: bool) {
        self.use_xrcd(xrcd, up);
        if let Some(book) = self.cqs.get_mut(&cq) {
            book.users = if up { book.users + 1 } else { book.users.saturating_sub(1) };
        }
    }

    /// QPs on a shard that receive in XRC domains.
    pub(super) fn xrc_qp_count_on(&self, shard: u8) -> usize {
        if self.xrcds.is_empty() {
            return 0;
        }
        let of_domains = self.qps.iter().filter(|(_, book)| matches!(book.place, QpPlace::Domain { .. }));
        of_domains.filter(|&(&qpn, _)| shard_of(Qpn::new(qpn)) == shard).count()
    }
}

fn no_such_xrcd<T>(handle: u32) -> Result<T, Refusal> {
    refuse(errno::EINVAL, format!("XRC domain {handle} does not exist"))
}
