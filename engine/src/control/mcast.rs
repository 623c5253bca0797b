//! Multicast groups: QPs attached and detached.

use std::net::IpAddr;

use shm::attr::QpType;
use shm::control::Reply;
use wire::{Gid, Qpn};

use super::session::Session;
use super::{Control, Refusal, errno, refuse};
use crate::command::{Command, Shards};
use crate::mcast::ATTACHMENTS_MAX;

impl Control {
    pub(super) fn attach_mcast<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &Session,
        qpn: u32,
        mgid: [u8; 16],
    ) -> Result<Reply, Refusal> {
        let group = group(session, qpn, mgid)?;
        let qpn = Qpn::new(qpn);
        if self.mcast.members(group).any(|member| member == qpn) {
            // As ibv_attach_mcast(3): once more is no error.
            return Ok(Reply::Done);
        }
        if !self.mcast.attach(group, qpn) {
            let message = format!("the limit of {ATTACHMENTS_MAX} attachments to multicast groups is reached");
            return refuse(errno::ENOMEM, message);
        }
        self.command_all(shards, || Command::AttachMcast { group, qpn });
        Ok(Reply::Done)
    }

    pub(super) fn detach_mcast<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &Session,
        qpn: u32,
        mgid: [u8; 16],
    ) -> Result<Reply, Refusal> {
        let group = group(session, qpn, mgid)?;
        let qpn = Qpn::new(qpn);
        if !self.mcast.detach(group, qpn) {
            return refuse(errno::EINVAL, format!("QP {:#08x} is not attached to {group}", qpn.value()));
        }
        self.command_all(shards, || Command::DetachMcast { group: Some(group), qpn });
        Ok(Reply::Done)
    }

    /// A QP goes: so do its attachments.
    pub(super) fn leave_all_groups<S: Shards>(&mut self, shards: &mut S, qpn: Qpn) {
        if self.mcast.has_member(qpn) {
            self.mcast.detach_all(qpn);
            self.command_all(shards, || Command::DetachMcast { group: None, qpn });
        }
    }
}

/// The group, if the QP may be attached to it.
fn group(session: &Session, qpn: u32, mgid: [u8; 16]) -> Result<IpAddr, Refusal> {
    let kind = session.qp(qpn)?.kind;
    if kind != QpType::Ud {
        return refuse(errno::EINVAL, format!("QP {qpn:#08x} is {kind}: only a UD QP takes part in multicast groups"));
    }
    let gid = Gid(mgid);
    match gid.ip() {
        group if group.is_multicast() => Ok(group),
        _ => refuse(errno::EINVAL, format!("{gid} is no multicast group")),
    }
}
