//! The unreliable datagram: one packet a message, to whomever the work request says and from anyone who knows the Q_Key.
//! IBTA 9.8.3.

use std::net::IpAddr;

use shm::attr::{NetworkHeader, QpState, QpType, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
use shm::layout::Cqe;
use wire::buf::{Dest, TxBatch};
use wire::{Bth, DethRepr, Frame, NakCode, Network, PathTemplate, Qkey, Qpn};

use super::requester::ExtBytes;
use super::responder::{BAD_RECEIVE, Refusal};
use super::slot::{SendSlot, WqeError};
use super::{Qp, Step, transfer};
use crate::cause::ErrorCause;
use crate::mcast::MCAST_QPN;
use crate::neigh::NextHop;
use crate::qos::Lane;
use crate::shard::Env;
use crate::time::Time;

/// Bytes before the payload in a UD receive: the GRH, or what stands for it. IBTA 11.4.1.2, A17.4.5.
const GRH_BYTES: u32 = 40;

/// How long a datagram waits before its neighbour is looked at again; its answer ends the wait at once.
const LOOK_AGAIN_NS: u64 = 100_000_000;

impl Qp {
    /// A datagram must fit one packet. True of what any other service sends.
    #[inline]
    pub(super) fn check_datagram_length(&self, env: &Env, length: u32) -> Result<u32, WqeError> {
        if self.kind == QpType::Ud {
            let port = env.ports.get(usize::from(self.port));
            if port.is_none_or(|port| length > port.config.active_mtu().bytes()) {
                return Err(WqeError { status: WcStatus::LocLenErr, cause: ErrorCause::DatagramTooLong });
            }
        }
        Ok(length)
    }

    /// Sends the datagram at the cursor.
    ///
    /// One whose neighbour is being asked for waits, and those behind it with it, for the seconds that the neighbour has to
    /// answer; then it and all others to that neighbour are lost, as datagrams may be, until it answers. So does one that would
    /// pass the static rate of its address handle.
    pub(super) fn transmit_datagram<T: TxBatch>(&mut self, env: &mut Env, tx: &mut T, slot: SendSlot) -> Step {
        if self.state == QpState::Sqd {
            return Step::Idle;
        }
        // The address handle lies in the client's memory: it is looked up anew for each work request.
        let ah = env.ahs.get(slot.compare_add, self.pd).filter(|ah| ah.path().port() == self.port);
        let Some(ah) = ah else {
            env.counters.req_local_errors += 1;
            self.fail_oldest(env, WcStatus::LocQpOpErr, ErrorCause::BadAddressHandle);
            return Step::Idle;
        };
        let path = ah.path();
        if path.lane() != self.lane {
            self.lane = path.lane();
            return Step::OtherLane;
        }
        if tx.room() == 0 {
            return Step::NoRoom;
        }
        let dest_qpn = Qpn::new(slot.rkey);
        if let Some(at) = ah.wait_until(env) {
            return self.sleep_until(env, at);
        }
        match path.next_hop(&env.ports) {
            NextHop::Known(station) => {
                let (template, dest) = (path.datagram_template(self.qpn, station), path.dest(dest_qpn));
                let group = path.peer();
                let index = self.slot_index(self.req.nxt_slot);
                let frame_len = template.frame_len(self.datagram_ext(&slot).as_slice().len(), slot.length as usize);
                let mut fault = None;
                let sent = tx.push(dest, frame_len, |frame| {
                    let (bth, ext) = (self.datagram_bth(&slot, dest_qpn), self.datagram_ext(&slot));
                    template.write_packet(frame, &bth, ext.as_slice(), slot.length as usize, |payload, crc| {
                        let filled = self.fill_payload(&env.mrs, &slot, index, 0, payload, crc);
                        filled.unwrap_or_else(|cause| {
                            fault = Some(cause);
                            crc
                        })
                    });
                    fault.is_none()
                });
                if !sent {
                    let error = WqeError::of_packet(fault.unwrap_or(ErrorCause::FrameTooLong));
                    env.counters.req_local_errors += 1;
                    self.fail_oldest(env, error.status, error.cause);
                    return Step::Idle;
                }
                ah.charge(frame_len);
                env.count_transmit(self.port, dest, frame_len);
                self.loop_back(env, tx, &slot, &template, group);
            }
            NextHop::Asked { again: false } => {
                return self.sleep_until(env, env.now.add_ns(LOOK_AGAIN_NS));
            }
            NextHop::Asked { again: true } | NextHop::Failed => env.counters.ud_unreachable += 1,
        }
        let slot = SendSlot { first_psn: self.req.nxt_psn, ..slot };
        self.after_send(env, &slot, 1, false);
        self.complete_on_transmit(env, &slot, true);
        Step::Sent
    }

    /// The datagram at the cursor waits, and those behind it with it.
    #[cold]
    fn sleep_until(&mut self, env: &mut Env, at: Time) -> Step {
        self.req.rnr_until = at;
        self.arm_timer(env);
        Step::Idle
    }

    /// A datagram to a group goes to the members in this engine as well, one copy for each shard. A copy that finds no room is
    /// lost, as it could be on the wire.
    #[inline]
    fn loop_back<T: TxBatch>(
        &self,
        env: &mut Env,
        tx: &mut T,
        slot: &SendSlot,
        template: &PathTemplate,
        group: IpAddr,
    ) {
        if !group.is_multicast() || Qpn::new(slot.rkey) != MCAST_QPN {
            return;
        }
        let (index, ext) = (self.slot_index(self.req.nxt_slot), self.datagram_ext(slot));
        let frame_len = template.frame_len(ext.as_slice().len(), slot.length as usize);
        let mut shards = env.mcast.shards(group);
        while shards != 0 {
            let dest = Dest::Local { shard: shards.trailing_zeros() as u8 };
            shards &= shards - 1;
            let bth = self.datagram_bth(slot, MCAST_QPN);
            let mut is_whole = true;
            let sent = tx.push(dest, frame_len, |frame| {
                template.write_packet(frame, &bth, ext.as_slice(), slot.length as usize, |payload, crc| {
                    let filled = self.fill_payload(&env.mrs, slot, index, 0, payload, crc);
                    is_whole = filled.is_ok();
                    filled.unwrap_or(crc)
                });
                is_whole
            });
            if sent {
                env.count_transmit(self.port, dest, frame_len);
            }
        }
    }

    #[inline]
    fn datagram_bth(&self, slot: &SendSlot, dest_qpn: Qpn) -> Bth {
        let mut bth = Bth::new(slot.packet_opcode(self.kind, 0), dest_qpn, self.req.nxt_psn);
        bth.pkey = self.pkey;
        bth.solicited = slot.flags.contains(SendFlags::SOLICITED);
        bth
    }

    /// IBTA 10.2.5: a Q_Key with the top bit set in a work request stands for the QP's own.
    #[inline]
    fn datagram_ext(&self, slot: &SendSlot) -> ExtBytes {
        const OWN: u32 = 1 << 31;
        // A Q_Key has 32 bits: the field that holds it is wider.
        let wanted = slot.remote_addr as u32;
        let qkey = if wanted & OWN == 0 { wanted } else { self.body.cold.attr.qkey };
        let mut ext = ExtBytes::new();
        ext.put(DethRepr { qkey: Qkey(qkey), src_qpn: self.qpn }.to_bytes());
        if slot.opcode == WrOpcode::SendWithImm {
            // Applications hand immediates over in network byte order.
            ext.put(slot.imm.to_ne_bytes());
        }
        ext
    }

    /// Nothing can be sent for now: what comes next chooses its lane, and must not wait for it in one that is paused.
    #[inline]
    pub(crate) fn leave_lane(&mut self) {
        if self.kind == QpType::Ud {
            self.lane = Lane::INSIDE;
        }
    }

    /// A neighbour of the QP's port has answered: a datagram may have waited for it.
    pub(crate) fn resume_datagrams(&mut self, env: &mut Env) {
        if self.req.rnr_until != Time::NEVER {
            self.req.rnr_until = Time::NEVER;
            self.schedule_requests(env);
        }
    }

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
            network: network_header(frame).code(),
            ..Cqe::default()
        };
        self.complete(env, self.recv_cq, cqe, frame.bth().solicited);
        Ok(())
    }
}

/// What the client is told of the header that a datagram came with.
#[inline]
const fn network_header(frame: &Frame<'_>) -> NetworkHeader {
    match frame.network() {
        Network::Ipv4 => NetworkHeader::Ipv4,
        Network::Ipv6 => NetworkHeader::Ipv6,
        Network::Grh => NetworkHeader::Grh,
    }
}
