//! The end of connections, and of ids.

use shm::control::cm::{CmEventType, ConnParam};
use wire::cm::{CmMessage, DreqRepr, TransactionId};

use super::id::timewait_ns;
use super::refusal::{errno, refuse};
use super::state::CmState;
use super::{Cm, CmId, CmRefusal, mads};
use crate::gsi::IncomingMad;
use crate::time::Time;

impl Cm {
    /// Ends a connection; told by an event. Of a connection that the peer has ended already there is nothing left to do.
    ///
    /// # Errors
    /// `EINVAL` if there is no connection.
    pub fn disconnect(&mut self, now: Time, id: CmId) -> Result<(), CmRefusal> {
        let entry = self.id(id)?;
        match entry.state {
            CmState::Established => {
                self.send_dreq(now, id);
                Ok(())
            }
            CmState::DreqSent | CmState::Timewait => Ok(()),
            CmState::Idle | CmState::RouteResolved if entry.was_connected => Ok(()),
            state => refuse(errno::EINVAL, format!("CM id {} is in state {state:?}: it is not connected", id.0)),
        }
    }

    pub(super) fn send_dreq(&mut self, now: Time, id: CmId) {
        let fresh = self.transaction();
        let Some(link) = self.ids.get_mut(&id).and_then(|entry| entry.link.as_mut()) else { return };
        // Whoever asked for the connection ends it in the same exchange.
        let transaction = if link.is_active { link.transaction } else { fresh };
        link.last = mads::dreq(link).to_mad(transaction);
        self.set_state(id, CmState::DreqSent);
        self.send_last(now, id);
    }

    /// The peer ends the connection.
    pub(super) fn answer_dreq(&mut self, mad: &IncomingMad, transaction: TransactionId, dreq: &DreqRepr) {
        self.answer(mad, transaction, &mads::drep(dreq));
    }

    /// The peer has forgotten a connection: it ends, as by a disconnect, whatever its state.
    pub(super) fn end_stale(&mut self, now: Time, id: CmId) {
        match self.ids.get(&id).map(|entry| entry.state) {
            Some(CmState::Established) => {
                let message = "the peer asks for a new connection of the same QP: this one is over";
                self.event(id, CmEventType::Disconnected, 0, ConnParam::default(), message.to_owned());
                // The DREQ of which the owner need not hear more.
                self.send_dreq(now, id);
                self.enter_timewait(now, id);
            }
            Some(CmState::DreqSent) => self.begin_timewait(now, id, 0, String::new()),
            Some(state) if state.is_half_open() || is_accepted(state) => {
                let message = "the peer asks for another connection of the same QP".to_owned();
                self.event(id, CmEventType::ConnectError, -errno::EISCONN, ConnParam::default(), message);
                self.finish(id);
            }
            _ => {}
        }
    }

    /// Time wait, and word of the disconnect.
    pub(super) fn begin_timewait(&mut self, now: Time, id: CmId, status: i32, message: String) {
        self.event(id, CmEventType::Disconnected, status, ConnParam::default(), message);
        self.enter_timewait(now, id);
    }

    fn enter_timewait(&mut self, now: Time, id: CmId) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        entry.was_connected = true;
        let Some(link) = entry.link.as_ref() else { return };
        let (remote, local, wait) =
            ((link.remote_guid, link.remote_qpn), link.local_qpn, timewait_ns(link.ack_timeout));
        // From here on either QP may have another connection.
        self.forget_qps(id, remote, local);
        self.set_state(id, CmState::Timewait);
        self.set_timer(id, now.add_ns(wait));
    }

    /// Time wait is over.
    pub(super) fn end_timewait(&mut self, id: CmId) {
        self.event(id, CmEventType::TimewaitExit, 0, ConnParam::default(), String::new());
        self.finish(id);
    }

    /// Ends the id's connection without a word; an id that nobody owns ends as well.
    pub(super) fn finish(&mut self, id: CmId) {
        let Some(entry) = self.ids.get(&id) else { return };
        let next = entry.state_after_link();
        self.set_timer(id, Time::NEVER);
        self.set_state(id, next);
        self.unlink(id);
        if self.ids.get(&id).is_some_and(|entry| entry.is_orphan) {
            self.ids.remove(&id);
        }
    }

    /// Takes the connection of an id from the books.
    fn unlink(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let Some(link) = entry.link.take() else { return };
        let peer = entry.path.map(|path| path.peer);
        self.by_comm.remove(&link.local_comm);
        remove_own(&mut self.by_remote_comm, &(link.remote_guid, link.remote_comm), id);
        if let Some(peer) = peer {
            remove_own(&mut self.by_sidr, &(peer, link.remote_comm), id);
        }
        self.forget_qps(id, (link.remote_guid, link.remote_qpn), link.local_qpn);
    }

    fn forget_qps(&mut self, id: CmId, remote: (wire::cm::CaGuid, wire::Qpn), local: wire::Qpn) {
        remove_own(&mut self.by_remote_qp, &remote, id);
        remove_own(&mut self.by_local_qp, &local, id);
    }

    /// Changes the state, and counts the requests that wait on a listener.
    pub(super) fn set_state(&mut self, id: CmId, state: CmState) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let before = std::mem::replace(&mut entry.state, state);
        let listener = entry.listener;
        if before.is_half_open() != state.is_half_open()
            && let Some(listener) = listener.and_then(|listener| self.ids.get_mut(&listener))
        {
            listener.waiting =
                if state.is_half_open() { listener.waiting + 1 } else { listener.waiting.saturating_sub(1) };
        }
    }

    /// A DREQ of a connection that is not there: the peer shall not wait for it to be.
    pub(super) fn answer_stranger(&mut self, mad: &IncomingMad, transaction: TransactionId, message: &CmMessage) {
        use wire::cm::{AnsweredMessage, ApStatus, Ari, RejReason};
        self.counters.rx_cm_unknown_connection += 1;
        match message {
            CmMessage::Dreq(dreq) => self.answer_dreq(mad, transaction, dreq),
            CmMessage::Lap(lap) => self.answer(mad, transaction, &mads::apr(lap, ApStatus::INVALID_COMM_ID)),
            CmMessage::Rep(rep) => {
                let reason = RejReason::INVALID_COMM_ID;
                let rej = mads::rej_stranger(AnsweredMessage::Rep, rep.local_comm_id, reason, Ari::NONE);
                self.answer(mad, transaction, &rej);
            }
            _ => {}
        }
    }
}

/// Whether we have accepted, or were accepted, and the connection is not there yet.
const fn is_accepted(state: CmState) -> bool {
    matches!(state, CmState::RepSent | CmState::MraRepRcvd | CmState::RepRcvd | CmState::MraRepSent)
}

/// Removes an entry, unless it is another's by now.
fn remove_own<K: Ord>(map: &mut std::collections::BTreeMap<K, CmId>, key: &K, id: CmId) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}
