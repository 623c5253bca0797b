//! The calls that make a connection, or refuse one: connect, accept, reject; and that data came before the RTU.

use shm::attr::EceAttr;
use shm::control::cm::ConnParam;
use wire::cm::{
    AnsweredMessage, Ari, IpCmHeader, PortSpace, RejReason, RepRepr, ReqRepr, RtuRepr, ServiceId, SidrReqRepr,
    SidrStatus,
};
use wire::{Psn, Qpn};

use super::id::Link;
use super::refusal::{errno, refuse};
use super::state::{CmState, Input};
use super::{Cm, CmId, CmRefusal, Entropy, mads};
use crate::time::Time;

/// "As many as the device can" (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const DEVICE_MAX: u8 = 0xff;

impl Cm {
    /// Asks the peer for a connection, or in the UDP port space for the QP of a service. Told by an event.
    ///
    /// # Errors
    /// `EINVAL` for a parameter out of its range, or without a route; `EISCONN` if the QP has a connection.
    pub fn connect(&mut self, now: Time, entropy: Entropy<'_>, id: CmId, param: ConnParam) -> Result<(), CmRefusal> {
        self.require(id, &[CmState::RouteResolved], "connect")?;
        let entry = self.id(id)?;
        let (Some(path), Some(local), Some(peer)) = (entry.path, entry.local, entry.peer) else {
            return refuse(errno::EINVAL, format!("CM id {} has no route", id.0));
        };
        if peer.port() == 0 {
            return refuse(errno::EINVAL, "the destination has port 0: nobody can listen there");
        }
        let space = entry.space;
        let is_datagram = space == PortSpace::Udp;
        let private_max = if is_datagram { SidrReqRepr::PRIVATE_BYTES } else { ReqRepr::PRIVATE_BYTES };
        check_private("a request by IP address", &param, private_max - IpCmHeader::LEN)?;
        if !is_datagram {
            self.check_qp(id, &param)?;
            check_retries(&param)?;
            check_ece(&param)?;
        }
        let (transaction, comm) = (self.transaction(), self.new_comm(entropy));
        let mut link = Link::active(&self.config, transaction, comm, random_psn(entropy));
        if !is_datagram {
            link.local_qpn = Qpn::new(param.qp_num);
            link.responder_resources = self.depth("responder_resources", param.responder_resources)?;
            link.initiator_depth = self.depth("initiator_depth", param.initiator_depth)?;
            link.retry_count = param.retry_count;
            if let Some(ece) = param.ece {
                link.say_ece(ece.into(), self.config.selective);
            }
        }
        let request = mads::Request {
            config: &self.config,
            guid: self.guid,
            service_id: ServiceId::from_port(space, peer.port()),
            addresses: IpCmHeader { src_port: local.port(), src: path.local.ip(), dst: peer.ip() },
            private_data: &param.private_data,
        };
        let message =
            if is_datagram { mads::sidr_req(&request, &link) } else { mads::req(&request, &link, &path, &param) };
        link.last = message.to_mad(link.transaction);
        link.offered = Some(Box::new(param));
        self.by_comm.insert(link.local_comm, id);
        if !is_datagram {
            self.by_local_qp.insert(link.local_qpn, id);
        }
        let (mad, wait) = (link.last, link.response_ns);
        self.id_mut(id)?.link = Some(Box::new(link));
        self.set_state(id, if is_datagram { CmState::SidrReqSent } else { CmState::ReqSent });
        self.send(&path, mad);
        self.set_timer(id, now.add_ns(wait));
        Ok(())
    }

    /// Accepts a request; on the active side, says that the QP is ready after the peer accepted.
    ///
    /// # Errors
    /// `EINVAL` for a parameter out of its range, or if there is nothing to accept; `EISCONN` if the QP has a connection.
    pub fn accept(&mut self, now: Time, id: CmId, param: &ConnParam) -> Result<(), CmRefusal> {
        match self.id(id)?.state {
            CmState::ReqRcvd | CmState::MraReqSent => self.accept_request(now, id, param),
            CmState::RepRcvd | CmState::MraRepSent => {
                check_private("an RTU", param, RtuRepr::PRIVATE_BYTES)?;
                self.send_rtu(id, &param.private_data);
                Ok(())
            }
            CmState::SidrReqRcvd => self.accept_sidr(now, id, param),
            state => {
                let message = format!("CM id {} is in state {state:?}: there is nothing to accept", id.0);
                refuse(errno::EINVAL, message)
            }
        }
    }

    fn accept_request(&mut self, now: Time, id: CmId, param: &ConnParam) -> Result<(), CmRefusal> {
        // Of two peers that asked each other at the same time this one has said already what it offers.
        let offered = self.id(id)?.link.as_ref().and_then(|link| link.offered.clone());
        let is_peer = offered.is_some();
        let param = &offered.map_or_else(|| param.clone(), |offered| *offered);
        check_private("an acceptance", param, RepRepr::PRIVATE_BYTES)?;
        check_retries(param)?;
        check_ece(param)?;
        self.check_qp(id, param)?;
        let depth = self.depth("initiator_depth", param.initiator_depth)?;
        let resources = self.depth("responder_resources", param.responder_resources)?;
        let (guid, ack_delay) = (self.guid, self.config.ack_delay);
        let Some(link) = self.id_mut(id)?.link.as_mut() else {
            return refuse(errno::EINVAL, format!("CM id {} has no request", id.0));
        };
        let (peer_answers, peer_asks) = (link.initiator_depth, link.responder_resources);
        if depth > peer_answers && param.initiator_depth != DEVICE_MAX && !is_peer {
            let message =
                format!("initiator_depth {depth}: the peer answers {peer_answers} READs and atomics at a time");
            return refuse(errno::EINVAL, message);
        }
        link.initiator_depth = depth.min(peer_answers);
        link.responder_resources =
            if param.responder_resources == DEVICE_MAX || is_peer { resources.min(peer_asks) } else { resources };
        link.local_qpn = Qpn::new(param.qp_num);
        if let Some(ece) = param.ece {
            link.say_ece(ece.into(), link.selective);
            link.selective = link.local_ece.is_selective();
        }
        link.last = mads::rep(link, guid, ack_delay, param).to_mad(link.transaction);
        let qpn = link.local_qpn;
        self.by_local_qp.insert(qpn, id);
        self.set_state(id, CmState::RepSent);
        self.send_last(now, id);
        Ok(())
    }

    /// Refuses a request, or on the active side the peer's acceptance.
    ///
    /// # Errors
    /// `EINVAL` for private data that is too long, or if there is nothing to reject.
    pub fn reject(&mut self, now: Time, id: CmId, reason: RejReason, private_data: &[u8]) -> Result<(), CmRefusal> {
        let max = wire::cm::RejRepr::PRIVATE_BYTES;
        if private_data.len() > max {
            return refuse(
                errno::EINVAL,
                format!("{} bytes of private data: a rejection has {max}", private_data.len()),
            );
        }
        let answered = match self.id(id)?.state {
            CmState::ReqRcvd | CmState::MraReqSent => AnsweredMessage::Req,
            CmState::RepRcvd | CmState::MraRepSent => AnsweredMessage::Rep,
            CmState::SidrReqRcvd => {
                let param = ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() };
                check_private("the reply of a datagram service", &param, wire::cm::SidrRepRepr::PRIVATE_BYTES)?;
                self.reply_sidr(now, id, SidrStatus::REJECTED, &param);
                return Ok(());
            }
            state => {
                let message = format!("CM id {} is in state {state:?}: there is nothing to reject", id.0);
                return refuse(errno::EINVAL, message);
            }
        };
        self.send_rej(id, answered, reason, Ari::NONE, private_data);
        self.finish(id);
        Ok(())
    }

    /// Data has come on the id's QP although the RTU did not.
    ///
    /// # Errors
    /// `EINVAL` if there is no such id.
    pub fn notify(&mut self, now: Time, id: CmId) -> Result<(), CmRefusal> {
        self.id(id)?;
        self.react(now, id, Input::CommEstablished, None);
        Ok(())
    }

    /// The first packet has come on a QP in RTR: what [`notify`](Self::notify) says, by QP.
    pub fn comm_established(&mut self, now: Time, qpn: Qpn) {
        if let Some(&id) = self.by_local_qp.get(&qpn) {
            self.react(now, id, Input::CommEstablished, None);
        }
    }

    /// The RTU, after which the connection is there; the application need not be told.
    pub(super) fn send_rtu(&mut self, id: CmId, private_data: &[u8]) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let (Some(path), Some(link)) = (entry.path, entry.link.as_mut()) else { return };
        link.last = mads::rtu(link, private_data).to_mad(link.transaction);
        let mad = link.last;
        entry.was_connected = true;
        self.send(&path, mad);
        self.set_state(id, CmState::Established);
        self.set_timer(id, Time::NEVER);
    }

    /// Sends what is in `last`, and waits for the answer.
    pub(super) fn send_last(&mut self, now: Time, id: CmId) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let (Some(path), Some(link)) = (entry.path, entry.link.as_mut()) else { return };
        link.retries_left = link.retries;
        let (mad, wait) = (link.last, link.response_ns);
        self.send(&path, mad);
        self.set_timer(id, now.add_ns(wait));
    }

    /// A REJ of a message of the id's connection.
    pub(super) fn send_rej(&mut self, id: CmId, answered: AnsweredMessage, reason: RejReason, ari: Ari, data: &[u8]) {
        let Some(entry) = self.ids.get(&id) else { return };
        let (Some(path), Some(link)) = (entry.path, entry.link.as_ref()) else { return };
        let mad = mads::rej(link, answered, reason, ari, data).to_mad(link.transaction);
        self.send(&path, mad);
    }

    /// A QP has one connection at a time.
    fn check_qp(&self, id: CmId, param: &ConnParam) -> Result<(), CmRefusal> {
        let qpn = param.qp_num;
        if qpn == 0 || qpn >= 1 << 24 {
            return refuse(errno::EINVAL, format!("qp_num {qpn:#x} is no QP number: those are 1 to 0xffffff"));
        }
        match self.by_local_qp.get(&Qpn::new(qpn)) {
            Some(&other) if other != id => {
                refuse(errno::EISCONN, format!("QP {qpn:#08x} has a connection by CM id {}", other.0))
            }
            _ => Ok(()),
        }
    }

    /// READs and atomics at a time, as the device can.
    fn depth(&self, what: &str, wanted: u8) -> Result<u8, CmRefusal> {
        let max = self.config.max_rd_atomic;
        match wanted {
            DEVICE_MAX => Ok(max),
            wanted if wanted > max => {
                refuse(errno::EINVAL, format!("{what} {wanted}: the device does {max} READs and atomics at a time"))
            }
            wanted => Ok(wanted),
        }
    }
}

pub(super) fn check_private(what: &str, param: &ConnParam, max: usize) -> Result<(), CmRefusal> {
    let bytes = param.private_data.len();
    if bytes <= max {
        return Ok(());
    }
    refuse(errno::EINVAL, format!("{bytes} bytes of private data: {what} has room for {max}"))
}

fn check_retries(param: &ConnParam) -> Result<(), CmRefusal> {
    for (what, count) in [("retry_count", param.retry_count), ("rnr_retry_count", param.rnr_retry_count)] {
        if count > 7 {
            return refuse(errno::EINVAL, format!("{what} {count}: 0 to 7 are allowed"));
        }
    }
    Ok(())
}

fn check_ece(param: &ConnParam) -> Result<(), CmRefusal> {
    match param.ece {
        Some(EceAttr { vendor_id: vendor_id @ 0x0100_0000.., .. }) => {
            refuse(errno::EINVAL, format!("ECE vendor_id {vendor_id:#x}: the message has 24 bits for it"))
        }
        _ => Ok(()),
    }
}

pub(super) fn random_psn(entropy: Entropy<'_>) -> Psn {
    let [_, _, _, _, _, a, b, c] = entropy().to_be_bytes();
    Psn::new(u32::from_be_bytes([0, a, b, c]))
}
