//! Completions: each is the one that is due, says what it must, and finds the bytes where they belong.

use engine::Time;
use ferroce::{AsyncEvent, MemoryRegion, WcOpcode, WcStatus, WorkCompletion};

use super::Conversation;
use super::client::{Client, PostedRecv};
use super::connection::{Landing, Message, Phase, PostedSend};
use super::memory::compare;
use super::plan::IncidentKind;
use crate::violation::{Checked, require};

/// An addition to a shared word: what was there, and what was added.
pub(super) type Addition = (u64, u64);

impl Conversation {
    /// Looks at a completion.
    pub(super) fn complete(&mut self, side: usize, wc: &WorkCompletion, now: Time) -> Checked {
        self.trace.add(now.as_ns());
        self.trace.add(wc.wr_id);
        self.trace.add(u64::from(wc.status.code()) << 32 | u64::from(wc.byte_len));
        self.completion_count += 1;
        let found = self
            .connections
            .iter()
            .position(|connection| connection.ends[side].qp.as_ref().is_some_and(|qp| qp.qpn() == wc.qpn));
        let index = found.ok_or_else(|| format!("a completion of QP {}, which is not there", wc.qpn))?;
        let done =
            if wc.is_recv() { self.complete_recv(side, index, wc, now) } else { self.complete_send(side, index, wc) };
        done.map_err(|what| format!("connection {index} side {side}: {what}"))
    }

    fn complete_send(&mut self, side: usize, index: usize, wc: &WorkCompletion) -> Checked {
        let (client, end) = (&mut self.clients[side], &mut self.connections[index].ends[side]);
        let was_failed = end.failed.is_some();
        // Work requests that did not ask for a completion are done once a later one is.
        while let Some(posted) = end.outstanding.pop_front() {
            if posted.wr_id == wc.wr_id {
                require!(
                    posted.is_signaled || !wc.is_ok(),
                    "work request {:#x} completed though it did not ask to",
                    wc.wr_id
                );
                require!(posted.opcode == wc.opcode, "{} completed as {}", posted.opcode, wc.opcode);
                return if wc.is_ok() {
                    require!(!posted.must_fail, "work request {:#x} succeeded, which it must not", wc.wr_id);
                    require!(!was_failed, "work request {:#x} succeeded after one that failed", wc.wr_id);
                    let brings = matches!(wc.opcode, WcOpcode::RdmaRead | WcOpcode::CompSwap | WcOpcode::FetchAdd);
                    require!(
                        !brings || wc.byte_len == posted.byte_len,
                        "{} bytes came, {} were asked for",
                        wc.byte_len,
                        posted.byte_len
                    );
                    retire(client, &posted, &mut self.additions[1 - side])
                } else {
                    self.fail_send(side, index, wc, was_failed, &posted)
                };
            }
            require!(
                !posted.is_signaled && !was_failed,
                "work request {:#x} completed, {:#x} before it did not",
                wc.wr_id,
                posted.wr_id
            );
            retire(client, &posted, &mut self.additions[1 - side])?;
        }
        Err(format!("work request {:#x} completed ({}), but it is not outstanding", wc.wr_id, wc.status))
    }

    fn fail_send(
        &mut self,
        side: usize,
        index: usize,
        wc: &WorkCompletion,
        was_failed: bool,
        posted: &PostedSend,
    ) -> Checked {
        if matches!(posted.landing, Landing::Shared { .. }) {
            // It may have been executed or not.
            self.is_counter_unknown[1 - side] = true;
        }
        if was_failed {
            require!(wc.status == WcStatus::WrFlushErr, "{} after the first failure", wc.status);
            return Ok(());
        }
        self.allow(side, index, wc.status)?;
        self.connections[index].ends[side].failed = Some(wc.status);
        Ok(())
    }

    /// Checks that something explains this status.
    fn allow(&mut self, side: usize, index: usize, status: WcStatus) -> Checked {
        let connection = &mut self.connections[index];
        let disturbed = connection.is_disturbed;
        let explained = match status {
            // Its reason is told elsewhere: by the other end, or by another work request.
            WcStatus::WrFlushErr => disturbed || connection.phase != Phase::Up || connection.is_broken(),
            // Its retries are used up, for which the network must have been bad, or the peer gone.
            WcStatus::RetryExcErr => self.may_break || disturbed || connection.ends[1 - side].is_broken(),
            WcStatus::RnrRetryExcErr => self.settings.attr.rnr_retry != 7,
            other => disturbed && self.incident_statuses().contains(&other),
        };
        require!(explained, "a work request failed with {status}, and nothing explains it");
        if status != WcStatus::WrFlushErr {
            *self.failures.entry(status.name()).or_insert(0) += 1;
        }
        Ok(())
    }

    /// Failures that the conversation's incident leads to, on either side.
    fn incident_statuses(&self) -> &'static [WcStatus] {
        match self.settings.incident.map(|incident| incident.kind) {
            Some(IncidentKind::BadRkey | IncidentKind::OutOfRange) => &[WcStatus::RemAccessErr],
            Some(IncidentKind::TooLong) => &[WcStatus::RemInvReqErr, WcStatus::LocLenErr],
            Some(IncidentKind::BadLkey) => &[WcStatus::LocProtErr],
            // The region was used by both directions: as target, as source, as sink, and as receives' buffers.
            Some(IncidentKind::Dereg) => &[WcStatus::RemAccessErr, WcStatus::LocProtErr, WcStatus::RemOpErr],
            _ => &[],
        }
    }

    fn complete_recv(&mut self, side: usize, index: usize, wc: &WorkCompletion, now: Time) -> Checked {
        let client = &mut self.clients[side];
        let end = &mut self.connections[index].ends[side];
        let receives = match (&mut end.receives, &mut client.shared) {
            (Some(receives), _) => {
                let first = receives.posted.front().map(|recv| recv.wr_id);
                require!(first == Some(wc.wr_id), "receive {:#x} completed out of order", wc.wr_id);
                receives
            }
            (None, Some(shared)) => &mut shared.receives,
            (None, None) => return Err("a receive completed where there is no receive queue".to_owned()),
        };
        let found = receives.posted.iter().position(|recv| recv.wr_id == wc.wr_id);
        let recv = found.and_then(|at| receives.posted.remove(at));
        let Some(recv) = recv else { return Err(format!("receive {:#x} completed, but it is not posted", wc.wr_id)) };
        receives.free(recv.slot, now, &mut self.stream);
        if wc.is_ok() {
            require!(end.recv_failed.is_none(), "a receive succeeded after one that failed");
            let Some(message) = end.incoming.pop_front() else {
                return Err(format!("receive {:#x} completed without a message", wc.wr_id));
            };
            return accept(client, &recv, message, wc);
        }
        // A message may have arrived in part.
        client.memory.adopt(&recv.pieces)?;
        if wc.status == WcStatus::WrFlushErr && end.recv_failed.is_some() {
            return Ok(());
        }
        self.allow(side, index, wc.status)?;
        self.connections[index].ends[side].recv_failed = Some(wc.status);
        Ok(())
    }

    /// Looks at the asynchronous events of a side: none that nothing explains.
    pub(super) fn take_events(&mut self, side: usize) -> Checked {
        for event in self.clients[side].events()? {
            let broken = self.connections.iter().any(|connection| connection.is_disturbed);
            let explained = match event {
                AsyncEvent::CommEst { .. } | AsyncEvent::QpLastWqeReached { .. } => true,
                AsyncEvent::QpAccessErr { .. } | AsyncEvent::QpReqErr { .. } | AsyncEvent::QpFatal { .. } => broken,
                _ => false,
            };
            require!(explained, "side {side} got the event {event:?}, and nothing explains it");
        }
        Ok(())
    }
}

/// A work request is done: its answer must have arrived.
fn retire(client: &mut Client, posted: &PostedSend, additions: &mut Vec<Addition>) -> Checked {
    match &posted.landing {
        Landing::None => Ok(()),
        Landing::Sink { pieces, expected } => {
            let what = format!("the answer to {} {:#x}", posted.opcode, posted.wr_id);
            compare(&what, &client.memory.real(pieces)?, expected)
        }
        Landing::Shared { pieces, add } => {
            let real = client.memory.real(pieces)?;
            client.memory.set_model(pieces, &real);
            let original: [u8; 8] = real.try_into().map_err(|_| "an atomic's answer is not 8 bytes".to_owned())?;
            additions.push((u64::from_ne_bytes(original), *add));
            Ok(())
        }
    }
}

/// A message has been received: it must be the one that was sent.
fn accept(client: &mut Client, recv: &PostedRecv, message: Message, wc: &WorkCompletion) -> Checked {
    require!(wc.opcode == message.opcode, "{} was received as {}", message.opcode, wc.opcode);
    require!(wc.byte_len == message.length, "{} bytes were sent, {} received", message.length, wc.byte_len);
    require!(wc.imm() == message.imm, "immediate {:?} was sent, {:?} received", message.imm, wc.imm());
    let key = message.token.as_ref().map(MemoryRegion::rkey);
    require!(wc.invalidated_rkey() == key, "key {key:?} was to be invalidated, {:?} was", wc.invalidated_rkey());
    if let Some(token) = message.token {
        client.spent = Some(token);
    }
    if let Some(data) = &message.data {
        let mut real = client.memory.real(&recv.pieces)?;
        real.truncate(data.len());
        compare("a received message", &real, data)?;
        client.memory.set_model(&recv.pieces, data);
    }
    Ok(())
}
