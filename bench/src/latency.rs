//! Latency: one message under way, answered by another (WRITE, SEND) or by itself (READ, atomic).

use std::time::Instant;

use ferroce::{AddressHandle, Qpn, RecvWr, SendWr, Sge, WorkCompletion};

use crate::error::{PerfError, Result};
use crate::params::{LATENCY_CQ_MOD, Params, Verb};
use crate::patience::Patience;
use crate::side::{QKEY, Role, Side};
use crate::stats::{Latencies, Round};

/// Receives kept posted: the next message can't come before the last one is answered.
const RECEIVES_AHEAD: u32 = 4;

/// One side of a latency test, advanced by [`PingPong::step`].
pub(crate) struct PingPong<'a> {
    side: &'a Side,
    /// What is sent, changed in its last byte with each message.
    payload: Vec<u8>,
    send_sges: Vec<[Sge; 1]>,
    receive_sges: Vec<[Sge; 1]>,
    remote_addr: u64,
    rkey: u32,
    /// Of a datagram: where it goes.
    to: Option<(AddressHandle, Qpn)>,
    completions: [WorkCompletion; 16],
    /// Messages sent, and messages (or answers) received.
    sent: u64,
    received: u64,
    /// Sends that are known to be complete.
    completed: u64,
    target: u64,
    started: Option<Instant>,
    sent_at: Instant,
    latencies: Latencies,
    patience: Patience,
}

impl<'a> PingPong<'a> {
    /// The client sends first; the server answers, or does nothing where the verb answers by itself.
    ///
    /// # Errors
    /// What posting receives says.
    pub(crate) fn new(side: &'a Side) -> Result<Self> {
        let (remote_addr, rkey) = side.remote_base(0)?;
        let mut payload = side.pattern(side.role(), 0);
        payload.truncate(side.params.size as usize);
        let ping_pong = Self {
            side,
            payload,
            send_sges: side.local_sges(0)?,
            receive_sges: side.receive_sges(0)?,
            remote_addr,
            rkey,
            to: side.datagrams_to(0)?,
            completions: [WorkCompletion::default(); 16],
            sent: 0,
            received: 0,
            completed: 0,
            target: side.params.iterations(),
            started: None,
            sent_at: Instant::now(),
            latencies: Latencies::new(),
            patience: Patience::new(),
        };
        if ping_pong.params().test.verb == Verb::Send {
            for _ in 0..RECEIVES_AHEAD.min(ping_pong.params().rx_depth) {
                ping_pong.post_receive()?;
            }
        }
        Ok(ping_pong)
    }

    const fn params(&self) -> &Params {
        &self.side.params
    }

    /// Does what can be done now. True once the last message is answered (client) or, if their number is known, sent (server).
    ///
    /// # Errors
    /// [`PerfError::Completion`] when a message fails, [`PerfError::Silent`] when nothing arrives any more.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<bool> {
        match (self.side.role(), self.params().test.verb) {
            (Role::Client, _) => self.step_client(),
            (Role::Server, Verb::Write | Verb::Send) => self.step_server(),
            (Role::Server, Verb::Read | Verb::Atomic) => Ok(true),
        }
    }

    fn step_client(&mut self) -> Result<bool> {
        if self.sent == self.received {
            if self.received == self.target {
                return Ok(true);
            }
            if self.started.is_none() {
                self.sent_at = Instant::now();
                self.started = Some(self.sent_at);
            }
            if !self.send()? {
                self.patience.empty_turn()?;
                return Ok(false);
            }
        }
        if !self.has_arrived()? {
            self.patience.empty_turn()?;
            return Ok(false);
        }
        self.patience.reset();
        // The next message is sent at once: the time of this one ends where the next one's begins.
        let now = Instant::now();
        self.latencies.record(now - self.sent_at);
        self.sent_at = now;
        if self.params().duration().is_some_and(|duration| self.started.is_some_and(|start| now - start >= duration)) {
            self.target = self.received;
        }
        Ok(self.received == self.target)
    }

    fn step_server(&mut self) -> Result<bool> {
        if self.sent == self.received {
            if self.sent == self.target {
                return Ok(true);
            }
            if !self.has_arrived()? {
                self.patience.empty_turn()?;
                return Ok(false);
            }
            self.patience.reset();
        }
        self.send()?;
        Ok(self.sent == self.target)
    }

    /// Posts the next message; false if the queue is full.
    fn send(&mut self) -> Result<bool> {
        if self.sent - self.completed >= u64::from(self.params().tx_depth) {
            self.take_completions()?;
            return Ok(false);
        }
        let number = self.sent + 1;
        let verb = self.params().test.verb;
        let is_inline = self.params().is_inline();
        if matches!(verb, Verb::Write | Verb::Send) {
            self.mark(number, is_inline)?;
        }
        let sges = &self.send_sges[0];
        let wr = match verb {
            Verb::Write => SendWr::write(number, sges, self.remote_addr, self.rkey),
            Verb::Send => SendWr::send(number, sges),
            Verb::Read => SendWr::read(number, sges, self.remote_addr, self.rkey),
            Verb::Atomic => SendWr::atomic_faa(number, sges, self.remote_addr, self.rkey, 1),
        };
        let wr = if is_inline { wr.inline(&self.payload) } else { wr };
        let wr = match &self.to {
            Some((ah, qpn)) => wr.to(ah, *qpn, QKEY),
            None => wr,
        };
        let answers_itself = matches!(verb, Verb::Read | Verb::Atomic);
        let cq_mod = u64::from(LATENCY_CQ_MOD.min(self.params().tx_depth));
        let wr = if answers_itself || number.is_multiple_of(cq_mod) { wr.signaled() } else { wr };
        self.side.lanes[0].qp.post_send(&wr)?;
        self.sent = number;
        Ok(true)
    }

    /// Numbers the message in its last byte.
    fn mark(&mut self, number: u64, is_inline: bool) -> Result<()> {
        let marker = [number as u8];
        if is_inline {
            if let Some(last) = self.payload.last_mut() {
                *last = marker[0];
            }
            return Ok(());
        }
        Ok(self.side.region.write(self.side.tx_marker_offset(), &marker)?)
    }

    /// Looks for the next message or answer.
    fn has_arrived(&mut self) -> Result<bool> {
        let next = self.received + 1;
        if self.params().test.verb != Verb::Write {
            self.take_completions()?;
            return Ok(self.received == next);
        }
        let mut last = [0];
        self.side.region.read(self.side.rx_marker_offset(), &mut last)?;
        if last[0] != next as u8 {
            self.side.context.make_progress();
            return Ok(false);
        }
        self.received = next;
        if next.is_multiple_of(u64::from(LATENCY_CQ_MOD)) {
            self.take_completions()?;
        }
        Ok(true)
    }

    fn take_completions(&mut self) -> Result<()> {
        let count = self.side.cq.poll(&mut self.completions);
        for index in 0..count {
            let completion = self.completions[index];
            if !completion.is_ok() {
                return Err(PerfError::Completion(completion));
            }
            if completion.is_recv() {
                self.received += 1;
                self.post_receive()?;
                continue;
            }
            self.completed = completion.wr_id;
            if matches!(self.params().test.verb, Verb::Read | Verb::Atomic) {
                self.received = completion.wr_id;
            }
        }
        Ok(())
    }

    fn post_receive(&self) -> Result<()> {
        Ok(self.side.lanes[0].qp.post_recv(&RecvWr::new(0, &self.receive_sges[0]))?)
    }

    /// True once the last message is answered. A server has no last one: it answers what comes.
    pub(crate) fn has_sent(&self) -> bool {
        self.side.role() == Role::Server || self.received == self.target
    }

    /// Messages sent; of no QP where the peer's engine answers for its side.
    pub(crate) fn sent(&self) -> Vec<u64> {
        let answers_itself = matches!(self.params().test.verb, Verb::Read | Verb::Atomic);
        if self.side.role() == Role::Server && answers_itself { Vec::new() } else { vec![self.sent] }
    }

    /// Messages received; of no QP where engines answer by themselves.
    pub(crate) fn received(&self) -> Vec<u64> {
        if self.params().test.verb == Verb::Send { vec![self.received] } else { Vec::new() }
    }

    /// The peer has sent so many messages, and sends no more.
    pub(crate) fn expect(&mut self, messages: &[u64]) {
        self.target = messages.first().copied().unwrap_or(self.target);
    }

    /// What this side has measured.
    pub(crate) fn round(self) -> Round {
        let seconds = self.started.map_or(0.0, |started| (self.sent_at - started).as_secs_f64());
        let per_s = self.received as f64 / seconds.max(1e-9);
        // As perftest: a message is one way, half of a round trip; READs and atomics are whole.
        let mut latencies = self.latencies;
        if matches!(self.side.params.test.verb, Verb::Write | Verb::Send) {
            latencies.halve();
        }
        Round { messages: self.received, lost: 0, seconds, peak_per_s: per_s, latencies }
    }
}
