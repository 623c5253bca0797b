//! Enhanced connection establishment: whether a QP and its peer's repeat selectively, by the connection manager or by the
//! application's own exchange.

use shm::attr::{EceAttr, QpState, QpType, RecoveryPolicy};
use shm::control::Reply;
use wire::Qpn;
use wire::cm::Ece;

use super::session::Session;
use super::{Control, Refusal, errno, refuse};
use crate::command::{Answer, Command, Shards};
use crate::config::RecoveryConfig;
use crate::{QPN_INDEX_MASK, shard_of};

impl Control {
    /// What a QP can do; once something was agreed upon, that.
    pub(super) fn query_ece(&self, session: &Session, qpn: u32) -> Result<Reply, Refusal> {
        let book = session.qp(qpn)?;
        let can = Ece::accepting(&Ece::new(true), self.repeats_selectively(book.kind));
        Ok(Reply::Ece(book.agreed.unwrap_or(can).into()))
    }

    /// Takes a peer's options, from an exchange of the application's own. Only before packets come: from then on both sides must
    /// have begun alike.
    pub(super) fn set_ece<S: Shards>(
        &self,
        shards: &mut S,
        session: &mut Session,
        qpn: u32,
        ece: EceAttr,
    ) -> Result<Reply, Refusal> {
        let kind = session.qp(qpn)?.kind;
        if ece.vendor_id != Ece::FERROCE {
            let (given, ours) = (ece.vendor_id, Ece::FERROCE);
            return refuse(errno::EINVAL, format!("ECE options of vendor {given:#08x}: this device is of {ours:#08x}"));
        }
        let query = Command::QueryQp { index: qpn & QPN_INDEX_MASK };
        let Answer::QpAttr(attr) = shards.command(shard_of(Qpn::new(qpn)), query) else {
            return refuse(errno::EINVAL, format!("QP {qpn:#08x} does not exist"));
        };
        if !matches!(attr.qp_state, QpState::Reset | QpState::Init) {
            let state = attr.qp_state;
            return refuse(errno::EINVAL, format!("QP {qpn:#08x} is in {state}: ECE options are set in RESET or INIT"));
        }
        let agreed = Ece::accepting(&ece.into(), self.repeats_selectively(kind));
        settle(&self.config.recovery, shards, session, qpn, agreed);
        Ok(Reply::Ece(agreed.into()))
    }

    /// The QP of a connection does from here on what its peer agreed to: no data has come yet. The QP may be of another session of
    /// the same user's.
    pub(super) fn settle_ece<S: Shards>(&mut self, shards: &mut S, session: &mut Session, handle: u32) {
        let Some((qpn, is_agreed)) = self.settled_qp(session, handle) else { return };
        let (qpn, uid) = (qpn.value(), session.peer.uid);
        let owner = if session.qps.contains_key(&qpn) {
            Some(session)
        } else {
            self.sessions.values_mut().find(|other| other.peer.uid == uid && other.qps.contains_key(&qpn))
        };
        // The number is the client's word.
        if let Some(owner) = owner {
            settle(&self.config.recovery, shards, owner, qpn, Ece::new(is_agreed));
        }
    }

    fn repeats_selectively(&self, kind: QpType) -> bool {
        kind == QpType::Rc && self.config.recovery.policy.is_selective()
    }
}

/// Notes what was agreed upon, and has the QP do it. One that would repeat selectively unasked does not do so with a peer that was
/// asked, and could not say yes.
fn settle<S: Shards>(recovery: &RecoveryConfig, shards: &mut S, owner: &mut Session, qpn: u32, agreed: Ece) {
    let Some(book) = owner.qps.get_mut(&qpn) else { return };
    let agreed = Ece::accepting(&agreed, book.kind == QpType::Rc);
    let before = book.agreed.replace(agreed);
    let may_be_selective = recovery.unasked.is_selective() || before.is_some_and(|before| before.is_selective());
    if book.kind == QpType::Rc && (agreed.is_selective() || may_be_selective) {
        let policy = if agreed.is_selective() { recovery.policy } else { RecoveryPolicy::GoBackN };
        shards.command(shard_of(Qpn::new(qpn)), Command::SetRecovery { index: qpn & QPN_INDEX_MASK, policy });
    }
}
