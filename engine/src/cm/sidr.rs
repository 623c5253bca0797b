//! Service id resolution: which QP serves a port of the UDP port space (IBTA 12.11).

use std::net::SocketAddr;

use shm::control::cm::{CmEventType, ConnParam};
use wire::cm::{CommId, IpCmHeader, PortSpace, ServiceId, SidrRepRepr, SidrReqRepr, SidrStatus, TransactionId};
use wire::{Gid, Pkey, Qkey, Qpn};

use super::call::UDP_QKEY;
use super::connect::{check_private, random_psn};
use super::id::{Id, Link, Path, exponent_ns};
use super::refusal::{errno, refuse};
use super::state::{CmState, Input};
use super::{Cm, CmId, CmRefusal, Entropy, explain, mads};
use crate::gsi::IncomingMad;
use crate::time::Time;

/// How long a reply is kept for repetitions of its request: those come at the peer's response timeout, some seconds.
const REPLY_KEPT_EXPONENT: u8 = 21;

impl Cm {
    pub(super) fn handle_sidr_req(
        &mut self,
        now: Time,
        entropy: Entropy<'_>,
        mad: &IncomingMad,
        transaction: TransactionId,
        req: &SidrReqRepr,
    ) {
        if let Some(&id) = self.by_sidr.get(&(mad.src_gid, req.request_id)) {
            self.react(now, id, Input::RepeatedSidrReq, None);
            return;
        }
        match self.sidr_taker(mad, req) {
            Ok((listener, addresses, port)) => {
                self.open_sidr(entropy, mad, transaction, req, (listener, addresses, port));
            }
            Err((status, sentence)) => self.refuse_sidr(mad, transaction, req, status, &sentence),
        }
    }

    fn refuse_sidr(
        &mut self,
        mad: &IncomingMad,
        transaction: TransactionId,
        req: &SidrReqRepr,
        status: SidrStatus,
        sentence: &str,
    ) {
        self.counters.rx_cm_refused += 1;
        let (peer, service) = (mad.src_gid.ip(), req.service_id);
        self.notice(format!("refused a SIDR_REQ of {peer} for {service}: {sentence} (status {status})"));
        let nothing = (Qpn::new(0), Qkey(0));
        self.answer(mad, transaction, &mads::sidr_rep(req.request_id, req.service_id, status, nothing, &[]));
    }

    /// The listener that a request is for.
    fn sidr_taker(
        &self,
        mad: &IncomingMad,
        req: &SidrReqRepr,
    ) -> Result<(CmId, IpCmHeader, u16), (SidrStatus, String)> {
        let no_service = |sentence: String| (SidrStatus::NO_SERVICE, sentence);
        let Some((PortSpace::Udp, port)) = req.service_id.port() else {
            return Err(no_service("it is no port of the UDP port space".to_owned()));
        };
        let addresses = IpCmHeader::parse(&req.private_data).map_err(|error| no_service(error.to_string()))?;
        let ours = self.gid(mad.port, mad.sgid_index);
        if Gid::from_ip(addresses.dst) != ours || Gid::from_ip(addresses.src) != mad.src_gid {
            let (from, to) = (mad.src_gid.ip(), ours.ip());
            let sentence = format!("it came from {from} to {to}, and says {} to {}", addresses.src, addresses.dst);
            return Err(no_service(sentence));
        }
        if !Pkey::DEFAULT.matches(req.pkey) {
            let sentence = format!("it asks for P_Key {}, this port has {}", req.pkey, Pkey::DEFAULT);
            return Err(no_service(sentence));
        }
        match self.bound.listener(PortSpace::Udp, addresses.dst, port) {
            Some(listener) => Ok((listener, addresses, port)),
            None => Err(no_service("nobody listens".to_owned())),
        }
    }

    fn open_sidr(
        &mut self,
        entropy: Entropy<'_>,
        mad: &IncomingMad,
        transaction: TransactionId,
        req: &SidrReqRepr,
        (listener, addresses, port): (CmId, IpCmHeader, u16),
    ) {
        if self.ids.get(&listener).is_some_and(|entry| entry.waiting >= entry.backlog) {
            return self.refuse_sidr(mad, transaction, req, SidrStatus::NO_QP, "the listener's backlog is full");
        }
        let mtu = self.ports.get(usize::from(mad.port)).map_or(wire::PathMtu::M256, |port| port.mtu);
        let mut entry = Id::new(PortSpace::Udp);
        entry.local = Some(SocketAddr::new(addresses.dst, port));
        entry.peer = Some(SocketAddr::new(addresses.src, addresses.src_port));
        entry.listener = Some(listener);
        entry.path = Some(Path { mtu, ..Path::back_to(mad, self.gid(mad.port, mad.sgid_index)) });
        let local_comm = self.new_comm(entropy);
        let link = Link::active(&self.config, transaction, local_comm, random_psn(entropy));
        entry.link = Some(Box::new(Link { is_active: false, remote_comm: req.request_id, ..link }));
        let Some(id) = self.insert(entry) else {
            return self.refuse_sidr(mad, transaction, req, SidrStatus::NO_QP, "too many CM ids are in use");
        };
        self.by_comm.insert(local_comm, id);
        self.by_sidr.insert((mad.src_gid, req.request_id), id);
        self.set_state(id, CmState::SidrReqRcvd);
        let private_data = req.private_data.get(IpCmHeader::LEN..).unwrap_or_default().to_vec();
        let param = ConnParam { private_data, ..ConnParam::default() };
        self.event(id, CmEventType::ConnectRequest, 0, param, String::new());
    }

    pub(super) fn accept_sidr(&mut self, now: Time, id: CmId, param: &ConnParam) -> Result<(), CmRefusal> {
        check_private("the reply of a datagram service", param, SidrRepRepr::PRIVATE_BYTES)?;
        if param.qp_num == 0 || param.qp_num >= 1 << 24 {
            let qpn = param.qp_num;
            return refuse(errno::EINVAL, format!("qp_num {qpn:#x} is no QP number: those are 1 to 0xffffff"));
        }
        self.reply_sidr(now, id, SidrStatus::VALID, param);
        Ok(())
    }

    /// Answers a request; the answer is kept for a while.
    pub(super) fn reply_sidr(&mut self, now: Time, id: CmId, status: SidrStatus, param: &ConnParam) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let port = entry.local.map_or(0, |local| local.port());
        let service_id = ServiceId::from_port(entry.space, port);
        let (Some(path), Some(link)) = (entry.path, entry.link.as_mut()) else { return };
        let served = match (status, param.qkey) {
            (SidrStatus::VALID, 0) => (Qpn::new(param.qp_num), UDP_QKEY),
            (SidrStatus::VALID, qkey) => (Qpn::new(param.qp_num), Qkey(qkey)),
            _ => (Qpn::new(0), Qkey(0)),
        };
        let reply = mads::sidr_rep(link.remote_comm, service_id, status, served, &param.private_data);
        link.last = reply.to_mad(link.transaction);
        let mad = link.last;
        self.send(&path, mad);
        self.set_state(id, CmState::SidrRepSent);
        self.set_timer(id, now.add_ns(exponent_ns(REPLY_KEPT_EXPONENT)));
    }

    /// The reply to our request.
    pub(super) fn take_sidr_rep(&mut self, id: CmId, rep: &SidrRepRepr) {
        let Some(entry) = self.ids.get(&id) else { return };
        let param = ConnParam {
            private_data: rep.private_data.to_vec(),
            qp_num: rep.qpn.value(),
            qkey: rep.qkey.0,
            ..ConnParam::default()
        };
        if rep.status == SidrStatus::VALID {
            self.event(id, CmEventType::Established, 0, param, String::new());
        } else {
            let message = explain::sidr(entry, rep.status);
            self.event(id, CmEventType::Unreachable, i32::from(rep.status.0), param, message);
        }
        self.finish(id);
    }

    /// The request of ours that a reply is to.
    pub(super) fn sidr_request(&self, request_id: CommId) -> Option<CmId> {
        self.by_comm.get(&request_id).copied()
    }
}
