//! The responder: executes the peer's requests in PSN order; `answers` sends what it says. IBTA 9.7.4 and 9.7.5.
//!
//! A request goes through straight-line checks in the order of the specification's figures: PSN, opcode sequence, opcode
//! validity, resources, length, R_Key; then it is executed and acknowledged. A check that fails says what is to be sent.

use shm::attr::{AccessFlags, QpState, QpType, WcFlags, WcOpcode, WcStatus};
use shm::control::AsyncEvent;
use shm::layout::Cqe;
use wire::{Frame, Msn, NakCode, OpKind, Psn, RnrTimer, Syndrome};

use super::requester::MESSAGE_BYTES_MAX;
use super::{Message, NONE, Qp, transfer};
use crate::cause::ErrorCause;
use crate::mr::MrFault;
use crate::ready::Output;
use crate::shard::Env;

/// A NAK that waits to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Nak {
    pub(super) syndrome: Syndrome,
    pub(super) psn: Psn,
}

/// Where the next payload of an RDMA WRITE goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WriteCursor {
    pub(super) va: u64,
    pub(super) rkey: u32,
    /// Bytes still to come.
    pub(super) left: u32,
}

/// What a READ or atomic left behind, to be answered, and answered again if the answer is lost. IBTA 9.7.4.4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resource {
    pub(super) first_psn: Psn,
    pub(super) packets: u32,
    pub(super) msn: Msn,
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) length: u32,
    /// Next response packet to send, and the end; equal = nothing to send.
    pub(super) next: u32,
    pub(super) end: u32,
    /// Where the answer ends, bytes from `va`: less than `length` if a repeat asks for less.
    pub(super) end_bytes: u32,
    /// It was answered in full once: what is still to send is a repeat.
    pub(super) answered: bool,
    /// The value before an atomic; `None` for a READ.
    pub(super) original: Option<u64>,
    /// Domain of the region that is read.
    pub(super) pd: u32,
}

impl Resource {
    pub(crate) const EMPTY: Self = Self {
        first_psn: Psn::new(0),
        packets: 0,
        msn: Msn::new(0),
        va: 0,
        rkey: 0,
        length: 0,
        next: 0,
        end: 0,
        end_bytes: 0,
        answered: false,
        original: None,
        pd: 0,
    };

    /// True if it is a READ that begins with this PSN.
    pub(super) fn is_read_from(&self, psn: Psn) -> bool {
        self.original.is_none() && self.packets > 0 && self.first_psn == psn
    }

    /// The READ with its cursor on packets `next..end`, which end `end_bytes` from its start.
    pub(super) fn part(&self, next: u32, end: u32, end_bytes: u32) -> Self {
        Self { next, end, end_bytes, ..*self }
    }
}

/// Why a request is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// No receive is posted: try again later.
    Rnr,
    /// The QP breaks: NAK with this code.
    Fatal(NakCode, ErrorCause),
}

pub(super) const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, ErrorCause::InvalidRequestReceived);
const ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccess, ErrorCause::AccessViolationReceived);
pub(super) const BAD_RECEIVE: Refusal = Refusal::Fatal(NakCode::RemoteOperation, ErrorCause::BadReceive);
const BAD_RING: Refusal = Refusal::Fatal(NakCode::RemoteOperation, ErrorCause::BadRingIndex);

/// Requests whose answer carries data, and acknowledges by that.
#[inline]
const fn is_read_or_atomic(kind: OpKind) -> bool {
    matches!(kind, OpKind::ReadRequest) || kind.is_atomic()
}

/// The right that a region must give for a request.
pub(super) const fn rights_for(kind: OpKind) -> AccessFlags {
    match kind {
        OpKind::Write => AccessFlags::REMOTE_WRITE,
        OpKind::ReadRequest => AccessFlags::REMOTE_READ,
        OpKind::CompareSwap | OpKind::FetchAdd => AccessFlags::REMOTE_ATOMIC,
        _ => AccessFlags::NONE,
    }
}

/// What a fault in a region that the peer named is to it. That memory is not mapped is not the peer's error.
pub(super) const fn nak_of(fault: MrFault) -> (NakCode, ErrorCause) {
    match fault {
        MrFault::NotMapped => (NakCode::RemoteOperation, ErrorCause::NotMapped),
        _ => (NakCode::RemoteAccess, ErrorCause::AccessViolationReceived),
    }
}

impl From<MrFault> for Refusal {
    fn from(fault: MrFault) -> Self {
        let (code, cause) = nak_of(fault);
        Self::Fatal(code, cause)
    }
}

impl Qp {
    /// A request packet for this QP. Its ICRC is right.
    #[inline]
    pub(crate) fn handle_request(&mut self, env: &mut Env, frame: &Frame<'_>) {
        let bth = frame.bth();
        self.body.cold.heard = env.now;
        let ahead = bth.psn.distance_from(self.resp.epsn);
        if ahead != 0 {
            if ahead < 0 {
                self.handle_duplicate(env, frame);
            } else {
                self.handle_out_of_sequence(env, frame);
            }
            return;
        }
        let waited = bth.psn;
        self.handle_expected(env, frame);
        self.execute_kept(env, waited);
    }

    /// The request whose turn it is.
    #[inline]
    pub(super) fn handle_expected(&mut self, env: &mut Env, frame: &Frame<'_>) {
        let bth = frame.bth();
        match self.execute(env, frame) {
            Ok(()) => {
                if self.resp.silent || self.resp.waits {
                    // What was missing has come: a NAK for it that is still waiting would be stale.
                    self.resp.silent = false;
                    self.resp.not_ready = false;
                    self.resp.nak = None;
                    self.end_missing_request(env, bth.psn);
                }
                env.counters.rx_requests += 1;
                self.body.cold.counters.rx_requests += 1;
                if bth.ack_req && !is_read_or_atomic(frame.info().kind) {
                    self.ack(env);
                }
                if !self.resp.established {
                    self.report_established(env);
                }
            }
            Err(Refusal::Rnr) => self.refuse_rnr(env, bth.psn),
            Err(Refusal::Fatal(code, cause)) => {
                self.note_refused(env, frame);
                self.refuse_fatal(env, bth.psn, code, cause);
            }
        }
    }

    #[cold]
    pub(super) fn report_established(&mut self, env: &mut Env) {
        self.resp.established = true;
        if self.state == QpState::Rtr {
            env.push_event(self.session, AsyncEvent::CommEst { qpn: self.qpn.value() });
        }
    }

    #[inline]
    pub(super) fn ack(&mut self, env: &mut Env) {
        self.resp.ack_due = true;
        self.schedule(env, Output::Ack);
    }

    /// Schedules whatever answers wait: the path has come to be known.
    pub(super) fn schedule_answers(&mut self, env: &mut Env) {
        if self.resp.pending_responses > 0 {
            self.schedule(env, Output::Response);
        }
        if self.resp.ack_due || self.resp.nak.is_some() {
            self.schedule(env, Output::Ack);
        }
    }

    pub(super) fn send_nak(&mut self, env: &mut Env, syndrome: Syndrome, psn: Psn) {
        self.resp.nak = Some(Nak { syndrome, psn });
        self.schedule(env, Output::Ack);
    }

    #[cold]
    fn refuse_rnr(&mut self, env: &mut Env, psn: Psn) {
        // The packets behind it in the same burst are dropped silently.
        self.drop_kept_requests(env);
        self.resp.not_ready = true;
        if !self.resp.silent {
            self.resp.silent = true;
        } else if self.resp.nak.is_some() {
            return;
        }
        env.counters.send_rnr_err += 1;
        let timer = RnrTimer::from_syndrome_bits(self.resp.min_rnr_timer);
        self.send_nak(env, Syndrome::RnrNak { timer }, psn);
    }

    #[cold]
    pub(super) fn refuse_fatal(&mut self, env: &mut Env, psn: Psn, code: NakCode, cause: ErrorCause) {
        let qpn = self.qpn.value();
        let event = match code {
            NakCode::RemoteAccess => {
                env.counters.resp_remote_access_errors += 1;
                AsyncEvent::QpAccessErr { qpn }
            }
            NakCode::RemoteOperation => {
                env.counters.resp_local_operation_err += 1;
                AsyncEvent::QpFatal { qpn }
            }
            _ => {
                env.counters.resp_local_length_error += 1;
                AsyncEvent::QpReqErr { qpn }
            }
        };
        self.send_nak(env, Syndrome::Nak(code), psn);
        if self.body.recv.taken
            && matches!(cause, ErrorCause::ReceiveTooShort | ErrorCause::BadReceive | ErrorCause::NotMapped)
        {
            let too_short = cause == ErrorCause::ReceiveTooShort;
            let status = if too_short { WcStatus::LocLenErr } else { WcStatus::LocProtErr };
            self.fail_receive(env, status, cause);
        } else {
            // IBTA 9.9.3: an event tells what no completion does.
            env.push_event(self.session, event);
        }
        self.enter_error(env, cause);
    }

    pub(super) fn fail_receive(&mut self, env: &mut Env, status: WcStatus, cause: ErrorCause) {
        self.body.recv.taken = false;
        let cqe = Cqe {
            wr_id: self.body.recv.wr_id,
            status: status.code(),
            opcode: WcOpcode::Recv as u8,
            vendor_err: cause.code(),
            ..Cqe::default()
        };
        self.complete(env, self.recv_cq, cqe, true);
    }

    /// A request with the expected PSN.
    #[inline]
    pub(super) fn execute(&mut self, env: &mut Env, frame: &Frame<'_>) -> Result<(), Refusal> {
        let info = frame.info();
        // IBTA 9.7.4.1.2: opcode sequence.
        let in_order = match self.resp.message {
            Message::None => info.position.starts(),
            Message::Send => info.kind == OpKind::Send && !info.position.starts(),
            Message::Write => info.kind == OpKind::Write && !info.position.starts(),
        };
        if !in_order {
            return Err(INVALID);
        }
        if self.kind == QpType::XrcRecv {
            self.select_srq(env, frame)?;
        }
        match info.kind {
            OpKind::Send => self.execute_send(env, frame),
            OpKind::Write => self.execute_write(env, frame),
            OpKind::ReadRequest => self.execute_read(env, frame),
            OpKind::CompareSwap | OpKind::FetchAdd => self.execute_atomic(env, frame),
            _ => Err(INVALID),
        }
    }

    /// IBTA 9.7.4.1.6: First and Middle are full, Last is not empty, nothing is longer than the path MTU.
    #[inline]
    fn check_packet_length(&self, frame: &Frame<'_>) -> Result<u32, Refusal> {
        let length = frame.payload().len() as u32;
        let (mtu, position) = (self.mtu.bytes(), frame.info().position);
        let fits = match (position.starts(), position.ends()) {
            (_, false) => length == mtu,
            (true, true) => length <= mtu,
            (false, true) => length <= mtu && length > 0,
        };
        if fits { Ok(length) } else { Err(INVALID) }
    }

    #[inline]
    fn execute_send(&mut self, env: &mut Env, frame: &Frame<'_>) -> Result<(), Refusal> {
        let length = self.check_packet_length(frame)?;
        let position = frame.info().position;
        if position.starts() {
            self.take_receive(env)?;
            self.check_receive(env)?;
            self.resp.received_bytes = 0;
        }
        let offset = self.resp.received_bytes;
        if length > self.body.recv.capacity_bytes - offset {
            return Err(Refusal::Fatal(NakCode::InvalidRequest, ErrorCause::ReceiveTooShort));
        }
        if position.ends()
            && let Some(ieth) = frame.ieth()
            && !env.mrs.invalidate(ieth.rkey.0, self.pd, self.qpn)
        {
            return Err(ACCESS);
        }
        let sges = self.body.recv.sges.get(..self.body.recv.sge_count).unwrap_or_default();
        let pd = self.body.recv.pd;
        transfer::scatter(&env.mrs, pd, sges, offset, frame.payload()).map_err(|fault| match fault {
            MrFault::NotMapped => fault.into(),
            _ => BAD_RECEIVE,
        })?;
        self.resp.received_bytes = offset + length;
        self.accept(1);
        if position.ends() {
            self.resp.message = Message::None;
            self.resp.msn = self.resp.msn.add(1);
            self.complete_receive(env, frame, WcOpcode::Recv);
        } else {
            self.resp.message = Message::Send;
        }
        Ok(())
    }

    #[inline]
    fn execute_write(&mut self, env: &mut Env, frame: &Frame<'_>) -> Result<(), Refusal> {
        if !self.access.contains(AccessFlags::REMOTE_WRITE) {
            return Err(INVALID);
        }
        let length = self.check_packet_length(frame)?;
        let info = frame.info();
        let mut cursor = self.resp.write;
        if info.position.starts() {
            let reth = frame.reth().ok_or(INVALID)?;
            if reth.dma_len > MESSAGE_BYTES_MAX {
                return Err(INVALID);
            }
            cursor = WriteCursor { va: reth.va, rkey: reth.rkey.0, left: reth.dma_len };
            self.resp.received_bytes = 0;
            // The whole range is checked before its first byte is written.
            if reth.dma_len > length {
                env.mrs.resolve_remote(
                    cursor.rkey,
                    (self.pd, self.qpn),
                    cursor.va,
                    cursor.left,
                    AccessFlags::REMOTE_WRITE,
                )?;
            }
        }
        // The payload adds up to the RETH's length, no more and no less.
        if length > cursor.left || (info.position.ends() != (length == cursor.left)) {
            return Err(INVALID);
        }
        if info.has_imm() {
            self.take_receive(env)?;
        }
        if length > 0 {
            let region = env.mrs.resolve_remote(
                cursor.rkey,
                (self.pd, self.qpn),
                cursor.va,
                length,
                AccessFlags::REMOTE_WRITE,
            )?;
            region.write(0, frame.payload())?;
        }
        cursor = WriteCursor { va: cursor.va.wrapping_add(u64::from(length)), left: cursor.left - length, ..cursor };
        self.resp.write = cursor;
        self.resp.received_bytes = self.resp.received_bytes.wrapping_add(length);
        self.accept(1);
        if info.position.ends() {
            self.resp.message = Message::None;
            self.resp.msn = self.resp.msn.add(1);
            if info.has_imm() {
                self.complete_receive(env, frame, WcOpcode::RecvRdmaWithImm);
            }
        } else {
            self.resp.message = Message::Write;
        }
        Ok(())
    }

    /// Moves the expected PSN on.
    #[inline]
    fn accept(&mut self, packets: u32) {
        self.resp.epsn = self.resp.epsn.add(packets);
    }

    fn execute_read(&mut self, env: &mut Env, frame: &Frame<'_>) -> Result<(), Refusal> {
        if !self.access.contains(AccessFlags::REMOTE_READ) || self.resources_busy() {
            return Err(INVALID);
        }
        let reth = frame.reth().ok_or(INVALID)?;
        if reth.dma_len > MESSAGE_BYTES_MAX || !frame.payload().is_empty() {
            return Err(INVALID);
        }
        if reth.dma_len > 0 {
            env.mrs.resolve_remote(
                reth.rkey.0,
                (self.pd, self.qpn),
                reth.va,
                reth.dma_len,
                AccessFlags::REMOTE_READ,
            )?;
        }
        let packets = self.packets_of(reth.dma_len);
        self.resp.msn = self.resp.msn.add(1);
        self.add_resource(Resource {
            first_psn: self.resp.epsn,
            packets,
            msn: self.resp.msn,
            va: reth.va,
            rkey: reth.rkey.0,
            length: reth.dma_len,
            end: packets,
            end_bytes: reth.dma_len,
            pd: self.pd,
            ..Resource::EMPTY
        });
        self.accept(packets);
        self.schedule(env, Output::Response);
        Ok(())
    }

    fn execute_atomic(&mut self, env: &mut Env, frame: &Frame<'_>) -> Result<(), Refusal> {
        if !self.access.contains(AccessFlags::REMOTE_ATOMIC) || self.resources_busy() {
            return Err(INVALID);
        }
        let request = frame.atomiceth().ok_or(INVALID)?;
        // IBTA 9.7.4.1.7: a misaligned address is an invalid request, not an access violation.
        if !request.va.is_multiple_of(8) || !frame.payload().is_empty() {
            return Err(INVALID);
        }
        let region =
            env.mrs.resolve_remote(request.rkey.0, (self.pd, self.qpn), request.va, 8, AccessFlags::REMOTE_ATOMIC)?;
        let swap = frame.info().kind == OpKind::CompareSwap;
        let original = region.update_u64(0, |value| {
            if !swap {
                Some(value.wrapping_add(request.swap_or_add))
            } else {
                (value == request.compare).then_some(request.swap_or_add)
            }
        })?;
        self.resp.msn = self.resp.msn.add(1);
        self.add_resource(Resource {
            first_psn: self.resp.epsn,
            packets: 1,
            msn: self.resp.msn,
            end: 1,
            original: Some(original),
            ..Resource::EMPTY
        });
        self.accept(1);
        self.schedule(env, Output::Response);
        Ok(())
    }

    fn packets_of(&self, length: u32) -> u32 {
        length.div_ceil(self.mtu.bytes()).max(1)
    }

    /// True if `max_dest_rd_atomic` READs and atomics wait for their first answer: then the oldest place is one of them.
    /// A repeat that waits there does not count, since a requester that goes on has its answer.
    fn resources_busy(&self) -> bool {
        let used = self.body.resources.get(..self.resource_count()).unwrap_or_default();
        used.get(self.resp.resource_next).is_none_or(|oldest| oldest.next != oldest.end && !oldest.answered)
    }

    pub(super) fn resource_count(&self) -> usize {
        usize::from(self.resp.max_dest_rd_atomic).min(self.body.resources.len())
    }

    /// The place after this one in the ring of resources.
    pub(super) fn resource_after(&self, index: usize) -> usize {
        if index + 1 < self.resource_count() { index + 1 } else { 0 }
    }

    /// Keeps a resource in place of the oldest.
    fn add_resource(&mut self, resource: Resource) {
        let index = self.resp.resource_next;
        if let Some(place) = self.body.resources.get_mut(index) {
            self.resp.pending_responses -= u8::from(place.next != place.end);
            *place = resource;
            self.resp.pending_responses += 1;
            self.resp.resource_next = self.resource_after(index);
        }
    }

    /// Changes how many resources are kept; the newest stay.
    pub(super) fn resize_resources(&mut self, max_dest_rd_atomic: u8) {
        self.body.repeats.clear();
        let (old, next) = (self.resource_count(), self.resp.resource_next);
        self.resp.max_dest_rd_atomic = max_dest_rd_atomic;
        let new = self.resource_count();
        let resources = &mut self.body.resources;
        // From the oldest to the newest, then without the oldest ones.
        resources[..old].rotate_left(next);
        resources[..old].rotate_left(old.saturating_sub(new));
        resources[old.min(new)..].fill(Resource::EMPTY);
        self.resp.resource_next = if old < new { old } else { 0 };
        self.resp.pending_responses = resources.iter().filter(|r| r.next != r.end).count() as u8;
    }

    /// Forgets every READ and atomic, answered or not.
    pub(super) fn clear_resources(&mut self) {
        self.body.repeats.clear();
        self.resp.pending_responses = 0;
        self.resp.resource_next = 0;
        self.body.resources.fill(Resource::EMPTY);
    }

    /// Takes a receive from the queue or the SRQ into `body.recv`. One that a message left behind which was dropped (UC, UD) is
    /// taken again.
    pub(super) fn take_receive(&mut self, env: &mut Env) -> Result<(), Refusal> {
        let recv = &mut self.body.recv;
        if recv.taken {
            return Ok(());
        }
        let taken = if self.srq == NONE {
            let Some(rq) = &mut self.body.rq else { return Err(Refusal::Rnr) };
            match rq.available() {
                Ok(0) => return Err(Refusal::Rnr),
                Ok(_) => rq.fetch(&mut recv.sges),
                Err(_) => {
                    env.counters.bad_ring_index += 1;
                    return Err(BAD_RING);
                }
            }
        } else {
            match env.take_srq(self.srq, &mut recv.sges) {
                Ok(Some(srq)) => {
                    recv.pd = srq.pd;
                    srq.wqe
                }
                Ok(None) => return Err(Refusal::Rnr),
                Err(_) => return Err(BAD_RING),
            }
        };
        recv.taken = true;
        match taken {
            Ok((wr_id, sge_count)) => {
                (recv.wr_id, recv.sge_count) = (wr_id, sge_count);
                Ok(())
            }
            Err(wr_id) => {
                recv.wr_id = wr_id;
                Err(BAD_RECEIVE)
            }
        }
    }

    /// Looks at the memory of the receive just taken. A WRITE with immediate leaves it alone, so only a SEND asks.
    #[inline]
    pub(super) fn check_receive(&mut self, env: &Env) -> Result<(), Refusal> {
        let recv = &mut self.body.recv;
        let sges = recv.sges.get(..recv.sge_count).unwrap_or_default();
        recv.capacity_bytes = transfer::total_length(sges).ok_or(BAD_RECEIVE)?;
        transfer::check(&env.mrs, recv.pd, sges, AccessFlags::LOCAL_WRITE).map_err(|_| BAD_RECEIVE)
    }

    #[inline]
    fn complete_receive(&mut self, env: &mut Env, frame: &Frame<'_>, opcode: WcOpcode) {
        self.body.recv.taken = false;
        let (flags, imm) = match (frame.immdt(), frame.ieth()) {
            (Some(imm), _) => (WcFlags::WITH_IMM, u32::from_ne_bytes(imm.data.to_be_bytes())),
            (None, Some(ieth)) => (WcFlags::WITH_INV, ieth.rkey.0),
            (None, None) => (WcFlags::NONE, 0),
        };
        let cqe = Cqe {
            wr_id: self.body.recv.wr_id,
            status: WcStatus::Success.code(),
            opcode: opcode as u8,
            flags: flags.0,
            byte_len: self.resp.received_bytes,
            imm,
            src_qpn: self.dest_qpn.value(),
            ..Cqe::default()
        };
        self.complete(env, self.recv_cq, cqe, frame.bth().solicited);
    }

    /// A request that was executed before: answered again, never executed twice. IBTA 9.7.5.1.5.
    #[cold]
    pub(super) fn handle_duplicate(&mut self, env: &mut Env, frame: &Frame<'_>) {
        env.counters.duplicate_request += 1;
        self.body.cold.counters.duplicate_requests += 1;
        let psn = frame.bth().psn;
        self.note_repeated_request(psn);
        match frame.info().kind {
            OpKind::ReadRequest => self.repeat_read(env, frame, psn),
            OpKind::CompareSwap | OpKind::FetchAdd => self.repeat_atomic(env, psn),
            _ => self.ack(env),
        }
    }

    fn repeat_read(&mut self, env: &mut Env, frame: &Frame<'_>, psn: Psn) {
        let Some(reth) = frame.reth() else { return };
        let (packets, mtu_shift) = (self.packets_of(reth.dma_len), self.mtu.shift());
        let found = self.body.resources.iter_mut().enumerate().find_map(|(index, r)| {
            let skipped = psn.distance_from(r.first_psn);
            let inside = r.original.is_none() && skipped >= 0 && skipped.cast_unsigned() < r.packets;
            inside.then_some((index, r, skipped.cast_unsigned()))
        });
        let Some((index, resource, skipped)) = found else { return };
        // It must ask for a part of what was granted: the same key, the address that this PSN stands for, not more bytes.
        let offset = skipped << mtu_shift;
        let same = reth.rkey.0 == resource.rkey
            && reth.va == resource.va.wrapping_add(u64::from(offset))
            && reth.dma_len <= resource.length - offset;
        if same && self.recovery.is_selective() {
            self.queue_repeat(env, index, skipped, packets, &reth);
        } else if same {
            self.resp.pending_responses += u8::from(resource.next == resource.end);
            resource.next = skipped;
            resource.end = skipped + packets;
            resource.end_bytes = offset + reth.dma_len;
            self.schedule(env, Output::Response);
        }
    }

    fn repeat_atomic(&mut self, env: &mut Env, psn: Psn) {
        let found =
            self.body.resources.iter_mut().find(|r| r.original.is_some() && r.first_psn == psn && r.packets == 1);
        if let Some(resource) = found {
            self.resp.pending_responses += u8::from(resource.next == resource.end);
            resource.next = 0;
            self.schedule(env, Output::Response);
        }
    }
}
