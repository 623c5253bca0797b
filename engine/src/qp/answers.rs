//! The responder's answers: READ responses, atomic results, acknowledgements and NAKs. IBTA 9.7.5.1.

use shm::attr::AccessFlags;
use wire::buf::TxBatch;
use wire::{AethRepr, AtomicAckEthRepr, Bth, CREDITS_NOT_IN_USE, ExtHeaders, NakCode, Opcode, Psn, Syndrome};

use super::responder::{Nak, Resource, nak_of};
use super::slot::service_bits;
use super::{Qp, Step};
use crate::mr::MrFault;
use crate::ready::Output;
use crate::shard::Env;

impl Qp {
    /// Sends the next packet of the oldest READ or atomic that is not fully answered.
    #[inline]
    pub(crate) fn transmit_response<T: TxBatch>(&mut self, env: &mut Env, tx: &mut T) -> Step {
        if self.resp.pending_responses == 0 || self.req.unresolved {
            return Step::Idle;
        }
        if self.cc.paces_responses() && !self.may_send_paced(env, Output::Response) {
            return Step::Idle;
        }
        if tx.room() == 0 {
            return Step::NoRoom;
        }
        if !self.body.repeats.is_empty()
            && let Some(part) = self.next_repeat()
        {
            let sent = self.send_read_response(env, tx, &part);
            return match sent {
                Ok(frame_len) => {
                    if self.cc.paces_responses() {
                        self.charge_pacer(env, frame_len, 0);
                    }
                    self.after_repeated_response();
                    self.answered_all(env);
                    Step::Sent
                }
                Err(fault) => self.fail_response(env, &part, fault),
            };
        }
        let from_oldest = std::iter::successors(Some(self.resp.resource_next), |&i| Some(self.resource_after(i)));
        let waiting = from_oldest
            .take(self.resource_count())
            .find(|&i| self.body.resources.get(i).is_some_and(|r| r.next != r.end));
        let Some(index) = waiting else {
            self.resp.pending_responses = 0;
            return Step::Idle;
        };
        let resource = self.body.resources[index];
        let sent = match resource.original {
            Some(original) => self.send_atomic_ack(env, tx, &resource, original),
            None => self.send_read_response(env, tx, &resource),
        };
        let frame_len = match sent {
            Ok(frame_len) => frame_len,
            Err(fault) => return self.fail_response(env, &resource, fault),
        };
        if self.cc.paces_responses() {
            self.charge_pacer(env, frame_len, 0);
        }
        let place = &mut self.body.resources[index];
        place.next += 1;
        if place.next == place.end {
            place.answered = true;
            self.resp.pending_responses -= 1;
            self.answered_all(env);
        }
        Step::Sent
    }

    /// If no response is left to send, what waited for that goes.
    #[inline]
    fn answered_all(&mut self, env: &mut Env) {
        if self.resp.pending_responses == 0 && (self.resp.ack_due || self.resp.nak.is_some()) {
            self.schedule(env, Output::Ack);
        }
    }

    /// The region is gone, or lost its right or its memory: the request can't be answered any more.
    #[cold]
    fn fail_response(&mut self, env: &mut Env, resource: &Resource, fault: MrFault) -> Step {
        self.clear_resources();
        let psn = resource.first_psn.add(resource.next);
        let (code, cause) = nak_of(fault);
        self.refuse_fatal(env, psn, code, cause);
        Step::Idle
    }

    /// A QP that breaks for a reason of its own has nothing more to say to its peer. One that breaks by the peer's request
    /// still gives the answers to what came before it, then the NAK.
    pub(super) fn drop_answers(&mut self) {
        let breaks = |nak: &Nak| matches!(nak.syndrome, Syndrome::Nak(code) if code != NakCode::PsnSequence);
        self.resp.ack_due = false;
        if !self.resp.nak.as_ref().is_some_and(breaks) {
            self.resp.nak = None;
            self.clear_resources();
        }
    }

    #[inline]
    fn send_read_response<T: TxBatch>(&mut self, env: &mut Env, tx: &mut T, r: &Resource) -> Result<usize, MrFault> {
        let offset = r.next << self.mtu.shift();
        let payload_len = (r.end_bytes - offset).min(self.mtu.bytes());
        // A repeat that starts inside the message goes on where the first answer stopped, as rxe does.
        let (first, last) = (r.next == 0, r.next + 1 == r.end);
        let opcode = match (first, last) {
            (true, true) => Opcode::RC_READ_RESP_ONLY,
            (true, false) => Opcode::RC_READ_RESP_FIRST,
            (false, false) => Opcode::RC_READ_RESP_MIDDLE,
            (false, true) => Opcode::RC_READ_RESP_LAST,
        };
        let aeth = AethRepr { syndrome: Syndrome::Ack { credits: CREDITS_NOT_IN_USE }, msn: r.msn }.to_bytes();
        let ext: &[u8] = if first || last { &aeth } else { &[] };
        let bth = self.response_bth(opcode, r.first_psn.add(r.next));
        let body = &*self.body;
        let path = body.path.as_ref().ok_or(MrFault::NoRight)?;
        let (template, dest) = (path.template(), path.dest(self.dest_qpn));
        let frame_len = template.frame_len(ext.len(), payload_len as usize);
        let mut found = Ok(());
        let sent = tx.push(dest, frame_len, |buf| {
            template.write_packet(buf, &bth, ext, payload_len as usize, |payload, crc| {
                if payload.is_empty() {
                    return crc;
                }
                let va = r.va.wrapping_add(u64::from(offset));
                let region =
                    env.mrs.resolve_remote(r.rkey, (r.pd, self.qpn), va, payload_len, AccessFlags::REMOTE_READ);
                region.and_then(|region| region.read_crc(0, payload, crc)).unwrap_or_else(|fault| {
                    found = Err(fault);
                    crc
                })
            });
            found.is_ok()
        });
        found?;
        // A frame that does not fit the port is no fault of the region's; it can't be sent all the same.
        if !sent {
            return Err(MrFault::NoRight);
        }
        env.count_transmit(self.port, dest, frame_len);
        Ok(frame_len)
    }

    fn send_atomic_ack<T: TxBatch>(
        &mut self,
        env: &mut Env,
        tx: &mut T,
        r: &Resource,
        original: u64,
    ) -> Result<usize, MrFault> {
        let mut ext = [0; AethRepr::LEN + AtomicAckEthRepr::LEN];
        let aeth = AethRepr { syndrome: Syndrome::Ack { credits: CREDITS_NOT_IN_USE }, msn: r.msn };
        let (head, tail) = ext.split_at_mut(AethRepr::LEN);
        head.copy_from_slice(&aeth.to_bytes());
        tail.copy_from_slice(&AtomicAckEthRepr { original }.to_bytes());
        let bth = self.response_bth(Opcode::RC_ATOMIC_ACK, r.first_psn);
        self.push_plain(env, tx, &bth, &ext).ok_or(MrFault::NoRight)
    }

    /// Sends the acknowledgement or NAK that is due, after the answers to what came before it.
    #[inline]
    pub(crate) fn transmit_ack<T: TxBatch>(&mut self, env: &mut Env, tx: &mut T) -> Step {
        if self.owes_sack() && self.resp.nak.is_none() && !self.req.unresolved {
            return if self.resp.ack_due { self.send_sack(env, tx) } else { Step::Idle };
        }
        if self.resp.pending_responses > 0 || self.req.unresolved {
            // The last response, or the neighbour's answer, schedules the acknowledgement again.
            return Step::Idle;
        }
        let (syndrome, psn) = match (self.resp.nak, self.resp.ack_due) {
            (Some(nak), _) => (nak.syndrome, nak.psn),
            // One acknowledgement stands for everything up to its PSN: many requests share it.
            (None, true) => (Syndrome::Ack { credits: CREDITS_NOT_IN_USE }, self.resp.epsn.sub(1)),
            (None, false) => return Step::Idle,
        };
        if tx.room() == 0 {
            return Step::NoRoom;
        }
        let bth = self.response_bth(Opcode::RC_ACK, psn);
        let aeth = AethRepr { syndrome, msn: self.resp.msn }.to_bytes();
        if self.push_plain(env, tx, &bth, &aeth).is_some() {
            // A NAK acknowledges what came before it as well.
            self.resp.nak = None;
            self.resp.ack_due = false;
        }
        Step::Sent
    }

    /// `opcode` is that of RC, whose codes all services share.
    #[inline]
    pub(super) fn response_bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        let mut bth = Bth::new(Opcode(opcode.0 | service_bits(self.kind)), self.dest_qpn, psn);
        bth.pkey = self.pkey;
        bth
    }

    /// Sends a packet without payload, which no switch shall mark; the bytes of its frame, `None` if it does not fit.
    #[inline]
    pub(super) fn push_plain<T: TxBatch>(&self, env: &mut Env, tx: &mut T, bth: &Bth, ext: &[u8]) -> Option<usize> {
        let body = &*self.body;
        let path = body.path.as_ref()?;
        let (template, dest) = (path.template(), path.dest(self.dest_qpn));
        debug_assert!(ext.len() <= ExtHeaders::MAX_BYTES);
        let frame_len = template.frame_len(ext.len(), 0);
        let sent = tx.push(dest, frame_len, |buf| {
            let is_written = template.write_packet(buf, bth, ext, 0, |_, crc| crc) > 0;
            if path.marks_ecn() {
                template.clear_ecn(buf);
            }
            is_written
        });
        if sent {
            env.count_transmit(self.port, dest, frame_len);
        }
        sent.then_some(frame_len)
    }
}
