//! An id: what it is bound to, its path, and the connection it has or is making.

use std::net::{IpAddr, SocketAddr};

use shm::attr::AhAttr;
use shm::control::cm::{CmEventType, CmIdInfo, ConnParam};
use wire::cm::{CaGuid, CmPath, CommId, Ece, PortSpace, TransactionId};
use wire::{Gid, PathMtu, Psn, Qkey, Qpn};

use super::state::CmState;
use super::{CmConfig, CmId};
use crate::gsi::{IncomingMad, MAD_BYTES};
use crate::time::Time;

/// Hops that packets of a connection may take.
const HOP_LIMIT: u8 = 64;
/// LID of a port that has none (IBTA A16).
const PERMISSIVE_LID: u16 = 0xffff;
/// Times that a peer names for its answers are cut to this, 8.6 s.
const RESPONSE_EXPONENT_MAX: u8 = 21;
/// Times that a peer asks for by an MRA, 137 s.
const SERVICE_EXPONENT_MAX: u8 = 25;

/// 4.096 us * 2^t, in nanoseconds.
pub(super) const fn exponent_ns(exponent: u8) -> u64 {
    4_096 << (exponent & 0x1f)
}

const fn at_most(exponent: u8, max: u8) -> u8 {
    if exponent < max { exponent } else { max }
}

/// How long to wait for what a peer says that it answers within so long.
pub(super) const fn response_ns(exponent: u8) -> u64 {
    exponent_ns(at_most(exponent, RESPONSE_EXPONENT_MAX))
}

/// How long to wait for a peer that asked for time.
pub(super) const fn service_ns(exponent: u8) -> u64 {
    exponent_ns(at_most(exponent, SERVICE_EXPONENT_MAX))
}

/// How long a connection that is over is remembered, for the ACK timeout of its QPs: twice a packet's lifetime and the ACK
/// delay are what that timeout is made of.
pub(super) const fn timewait_ns(ack_timeout: u8) -> u64 {
    exponent_ns(at_most(ack_timeout, RESPONSE_EXPONENT_MAX))
}

/// The way to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Path {
    /// Our port, from 0.
    pub(super) port: u8,
    /// Which of our GIDs.
    pub(super) sgid_index: u8,
    /// Our GID.
    pub(super) local: Gid,
    /// The peer's.
    pub(super) peer: Gid,
    /// Of data packets; 20 bits.
    pub(super) flow_label: u32,
    /// DSCP and ECN.
    pub(super) traffic_class: u8,
    /// 802.1p priority.
    pub(super) sl: u8,
    /// Payload of a packet at most.
    pub(super) mtu: PathMtu,
}

impl Path {
    /// Back to where a MAD came from, by which we were called `local`.
    pub(super) const fn back_to(mad: &IncomingMad, local: Gid) -> Self {
        Self {
            port: mad.port,
            sgid_index: mad.sgid_index,
            local,
            peer: mad.src_gid,
            flow_label: 0,
            traffic_class: mad.traffic_class,
            sl: mad.sl,
            mtu: PathMtu::M256,
        }
    }

    /// The address vector of the connection's QP.
    pub(super) const fn ah(&self) -> AhAttr {
        AhAttr {
            dgid: self.peer,
            sgid_index: self.sgid_index,
            flow_label: self.flow_label,
            hop_limit: HOP_LIMIT,
            traffic_class: self.traffic_class,
            sl: self.sl,
            static_rate: 0,
            port_num: self.port + 1,
        }
    }

    /// The address vector of MADs: QP1's UDP source port follows from its number.
    pub(super) const fn mad_ah(&self) -> AhAttr {
        AhAttr { flow_label: 0, ..self.ah() }
    }

    /// As a REQ says it.
    pub(super) const fn to_wire(self, ack_timeout: u8) -> CmPath {
        CmPath {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: self.local,
            remote_gid: self.peer,
            flow_label: self.flow_label,
            packet_rate: 0,
            traffic_class: self.traffic_class,
            hop_limit: HOP_LIMIT,
            sl: self.sl,
            subnet_local: false,
            ack_timeout,
        }
    }
}

/// A connection, or a service id resolution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Link {
    /// We sent the request.
    pub(super) is_active: bool,
    /// The request's.
    pub(super) transaction: TransactionId,
    /// What we call it.
    pub(super) local_comm: CommId,
    /// What the peer calls it; 0 = not known yet.
    pub(super) remote_comm: CommId,
    /// The peer's device.
    pub(super) remote_guid: CaGuid,
    /// Our QP; 0 = not known yet.
    pub(super) local_qpn: Qpn,
    /// The peer's; 0 = not known yet.
    pub(super) remote_qpn: Qpn,
    /// First PSN that we receive.
    pub(super) receive_psn: Psn,
    /// First PSN that we send.
    pub(super) send_psn: Psn,
    /// READs and atomics that we answer at a time.
    pub(super) responder_resources: u8,
    /// READs and atomics that we have outstanding.
    pub(super) initiator_depth: u8,
    /// Of our QP.
    pub(super) retry_count: u8,
    /// Of our QP.
    pub(super) rnr_retry_count: u8,
    /// Of our QP.
    pub(super) ack_timeout: u8,
    /// What we say of enhanced connection establishment.
    pub(super) local_ece: Ece,
    /// What the peer says.
    pub(super) remote_ece: Ece,
    /// Both sides repeat selectively.
    pub(super) selective: bool,
    /// Of a UD service.
    pub(super) qkey: Qkey,
    /// What the application offered, where an answer is sent without asking it again.
    pub(super) offered: Option<Box<ConnParam>>,
    /// How long to wait for an answer.
    pub(super) response_ns: u64,
    /// How often a message is sent again.
    pub(super) retries: u8,
    /// How often the last one may still be.
    pub(super) retries_left: u8,
    /// The last message of ours.
    pub(super) last: [u8; MAD_BYTES],
}

impl Link {
    /// A connection that we begin.
    pub(super) fn active(config: &CmConfig, transaction: TransactionId, local_comm: CommId, receive_psn: Psn) -> Self {
        let response = exponent_ns(config.response_timeout);
        Self {
            is_active: true,
            transaction,
            local_comm,
            remote_comm: CommId(0),
            remote_guid: CaGuid(0),
            local_qpn: Qpn::new(0),
            remote_qpn: Qpn::new(0),
            receive_psn,
            send_psn: Psn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            local_ece: Ece::new(config.selective),
            remote_ece: Ece::default(),
            selective: false,
            ack_timeout: ack_timeout(config.packet_lifetime, config.ack_delay),
            qkey: Qkey(0),
            offered: None,
            // There and back, and the peer's time between.
            response_ns: 2 * exponent_ns(config.packet_lifetime) + response,
            retries: config.max_retries,
            retries_left: config.max_retries,
            last: [0; MAD_BYTES],
        }
    }
}

impl Link {
    /// Says what the application wants said. Of our own options it can leave some out, and add none: the peer would rely on them.
    pub(super) const fn say_ece(&mut self, ece: Ece, selective: bool) {
        self.local_ece = if ece.vendor_id == Ece::FERROCE { Ece::accepting(&ece, selective) } else { ece };
    }
}

/// The ACK timeout of a QP: the nearest power of two to twice a packet's lifetime and the peer's ACK delay.
pub(super) const fn ack_timeout(packet_lifetime: u8, ack_delay: u8) -> u8 {
    let sum = (2_u64 << (packet_lifetime & 0x1f)) + (1_u64 << (ack_delay & 0x1f));
    let exponent = sum.ilog2();
    let is_nearer_to_next = exponent > 0 && sum >> (exponent - 1) & 1 == 1;
    let exponent = exponent + is_nearer_to_next as u32;
    if exponent > 31 { 31 } else { exponent.to_le_bytes()[0] }
}

/// An id.
#[derive(Debug)]
pub(super) struct Id {
    /// Its port space.
    pub(super) space: PortSpace,
    /// Where it stands.
    pub(super) state: CmState,
    /// Its owner has destroyed it: it ends when its connection has.
    pub(super) is_orphan: bool,
    /// Our address and port, once bound.
    pub(super) local: Option<SocketAddr>,
    /// It has had a connection: to end it once more is no mistake.
    pub(super) was_connected: bool,
    /// The port is taken in the table of ports.
    pub(super) holds_port: bool,
    /// The peer's address and port.
    pub(super) peer: Option<SocketAddr>,
    /// The way there.
    pub(super) path: Option<Path>,
    /// Its connection.
    pub(super) link: Option<Box<Link>>,
    /// Of a listener: requests that may wait for an answer.
    pub(super) backlog: u32,
    /// Of a listener: requests that do.
    pub(super) waiting: u32,
    /// Multicast groups that it has joined.
    pub(super) groups: Vec<IpAddr>,
    /// Of a request: who listened.
    pub(super) listener: Option<CmId>,
    /// Its timer.
    pub(super) deadline: Time,
}

impl Id {
    pub(super) const fn new(space: PortSpace) -> Self {
        Self {
            space,
            state: CmState::Idle,
            is_orphan: false,
            was_connected: false,
            local: None,
            holds_port: false,
            peer: None,
            path: None,
            link: None,
            backlog: 0,
            waiting: 0,
            groups: Vec::new(),
            listener: None,
            deadline: Time::NEVER,
        }
    }

    /// Addresses, port and path.
    pub(super) fn info(&self) -> CmIdInfo {
        CmIdInfo {
            local: self.local,
            peer: self.peer,
            port_num: self.path.map_or(0, |path| path.port + 1),
            path: self.path.map(|path| path.ah()),
            path_mtu: self.path.map_or(0, |path| path.mtu.code()),
        }
    }

    /// Where to send to, with events that say so: of UD.
    pub(super) fn datagram_ah(&self, event: CmEventType) -> Option<AhAttr> {
        let is_resolved = event == CmEventType::Established && self.space == PortSpace::Udp;
        is_resolved.then(|| self.path.map(|path| path.ah())).flatten()
    }

    /// Where a connection that ended leaves the id: whoever asked for it may ask again.
    pub(super) fn state_after_link(&self) -> CmState {
        let was_active = self.link.as_ref().is_some_and(|link| link.is_active);
        if was_active { CmState::RouteResolved } else { CmState::Idle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeout_is_what_linux_asks_for() {
        // Captures: lifetime 18, ACK delay 15.
        assert_eq!(ack_timeout(18, 15), 19);
        assert_eq!(ack_timeout(16, 15), 17);
        assert_eq!(ack_timeout(14, 15), 16, "2^15 + 2^15");
        assert_eq!(ack_timeout(14, 16), 17, "2^15 + 2^16: halfway goes up");
        assert_eq!(ack_timeout(31, 31), 31);
    }

    #[test]
    fn times_of_peers_are_cut() {
        assert_eq!(response_ns(20), 4_294_967_296);
        assert_eq!(response_ns(31), exponent_ns(21));
        assert_eq!(service_ns(24), 68_719_476_736);
        assert_eq!(service_ns(31), exponent_ns(25));
    }
}
