//! Multicast groups. RoCE has no subnet manager to ask: who knows a group's address can send to it, and a QP that is attached to
//! it receives.

use std::net::IpAddr;

use shm::control::cm::{CmEventType, ConnParam};
use wire::Qpn;
use wire::cm::PortSpace;

use super::call::UDP_QKEY;
use super::refusal::{errno, refuse};
use super::{Cm, CmId, CmRefusal};

/// Groups that an id may have joined.
const GROUPS_MAX: usize = 64;

impl Cm {
    /// Joins a group from the id's address. Told by an event: where to send, and with which Q_Key.
    ///
    /// # Errors
    /// `EINVAL` for an address that is no group's, an id of port space TCP, or one without an address of the group's family;
    /// `EADDRINUSE` if it has joined already; `ENOMEM` at the limit.
    pub fn join_multicast(&mut self, id: CmId, group: IpAddr) -> Result<(), CmRefusal> {
        let entry = self.id(id)?;
        if entry.space == PortSpace::Tcp {
            return refuse(errno::EINVAL, "the TCP port space has connections, and those no multicast");
        }
        if !group.is_multicast() {
            return refuse(errno::EINVAL, format!("{group} is no multicast group"));
        }
        let source = entry.local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        let Some(source) = source else {
            return refuse(errno::EINVAL, format!("CM id {} has no address of ours: bind or resolve it first", id.0));
        };
        if entry.groups.contains(&group) {
            return refuse(errno::EADDRINUSE, format!("CM id {} has joined {group} already", id.0));
        }
        if entry.groups.len() >= GROUPS_MAX {
            return refuse(errno::ENOMEM, format!("CM id {} has joined {GROUPS_MAX} groups, as many as it may", id.0));
        }
        let Some((path, _)) = self.route(Some(source), group) else {
            return refuse(errno::EINVAL, format!("{group} can't be reached from {source}: its family is another"));
        };
        self.id_mut(id)?.groups.push(group);
        let param = ConnParam { qp_num: Qpn::MULTICAST.value(), qkey: UDP_QKEY.0, ..ConnParam::default() };
        self.event_to(id, CmEventType::MulticastJoin, param, Some(path.ah()));
        Ok(())
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if it did not join.
    pub fn leave_multicast(&mut self, id: CmId, group: IpAddr) -> Result<(), CmRefusal> {
        let entry = self.id_mut(id)?;
        let before = entry.groups.len();
        entry.groups.retain(|joined| *joined != group);
        if entry.groups.len() == before {
            return refuse(errno::EADDRNOTAVAIL, format!("CM id {} has not joined {group}", id.0));
        }
        Ok(())
    }
}
