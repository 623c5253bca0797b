//! What comes in for ids that there are: messages and timeouts.

use shm::control::cm::{CmEventType, ConnParam};
use wire::cm::{
    AnsweredMessage, ApStatus, Ari, CaGuid, CmMessage, CommId, MadError, MadHeader, RejReason, RepRepr, SidrStatus,
    TransactionId,
};
use wire::{Qkey, Qpn};

use super::id::service_ns;
use super::refusal::errno;
use super::state::{CmState, Input, Reaction, reaction};
use super::{Cm, CmId, Entropy, explain, mads};
use crate::gsi::IncomingMad;
use crate::time::Time;

/// A message for an id.
#[derive(Clone, Copy)]
pub(super) struct Received<'a> {
    mad: &'a IncomingMad,
    transaction: TransactionId,
    message: &'a CmMessage,
}

impl Cm {
    /// Takes a MAD that arrived on QP1.
    pub fn handle_mad(&mut self, now: Time, entropy: Entropy<'_>, mad: &IncomingMad) {
        let (header, body) = MadHeader::split(&mad.bytes);
        let transaction = header.transaction_id;
        let message = match CmMessage::from_bytes(&header, body) {
            Ok(message) => message,
            Err(error) => {
                return self.handle_malformed(mad, &header, body, error);
            }
        };
        self.counters.rx_cm_messages += 1;
        match &message {
            CmMessage::Req(req) => self.handle_req(now, entropy, mad, transaction, req),
            CmMessage::SidrReq(req) => self.handle_sidr_req(now, entropy, mad, transaction, req),
            _ => self.handle_answer(now, Received { mad, transaction, message: &message }),
        }
    }

    fn handle_malformed(
        &mut self,
        mad: &IncomingMad,
        header: &MadHeader,
        body: &[u8; wire::cm::MESSAGE_BYTES],
        error: MadError,
    ) {
        let count = match error {
            MadError::Length(_) | MadError::BaseVersion(_) | MadError::Method(_) => &mut self.counters.rx_mad_malformed,
            MadError::Class(_) => &mut self.counters.rx_mad_other_class,
            MadError::ClassVersion(_) => &mut self.counters.rx_cm_other_version,
            MadError::Attribute(_) => &mut self.counters.rx_cm_unknown_attribute,
        };
        *count += 1;
        if matches!(error, MadError::ClassVersion(_)) {
            self.refuse_version(mad, header, body);
        }
    }

    /// A request in another version of connection management: what it is and what its sender calls it are where they always are.
    fn refuse_version(&mut self, mad: &IncomingMad, header: &MadHeader, body: &[u8; wire::cm::MESSAGE_BYTES]) {
        let as_known = MadHeader { class_version: MadHeader::CLASS_VERSION_CM, ..*header };
        let version = [MadHeader::CLASS_VERSION_CM];
        let (theirs, peer) = (header.class_version, mad.src_gid.ip());
        let answer = match CmMessage::from_bytes(&as_known, body) {
            Ok(CmMessage::Req(req)) => {
                let (comm, reason) = (req.local_comm_id, RejReason::CLASS_VERSION);
                mads::rej_stranger(AnsweredMessage::Req, comm, reason, Ari::new(&version))
            }
            Ok(CmMessage::SidrReq(req)) => {
                let nothing = (Qpn::new(0), Qkey(0));
                mads::sidr_rep(req.request_id, req.service_id, SidrStatus::VERSION, nothing, &[])
            }
            _ => return,
        };
        self.counters.rx_cm_refused += 1;
        let ours = MadHeader::CLASS_VERSION_CM;
        self.notice(format!(
            "refused a request of {peer} in version {theirs} of connection management: this is {ours}"
        ));
        self.answer(mad, header.transaction_id, &answer);
    }

    /// Everything but requests: it is about a connection that must be there.
    fn handle_answer(&mut self, now: Time, received: Received<'_>) {
        let Received { mad, transaction, message } = received;
        let Some(id) = self.find(message) else { return self.answer_stranger(mad, transaction, message) };
        if !self.is_of_peer(id, mad, message) {
            self.counters.rx_cm_foreign += 1;
            return;
        }
        let input = match message {
            CmMessage::Mra(mra) if mra.answered == AnsweredMessage::Req => Input::MraOfReq,
            CmMessage::Mra(mra) if mra.answered == AnsweredMessage::Rep => Input::MraOfRep,
            CmMessage::Rep(_) => Input::Rep,
            CmMessage::Rtu(_) => Input::Rtu,
            CmMessage::Rej(_) => Input::Rej,
            CmMessage::Dreq(_) => Input::Dreq,
            CmMessage::Drep(_) => Input::Drep,
            CmMessage::SidrRep(_) => Input::SidrRep,
            CmMessage::Lap(lap) => {
                // RoCE has no path migration.
                return self.answer(mad, transaction, &mads::apr(lap, ApStatus::NOT_SUPPORTED));
            }
            _ => {
                self.counters.rx_cm_ignored += 1;
                return;
            }
        };
        self.react(now, id, input, Some(received));
    }

    /// The id whose connection a message names.
    fn find(&self, message: &CmMessage) -> Option<CmId> {
        match message {
            CmMessage::SidrRep(rep) => self.sidr_request(rep.request_id),
            // Who gave up before any answer came knows its peer's number for nothing: it says who it is (IBTA 12.6.7.2).
            CmMessage::Rej(rej) if rej.reason == RejReason::TIMEOUT && rej.remote_comm_id == CommId(0) => {
                let guid = CaGuid(u64::from_be_bytes(*rej.ari.value().first_chunk()?));
                self.by_peer(guid, rej.local_comm_id)
            }
            _ => self.by_comm.get(&message.remote_comm_id()?).copied(),
        }
    }

    /// Whether a message comes from the peer of the connection that it names, and means its QP and its role.
    fn is_of_peer(&self, id: CmId, mad: &IncomingMad, message: &CmMessage) -> bool {
        let Some(entry) = self.ids.get(&id) else { return false };
        let (Some(path), Some(link)) = (entry.path, entry.link.as_ref()) else { return false };
        // Before the REP a peer has no number, and no name but its address.
        let theirs = message.local_comm_id();
        let is_forgotten = matches!(message, CmMessage::Rej(_)) && theirs == CommId(0);
        let is_known = link.remote_comm == CommId(0) || link.remote_comm == theirs || is_forgotten;
        let is_sidr = matches!(message, CmMessage::SidrRep(_));
        let fits = match message {
            CmMessage::Rep(_) | CmMessage::SidrRep(_) => link.is_active,
            CmMessage::Rtu(_) => !link.is_active,
            CmMessage::Dreq(dreq) => dreq.remote_qpn == link.local_qpn,
            _ => true,
        };
        path.peer == mad.src_gid && fits && (is_sidr || is_known)
    }

    /// Runs the timers that are due.
    pub fn handle_timers(&mut self, now: Time) {
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                return;
            }
            self.set_timer(id, Time::NEVER);
            let left = self.ids.get(&id).and_then(|entry| entry.link.as_ref()).map_or(0, |link| link.retries_left);
            let input = if left == 0 { Input::LastTimeout } else { Input::Timeout };
            self.react(now, id, input, None);
        }
    }

    /// Does what the table of states says.
    pub(super) fn react(&mut self, now: Time, id: CmId, input: Input, received: Option<Received<'_>>) {
        let Some(state) = self.ids.get(&id).map(|entry| entry.state) else { return };
        match (reaction(state, input), received) {
            (Reaction::Repeat, _) => self.repeat(now, id, input == Input::Timeout),
            (Reaction::AskForTime(next), _) => self.ask_for_time(id, next),
            (Reaction::GiveTime(next), Some(received)) => self.give_time(now, id, next, received.message),
            (Reaction::TakeRep, Some(received)) => self.take_rep(id, received),
            (Reaction::Establish, received) => self.establish(id, received.map(|received| received.message)),
            (Reaction::Refused, Some(received)) => self.take_rej(id, received.message),
            (Reaction::Unreachable, _) => self.give_up(id),
            (Reaction::AnswerDreq, Some(received)) => {
                self.again(received);
                self.begin_timewait(now, id, 0, String::new());
            }
            (Reaction::AnswerDreqAgain, Some(received)) => self.again(received),
            (Reaction::BeginTimewait, received) => self.end(now, id, input, received.map(|received| received.message)),
            (Reaction::RejectStale, _) => {
                self.send_rej(id, AnsweredMessage::Req, RejReason::STALE_CONNECTION, Ari::NONE, &[]);
            }
            (Reaction::TakeSidrRep, Some(received)) => {
                if let CmMessage::SidrRep(rep) = received.message {
                    self.take_sidr_rep(id, rep);
                }
            }
            (Reaction::EndTimewait, _) => self.end_timewait(id),
            (Reaction::ForgetReply, _) => self.finish(id),
            (Reaction::Ignore, _) | (_, None) => self.counters.rx_cm_ignored += 1,
        }
    }

    /// The answer to a DREQ.
    fn again(&mut self, received: Received<'_>) {
        if let CmMessage::Dreq(dreq) = received.message {
            self.answer_dreq(received.mad, received.transaction, dreq);
        }
    }

    /// Sends the last message again, for the peer or because it is time.
    fn repeat(&mut self, now: Time, id: CmId, is_timeout: bool) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let (Some(path), Some(link)) = (entry.path, entry.link.as_mut()) else { return };
        let (mad, wait) = (link.last, link.response_ns);
        if is_timeout {
            link.retries_left = link.retries_left.saturating_sub(1);
            self.counters.cm_retries += 1;
            self.set_timer(id, now.add_ns(wait));
        }
        self.send(&path, mad);
    }

    fn ask_for_time(&mut self, id: CmId, next: CmState) {
        let service_timeout = self.config.service_timeout;
        let Some(entry) = self.ids.get(&id) else { return };
        let (Some(path), Some(link)) = (entry.path, entry.link.as_ref()) else { return };
        let answered = if next == CmState::MraReqSent { AnsweredMessage::Req } else { AnsweredMessage::Rep };
        let mad = mads::mra(link, answered, service_timeout).to_mad(link.transaction);
        self.send(&path, mad);
        self.set_state(id, next);
    }

    fn give_time(&mut self, now: Time, id: CmId, next: CmState, message: &CmMessage) {
        let (CmMessage::Mra(mra), Some(link)) = (message, self.ids.get(&id).and_then(|entry| entry.link.as_ref()))
        else {
            return;
        };
        let wait = service_ns(mra.service_timeout.exponent()).saturating_add(link.response_ns);
        self.set_state(id, next);
        self.set_timer(id, now.add_ns(wait));
    }

    /// The peer accepts: the application makes its QP ready, and then accepts as well.
    fn take_rep(&mut self, id: CmId, received: Received<'_>) {
        let CmMessage::Rep(rep) = received.message else { return };
        let remote = (rep.ca_guid, rep.qpn);
        if let Err(message) = self.check_rep(rep, remote) {
            let (reason, text) = message;
            self.set_remote_comm(id, rep);
            self.send_rej(id, AnsweredMessage::Rep, reason, Ari::NONE, &[]);
            self.event(id, CmEventType::ConnectError, -errno::EINVAL, ConnParam::default(), text);
            return self.finish(id);
        }
        self.set_remote_comm(id, rep);
        let (lifetime, selective) = (self.config.packet_lifetime, self.config.selective);
        let entry = self.ids.get_mut(&id);
        let Some(link) = entry.and_then(|entry| entry.link.as_mut()) else { return };
        link.remote_guid = rep.ca_guid;
        link.remote_qpn = rep.qpn;
        link.send_psn = rep.starting_psn;
        link.remote_ece = rep.ece;
        link.selective = selective && link.local_ece.is_selective() && rep.ece.is_selective();
        // The peer says what it does, of what we offered; what it can't do we don't ask for.
        link.initiator_depth = link.initiator_depth.min(rep.responder_resources);
        link.responder_resources = rep.initiator_depth;
        link.rnr_retry_count = rep.rnr_retry_count;
        link.ack_timeout = super::id::ack_timeout(lifetime, rep.target_ack_delay);
        let param = ConnParam {
            private_data: rep.private_data.to_vec(),
            responder_resources: rep.initiator_depth,
            initiator_depth: link.initiator_depth,
            flow_control: rep.flow_control,
            retry_count: link.retry_count,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            qp_num: rep.qpn.value(),
            qkey: 0,
            ece: Some(rep.ece.into()),
        };
        self.by_remote_comm.insert((rep.ca_guid, rep.local_comm_id), id);
        self.by_remote_qp.insert(remote, id);
        self.set_state(id, CmState::RepRcvd);
        self.set_timer(id, Time::NEVER);
        self.event(id, CmEventType::ConnectResponse, 0, param, String::new());
    }

    fn set_remote_comm(&mut self, id: CmId, rep: &RepRepr) {
        if let Some(link) = self.ids.get_mut(&id).and_then(|entry| entry.link.as_mut()) {
            link.remote_comm = rep.local_comm_id;
        }
    }

    /// What an acceptance may not say.
    fn check_rep(&self, rep: &RepRepr, remote: (CaGuid, Qpn)) -> Result<(), (RejReason, String)> {
        if let Some(other) = self.by_remote_qp.get(&remote) {
            let text =
                format!("the peer accepted with QP {}, which is connected by CM id {} already", rep.qpn, other.0);
            return Err((RejReason::STALE_CONNECTION, text));
        }
        if rep.qpn.value() <= Qpn::GSI.value() || rep.qpn == Qpn::MULTICAST {
            let text = format!("the peer accepted with QP {}, which can't be connected", rep.qpn);
            return Err((RejReason::UNSUPPORTED_REQUEST, text));
        }
        let max = self.config.max_rd_atomic;
        if rep.initiator_depth > max {
            let depth = rep.initiator_depth;
            let text = format!("the peer wants {depth} READs and atomics at a time, this device answers {max}");
            return Err((RejReason::INSUFFICIENT_RESPONDER_RESOURCES, text));
        }
        Ok(())
    }

    /// The RTU came, or data did.
    fn establish(&mut self, id: CmId, message: Option<&CmMessage>) {
        self.set_timer(id, Time::NEVER);
        self.set_state(id, CmState::Established);
        let Some(entry) = self.ids.get_mut(&id) else { return };
        entry.was_connected = true;
        // Of two peers this one was told with the other's request, and has made its QP ready.
        if entry.link.as_ref().is_some_and(|link| link.offered.is_some()) {
            return;
        }
        let private_data = match message {
            Some(CmMessage::Rtu(rtu)) => rtu.private_data.to_vec(),
            _ => Vec::new(),
        };
        self.event(id, CmEventType::Established, 0, ConnParam { private_data, ..ConnParam::default() }, String::new());
    }

    fn take_rej(&mut self, id: CmId, message: &CmMessage) {
        let (CmMessage::Rej(rej), Some(entry)) = (message, self.ids.get(&id)) else { return };
        let text = explain::rejection(entry, rej);
        let param = ConnParam { private_data: rej.private_data.to_vec(), ..ConnParam::default() };
        self.event(id, CmEventType::Rejected, i32::from(rej.reason.0), param, text);
        self.finish(id);
    }

    /// All repetitions are used up.
    fn give_up(&mut self, id: CmId) {
        let Some(entry) = self.ids.get(&id) else { return };
        let text = explain::unreachable(entry);
        if matches!(entry.state, CmState::RepSent | CmState::MraRepRcvd) {
            let ari = Ari::new(&self.guid.0.to_be_bytes());
            self.send_rej(id, AnsweredMessage::Other, RejReason::TIMEOUT, ari, &[]);
        }
        self.event(id, CmEventType::Unreachable, -errno::ETIMEDOUT, ConnParam::default(), text);
        self.finish(id);
    }

    /// The connection is over: the DREP came, or it never will, or the peer said that it has none.
    fn end(&mut self, now: Time, id: CmId, input: Input, message: Option<&CmMessage>) {
        let Some(entry) = self.ids.get(&id) else { return };
        let (status, text) = match (input, message) {
            (Input::LastTimeout, _) => (-errno::ETIMEDOUT, explain::unreachable(entry)),
            (_, Some(CmMessage::Rej(rej))) => (i32::from(rej.reason.0), explain::rejection(entry, rej)),
            _ => (0, String::new()),
        };
        self.begin_timewait(now, id, status, text);
    }
}
