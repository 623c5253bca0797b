//! The usual way of a QP from RESET to RTS.

use wire::{Gid, PathMtu, Psn, Qpn};

use crate::exchange::ConnectionInfo;
use crate::{AccessFlags, AhAttr, QpAttr, QpAttrMask, QpState, QpType, QueuePair, VerbsError};

/// What both peers choose for themselves. The defaults suit an ordinary network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectAttr {
    /// Port, from 1.
    pub port_num: u8,
    /// Index of our GID. 0 is the routable one wherever the port has an IPv4 address.
    pub sgid_index: u8,
    /// What the peer may do to our regions through this QP (each region says so too).
    pub access: AccessFlags,
    /// READs and atomics we have outstanding at most.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer that we serve at a time.
    pub max_dest_rd_atomic: u8,
    /// Time to wait for an acknowledgement: 4.096 us * 2^n; 0 = for ever.
    pub timeout: u8,
    /// Retries after that, and after sequence NAKs: 0..=7.
    pub retry_cnt: u8,
    /// Retries when the peer has no receive posted: 0..=7; 7 = for ever.
    pub rnr_retry: u8,
    /// How long the peer shall wait before such a retry: a code, 0..=31; 12 = 0.64 ms.
    pub min_rnr_timer: u8,
    /// IP ToS or traffic class: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Service level: the 802.1p priority on a tagged network.
    pub sl: u8,
    /// Time to live of the packets.
    pub hop_limit: u8,
    /// 20 bits; 0 = derive the UDP source port from the QPNs.
    pub flow_label: u32,
}

impl Default for ConnectAttr {
    fn default() -> Self {
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        Self {
            port_num: 1,
            sgid_index: 0,
            access: access | AccessFlags::LOCAL_WRITE,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            traffic_class: 0,
            sl: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }
}

/// What a QP must know of its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteQp {
    /// The peer's QP.
    pub qpn: Qpn,
    /// The first PSN it will send.
    pub psn: Psn,
    /// Its GID.
    pub gid: Gid,
    /// Path MTU, the same on both sides.
    pub path_mtu: PathMtu,
}

impl QueuePair {
    /// RESET to INIT: receives may be posted from here on.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn to_init(&self, port_num: u8, access: AccessFlags) -> Result<(), VerbsError> {
        let (attr, mask) = init_step(port_num, access);
        self.modify(&attr, mask).map(drop)
    }

    /// INIT to RTR: ready to receive from this peer.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn to_rtr(&self, remote: &RemoteQp, local: &ConnectAttr) -> Result<(), VerbsError> {
        let (attr, mask) = rtr_step(self.qp_type(), remote, local);
        self.modify(&attr, mask).map(drop)
    }

    /// RTR to RTS: ready to send, beginning with `psn`.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn to_rts(&self, psn: Psn, local: &ConnectAttr) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_state: QpState::Rts,
            sq_psn: psn.value(),
            timeout: local.timeout,
            retry_cnt: local.retry_cnt,
            rnr_retry: local.rnr_retry,
            max_rd_atomic: local.max_rd_atomic,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
        let requester =
            QpAttrMask::TIMEOUT | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC;
        self.modify(&attr, if self.qp_type().is_reliable() { mask | requester } else { mask }).map(drop)
    }

    /// SQE to RTS: sends again after a work request of a UC or UD QP has failed. What was posted behind it is flushed.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn resume(&self) -> Result<(), VerbsError> {
        self.modify(&QpAttr { qp_state: QpState::Rts, ..QpAttr::default() }, QpAttrMask::STATE).map(drop)
    }

    /// To ERR: everything posted is flushed.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn to_error(&self) -> Result<(), VerbsError> {
        self.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE).map(drop)
    }

    /// To RESET: as if just made.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn reset(&self) -> Result<(), VerbsError> {
        self.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, QpAttrMask::STATE).map(drop)
    }
}

/// Values and mask of RESET to INIT.
pub(crate) fn init_step(port_num: u8, access: AccessFlags) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr { qp_state: QpState::Init, port_num, qp_access_flags: access, ..QpAttr::default() };
    (attr, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS)
}

/// Values and mask of INIT to RTR. Only a service with a responder that acknowledges has attributes of READs and RNR.
pub(crate) fn rtr_step(kind: QpType, remote: &RemoteQp, local: &ConnectAttr) -> (QpAttr, QpAttrMask) {
    let ah_attr = AhAttr {
        dgid: remote.gid,
        sgid_index: local.sgid_index,
        flow_label: local.flow_label,
        hop_limit: local.hop_limit,
        traffic_class: local.traffic_class,
        sl: local.sl,
        static_rate: 0,
        port_num: local.port_num,
    };
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        ah_attr,
        path_mtu: remote.path_mtu.code(),
        dest_qp_num: remote.qpn.value(),
        rq_psn: remote.psn.value(),
        max_dest_rd_atomic: local.max_dest_rd_atomic,
        min_rnr_timer: local.min_rnr_timer,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    let responder = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
    (attr, if matches!(kind, QpType::Rc | QpType::XrcRecv) { mask | responder } else { mask })
}

/// [`connect`], for those who have an RC QP and say so.
///
/// # Errors
/// As [`QueuePair::modify`].
pub fn connect_rc(
    qp: &QueuePair,
    local: &ConnectionInfo,
    remote: &ConnectionInfo,
    attr: &ConnectAttr,
) -> Result<(), VerbsError> {
    connect(qp, local, remote, attr)
}

/// Takes an RC, UC or XRC_SEND QP, in RESET or INIT, to RTS with the peer whose parameters came by [`crate::exchange`]. The path
/// MTU is the smaller of the two sides'. UC has none of the attributes of retries, READs and atomics.
///
/// The peer must be in RTR before its packets are sent to it: let both sides say so ([`crate::exchange::sync`]).
///
/// # Errors
/// As [`QueuePair::modify`].
pub fn connect(
    qp: &QueuePair,
    local: &ConnectionInfo,
    remote: &ConnectionInfo,
    attr: &ConnectAttr,
) -> Result<(), VerbsError> {
    if qp.state() == QpState::Reset {
        qp.to_init(attr.port_num, attr.access)?;
    }
    let path_mtu = local.path_mtu.min(remote.path_mtu);
    qp.to_rtr(&RemoteQp { qpn: remote.qpn, psn: remote.psn, gid: remote.gid, path_mtu }, attr)?;
    qp.to_rts(local.psn, attr)
}

/// Takes a UD QP from RESET to RTS on a port (from 1): it takes datagrams with this Q_Key, and sends its own beginning with
/// `psn`. Where they go is said in each work request ([`crate::SendWr::to`]).
///
/// # Errors
/// As [`QueuePair::modify`]; `EPERM` for a Q_Key with the top bit set, which is for user 0 only.
pub fn start_datagrams(qp: &QueuePair, port_num: u8, qkey: u32, psn: Psn) -> Result<(), VerbsError> {
    use QpAttrMask as Mask;
    let attr = QpAttr { port_num, qkey, sq_psn: psn.value(), ..QpAttr::default() };
    let init = Mask::STATE | Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY;
    for (qp_state, mask) in
        [(QpState::Init, init), (QpState::Rtr, Mask::STATE), (QpState::Rts, Mask::STATE | Mask::SQ_PSN)]
    {
        qp.modify(&QpAttr { qp_state, ..attr }, mask)?;
    }
    Ok(())
}
