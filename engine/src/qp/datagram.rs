//! The unreliable datagram: one packet a message, to whomever the work request says and from anyone who knows the Q_Key.
//! IBTA 9.8.3.

use shm::attr::{WcFlags, WcOpcode, WcStatus};
use shm::layout::Cqe;
use wire::{Frame, NakCode};

use super::responder::{BAD_RECEIVE, Refusal};
use super::{Qp, transfer};
use crate::cause::ErrorCause;
use crate::shard::Env;

/// Bytes before the payload in a UD receive: the GRH, or what stands for it. IBTA 11.4.1.2, A17.4.5.
const GRH_BYTES: u32 = 40;

impl Qp {
    /// True if a datagram with this Q_Key is for this QP. IBTA 9.6.1.4.
    #[inline]
    pub(crate) fn qkey_matches(&self, frame: &Frame<'_>) -> bool {
        frame.deth().is_some_and(|deth| deth.qkey.0 == self.body.cold.attr.qkey)
    }

    /// A datagram for this QP: its ICRC, its Q_Key and the address it was sent to are right.
    #[inline]
    pub(super) fn handle_datagram(&mut self, env: &mut Env, frame: &Frame<'_>) {
        match self.receive_datagram(env, frame) {
            Ok(()) => {
                env.counters.rx_requests += 1;
                self.body.cold.counters.rx_requests += 1;
            }
            Err(refusal @ Refusal::Rnr) => self.drop_unreliable(env, refusal, |c| c.ud_no_receive += 1),
            Err(refusal) => self.drop_unreliable(env, refusal, |c| c.ud_dropped_packets += 1),
        }
    }

    /// Takes a receive, fills it and completes it. A receive that is too short stays for the next datagram: a peer must not be
    /// able to use up receives, or break the QP, by sending more than was agreed on.
    #[inline]
    fn receive_datagram(&mut self, env: &mut Env, frame: &Frame<'_>) -> Result<(), Refusal> {
        self.take_receive(env)?;
        self.check_receive(env)?;
        let (payload, recv) = (frame.payload(), &self.body.recv);
        // A frame is shorter than 64 KiB.
        let byte_len = GRH_BYTES + payload.len() as u32;
        if byte_len > recv.capacity_bytes {
            return Err(Refusal::Fatal(NakCode::InvalidRequest, ErrorCause::ReceiveTooShort));
        }
        let sges = recv.sges.get(..recv.sge_count).unwrap_or_default();
        let filled = transfer::scatter(&env.mrs, recv.pd, sges, 0, &frame.grh_area())
            .and_then(|()| transfer::scatter(&env.mrs, recv.pd, sges, GRH_BYTES, payload));
        filled.map_err(|_| BAD_RECEIVE)?;
        self.body.recv.taken = false;
        let imm = frame.immdt();
        let cqe = Cqe {
            wr_id: self.body.recv.wr_id,
            status: WcStatus::Success.code(),
            opcode: WcOpcode::Recv as u8,
            flags: WcFlags::GRH.0 | if imm.is_some() { WcFlags::WITH_IMM.0 } else { 0 },
            byte_len,
            imm: imm.map_or(0, |imm| u32::from_ne_bytes(imm.data.to_be_bytes())),
            src_qpn: frame.deth().map_or(0, |deth| deth.src_qpn.value()),
            sl: frame.vlan().map_or(0, |tag| tag.pcp),
            ..Cqe::default()
        };
        self.complete(env, self.recv_cq, cqe, frame.bth().solicited);
        Ok(())
    }
}
