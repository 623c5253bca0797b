//! Multicast groups of ids: where to send to, and the Q_Key.
//!
//! A RoCE network has no subnet manager to join with: that a group's frames come to our port is the business of whoever owns the
//! port and its switch.

use std::net::IpAddr;

use shm::attr::AhAttr;
use shm::control::cm::{CmEvent, CmEventType, ConnParam};
use wire::cm::PortSpace;
use wire::{Gid, Qpn};

use super::call::UDP_QKEY;
use super::refusal::{errno, refuse};
use super::{Cm, CmId, CmRefusal};

/// Groups of one id.
const GROUPS_MAX: usize = 64;

impl Cm {
    /// Joins a group; told by an event with the address vector, Q_Key and QPN to send to.
    ///
    /// # Errors
    /// `EINVAL` if the address is no group, the id's port space has no datagrams, or the id is a member; `EADDRNOTAVAIL` without
    /// an address of the group's family; `ENOMEM` beyond 64 groups.
    pub fn join_multicast(&mut self, id: CmId, group: IpAddr) -> Result<(), CmRefusal> {
        let entry = self.id(id)?;
        if !group.is_multicast() {
            return refuse(errno::EINVAL, format!("{group} is no multicast group"));
        }
        if entry.space == PortSpace::Tcp {
            return refuse(errno::EINVAL, "ids of the TCP port space have no datagrams: UDP and IB have");
        }
        if entry.groups.contains(&group) {
            return refuse(errno::EINVAL, format!("CM id {} is a member of {group} already", id.0));
        }
        if entry.groups.len() >= GROUPS_MAX {
            return refuse(errno::ENOMEM, format!("CM id {} is in {GROUPS_MAX} groups, as many as it may", id.0));
        }
        let source = entry.local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        let Some((path, _)) = self.route(source, group) else {
            let message = format!("no address of the family of {group} to send from: {}", self.addresses());
            return refuse(errno::EADDRNOTAVAIL, message);
        };
        let ah = AhAttr { dgid: Gid::from_ip(group), ..path.ah() };
        let entry = self.id_mut(id)?;
        entry.groups.insert(group);
        let info = entry.info();
        let param = ConnParam { qp_num: Qpn::MULTICAST.value(), qkey: UDP_QKEY.0, ..ConnParam::default() };
        let event = CmEventType::MulticastJoin;
        let (listen_id, message) = (None, String::new());
        self.events
            .push_back((id, CmEvent { event, id: id.0, listen_id, status: 0, param, ah: Some(ah), info, message }));
        Ok(())
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the id is no member.
    pub fn leave_multicast(&mut self, id: CmId, group: IpAddr) -> Result<(), CmRefusal> {
        if self.id_mut(id)?.groups.remove(&group) {
            return Ok(());
        }
        refuse(errno::EADDRNOTAVAIL, format!("CM id {} is no member of {group}", id.0))
    }
}
