//! Queue pairs.

use std::os::fd::OwnedFd;

use shm::attr::{MwType, QpAttr, QpAttrMask, QpCap, QpState, QpType};
use shm::control::Reply;
use shm::doorbell::{DOORBELL_BYTES, DOORBELL_COUNT, DoorbellPage};
use shm::layout::QueueShape;
use shm::ring::qp_block_bytes;
use shm::segment::{Block, BlockAddress};
use wire::Qpn;

use super::session::{DoorbellBook, QpBook, QpPlace, Session};
use super::{Answered, Control, Refusal, errno, refuse};
use crate::command::{Answer, Command, Shards};
use crate::qp::state::ModifyError;
use crate::qp::{Qp, QpConfig};
use crate::slab::IndexAllocator;
use crate::{QPN_INDEX_BITS, QPN_INDEX_MASK, shard_of};

/// What a client asks for.
pub(super) struct WantedQp {
    pub(super) pd: u32,
    pub(super) qp_type: QpType,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) cap: QpCap,
    pub(super) sq_sig_all: bool,
}

/// Shapes and sizes that are granted.
struct Granted {
    cap: QpCap,
    sq: QueueShape,
    rq: QueueShape,
}

/// Where its completions and receives go.
struct Placement {
    shard: u8,
    send_cq: u32,
    recv_cq: u32,
    srq: Option<u32>,
    srq_max_sge: u32,
}

/// Numbers and memory taken for a QP.
struct QpRoom {
    shard: u8,
    index: u32,
    doorbell_index: u32,
    doorbell: BlockAddress,
    block: Block,
    address: BlockAddress,
}

impl Control {
    pub(super) fn create_qp<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        wanted: WantedQp,
    ) -> Result<Answered, Refusal> {
        check_service(&wanted)?;
        let pd_number = session.pd(wanted.pd)?;
        let placement = place_qp(session, &wanted)?;
        let granted = self.grant(&wanted)?;
        let (max_qp, on) = (self.config.limits.max_qp, placement.shard);
        self.check_share(session, "QPs on an lcore", max_qp, |s| s.qp_count_on(on))?;
        let room =
            self.room_for_qp(shards, number, session, placement.shard, qp_block_bytes(granted.sq, granted.rq))?;
        let QpRoom { shard, index, doorbell_index, doorbell, address, .. } = room;
        let qpn = Qpn::new(u32::from(shard) << QPN_INDEX_BITS | index);
        let qp = Qp::new(QpConfig {
            qpn,
            index,
            session: number,
            pd: pd_number,
            kind: wanted.qp_type,
            send_cq: placement.send_cq,
            recv_cq: placement.recv_cq,
            srq: placement.srq,
            xrcd: 0,
            sq_sig_all: wanted.sq_sig_all,
            cap: granted.cap,
            sq: granted.sq,
            rq: granted.rq,
            srq_max_sge: placement.srq_max_sge,
            block: room.block,
            max_rd_atomic: self.config.limits.max_rd_atomic,
            recovery: self.config.recovery.unasked,
        });
        let made = qp.or_else(|error| refuse(errno::EINVAL, error.to_string()));
        let made = made.and_then(|qp| Ok((qp, qp_fds(shards, session, shard, &[doorbell, address])?)));
        let (qp, (fds, wake_fd)) = made.inspect_err(|_| {
            self.shards[usize::from(shard)].qps.release(index);
            session.release_doorbell(shard, doorbell_index);
            session.segments.release(address);
        })?;
        let answer = shards.command(shard, Command::AddQp { qp, doorbell_index: Some(doorbell_index) });
        assert!(matches!(answer, Answer::Done), "a shard takes a QP of a session that it knows at a free index");
        session.add_qp_users(&wanted, true);
        let WantedQp { pd, send_cq, recv_cq, srq, .. } = wanted;
        let (kind, place) = (wanted.qp_type, QpPlace::Session { address, doorbell_index });
        let book = QpBook { kind, pd, send_cq, recv_cq, srq, place, neighbour: None, agreed: None };
        session.qps.insert(qpn.value(), book);
        let Granted { cap, sq, rq } = granted;
        let reply =
            Reply::Qp { qpn: qpn.value(), cap, sq, rq, block: address, shard, doorbell, doorbell_index, wake_fd };
        Ok((reply, fds))
    }

    fn grant(&self, wanted: &WantedQp) -> Result<Granted, Refusal> {
        let limits = &self.config.limits;
        let mut cap = wanted.cap;
        for (what, value, max) in [
            ("max_send_wr", cap.max_send_wr, limits.max_qp_wr),
            ("max_recv_wr", cap.max_recv_wr, limits.max_qp_wr),
            ("max_send_sge", cap.max_send_sge, limits.max_sge),
            ("max_recv_sge", cap.max_recv_sge, limits.max_sge),
            ("max_inline_data", cap.max_inline_data, limits.max_inline_data),
        ] {
            if value > max {
                return refuse(errno::EINVAL, format!("{what} of {value}: at most {max} are allowed"));
            }
        }
        cap.max_send_wr = cap.max_send_wr.max(1);
        cap.max_send_sge = cap.max_send_sge.max(1);
        let sq = QueueShape::send(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
        cap.max_send_wr = sq.depth.min(limits.max_qp_wr);
        cap.max_send_sge = sq.max_sge.min(limits.max_sge);
        let rq = if wanted.srq.is_some() || wanted.qp_type == QpType::XrcSend {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
            QueueShape::default()
        } else {
            QueueShape::recv(cap.max_recv_wr, cap.max_recv_sge.max(1))
        };
        if rq.depth > 0 {
            cap.max_recv_wr = rq.depth.min(limits.max_qp_wr);
            cap.max_recv_sge = rq.max_sge.min(limits.max_sge);
        }
        Ok(Granted { cap, sq, rq })
    }

    fn room_for_qp<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        shard: u8,
        bytes: u64,
    ) -> Result<QpRoom, Refusal> {
        let doorbell = self.doorbell_page(shards, number, session, shard)?;
        let (block, address) = session.allocate(bytes)?;
        let Some((index, doorbell_index)) = self.number_qp(session, shard) else {
            session.segments.release(address);
            let max = self.config.limits.max_qp;
            return refuse(errno::ENOMEM, format!("the limit of {max} QPs is reached"));
        };
        Ok(QpRoom { shard, index, doorbell_index, doorbell, block, address })
    }

    /// The session's doorbell page on a shard, made with its first QP there.
    fn doorbell_page<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        shard: u8,
    ) -> Result<BlockAddress, Refusal> {
        if let Some(Some(page)) = session.doorbells.get(usize::from(shard)) {
            return Ok(page.address);
        }
        let is_second = session.doorbells.iter().any(Option::is_some);
        if is_second && session.mws.values().any(|mw| mw.kind == MwType::Type1) {
            let message =
                "the session has memory windows of type 1, which are bound on one lcore: its QPs must stay there";
            return refuse(errno::EOPNOTSUPP, message);
        }
        let (block, address) = session.allocate(DOORBELL_BYTES)?;
        let Some(doorbells) = DoorbellPage::new(&block) else {
            return refuse(errno::EINVAL, "the doorbell page does not fit its block");
        };
        shards.command(shard, Command::AddSession { session: number, doorbells });
        if let Some(slot) = session.doorbells.get_mut(usize::from(shard)) {
            let indices = IndexAllocator::new(0, DOORBELL_COUNT);
            *slot = Some(DoorbellBook { address, has_wake: false, indices });
        }
        Ok(address)
    }

    /// An index in the shard and a bit in the session's doorbell page.
    fn number_qp(&mut self, session: &mut Session, shard: u8) -> Option<(u32, u32)> {
        let index = self.shards[usize::from(shard)].qps.allocate()?;
        let page = session.doorbells.get_mut(usize::from(shard)).and_then(Option::as_mut);
        match page.and_then(|page| page.indices.allocate()) {
            Some(doorbell_index) => Some((index, doorbell_index)),
            None => {
                self.shards[usize::from(shard)].qps.release(index);
                None
            }
        }
    }

    pub(super) fn modify_qp<S: Shards>(
        &self,
        shards: &mut S,
        session: &mut Session,
        qpn: u32,
        attr: QpAttr,
        mask: QpAttrMask,
    ) -> Result<Reply, Refusal> {
        session.qp(qpn)?;
        check_qkey(session, &attr, mask)?;
        let has_path = mask.contains(QpAttrMask::AV);
        let neighbour = has_path.then(|| self.neighbour_of(shard_of(Qpn::new(qpn)), &attr)).flatten();
        neighbour.as_ref().map_or(Ok(()), |neighbour| self.check_neighbour(session, neighbour))?;
        let command = Command::ModifyQp { index: qpn & QPN_INDEX_MASK, attr: Box::new(attr), mask };
        match shards.command(shard_of(Qpn::new(qpn)), command) {
            Answer::Modified(state) => {
                if has_path || state == QpState::Reset {
                    session.set_neighbour(qpn, neighbour);
                }
                if let (QpState::Reset, Some(book)) = (state, session.qps.get_mut(&qpn)) {
                    book.agreed = None;
                }
                Ok(Reply::QpModified { state })
            }
            Answer::Refused(error @ ModifyError::NeighbourTableFull) => refuse(errno::ENOMEM, error.to_string()),
            Answer::Refused(error) => refuse(errno::EINVAL, error.to_string()),
            _ => no_such_qp(qpn),
        }
    }

    pub(super) fn query_qp<S: Shards>(&self, shards: &mut S, session: &Session, qpn: u32) -> Result<Reply, Refusal> {
        session.qp(qpn)?;
        match shards.command(shard_of(Qpn::new(qpn)), Command::QueryQp { index: qpn & QPN_INDEX_MASK }) {
            Answer::QpAttr(attr) => Ok(Reply::QpAttr(*attr)),
            _ => no_such_qp(qpn),
        }
    }

    pub(super) fn destroy_qp<S: Shards>(
        &mut self,
        shards: &mut S,
        number: u32,
        session: &mut Session,
        qpn: u32,
    ) -> Result<Reply, Refusal> {
        session.qp(qpn)?;
        session.set_neighbour(qpn, None);
        let Some(book) = session.qps.remove(&qpn) else { return no_such_qp(qpn) };
        match book.place {
            QpPlace::Session { address, doorbell_index } => {
                self.drop_qp(shards, number, session, qpn);
                session.segments.release(address);
                session.release_doorbell(shard_of(Qpn::new(qpn)), doorbell_index);
            }
            QpPlace::Domain { xrcd, domain } => {
                self.leave_xrc_qp(shards, number, session, qpn, domain);
                session.use_xrcd(xrcd, false);
            }
        }
        let QpBook { pd, send_cq, recv_cq, srq, .. } = book;
        let users =
            WantedQp { pd, qp_type: QpType::Rc, send_cq, recv_cq, srq, cap: QpCap::default(), sq_sig_all: false };
        session.add_qp_users(&users, false);
        Ok(Reply::Done)
    }

    /// Takes a QP from its shard.
    pub(super) fn drop_qp<S: Shards>(&mut self, shards: &mut S, number: u32, session: &Session, qpn: u32) {
        self.leave_all_groups(shards, Qpn::new(qpn));
        let (shard, index) = (shard_of(Qpn::new(qpn)), qpn & QPN_INDEX_MASK);
        let broken = matches!(shards.command(shard, Command::RemoveQp { index }), Answer::Qp(qp) if qp.has_broken());
        self.bury_qp(shards, number, session, qpn, broken);
        self.shards[usize::from(shard)].qps.release(index);
    }
}

impl Session {
    pub(super) fn qp(&self, qpn: u32) -> Result<&QpBook, Refusal> {
        match self.qps.get(&qpn) {
            Some(qp) => Ok(qp),
            None => no_such_qp(qpn),
        }
    }

    fn release_doorbell(&mut self, shard: u8, index: u32) {
        if let Some(Some(page)) = self.doorbells.get_mut(usize::from(shard)) {
            page.indices.release(index);
        }
    }

    /// Counts the users of what a QP hangs on, up or down.
    fn add_qp_users(&mut self, qp: &WantedQp, up: bool) {
        self.use_pd(qp.pd, up);
        let step = |users: &mut u32| *users = if up { *users + 1 } else { users.saturating_sub(1) };
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(book) = self.cqs.get_mut(&cq) {
                step(&mut book.users);
            }
        }
        if let Some(book) = qp.srq.and_then(|srq| self.srqs.get_mut(&srq)) {
            step(&mut book.users);
        }
    }
}

fn no_such_qp<T>(qpn: u32) -> Result<T, Refusal> {
    refuse(errno::EINVAL, format!("QP {qpn:#08x} does not exist in this session"))
}

/// IBTA 10.2.5: Q_Keys with the top bit set are for the privileged, as on Linux: who has that of QP1 could speak for the host.
fn check_qkey(session: &Session, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Refusal> {
    const CONTROLLED: u32 = 1 << 31;
    if mask.contains(QpAttrMask::QKEY) && attr.qkey & CONTROLLED != 0 && session.peer.uid != 0 {
        let message = format!("Q_Key {:#010x} has its top bit set: only user 0 may set such a one", attr.qkey);
        return refuse(errno::EPERM, message);
    }
    Ok(())
}

/// IBTA A14: one end of an extended reliable connection takes no receives, the other has no protection domain.
fn check_service(wanted: &WantedQp) -> Result<(), Refusal> {
    match (wanted.qp_type, wanted.srq) {
        (QpType::XrcRecv, _) => {
            refuse(errno::EINVAL, "an XRC_RECV QP is made in an XRC domain, not in a protection domain")
        }
        (QpType::XrcSend, Some(_)) => {
            refuse(errno::EINVAL, "an XRC_SEND QP takes no receives, so it can't have an SRQ")
        }
        _ => Ok(()),
    }
}

/// A QP lives where its CQs (and its SRQ) live: a ring has one producer.
fn place_qp(session: &Session, wanted: &WantedQp) -> Result<Placement, Refusal> {
    let cq = |handle: u32| match session.cqs.get(&handle) {
        Some(cq) => Ok((cq.shard, cq.index)),
        None => refuse(errno::EINVAL, format!("CQ {handle} does not exist")),
    };
    let ((shard, send_cq), (recv_shard, recv_cq)) = (cq(wanted.send_cq)?, cq(wanted.recv_cq)?);
    if shard != recv_shard {
        let message =
            format!("the send CQ is on lcore {shard}, the receive CQ on {recv_shard}: give both one comp_vector");
        return refuse(errno::EINVAL, message);
    }
    let Some(handle) = wanted.srq else {
        return Ok(Placement { shard, send_cq, recv_cq, srq: None, srq_max_sge: 0 });
    };
    match session.srqs.get(&handle) {
        None => refuse(errno::EINVAL, format!("SRQ {handle} does not exist")),
        Some(srq) if srq.xrc.is_some() => refuse(
            errno::EINVAL,
            format!("SRQ {handle} is of an XRC domain: only QPs of the domain take receives from it"),
        ),
        Some(srq) if srq.shard != shard => {
            let message =
                format!("the SRQ is on lcore {}, the CQs are on {shard}: make it with one of these CQs", srq.shard);
            refuse(errno::EINVAL, message)
        }
        Some(srq) => Ok(Placement { shard, send_cq, recv_cq, srq: Some(srq.index), srq_max_sge: srq.max_sge }),
    }
}

/// What rides along with a new QP: segments that the client has not seen, and the shard's eventfd if the client does not have it,
/// which the flag tells. Nothing may fail after this.
fn qp_fds<S: Shards>(
    shards: &S,
    session: &mut Session,
    shard: u8,
    blocks: &[BlockAddress],
) -> Result<(Vec<OwnedFd>, bool), Refusal> {
    let has_wake = matches!(session.doorbells.get(usize::from(shard)), Some(Some(page)) if page.has_wake);
    let wake = (!has_wake).then(|| shards.client_wake(shard)).transpose();
    let wake = wake.or_else(|error| refuse(errno::ENOMEM, format!("no file descriptor for a doorbell: {error}")))?;
    let mut fds = session.new_segment_fds(blocks)?;
    fds.extend(wake);
    if let Some(Some(page)) = session.doorbells.get_mut(usize::from(shard)) {
        page.has_wake = true;
    }
    Ok((fds, !has_wake))
}
