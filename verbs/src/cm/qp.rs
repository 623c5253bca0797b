//! The QP of an id, and its way through the states.

use std::net::IpAddr;
use std::sync::Arc;

use nix::errno::Errno;
use shm::control::cm::{CmEventType, CmRequest, ConnParam, PortSpace};

use super::id::Membership;
use super::{CmError, CmEvent, CmId};
use crate::{Gid, ProtectionDomain, QpAttr, QpAttrMask, QpInit, QpState, QpType, QueuePair, VerbsError};

/// First PSN of a UD QP: nobody expects one.
const UD_PSN: u32 = 0;

impl CmId {
    /// Makes a QP for it (`rdma_create_qp`) and takes it to INIT, where receives may be posted; a UD QP to RTS. The id keeps a
    /// handle to it.
    ///
    /// # Errors
    /// [`CmError::HasQp`], [`CmError::QpType`]; [`VerbsError::Refused`] (`EINVAL`) before its address is resolved, or as
    /// [`ProtectionDomain::create_qp`].
    pub fn create_qp(&self, pd: &ProtectionDomain, init: &QpInit<'_>) -> Result<QueuePair, VerbsError> {
        self.may_have(init.qp_type)?;
        if !Arc::ptr_eq(&pd.context().0, self.context_inner()) {
            return Err(CmError::OtherContext { object: "protection domain" }.into());
        }
        let qp = pd.create_qp(init)?;
        self.adopt(&qp)?;
        Ok(qp)
    }

    /// As [`CmId::create_qp`], with a QP that exists: one whose connection has ended or broken is reset, and can be connected
    /// anew. What was posted to it is forgotten. Let `TIMEWAIT_EXIT` of its last id come first: packets of the old connection may
    /// be on their way until then, and the peer refuses a QP that it takes to be still connected. The last id itself will do, too.
    ///
    /// # Errors
    /// As [`CmId::create_qp`].
    ///
    /// ```no_run
    /// # fn example(channel: ferroce::cm::EventChannel, broken: ferroce::cm::CmId) -> Result<(), Box<dyn std::error::Error>> {
    /// use ferroce::cm::{CmEventType, PortSpace};
    /// # let (timeout, server) = (std::time::Duration::from_secs(2), "10.0.0.2:7471".parse()?);
    /// broken.disconnect()?;
    /// let qp = broken.take_qp().ok_or("no QP")?;
    /// // ... TIMEWAIT_EXIT ...
    /// let id = channel.create_id(PortSpace::Tcp)?;
    /// id.resolve_addr(None, server, timeout)?;
    /// // ... ADDR_RESOLVED, ROUTE_RESOLVED ...
    /// id.use_qp(&qp)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn use_qp(&self, qp: &QueuePair) -> Result<(), VerbsError> {
        self.may_have(qp.qp_type())?;
        if !Arc::ptr_eq(&qp.context().0, self.context_inner()) {
            return Err(CmError::OtherContext { object: "queue pair" }.into());
        }
        if qp.query()?.qp_state != QpState::Reset {
            qp.reset()?;
        }
        self.adopt(qp)
    }

    /// Its QP.
    pub fn qp(&self) -> Option<QueuePair> {
        self.state().qp.clone()
    }

    /// Takes the QP from it, which this library then leaves alone.
    pub fn take_qp(&self) -> Option<QueuePair> {
        self.state().qp.take()
    }

    /// Destroys its QP (`rdma_destroy_qp`).
    ///
    /// # Errors
    /// As [`QueuePair::destroy`]; nothing happens if there is none.
    pub fn destroy_qp(&self) -> Result<(), VerbsError> {
        self.take_qp().map_or(Ok(()), QueuePair::destroy)
    }

    fn may_have(&self, qp_type: QpType) -> Result<(), CmError> {
        if let Some(qp) = &self.state().qp {
            return Err(CmError::HasQp { qpn: qp.qpn() });
        }
        let port_space = self.port_space();
        let suits = (port_space == PortSpace::Udp) == (qp_type == QpType::Ud) && !qp_type.is_xrc();
        if suits { Ok(()) } else { Err(CmError::QpType { port_space, qp_type }) }
    }

    fn adopt(&self, qp: &QueuePair) -> Result<(), VerbsError> {
        self.step(qp, QpState::Init, |_| {})?;
        if qp.qp_type() == QpType::Ud {
            qp.modify(&QpAttr { qp_state: QpState::Rtr, ..QpAttr::default() }, QpAttrMask::STATE)?;
            let attr = QpAttr { qp_state: QpState::Rts, sq_psn: UD_PSN, ..QpAttr::default() };
            qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN)?;
        }
        self.state().qp = Some(qp.clone());
        Ok(())
    }

    fn step(&self, qp: &QueuePair, to: QpState, change: impl FnOnce(&mut QpAttr)) -> Result<(), VerbsError> {
        let (mut attr, mask) = self.init_qp_attr(to)?;
        change(&mut attr);
        qp.modify(&attr, mask).map(drop)
    }

    /// INIT to RTS. Rights are known only now, so it begins with INIT once more.
    fn qp_to_rts(&self, qp: &QueuePair, depths: Option<(u8, u8)>) -> Result<(), VerbsError> {
        self.step(qp, QpState::Init, |_| {})?;
        self.step(qp, QpState::Rtr, |attr| {
            if let Some((responder_resources, _)) = depths {
                attr.max_dest_rd_atomic = responder_resources;
            }
        })?;
        self.step(qp, QpState::Rts, |attr| {
            if let Some((_, initiator_depth)) = depths {
                attr.max_rd_atomic = initiator_depth;
            }
        })
    }

    pub(super) fn qp_for_accept(&self, param: &ConnParam) -> Result<(), VerbsError> {
        match self.qp() {
            Some(qp) if qp.qp_type() != QpType::Ud => {
                let done = self.qp_to_rts(&qp, Some((param.responder_resources, param.initiator_depth)));
                if done.is_err() {
                    self.qp_to_error();
                }
                done
            }
            _ => Ok(()),
        }
    }

    /// Of a connection. It fails only if the QP or the daemon is gone, where nothing is left to be done.
    pub(super) fn qp_to_error(&self) {
        if let Some(qp) = self.qp()
            && qp.qp_type() != QpType::Ud
        {
            let _ = qp.to_error();
        }
    }

    /// Forgets a group, and has the QP leave it.
    pub(super) fn detach_from(&self, group: IpAddr) {
        let (attached, qp) = {
            let mut state = self.state();
            let attached = state.groups.contains(&(group, Membership::Attached));
            state.groups.retain(|(joined, _)| *joined != group);
            (attached, state.qp.clone())
        };
        if let (true, Some(qp)) = (attached, qp) {
            // Refused if the application has detached it itself.
            let _ = qp.detach_mcast(Gid::from_ip(group));
        }
    }

    /// What a connection says about its QP.
    pub(super) fn complete(&self, param: &ConnParam) -> ConnParam {
        let mut param = param.clone();
        if let Some(qp) = self.qp() {
            param.qp_num = qp.qpn().value();
            param.srq = qp.has_srq();
        }
        param.ece = param.ece.or(self.state().ece);
        param
    }
}

impl CmEvent {
    /// Does what belongs to the event; `None` if the application need not hear of it.
    pub(super) fn settle(self) -> Option<Self> {
        let id = self.id();
        let failed_before = id.state().connect_failed;
        match self.event_type() {
            CmEventType::ConnectResponse => match id.qp() {
                Some(qp) => Some(self.connect_qp(&qp)),
                None => Some(self),
            },
            CmEventType::MulticastJoin => Some(self.attach_qp()),
            CmEventType::Rejected | CmEventType::Disconnected if failed_before => None,
            CmEventType::Rejected => {
                id.qp_to_error();
                Some(self)
            }
            _ => Some(self),
        }
    }

    /// The peer accepted: gets the QP ready, then says so.
    fn connect_qp(self, qp: &QueuePair) -> Self {
        let id = self.id();
        let confirm = CmRequest::Accept { id: id.handle(), param: ConnParam::default() };
        match id.qp_to_rts(qp, None).and_then(|()| id.call(confirm)) {
            Ok(()) => self.becomes(CmEventType::Established, None),
            Err(error) => {
                id.qp_to_error();
                id.state().connect_failed = true;
                // The peer, too, should hear of it at once.
                let _ = id.reject(&[]);
                self.fails(CmEventType::ConnectError, &error)
            }
        }
    }

    /// The group is joined: the QP receives from it if that was asked for.
    fn attach_qp(self) -> Self {
        let Some(dgid) = self.ah_attr().map(|ah| ah.dgid) else { return self };
        let id = self.id();
        let wanted = (dgid.ip(), Membership::Joining);
        let (is_wanted, qp) = {
            let state = id.state();
            (state.groups.contains(&wanted), state.qp.clone())
        };
        let (true, Some(qp)) = (is_wanted, qp) else { return self };
        match qp.attach_mcast(dgid) {
            Ok(()) => {
                id.state()
                    .groups
                    .iter_mut()
                    .filter(|group| **group == wanted)
                    .for_each(|group| group.1 = Membership::Attached);
                self
            }
            Err(error) => {
                let _ = id.leave_multicast(dgid.ip());
                self.fails(CmEventType::MulticastError, &error)
            }
        }
    }

    fn fails(self, event: CmEventType, error: &VerbsError) -> Self {
        let errno = match error.errno() {
            0 => Errno::EIO as i32,
            errno => errno,
        };
        self.becomes(event, Some((errno, error.to_string())))
    }
}
