//! The calls that come before a connection: create, bind, resolve, listen; the QP's attributes; destroy.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use shm::attr::{AccessFlags, GidEntry, GidType, QpAttr, QpAttrMask, QpState};
use shm::control::cm::{CmEventType, ConnParam};
use shm::control::post_mortem::PeerAttr;
use wire::cm::{AnsweredMessage, Ari, PortSpace, RejReason, SidrStatus};
use wire::{Gid, Qkey, Qpn};

use super::id::{Id, Path};
use super::refusal::{errno, refuse};
use super::state::CmState;
use super::{Cm, CmId, CmRefusal};
use crate::time::Time;

/// Who is to answer before an address is resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextHop {
    /// Our port, from 0.
    pub port: u8,
    /// Its address: RoCE is switched, not routed by us.
    pub ip: IpAddr,
    /// The VLAN of our address.
    pub vlan: Option<u16>,
}

/// The Q_Key of UD QPs of RDMA CM (`RDMA_UDP_QKEY`).
pub(super) const UDP_QKEY: Qkey = Qkey(0x0123_4567);
/// RNR NAK timer of QPs that the connection manager makes ready: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;

impl Cm {
    /// A new id.
    ///
    /// # Errors
    /// `ENOMEM` when there are as many as the configuration allows.
    pub fn create_id(&mut self, space: PortSpace) -> Result<CmId, CmRefusal> {
        let max = self.config.max_id;
        match self.insert(Id::new(space)) {
            Some(id) => Ok(id),
            None => refuse(errno::ENOMEM, format!("{max} CM ids are in use, as many as the limit max_cm_id allows")),
        }
    }

    /// Gives an id its number, unless there are too many.
    pub(super) fn insert(&mut self, id: Id) -> Option<CmId> {
        if self.ids.len() >= self.config.max_id as usize {
            return None;
        }
        while self.ids.contains_key(&CmId(self.next_id)) || self.next_id == 0 {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let number = CmId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        self.ids.insert(number, Box::new(id));
        Some(number)
    }

    /// Binds an id to an address of ours, or all of them, and a port, or a free one.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not ours, `EADDRINUSE` if the port is taken, `EINVAL` if the id is bound.
    pub fn bind_addr(&mut self, id: CmId, addr: SocketAddr) -> Result<(), CmRefusal> {
        let entry = self.id(id)?;
        if let Some(local) = entry.local {
            return refuse(errno::EINVAL, format!("CM id {} is bound to {local} already", id.0));
        }
        if !addr.ip().is_unspecified() && self.find_gid(addr.ip()).is_none() {
            let ours = self.addresses();
            return refuse(errno::EADDRNOTAVAIL, format!("{} is no address of this device: {ours}", addr.ip()));
        }
        let space = entry.space;
        let Some(port) = self.bound.bind(id, space, addr.ip(), addr.port()) else {
            let what = if addr.port() == 0 { "every dynamic port".to_owned() } else { format!("port {}", addr.port()) };
            return refuse(errno::EADDRINUSE, format!("{what} of the {} port space is in use", space.name()));
        };
        let entry = self.id_mut(id)?;
        entry.local = Some(SocketAddr::new(addr.ip(), port));
        entry.holds_port = true;
        Ok(())
    }

    /// Chooses the source address for a destination. Who is to answer there is returned: once it has, or is one of us, call
    /// [`addr_resolved`](Self::addr_resolved). `None` if no address of ours leads there, which an event has told.
    ///
    /// # Errors
    /// As of [`bind_addr`](Self::bind_addr), which a source address implies; `EINVAL` in any state but the first ones.
    pub fn resolve_addr(
        &mut self,
        id: CmId,
        src: Option<SocketAddr>,
        dst: SocketAddr,
    ) -> Result<Option<NextHop>, CmRefusal> {
        self.require(id, &[CmState::Idle, CmState::AddrResolved, CmState::RouteResolved], "resolve_addr")?;
        let entry = self.id(id)?;
        let bound = entry.local.or(src);
        let source = bound.map(|addr| addr.ip()).filter(|ip| !ip.is_unspecified());
        let Some((path, vlan)) = self.route(source, dst.ip()) else {
            let message = match source {
                Some(source) => {
                    format!("{source} is no address of this device, or of another family than {}", dst.ip())
                }
                None => format!("no address of the family of {}: {}", dst.ip(), self.addresses()),
            };
            self.addr_error(id, -errno::ENETUNREACH, message);
            return Ok(None);
        };
        if entry.local.is_none() {
            self.bind_addr(id, SocketAddr::new(path.local.ip(), src.map_or(0, |addr| addr.port())))?;
        }
        let entry = self.id_mut(id)?;
        let port = entry.local.map_or(0, |local| local.port());
        // rdma_cm's choice: both sides of a connection arrive at one UDP source port.
        let flow_label = (u32::from(port) * 31 + u32::from(dst.port())) & 0xf_ffff;
        entry.path = Some(Path { flow_label, ..path });
        entry.local = Some(SocketAddr::new(path.local.ip(), port));
        entry.peer = Some(dst);
        entry.state = CmState::Idle;
        Ok(Some(NextHop { port: path.port, ip: dst.ip(), vlan }))
    }

    /// Whoever is to answer at the destination has answered; told by an event.
    pub fn addr_resolved(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(&id).filter(|entry| entry.state == CmState::Idle && entry.path.is_some())
        else {
            return;
        };
        entry.state = CmState::AddrResolved;
        self.event(id, CmEventType::AddrResolved, 0, ConnParam::default(), String::new());
    }

    /// Nobody answers at the destination; told by an event. The id may try another.
    pub fn addr_error(&mut self, id: CmId, status: i32, message: String) {
        self.event(id, CmEventType::AddrError, status, ConnParam::default(), message);
    }

    /// Takes the path for granted: a RoCE network has no subnet manager to ask. Told by an event.
    ///
    /// # Errors
    /// `EINVAL` without a source address.
    pub fn resolve_route(&mut self, id: CmId) -> Result<(), CmRefusal> {
        self.require(id, &[CmState::AddrResolved, CmState::RouteResolved], "resolve_route")?;
        self.id_mut(id)?.state = CmState::RouteResolved;
        self.event(id, CmEventType::RouteResolved, 0, ConnParam::default(), String::new());
        Ok(())
    }

    /// Listens on the port that the id is bound to; on a free one if it is not bound. At most `backlog` requests wait for an
    /// answer at a time, 0 = as many as the configuration allows.
    ///
    /// # Errors
    /// `EINVAL` if the id does something else already.
    pub fn listen(&mut self, id: CmId, backlog: u32) -> Result<(), CmRefusal> {
        self.require(id, &[CmState::Idle], "listen")?;
        if self.id(id)?.local.is_none() {
            self.bind_addr(id, SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0))?;
        }
        let max = self.config.max_backlog;
        let entry = self.id_mut(id)?;
        entry.state = CmState::Listen;
        entry.backlog = if backlog == 0 { max } else { backlog.min(max) };
        let (space, port) = (entry.space, entry.local.map_or(0, |local| local.port()));
        self.bound.listen(id, space, port);
        Ok(())
    }

    /// The QP of a connection whose two ends are known, and whether they agreed to repeat selectively.
    pub(crate) fn settled_qp(&self, id: CmId) -> Option<(Qpn, bool)> {
        let link = self.ids.get(&id)?.link.as_ref()?;
        let is_known = link.local_qpn != Qpn::new(0) && link.remote_qpn != Qpn::new(0);
        is_known.then_some((link.local_qpn, link.selective))
    }

    /// Attributes that take the id's QP to INIT, RTR or RTS.
    ///
    /// # Errors
    /// `EINVAL` while they are not known yet, or of another state.
    pub fn init_qp_attr(&self, id: CmId, qp_state: QpState) -> Result<(QpAttr, QpAttrMask), CmRefusal> {
        let entry = self.id(id)?;
        let is_datagram = entry.space == PortSpace::Udp;
        let attr = QpAttr { qp_state, ..QpAttr::default() };
        match (qp_state, is_datagram) {
            (QpState::Init, _) => self.init_attr(entry, attr),
            (QpState::Rtr, true) => Ok((attr, QpAttrMask::STATE)),
            (QpState::Rts, true) => Ok((attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN)),
            (QpState::Rtr, false) => self.rtr_attr(id, entry, attr),
            (QpState::Rts, false) => self.rts_attr(id, entry, attr),
            (other, _) => {
                let message = format!("the connection manager takes a QP to INIT, RTR and RTS, not to {other}");
                refuse(errno::EINVAL, message)
            }
        }
    }

    /// Our QP of a connection, and what was agreed on with the peer about its own. `None` as long as either is not known.
    pub fn peer_of(&self, id: CmId) -> Option<(Qpn, PeerAttr)> {
        let entry = self.id(id).ok()?;
        let link = entry.link.as_ref()?;
        let known = link.local_qpn.value() != 0 && link.remote_qpn.value() != 0;
        let peer = PeerAttr {
            qpn: link.remote_qpn.value(),
            starting_psn: link.receive_psn.value(),
            path_mtu: entry.path?.mtu.code(),
            responder_resources: link.initiator_depth,
            initiator_depth: link.responder_resources,
            timeout: link.ack_timeout,
            retry_cnt: link.retry_count,
            rnr_retry: link.rnr_retry_count,
        };
        known.then_some((link.local_qpn, peer))
    }

    fn init_attr(&self, entry: &Id, attr: QpAttr) -> Result<(QpAttr, QpAttrMask), CmRefusal> {
        // An id that is bound to all addresses is bound to no port; a RoCE device's QPs start on its first.
        let port_num = entry.path.map_or(1, |path| path.port + 1);
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
        if entry.space == PortSpace::Udp {
            return Ok((QpAttr { port_num, qkey: UDP_QKEY.0, ..attr }, mask | QpAttrMask::QKEY));
        }
        let qp_access_flags = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        Ok((QpAttr { port_num, qp_access_flags, ..attr }, mask | QpAttrMask::ACCESS_FLAGS))
    }

    fn rtr_attr(&self, id: CmId, entry: &Id, attr: QpAttr) -> Result<(QpAttr, QpAttrMask), CmRefusal> {
        let (Some(path), Some(link)) = (entry.path, entry.link.as_ref().filter(|link| link.remote_qpn.value() != 0))
        else {
            return refuse(errno::EINVAL, format!("the peer's QP is not known: CM id {} is {:?}", id.0, entry.state));
        };
        let attr = QpAttr {
            ah_attr: path.ah(),
            path_mtu: path.mtu.code(),
            dest_qp_num: link.remote_qpn.value(),
            rq_psn: link.receive_psn.value(),
            max_dest_rd_atomic: link.responder_resources.min(self.config.max_rd_atomic),
            min_rnr_timer: MIN_RNR_TIMER,
            ..attr
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN
            | QpAttrMask::MAX_DEST_RD_ATOMIC
            | QpAttrMask::MIN_RNR_TIMER;
        Ok((attr, mask))
    }

    fn rts_attr(&self, id: CmId, entry: &Id, attr: QpAttr) -> Result<(QpAttr, QpAttrMask), CmRefusal> {
        let Some(link) = entry.link.as_ref().filter(|link| link.remote_qpn.value() != 0) else {
            return refuse(errno::EINVAL, format!("the peer's QP is not known: CM id {} is {:?}", id.0, entry.state));
        };
        let attr = QpAttr {
            sq_psn: link.send_psn.value(),
            timeout: link.ack_timeout,
            retry_cnt: link.retry_count,
            rnr_retry: link.rnr_retry_count,
            max_rd_atomic: link.initiator_depth.min(self.config.max_rd_atomic),
            ..attr
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::SQ_PSN
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::MAX_QP_RD_ATOMIC;
        Ok((attr, mask))
    }

    /// The owner has no use for the id any more. The peer of a connection hears of it; time wait is still kept.
    pub fn destroy_id(&mut self, now: Time, id: CmId) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        entry.is_orphan = true;
        let (space, port) = (entry.space, entry.local.map_or(0, |local| local.port()));
        if std::mem::take(&mut entry.holds_port) {
            self.bound.release(id, space, port);
        }
        // Events that nobody will ask for.
        self.events.retain(|(owner, _)| *owner != id);
        match self.ids.get(&id).map(|entry| entry.state) {
            Some(CmState::ReqSent | CmState::MraReqRcvd) => {
                let ari = Ari::new(&self.guid.0.to_be_bytes());
                self.send_rej(id, AnsweredMessage::Other, RejReason::TIMEOUT, ari, &[]);
                self.finish(id);
            }
            Some(CmState::ReqRcvd | CmState::MraReqSent) => {
                self.send_rej(id, AnsweredMessage::Req, RejReason::CONSUMER, Ari::NONE, &[]);
                self.finish(id);
            }
            Some(CmState::RepSent | CmState::MraRepRcvd | CmState::RepRcvd | CmState::MraRepSent) => {
                self.send_rej(id, AnsweredMessage::Rep, RejReason::CONSUMER, Ari::NONE, &[]);
                self.finish(id);
            }
            Some(CmState::Established) => self.send_dreq(now, id),
            Some(CmState::SidrReqRcvd) => self.reply_sidr(now, id, SidrStatus::REJECTED, &ConnParam::default()),
            Some(CmState::DreqSent | CmState::Timewait | CmState::SidrRepSent) | None => {}
            Some(_) => self.finish(id),
        }
    }

    /// Refuses a call in a state that it does not belong to.
    pub(super) fn require(&self, id: CmId, states: &[CmState], call: &str) -> Result<(), CmRefusal> {
        let state = self.id(id)?.state;
        if states.contains(&state) {
            return Ok(());
        }
        let names: Vec<String> = states.iter().map(|state| format!("{state:?}")).collect();
        let names = names.join(" or ");
        refuse(errno::EINVAL, format!("CM id {} is in state {state:?}: {call} is for {names}", id.0))
    }

    pub(super) fn id_mut(&mut self, id: CmId) -> Result<&mut Id, CmRefusal> {
        self.id(id)?;
        match self.ids.get_mut(&id) {
            Some(entry) => Ok(entry),
            None => refuse(errno::EINVAL, format!("CM id {} does not exist", id.0)),
        }
    }

    /// Port and GID of an address of ours.
    fn find_gid(&self, ip: IpAddr) -> Option<(u8, GidEntry)> {
        let gid = Gid::from_ip(ip);
        self.gids().filter(|(_, entry)| entry.gid == gid).min_by_key(|(_, entry)| is_v1(entry))
    }

    /// All GIDs, with their ports from 0.
    fn gids(&self) -> impl Iterator<Item = (u8, GidEntry)> {
        let numbered = self.ports.iter().zip(0_u8..);
        numbered.flat_map(|(port, number)| port.gids.iter().map(move |&entry| (number, entry)))
    }

    /// Path and VLAN from `source`, or from the address of ours that has most in common with the destination.
    pub(super) fn route(&self, source: Option<IpAddr>, destination: IpAddr) -> Option<(Path, Option<u16>)> {
        let peer = Gid::from_ip(destination);
        let (port, entry) = match source {
            Some(source) => self.find_gid(source)?,
            None => self.nearest_gid(destination)?,
        };
        let mtu = self.ports.get(usize::from(port))?.mtu;
        if entry.gid.ip().is_ipv4() != destination.is_ipv4() {
            return None;
        }
        let sgid_index = u8::try_from(entry.index).ok()?;
        let path = Path { port, sgid_index, local: entry.gid, peer, flow_label: 0, traffic_class: 0, sl: 0, mtu };
        Some((path, entry.vlan))
    }

    /// Of equals the first: lower indexes are the ones that were there before.
    fn nearest_gid(&self, destination: IpAddr) -> Option<(u8, GidEntry)> {
        let peer = u128::from_be_bytes(Gid::from_ip(destination).0);
        let foreign_bits = |gid: Gid| 128 - (u128::from_be_bytes(gid.0) ^ peer).leading_zeros();
        let same_family = self.gids().filter(|(_, entry)| entry.gid.ip().is_ipv4() == destination.is_ipv4());
        same_family.min_by_key(|(_, entry)| (foreign_bits(entry.gid), is_v1(entry)))
    }

    /// Our addresses, for sentences.
    pub(super) fn addresses(&self) -> String {
        let all: Vec<String> = self.gids().map(|(_, entry)| entry.gid.ip().to_string()).collect();
        if all.is_empty() { "it has none".to_owned() } else { format!("it has {}", all.join(", ")) }
    }
}

/// RoCEv1 does not leave its subnet: only if an address has nothing better.
fn is_v1(entry: &GidEntry) -> bool {
    entry.gid_type == GidType::RoceV1
}
