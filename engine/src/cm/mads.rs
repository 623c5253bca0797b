//! The messages that an id sends.

use shm::control::cm::ConnParam;
use wire::Pkey;
use wire::cm::{
    AnsweredMessage, ApStatus, AprRepr, Ari, CaGuid, CmMessage, CmTimeout, CmTransport, CommId, DrepRepr, DreqRepr,
    FailoverStatus, IpCmHeader, LapRepr, MraRepr, RejReason, RejRepr, RepRepr, ReqRepr, RtuRepr, ServiceId,
    SidrRepRepr, SidrReqRepr, SidrStatus,
};
use wire::{Qkey, Qpn};

use super::CmConfig;
use super::id::{Link, Path};
use wire::cm::CmPath;

/// `bytes`, filled up with zeros; what is too long is cut, so lengths are checked before.
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    for (to, from) in padded.iter_mut().zip(bytes) {
        *to = *from;
    }
    padded
}

/// The addresses, and behind them the application's private data.
fn behind_addresses<const N: usize>(addresses: IpCmHeader, private_data: &[u8]) -> [u8; N] {
    padded(&[&addresses.to_bytes()[..], private_data].concat())
}

/// What a request needs beside the connection itself.
pub(super) struct Request<'a> {
    pub(super) config: &'a CmConfig,
    pub(super) guid: CaGuid,
    pub(super) service_id: ServiceId,
    pub(super) addresses: IpCmHeader,
    pub(super) private_data: &'a [u8],
}

pub(super) fn req(request: &Request<'_>, link: &Link, path: &Path, param: &ConnParam) -> CmMessage {
    let timeout = CmTimeout::new(request.config.response_timeout);
    CmMessage::Req(ReqRepr {
        local_comm_id: link.local_comm,
        ece: link.local_ece,
        service_id: request.service_id,
        ca_guid: request.guid,
        qkey: Qkey(0),
        qpn: link.local_qpn,
        responder_resources: link.responder_resources,
        eecn: 0,
        initiator_depth: link.initiator_depth,
        remote_eecn: 0,
        remote_timeout: timeout,
        transport: CmTransport::Rc,
        flow_control: param.flow_control,
        starting_psn: link.receive_psn,
        local_timeout: timeout,
        retry_count: param.retry_count,
        pkey: Pkey::DEFAULT,
        mtu_code: path.mtu.code(),
        rdc_exists: false,
        rnr_retry_count: param.rnr_retry_count,
        max_cm_retries: request.config.max_retries,
        srq: param.srq,
        primary: path.to_wire(link.ack_timeout),
        alternate: CmPath::NONE,
        private_data: behind_addresses(request.addresses, request.private_data),
    })
}

pub(super) fn rep(link: &Link, guid: CaGuid, ack_delay: u8, param: &ConnParam) -> CmMessage {
    CmMessage::Rep(RepRepr {
        local_comm_id: link.local_comm,
        remote_comm_id: link.remote_comm,
        ece: link.local_ece,
        qkey: Qkey(0),
        qpn: link.local_qpn,
        eecn: 0,
        starting_psn: link.receive_psn,
        responder_resources: link.responder_resources,
        initiator_depth: link.initiator_depth,
        target_ack_delay: ack_delay,
        // Nor is one asked for by those who know RoCE: its paths do not migrate.
        failover: FailoverStatus::Accepted,
        flow_control: param.flow_control,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq,
        ca_guid: guid,
        private_data: padded(&param.private_data),
    })
}

pub(super) fn rtu(link: &Link, private_data: &[u8]) -> CmMessage {
    CmMessage::Rtu(RtuRepr {
        local_comm_id: link.local_comm,
        remote_comm_id: link.remote_comm,
        private_data: padded(private_data),
    })
}

pub(super) fn mra(link: &Link, answered: AnsweredMessage, service_timeout: u8) -> CmMessage {
    CmMessage::Mra(MraRepr {
        local_comm_id: link.local_comm,
        remote_comm_id: link.remote_comm,
        answered,
        service_timeout: CmTimeout::new(service_timeout),
        private_data: [0; MraRepr::PRIVATE_BYTES],
    })
}

pub(super) fn rej(link: &Link, answered: AnsweredMessage, reason: RejReason, ari: Ari, data: &[u8]) -> CmMessage {
    CmMessage::Rej(RejRepr {
        local_comm_id: link.local_comm,
        remote_comm_id: link.remote_comm,
        answered,
        reason,
        ari,
        private_data: padded(data),
    })
}

/// A REJ of a message that no id of ours is about.
pub(super) fn rej_stranger(answered: AnsweredMessage, peer_comm: CommId, reason: RejReason, ari: Ari) -> CmMessage {
    CmMessage::Rej(RejRepr {
        local_comm_id: CommId(0),
        remote_comm_id: peer_comm,
        answered,
        reason,
        ari,
        private_data: [0; RejRepr::PRIVATE_BYTES],
    })
}

pub(super) fn dreq(link: &Link) -> CmMessage {
    CmMessage::Dreq(DreqRepr {
        local_comm_id: link.local_comm,
        remote_comm_id: link.remote_comm,
        remote_qpn: link.remote_qpn,
        private_data: [0; DreqRepr::PRIVATE_BYTES],
    })
}

/// The answer to a DREQ, whoever sent it.
pub(super) fn drep(dreq: &DreqRepr) -> CmMessage {
    CmMessage::Drep(DrepRepr {
        local_comm_id: dreq.remote_comm_id,
        remote_comm_id: dreq.local_comm_id,
        private_data: [0; DrepRepr::PRIVATE_BYTES],
    })
}

/// The answer to a LAP.
pub(super) fn apr(lap: &LapRepr, status: ApStatus) -> CmMessage {
    CmMessage::Apr(AprRepr {
        local_comm_id: lap.remote_comm_id,
        remote_comm_id: lap.local_comm_id,
        info_length: 0,
        status,
        info: [0; 72],
        private_data: [0; AprRepr::PRIVATE_BYTES],
    })
}

pub(super) fn sidr_req(request: &Request<'_>, link: &Link) -> CmMessage {
    CmMessage::SidrReq(SidrReqRepr {
        request_id: link.local_comm,
        pkey: Pkey::DEFAULT,
        service_id: request.service_id,
        private_data: behind_addresses(request.addresses, request.private_data),
    })
}

pub(super) fn sidr_rep(
    request_id: CommId,
    service_id: ServiceId,
    status: SidrStatus,
    (qpn, qkey): (Qpn, Qkey),
    private_data: &[u8],
) -> CmMessage {
    CmMessage::SidrRep(SidrRepRepr {
        request_id,
        status,
        qpn,
        service_id,
        qkey,
        info: Ari::NONE,
        private_data: padded(private_data),
    })
}
