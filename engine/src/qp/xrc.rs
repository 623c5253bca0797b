//! The receiving end of an extended reliable connection (IBTA A14): it has neither receives, nor a CQ, nor a protection domain of
//! its own. Each request names an SRQ of the QP's XRC domain, which lends it all three.

use shm::attr::QpType;
use wire::{Frame, NakCode};

use super::responder::{INVALID, Refusal};
use super::{NONE, Qp};
use crate::cause::ErrorCause;
use crate::shard::Env;

const WRONG_SRQ: Refusal = Refusal::Fatal(NakCode::RemoteAccess, ErrorCause::WrongSrq);

impl Qp {
    /// Turns to the SRQ that a request names. All packets of a message name the same.
    ///
    /// The number is the peer's to choose: one that nobody has and one of another domain are refused alike.
    #[inline]
    pub(super) fn select_srq(&mut self, env: &Env, frame: &Frame<'_>) -> Result<(), Refusal> {
        let srqn = frame.xrceth().ok_or(INVALID)?.srqn;
        let found = env.xrc_srq(srqn).filter(|(_, place)| place.xrcd == self.xrcd);
        let (srq, place) = found.ok_or(WRONG_SRQ)?;
        let index = srqn & crate::QPN_INDEX_MASK;
        if !frame.info().position.starts() && index != self.srq {
            return Err(INVALID);
        }
        (self.srq, self.recv_cq, self.pd) = (index, place.cq, srq.pd);
        Ok(())
    }

    /// An SRQ of XRC is gone, and may be its CQ: what the QP has taken from it completes nowhere.
    pub(crate) fn forget_srq(&mut self, index: u32) {
        if self.kind == QpType::XrcRecv && self.srq == index {
            self.body.recv.taken = false;
            (self.srq, self.recv_cq) = (NONE, NONE);
        }
    }
}
