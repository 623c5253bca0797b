//! The requester: fetches posted work requests and sends their packets, one a call. IBTA 9.7.2 and 9.7.3.

use shm::attr::{AccessFlags, QpState, QpType, RecoveryPolicy, SendFlags, WcStatus, WrOpcode};
use shm::control::AsyncEvent;
use wire::buf::TxBatch;
use wire::{AtomicEthRepr, Bth, ExtHeaders, Opcode, Psn, RethRepr, Rkey, XrcEthRepr};

use super::slot::{SendSlot, WqeError};
use super::{Qp, Rewound, transfer};
use crate::cause::ErrorCause;
use crate::mr::MrTable;
use crate::post_mortem::RetryKind;
use crate::qos::{Lane, PriorityMap};
use crate::ready::Output;
use crate::shard::Env;
use crate::time::Time;

/// What became of one attempt to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A packet was sent; there may be more.
    Sent,
    /// Nothing to send until something happens that schedules the QP again.
    Idle,
    /// There is something to send but no room for it.
    NoRoom,
    /// What is to be sent belongs in another lane than the QP was in; it is in that one now.
    OtherLane,
}

/// Largest message (IBTA 9.7.7).
pub(super) const MESSAGE_BYTES_MAX: u32 = 1 << 31;

/// PSNs outstanding at most: half of them all, so that old and new can be told apart.
const OUTSTANDING_PSNS_MAX: u32 = 1 << 23;

/// How often a QP that waits for its neighbour's MAC looks whether there is still hope: a fraction of the time that a
/// neighbour which does not answer is left alone.
const NEIGHBOUR_LOOK_NS: u64 = 1_000_000_000;

/// Extension headers of a request, in order, in one buffer.
pub(super) struct ExtBytes {
    bytes: [u8; ExtHeaders::MAX_BYTES],
    len: usize,
}

impl ExtBytes {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; ExtHeaders::MAX_BYTES], len: 0 }
    }

    #[inline]
    pub(super) fn put<const N: usize>(&mut self, header: [u8; N]) {
        if let Some(target) = self.bytes.get_mut(self.len..self.len + N) {
            target.copy_from_slice(&header);
            self.len += N;
        }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Qp {
    /// A doorbell rang: there may be new work requests.
    #[inline]
    pub(crate) fn handle_doorbell(&mut self, env: &mut Env) {
        match self.state {
            QpState::Rts => self.schedule_requests(env),
            QpState::Err | QpState::Sqe => self.schedule(env, Output::Flush),
            // Before RTS, and while the send queue drains, work requests wait in the ring.
            _ => {}
        }
    }

    #[inline]
    pub(crate) fn schedule(&mut self, env: &mut Env, output: Output) {
        if let Some(port) = env.ports.get_mut(usize::from(self.port)) {
            let lane = self.lane_of(output, port.qos.map());
            port.ready.schedule(output, lane, self.index, &mut self.scheduled);
        }
    }

    /// Where an output of its waits for its turn.
    #[inline]
    pub(crate) fn lane_of(&self, output: Output, map: &PriorityMap) -> Lane {
        if output == Output::Cnp { self.cnp_lane(map) } else { self.lane }
    }

    #[inline]
    pub(super) fn schedule_requests(&mut self, env: &mut Env) {
        self.schedule(env, Output::Request);
    }

    /// Sends the next request packet, if the rules allow one now.
    #[inline]
    pub(crate) fn transmit_request<T: TxBatch>(&mut self, env: &mut Env, tx: &mut T) -> Step {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || self.req.rnr_until != Time::NEVER {
            return Step::Idle;
        }
        if self.req.unresolved {
            self.await_neighbour(env);
            return Step::Idle;
        }
        if self.recovery.is_selective()
            && let Some(step) = self.transmit_lost(env, tx)
        {
            return step;
        }
        if self.req.nxt_slot == self.req.fetched && !self.fetch(env) {
            return Step::Idle;
        }
        let slot = self.body.slots[self.slot_index(self.req.nxt_slot)];
        if let Some(error) = slot.error {
            // Whatever was posted before it completes first; the packet before it has asked for an acknowledgement.
            if self.req.una_slot == self.req.nxt_slot {
                self.fail_oldest(env, error.status, error.cause);
            }
            return Step::Idle;
        }
        if self.kind == QpType::Ud {
            return self.transmit_datagram(env, tx, slot);
        }
        let in_flight = self.in_flight();
        if in_flight >= self.window_packets() || (self.req.nxt_packet == 0 && !self.may_start(&slot, in_flight)) {
            return Step::Idle;
        }
        if slot.packets == 0 {
            return self.execute_local(env, slot);
        }
        let Some(psns) = self.psns_of_next(&slot, in_flight) else { return Step::Idle };
        if self.cc.paces(slot.opcode) && !self.may_send_paced(env, Output::Request) {
            return Step::Idle;
        }
        if tx.room() == 0 {
            return Step::NoRoom;
        }
        self.send_packet(env, tx, slot, psns)
    }

    /// PSNs from the oldest that is not acknowledged to the next one.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.req.nxt_psn.distance_from(self.req.una_psn).cast_unsigned() & Psn::MASK
    }

    /// Rules for the first packet of a message: fences, outstanding READs, a draining send queue.
    #[inline]
    fn may_start(&self, slot: &SendSlot, in_flight: u32) -> bool {
        let repeated = self.req.nxt_slot != self.req.started;
        if self.state == QpState::Sqd && !repeated {
            return false;
        }
        // IBTA 10.8.3.3: a fenced work request waits for all earlier READs and atomics.
        if slot.flags.contains(SendFlags::FENCE) && self.req.rd_outstanding > 0 {
            return false;
        }
        // The longest READs take all the PSNs that may be outstanding.
        !slot.opcode.is_read_or_atomic()
            || (self.req.rd_outstanding < self.req.max_rd_atomic && in_flight + slot.packets <= OUTSTANDING_PSNS_MAX)
    }

    /// Copies the next posted work request into its private slot. False if there is none (or the ring is corrupt).
    #[inline]
    fn fetch(&mut self, env: &mut Env) -> bool {
        match self.body.sq.available() {
            Ok(0) => return false,
            Ok(_) => {}
            Err(_) => {
                env.counters.bad_ring_index += 1;
                env.push_event(self.session, AsyncEvent::QpFatal { qpn: self.qpn.value() });
                self.enter_error(env, ErrorCause::BadRingIndex);
                return false;
            }
        }
        let index = self.slot_index(self.req.fetched);
        let max_sge = self.body.sq.shape().max_sge as usize;
        let max_inline = self.body.cold.cap.max_inline_data as usize;
        let body = &mut *self.body;
        let sges = body.sges.get_mut(index * max_sge..(index + 1) * max_sge).unwrap_or_default();
        let inline = body.inline.get_mut(index * max_inline..(index + 1) * max_inline).unwrap_or_default();
        let (wqe, fault) = match body.sq.fetch(sges, inline) {
            Ok(wqe) => (wqe, None),
            Err((wqe, _)) => (wqe, Some(WqeError { status: WcStatus::LocQpOpErr, cause: ErrorCause::BadWqe })),
        };
        let mut flags = SendFlags(wqe.flags & SendFlags::ALL.0);
        if self.sq_sig_all {
            flags = flags | SendFlags::SIGNALED;
        }
        let mut slot = SendSlot {
            wr_id: wqe.wr_id,
            remote_addr: wqe.remote_addr,
            compare_add: wqe.compare_add,
            swap: wqe.swap,
            rkey: wqe.rkey,
            imm: wqe.imm,
            flags,
            ..SendSlot::EMPTY
        };
        let sges = sges.get(..usize::from(wqe.sge_count)).unwrap_or_default();
        let checked = match (fault, WrOpcode::from_code(wqe.opcode)) {
            (Some(fault), _) => Err(fault),
            (None, Some(opcode)) if opcode_allowed(self.kind, opcode) => {
                slot.opcode = opcode;
                slot.sge_count = wqe.sge_count as u8;
                let inline_bytes = flags.contains(SendFlags::INLINE).then_some(wqe.inline_bytes);
                check_length(env, self.pd, opcode, sges, inline_bytes, self.req.max_rd_atomic)
                    .and_then(|length| self.check_datagram_length(env, length))
            }
            _ => Err(WqeError { status: WcStatus::LocQpOpErr, cause: ErrorCause::BadOpcode }),
        };
        match checked {
            Ok(length) => {
                slot.length = length;
                slot.packets = if slot.opcode.is_local() { 0 } else { packet_count(length, self.mtu.shift()) };
            }
            Err(error) => {
                env.counters.req_local_errors += 1;
                slot.error = Some(error);
            }
        }
        self.body.slots[index] = slot;
        self.req.fetched = self.req.fetched.wrapping_add(1);
        true
    }

    /// Builds the packet at the cursor, which takes so many PSNs, and moves the cursor on.
    #[inline]
    fn send_packet<T: TxBatch>(&mut self, env: &mut Env, tx: &mut T, mut slot: SendSlot, psns: u32) -> Step {
        let (packet, psn) = (self.req.nxt_packet, self.req.nxt_psn);
        let index = self.slot_index(self.req.nxt_slot);
        if self.req.nxt_slot == self.req.started {
            slot.first_psn = psn;
            self.body.slots[index].first_psn = psn;
        }
        let last = !slot.sends_payload() || packet + 1 == slot.packets;
        let reliable = self.kind.is_reliable();
        let ack_req = reliable && self.wants_ack(env, &slot, last);
        let asked = if packet + psns == slot.packets { u32::MAX } else { psns << self.mtu.shift() };
        let frame_len = match self.push_packet(env, tx, &slot, index, packet, psn, asked, ack_req) {
            Ok(frame_len) => frame_len,
            Err(cause) => {
                let error = WqeError::of_packet(cause);
                self.body.slots[index].error = Some(error);
                env.counters.req_local_errors += 1;
                if self.req.una_slot == self.req.nxt_slot {
                    self.fail_oldest(env, error.status, error.cause);
                }
                return Step::Idle;
            }
        };
        if self.cc.paces(slot.opcode) {
            let offset = packet << self.mtu.shift();
            let read_bytes = if slot.opcode == WrOpcode::RdmaRead { asked.min(slot.length - offset) } else { 0 };
            self.charge_pacer(env, frame_len, read_bytes);
        }
        self.after_send(env, &slot, psns, ack_req);
        if !reliable {
            self.complete_on_transmit(env, &slot, last);
        }
        Step::Sent
    }

    /// Builds packet `packet` of a message, with the PSN `psn`; the bytes of its frame. Of a READ, `asked` bytes are asked for at most.
    #[expect(clippy::too_many_arguments, reason = "two call sites; a struct for them would only be unpacked again")]
    #[inline]
    pub(super) fn push_packet<T: TxBatch>(
        &self,
        env: &mut Env,
        tx: &mut T,
        slot: &SendSlot,
        index: usize,
        packet: u32,
        psn: Psn,
        asked: u32,
        ack_req: bool,
    ) -> Result<usize, ErrorCause> {
        let opcode = slot.packet_opcode(self.kind, packet);
        let offset = packet << self.mtu.shift();
        let left = slot.length - offset;
        let payload_len = if slot.sends_payload() { left.min(self.mtu.bytes()) } else { 0 };
        let last = !slot.sends_payload() || packet + 1 == slot.packets;
        let mut ext = ExtBytes::new();
        let named = if slot.sends_payload() { left } else { left.min(asked) };
        self.put_ext_headers(&mut ext, slot, opcode, offset, named);
        let mut bth = Bth::new(opcode, self.dest_qpn, psn);
        bth.pkey = self.pkey;
        bth.ack_req = ack_req;
        bth.solicited = last && slot.flags.contains(SendFlags::SOLICITED) && opcode_may_solicit(slot.opcode);
        self.push_request(env, tx, slot, index, &bth, ext.as_slice(), offset, payload_len as usize)
    }

    #[inline]
    fn put_ext_headers(&self, ext: &mut ExtBytes, slot: &SendSlot, opcode: Opcode, offset: u32, left: u32) {
        let headers = opcode.info().map_or(ExtHeaders::NONE, |info| info.ext);
        if headers.contains(ExtHeaders::XRCETH) {
            ext.put(XrcEthRepr { srqn: slot.srqn() }.to_bytes());
        }
        if headers.contains(ExtHeaders::RETH) {
            // A READ that is asked again starts at the first missing byte.
            let va = slot.remote_addr.wrapping_add(u64::from(offset));
            ext.put(RethRepr { va, rkey: Rkey(slot.rkey), dma_len: left }.to_bytes());
        }
        if headers.contains(ExtHeaders::ATOMICETH) {
            let (swap_or_add, compare) = match slot.opcode {
                WrOpcode::AtomicCmpAndSwp => (slot.swap, slot.compare_add),
                _ => (slot.compare_add, 0),
            };
            ext.put(AtomicEthRepr { va: slot.remote_addr, rkey: Rkey(slot.rkey), swap_or_add, compare }.to_bytes());
        }
        if headers.contains(ExtHeaders::IMM) {
            // Applications hand immediates over in network byte order.
            ext.put(slot.imm.to_ne_bytes());
        } else if headers.contains(ExtHeaders::IETH) {
            ext.put(slot.imm.to_be_bytes());
        }
    }

    /// Asks for an acknowledgement where one will be waited for: a completion is due, nothing follows, or many packets went
    /// without.
    #[inline]
    fn wants_ack(&mut self, env: &mut Env, slot: &SendSlot, last: bool) -> bool {
        self.req.since_ack_request + 1 >= self.ack_request_packets
            || self.in_flight() + 1 >= self.window_packets()
            || (last
                && (slot.opcode.is_read_or_atomic()
                    || slot.flags.contains(SendFlags::SIGNALED)
                    || self.state == QpState::Sqd
                    || !self.goes_on(env)))
    }

    /// True if a work request follows the one at the cursor and can be sent. One that is in error can't, and waits for what
    /// is before it to be acknowledged; so does the completion of a local one.
    #[inline]
    fn goes_on(&mut self, env: &mut Env) -> bool {
        let next = self.req.nxt_slot.wrapping_add(1);
        (next != self.req.fetched || self.fetch(env)) && {
            let slot = &self.body.slots[self.slot_index(next)];
            slot.error.is_none() && slot.packets > 0
        }
    }

    /// The send queue is to drain, but what is on its way may not have asked for an acknowledgement: it is sent again, asking.
    #[cold]
    pub(super) fn demand_ack(&mut self, env: &mut Env) {
        if self.req.since_ack_request > 0 {
            self.rewind();
            self.schedule_requests(env);
        }
    }

    /// Writes the packet; the bytes of its frame.
    #[expect(clippy::too_many_arguments, reason = "one call site; a struct for them would only be unpacked again")]
    #[inline]
    fn push_request<T: TxBatch>(
        &self,
        env: &mut Env,
        tx: &mut T,
        slot: &SendSlot,
        index: usize,
        bth: &Bth,
        ext: &[u8],
        offset: u32,
        payload_len: usize,
    ) -> Result<usize, ErrorCause> {
        let body = &*self.body;
        let Some(path) = &body.path else { return Err(ErrorCause::FrameTooLong) };
        let (template, dest) = (path.template(), path.dest(self.dest_qpn));
        let frame_len = template.frame_len(ext.len(), payload_len);
        let mut fault = None;
        let sent = tx.push(dest, frame_len, |frame| {
            template.write_packet(frame, bth, ext, payload_len, |payload, crc| {
                self.fill_payload(&env.mrs, slot, index, offset, payload, crc).unwrap_or_else(|cause| {
                    fault = Some(cause);
                    crc
                })
            });
            fault.is_none()
        });
        match (sent, fault) {
            (true, None) => {
                env.count_transmit(self.port, dest, frame_len);
                Ok(frame_len)
            }
            (_, Some(cause)) => Err(cause),
            (false, None) => Err(ErrorCause::FrameTooLong),
        }
    }

    /// Copies the message's bytes from `offset` into a packet and continues the packet's ICRC over them.
    #[inline]
    pub(super) fn fill_payload(
        &self,
        mrs: &MrTable,
        slot: &SendSlot,
        index: usize,
        offset: u32,
        payload: &mut [u8],
        crc: u32,
    ) -> Result<u32, ErrorCause> {
        let body = &*self.body;
        if slot.flags.contains(SendFlags::INLINE) {
            let start = index * body.cold.cap.max_inline_data as usize + offset as usize;
            let data = body.inline.get(start..start + payload.len()).ok_or(ErrorCause::BadWqe)?;
            Ok(shm::copy_crc::copy_slice_crc(payload, data, crc))
        } else {
            let start = index * body.sq.shape().max_sge as usize;
            let sges = body.sges.get(start..start + usize::from(slot.sge_count)).unwrap_or_default();
            Ok(transfer::gather(mrs, self.pd, sges, offset, payload, crc)?)
        }
    }

    #[inline]
    pub(super) fn after_send(&mut self, env: &mut Env, slot: &SendSlot, psns: u32, ack_req: bool) {
        self.note_sent();
        let req = &mut self.req;
        req.since_ack_request = if ack_req { 0 } else { req.since_ack_request + 1 };
        let is_repeat = req.nxt_psn.is_before(req.max_psn);
        if self.recovery.is_selective()
            && let Some(board) = &mut self.body.board
        {
            board.note_sent(req.nxt_psn, psns, is_repeat, env.now);
        }
        if is_repeat {
            env.counters.retransmitted_packets += 1;
            self.body.cold.counters.retransmitted_packets += 1;
        } else if ack_req {
            self.body.cold.rtt.sent(req.nxt_psn, env.now);
        }
        if req.nxt_slot == req.started {
            req.started = req.started.wrapping_add(1);
        }
        let in_parts = req.has_parts && slot.opcode.is_read_or_atomic();
        if in_parts {
            self.note_part(psns);
        }
        let req = &mut self.req;
        // A READ's request takes the PSNs of its responses.
        req.nxt_psn = req.nxt_psn.add(psns);
        req.nxt_packet += psns;
        if req.nxt_packet == slot.packets {
            req.nxt_slot = req.nxt_slot.wrapping_add(1);
            req.nxt_packet = 0;
            req.rd_outstanding += u8::from(slot.opcode.is_read_or_atomic() && !in_parts);
        }
        if req.max_psn.is_before(req.nxt_psn) {
            req.max_psn = req.nxt_psn;
        }
        if req.deadline == Time::NEVER && req.timeout_ns > 0 {
            req.deadline = env.now.add_ns(req.timeout_ns);
            self.arm_timer(env);
        }
        if self.recovery.is_selective() {
            self.start_probe(env);
        }
    }

    /// Moves the cursor back to the oldest unacknowledged PSN: everything from there is sent again (go-back-N).
    pub(super) fn rewind(&mut self) {
        self.req.nxt_psn = self.req.una_psn;
        self.req.nxt_slot = self.req.una_slot;
        self.req.rd_outstanding = 0;
        self.req.since_ack_request = 0;
        self.body.cold.rtt.forget();
        if let Some(board) = &mut self.body.board {
            board.forget_claims();
        }
        self.req.nxt_packet = if self.req.una_slot == self.req.started {
            0
        } else {
            let slot = &self.body.slots[self.slot_index(self.req.una_slot)];
            self.req.una_psn.distance_from(slot.first_psn).cast_unsigned()
        };
    }

    /// The acknowledgement timer or the RNR timer fired (or may have: it is called early at times).
    pub(crate) fn handle_timer(&mut self, env: &mut Env) {
        if self.req.rnr_until <= env.now {
            self.req.rnr_until = Time::NEVER;
            self.schedule_requests(env);
        }
        if self.req.deadline <= env.now {
            self.req.deadline = Time::NEVER;
            self.handle_timeout(env);
        }
        if (self.req.waits || self.resp.waits) && self.lateness_timer() <= env.now {
            self.handle_lateness_timer(env);
        }
        if self.recovery.is_selective() && self.board_timer() <= env.now {
            self.handle_board_timer(env);
        }
        self.arm_timer(env);
    }

    /// There is work, but no MAC to send it to. It waits as long as the neighbour is asked for; the timer looks at that.
    #[cold]
    fn await_neighbour(&mut self, env: &mut Env) {
        let has_work = self.req.una_slot != self.req.fetched || self.fetch(env);
        if has_work && self.req.deadline == Time::NEVER && self.req.timeout_ns > 0 {
            self.req.deadline = env.now.add_ns(self.req.timeout_ns.min(NEIGHBOUR_LOOK_NS));
            self.arm_timer(env);
        }
    }

    fn handle_neighbour_timeout(&mut self, env: &mut Env) {
        if self.body.path.as_ref().is_some_and(|path| path.has_failed(&env.ports)) {
            env.counters.retry_exceeded_err += 1;
            self.fail_oldest(env, WcStatus::RetryExcErr, ErrorCause::NeighbourUnresolved);
        } else {
            self.await_neighbour(env);
        }
    }

    fn handle_timeout(&mut self, env: &mut Env) {
        if self.req.unresolved && matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.handle_neighbour_timeout(env);
            return;
        }
        if self.req.una_psn == self.req.max_psn || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        env.counters.local_ack_timeout_err += 1;
        self.body.cold.counters.timeouts += 1;
        self.req.gap_seen = false;
        self.retry(env, RetryKind::Timeout(self.req.timeout_ns));
    }

    /// Sends again from the oldest unacknowledged PSN on, or breaks the QP if `retry_cnt` is used up. IBTA 9.7.5.1.4.
    pub(super) fn retry(&mut self, env: &mut Env, kind: RetryKind) {
        self.note_loss(env, kind);
        // Without the attribute `timeout` the application waits for ever: the long timer repairs, but does not give up.
        let counts = !self.recovery.is_selective() || self.body.cold.timeout_ns > 0;
        if counts && self.req.retry_left == 0 && !self.is_patient(env.now) {
            env.counters.retry_exceeded_err += 1;
            self.fail_oldest(env, WcStatus::RetryExcErr, ErrorCause::RetryExceeded);
            return;
        }
        self.req.retry_left = self.req.retry_left.saturating_sub(u8::from(counts));
        if self.recovery.is_selective() && matches!(kind, RetryKind::Timeout(_)) {
            self.back_off(env);
        }
        if self.recovery != RecoveryPolicy::SelectiveRepeat || !self.repeat_oldest(kind) {
            self.go_back(env);
        }
        self.req.deadline = if self.req.timeout_ns > 0 { env.now.add_ns(self.req.timeout_ns) } else { Time::NEVER };
        self.arm_timer(env);
        self.schedule_requests(env);
    }

    /// A QP that repeats selectively does so sooner than the attribute `timeout` says, yet it waits as long for a silent peer as
    /// `timeout` and `retry_cnt` allow: one that is kept from its core for a moment is not gone.
    fn is_patient(&self, now: Time) -> bool {
        let cold = &self.body.cold;
        let allowed_ns = cold.timeout_ns.saturating_mul(u64::from(self.req.retry_cnt) + 1);
        self.recovery.is_selective() && cold.retries.counts(self.req.una_psn, now).waited_ns < allowed_ns
    }

    /// Goes back N.
    pub(super) fn go_back(&mut self, env: &mut Env) {
        env.counters.rewinds += 1;
        let (first, end) = (self.req.una_psn, self.req.nxt_psn);
        if first != end {
            self.body.cold.rewound = Rewound { at: env.now, first, end };
        }
        self.rewind();
    }

    /// True if the oldest PSN is on its way again since less than a round trip time: what asks for it was sent before that came.
    pub(super) fn is_repeated_already(&self, now: Time) -> bool {
        let Rewound { at, first, end } = self.body.cold.rewound;
        let una = self.req.una_psn;
        let was_sent = !una.is_before(first) && una.is_before(end);
        let rtt = self.body.cold.rtt.estimate();
        at != Time::NEVER && was_sent && rtt.is_some_and(|rtt| now.ns_since(at) < rtt.smoothed_ns)
    }
}

/// Operations of each service (`ibv_post_send(3)`).
const fn opcode_allowed(kind: QpType, opcode: WrOpcode) -> bool {
    match opcode {
        WrOpcode::Send | WrOpcode::SendWithImm => true,
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => !matches!(kind, QpType::Ud),
        // UC has no opcode for a SEND with invalidate (IBTA 9.2, table of opcodes).
        WrOpcode::SendWithInv | WrOpcode::RdmaRead | WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
            kind.is_reliable()
        }
        WrOpcode::LocalInv | WrOpcode::BindMw => !matches!(kind, QpType::Ud),
    }
}

const fn opcode_may_solicit(opcode: WrOpcode) -> bool {
    matches!(opcode, WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv | WrOpcode::RdmaWriteWithImm)
}

/// Packets of a message: at least one.
#[inline]
const fn packet_count(length: u32, mtu_shift: u32) -> u32 {
    if length == 0 { 1 } else { ((length - 1) >> mtu_shift) + 1 }
}

/// The message's length, if its SGEs are such as the operation may have.
fn check_length(
    env: &Env,
    pd: u32,
    opcode: WrOpcode,
    sges: &[shm::layout::Sge],
    inline_bytes: Option<u32>,
    max_rd_atomic: u8,
) -> Result<u32, WqeError> {
    let length_error = WqeError { status: WcStatus::LocLenErr, cause: ErrorCause::BadLength };
    if opcode.is_local() {
        let is_bare = sges.is_empty() && inline_bytes.is_none();
        return if is_bare { Ok(0) } else { Err(WqeError { status: WcStatus::LocQpOpErr, cause: ErrorCause::BadWqe }) };
    }
    if opcode.is_read_or_atomic() {
        if inline_bytes.is_some() {
            return Err(WqeError { status: WcStatus::LocQpOpErr, cause: ErrorCause::BadOpcode });
        }
        if max_rd_atomic == 0 {
            return Err(WqeError { status: WcStatus::LocQpOpErr, cause: ErrorCause::NoRdAtomic });
        }
    }
    let length = match inline_bytes {
        Some(bytes) => bytes,
        None => transfer::total_length(sges).filter(|&l| l <= MESSAGE_BYTES_MAX).ok_or(length_error)?,
    };
    if matches!(opcode, WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd) && length != 8 {
        return Err(length_error);
    }
    let needed = if opcode.is_read_or_atomic() { AccessFlags::LOCAL_WRITE } else { AccessFlags::NONE };
    transfer::check(&env.mrs, pd, sges, needed)
        .map_err(|fault| WqeError { status: WcStatus::LocProtErr, cause: fault.into() })?;
    Ok(length)
}
