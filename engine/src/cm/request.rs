//! REQs: who they are for, and whether what they ask for can be had.

use std::net::SocketAddr;

use shm::control::cm::{CmEventType, ConnParam};
use wire::cm::{
    AnsweredMessage, Ari, CaGuid, CmTransport, CommId, Ece, IpCmHeader, PortSpace, RejReason, ReqRepr, TransactionId,
};
use wire::{Gid, PathMtu, Pkey, Qkey, Qpn};

use super::connect::random_psn;
use super::id::{Id, Link, Path, response_ns};
use super::state::{CmState, Input};
use super::{Cm, CmId, Entropy, mads};
use crate::gsi::{IncomingMad, MAD_BYTES};
use crate::time::Time;

/// Why a REQ is refused, for the peer and for the log.
struct ReqRefusal {
    reason: RejReason,
    ari: Ari,
    sentence: String,
}

fn refuse<T>(reason: RejReason, ari: &[u8], sentence: String) -> Result<T, ReqRefusal> {
    Err(ReqRefusal { reason, ari: Ari::new(ari), sentence })
}

/// Where a REQ goes.
struct Addressed {
    space: PortSpace,
    port: u16,
    addresses: IpCmHeader,
}

/// Who takes a REQ.
enum Taker {
    Listener(CmId),
    /// An id that has sent a REQ to the sender of this one.
    Peer(CmId),
    /// The same, but it is the other REQ that counts.
    NotThisOne,
}

impl Cm {
    pub(super) fn handle_req(
        &mut self,
        now: Time,
        entropy: Entropy<'_>,
        mad: &IncomingMad,
        transaction: TransactionId,
        req: &ReqRepr,
    ) {
        if let Some(&id) = self.by_remote_comm.get(&(req.ca_guid, req.local_comm_id)) {
            let is_same = self.ids.get(&id).and_then(|entry| entry.path).is_some_and(|path| path.peer == mad.src_gid);
            if is_same {
                self.react(now, id, Input::RepeatedReq, None);
            } else {
                self.counters.rx_cm_foreign += 1;
            }
            return;
        }
        let judged = self.addressed(mad, req).and_then(|to| {
            let taker = self.taker(mad, req, &to)?;
            self.check_req(mad, req)?;
            Ok((taker, to))
        });
        let taken = judged.and_then(|(taker, to)| {
            self.check_stale(now, mad, req)?;
            Ok((taker, to))
        });
        match taken {
            Ok((Taker::Listener(listener), to)) => self.open(entropy, mad, transaction, req, listener, &to),
            Ok((Taker::Peer(id), to)) => self.become_passive(entropy, mad, transaction, req, id, &to),
            Ok((Taker::NotThisOne, _)) => self.counters.rx_cm_ignored += 1,
            Err(refusal) => self.refuse_req(mad, transaction, req, &refusal),
        }
    }

    fn refuse_req(&mut self, mad: &IncomingMad, transaction: TransactionId, req: &ReqRepr, refusal: &ReqRefusal) {
        let ReqRefusal { reason, ari, sentence } = refusal;
        self.counters.rx_cm_refused += 1;
        let (peer, qpn, service) = (mad.src_gid.ip(), req.qpn, req.service_id);
        self.notice(format!("refused a REQ of QP {qpn} at {peer} for {service}: {sentence} (reason {reason})"));
        let rej = mads::rej_stranger(AnsweredMessage::Req, req.local_comm_id, *reason, *ari);
        self.answer(mad, transaction, &rej);
    }

    /// The port that a REQ is for, and the addresses that it carries: those of the packet, or somebody pretends.
    fn addressed(&self, mad: &IncomingMad, req: &ReqRepr) -> Result<Addressed, ReqRefusal> {
        let Some((space, port)) = req.service_id.port() else {
            return refuse(RejReason::INVALID_SERVICE_ID, &[], "it is the service id of no port".to_owned());
        };
        if space == PortSpace::Udp {
            let sentence = "ports of the UDP port space have no connections".to_owned();
            return refuse(RejReason::INVALID_SERVICE_ID, &[], sentence);
        }
        let ours = self.gid(mad.port, mad.sgid_index);
        let addresses = match IpCmHeader::parse(&req.private_data) {
            Ok(addresses) => addresses,
            Err(error) => return refuse(RejReason::UNSUPPORTED_REQUEST, &[], error.to_string()),
        };
        if req.primary.remote_gid != ours || Gid::from_ip(addresses.dst) != ours {
            let (named, header) = (req.primary.remote_gid.ip(), addresses.dst);
            let sentence = format!("it was sent to {}, and names {named} and {header}", ours.ip());
            return refuse(RejReason::PRIMARY_GID, &ours.0, sentence);
        }
        if req.primary.local_gid != mad.src_gid || Gid::from_ip(addresses.src) != mad.src_gid {
            let (named, header) = (req.primary.local_gid.ip(), addresses.src);
            let sentence = format!("it came from {}, and names {named} and {header}", mad.src_gid.ip());
            return refuse(RejReason::UNSUPPORTED_REQUEST, &[], sentence);
        }
        Ok(Addressed { space, port, addresses })
    }

    /// The listener, or the id that has asked the sender itself.
    fn taker(&self, mad: &IncomingMad, req: &ReqRepr, to: &Addressed) -> Result<Taker, ReqRefusal> {
        if let Some(listener) = self.bound.listener(to.space, to.addresses.dst, to.port) {
            return Ok(Taker::Listener(listener));
        }
        let peer = SocketAddr::new(to.addresses.src, to.addresses.src_port);
        let has_asked = |id: &CmId| {
            self.ids.get(id).is_some_and(|entry| {
                let is_asking = matches!(entry.state, CmState::ReqSent | CmState::MraReqRcvd);
                let is_peer = entry.path.is_some_and(|path| path.peer == mad.src_gid);
                is_asking && is_peer && entry.peer == Some(peer)
            })
        };
        let Some(id) = self.bound.bound_to(to.space, to.port).find(has_asked) else {
            return refuse(RejReason::INVALID_SERVICE_ID, &[], "nobody listens".to_owned());
        };
        // IBTA 12.10.4: both have asked; the greater one stays active. Both sides compare the same two pairs.
        let qpn = self.ids.get(&id).and_then(|entry| entry.link.as_ref()).map_or(0, |link| link.local_qpn.value());
        let stays_active = (self.guid, qpn) >= (req.ca_guid, req.qpn.value());
        Ok(if stays_active { Taker::NotThisOne } else { Taker::Peer(id) })
    }

    /// What the port and the device can do.
    fn check_req(&self, mad: &IncomingMad, req: &ReqRepr) -> Result<(), ReqRefusal> {
        if req.transport != CmTransport::Rc {
            let sentence = format!("it asks for a QP of type {}, this device connects RC", req.transport.name());
            return refuse(RejReason::INVALID_TRANSPORT, &[], sentence);
        }
        if !Pkey::DEFAULT.matches(req.pkey) {
            // The specification has no reason of its own for this.
            let sentence = format!("it asks for P_Key {}, this port has {}", req.pkey, Pkey::DEFAULT);
            return refuse(RejReason::UNSUPPORTED_REQUEST, &[], sentence);
        }
        if req.qpn.value() <= Qpn::GSI.value() || req.qpn == Qpn::MULTICAST {
            return refuse(RejReason::UNSUPPORTED_REQUEST, &[], format!("QP {} can't be connected", req.qpn));
        }
        let ours = self.ports.get(usize::from(mad.port)).map_or(PathMtu::M256, |port| port.mtu);
        match req.path_mtu() {
            Some(theirs) if theirs.bytes() <= ours.bytes() => Ok(()),
            Some(theirs) => {
                let sentence = format!("its path MTU is {} bytes, this port takes {}", theirs.bytes(), ours.bytes());
                refuse(RejReason::INVALID_MTU, &[ours.code()], sentence)
            }
            None => {
                let sentence =
                    format!("path MTU code {} has no meaning, this port takes {}", req.mtu_code, ours.bytes());
                refuse(RejReason::INVALID_MTU, &[ours.code()], sentence)
            }
        }
    }

    /// A QP has one connection. If we hold it to be connected, it must have been reset without our knowing: that connection is
    /// over, and the peer may ask again (IBTA 12.9.8.3.1).
    fn check_stale(&mut self, now: Time, mad: &IncomingMad, req: &ReqRepr) -> Result<(), ReqRefusal> {
        let Some(&old) = self.by_remote_qp.get(&(req.ca_guid, req.qpn)) else { return Ok(()) };
        self.counters.rx_cm_stale += 1;
        // Whoever merely names another's QP shall not end its connection.
        let is_same = self.ids.get(&old).and_then(|entry| entry.path).is_some_and(|path| path.peer == mad.src_gid);
        if is_same {
            self.end_stale(now, old);
        }
        refuse(RejReason::STALE_CONNECTION, &[], format!("that QP is connected by CM id {} already", old.0))
    }

    /// A new id for a request; its listener's owner hears of it.
    fn open(
        &mut self,
        entropy: Entropy<'_>,
        mad: &IncomingMad,
        transaction: TransactionId,
        req: &ReqRepr,
        listener: CmId,
        to: &Addressed,
    ) {
        let no_room = |sentence| ReqRefusal { reason: RejReason::NO_RESOURCES, ari: Ari::NONE, sentence };
        if let Some(entry) = self.ids.get(&listener)
            && entry.waiting >= entry.backlog
        {
            let refusal = no_room(format!("{} requests wait, as many as the backlog allows", entry.waiting));
            return self.refuse_req(mad, transaction, req, &refusal);
        }
        let link = self.passive_link(entropy, transaction, req);
        let mut entry = Id::new(to.space);
        entry.local = Some(SocketAddr::new(to.addresses.dst, to.port));
        entry.listener = Some(listener);
        let Some(id) = self.insert(entry) else {
            let refusal = no_room(format!("{} CM ids are in use, as many as max_cm_id allows", self.config.max_id));
            return self.refuse_req(mad, transaction, req, &refusal);
        };
        self.attach(mad, req, id, link, to);
        self.event(id, CmEventType::ConnectRequest, 0, request_param(req), String::new());
    }

    /// The id's own REQ is withdrawn: it answers this one. The application hears of it as of an answer to its own.
    fn become_passive(
        &mut self,
        entropy: Entropy<'_>,
        mad: &IncomingMad,
        transaction: TransactionId,
        req: &ReqRepr,
        id: CmId,
        to: &Addressed,
    ) {
        let link = self.passive_link(entropy, transaction, req);
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let Some(own) = entry.link.take() else { return };
        self.by_comm.remove(&own.local_comm);
        let link = Link { local_qpn: own.local_qpn, offered: own.offered, ..link };
        self.attach(mad, req, id, link, to);
        self.set_timer(id, Time::NEVER);
        self.event(id, CmEventType::ConnectResponse, 0, request_param(req), String::new());
    }

    fn passive_link(&self, entropy: Entropy<'_>, transaction: TransactionId, req: &ReqRepr) -> Link {
        let ack_timeout = match req.primary.ack_timeout {
            // "Never" is not for a stranger to ask for.
            0 => Link::active(&self.config, transaction, CommId(0), req.starting_psn).ack_timeout,
            exponent => exponent,
        };
        Link {
            is_active: false,
            transaction,
            local_comm: self.new_comm(entropy),
            remote_comm: req.local_comm_id,
            remote_guid: req.ca_guid,
            local_qpn: Qpn::new(0),
            remote_qpn: req.qpn,
            receive_psn: random_psn(entropy),
            send_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ack_timeout,
            local_ece: Ece::new(self.config.selective && req.ece.is_selective()),
            remote_ece: req.ece,
            selective: self.config.selective && req.ece.is_selective(),
            qkey: Qkey(0),
            offered: None,
            response_ns: response_ns(req.local_timeout.exponent()),
            retries: req.max_cm_retries,
            retries_left: req.max_cm_retries,
            last: [0; MAD_BYTES],
        }
    }

    /// Enters a passive connection in the books.
    fn attach(&mut self, mad: &IncomingMad, req: &ReqRepr, id: CmId, link: Link, to: &Addressed) {
        let path = Path {
            flow_label: req.primary.flow_label,
            traffic_class: req.primary.traffic_class,
            sl: req.primary.sl,
            mtu: req.path_mtu().unwrap_or(PathMtu::M256),
            ..Path::back_to(mad, self.gid(mad.port, mad.sgid_index))
        };
        self.by_comm.insert(link.local_comm, id);
        self.by_remote_comm.insert((link.remote_guid, link.remote_comm), id);
        self.by_remote_qp.insert((link.remote_guid, link.remote_qpn), id);
        if let Some(entry) = self.ids.get_mut(&id) {
            entry.peer = Some(SocketAddr::new(to.addresses.src, to.addresses.src_port));
            entry.path = Some(path);
            entry.link = Some(Box::new(link));
        }
        self.set_state(id, CmState::ReqRcvd);
    }

    /// The connection by which a device calls one of ours, whatever the state.
    pub(super) fn by_peer(&self, guid: CaGuid, comm: CommId) -> Option<CmId> {
        self.by_remote_comm.get(&(guid, comm)).copied()
    }
}

/// What the peer offers, as the receiver of the request sees it.
fn request_param(req: &ReqRepr) -> ConnParam {
    ConnParam {
        private_data: req.private_data.get(IpCmHeader::LEN..).unwrap_or_default().to_vec(),
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        qp_num: req.qpn.value(),
        qkey: 0,
        ece: Some(req.ece.into()),
    }
}
