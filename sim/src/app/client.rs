//! One application: a session with its host, its queues, its memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use engine::Time;
use ferroce::{
    AsyncEvent, CompletionChannel, CompletionQueue, Context, CqInit, MemoryRegion, ProtectionDomain, QpInit, QpType,
    QueuePair, RecvWr, SharedReceiveQueue, SrqAttr, WorkCompletion,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rand::Rng;

use super::memory::{Lane, Layout, Memory, Piece, scatter};
use super::plan::ConversationSettings;
use crate::host::Host;
use crate::random::Stream;
use crate::violation::{Checked, OrSay, require};

/// A receive that was posted.
#[derive(Clone, Debug)]
pub(super) struct PostedRecv {
    pub(super) wr_id: u64,
    pub(super) slot: usize,
    pub(super) pieces: Vec<Piece>,
}

/// A receive queue's buffers: posted ones, and ones that wait to be posted.
#[derive(Debug)]
pub(super) struct Receives {
    inbox: Range<usize>,
    slot_bytes: usize,
    pub(super) posted: VecDeque<PostedRecv>,
    /// Slots to be posted, and when.
    due: VecDeque<(Time, usize)>,
    next_wr_id: u64,
    max_sge: usize,
    delay_ns: u64,
}

impl Receives {
    /// `tag` is in the upper bits of every wr_id.
    pub(super) fn new(settings: &ConversationSettings, inbox: Range<usize>, tag: u64) -> Self {
        let slot_bytes = settings.send_bytes_max as usize;
        let slots = settings.cap.max_recv_wr as usize;
        assert_eq!(inbox.len(), slots * slot_bytes, "an inbox has a buffer for each receive");
        Self {
            inbox,
            slot_bytes,
            posted: VecDeque::new(),
            due: (0..slots).map(|slot| (Time::ZERO, slot)).collect(),
            next_wr_id: tag << 32,
            max_sge: settings.cap.max_recv_sge as usize,
            delay_ns: settings.recv_delay_ns,
        }
    }

    /// The buffers of all receives.
    pub(super) fn range(&self) -> Range<usize> {
        self.inbox.clone()
    }

    /// When the next receive is to be posted.
    pub(super) fn next_at(&self) -> Option<Time> {
        self.due.front().map(|&(at, _)| at)
    }

    /// A slot is free again; it will be posted later.
    pub(super) fn free(&mut self, slot: usize, now: Time, stream: &mut Stream) {
        let delay = if self.delay_ns == 0 { 0 } else { stream.random_range(0..=self.delay_ns) };
        let at = now.add_ns(delay).max(self.due.back().map_or(Time::ZERO, |&(at, _)| at));
        self.due.push_back((at, slot));
    }

    /// All slots are free, none is posted: after a reset.
    pub(super) fn clear(&mut self, now: Time) {
        let posted: Vec<usize> = self.posted.drain(..).map(|recv| recv.slot).collect();
        self.due.extend(posted.into_iter().map(|slot| (now, slot)));
    }

    /// Posts what is due.
    fn post_due(&mut self, now: Time, stream: &mut Stream, mut post: impl FnMut(u64, &[Piece]) -> Checked) -> Checked {
        while self.due.front().is_some_and(|&(at, _)| at <= now) {
            let Some((_, slot)) = self.due.pop_front() else { break };
            let start = self.inbox.start + slot * self.slot_bytes;
            let count = stream.random_range(1..=self.max_sge);
            let pieces = scatter(stream, start..start + self.slot_bytes, count);
            let wr_id = self.next_wr_id;
            self.next_wr_id += 1;
            post(wr_id, &pieces)?;
            self.posted.push_back(PostedRecv { wr_id, slot, pieces });
        }
        Ok(())
    }
}

/// A shared receive queue and its region.
pub(super) struct SharedReceives {
    pub(super) queue: SharedReceiveQueue,
    region: MemoryRegion,
    pub(super) receives: Receives,
}

/// An application.
pub(super) struct Client {
    // Objects before the context they belong to is of no matter: each keeps alive what it needs.
    pub(super) send_cq: CompletionQueue,
    pub(super) recv_cq: CompletionQueue,
    pub(super) channel: Option<CompletionChannel>,
    pub(super) shared: Option<SharedReceives>,
    pub(super) pd: ProtectionDomain,
    pub(super) memory: Memory,
    /// The word that all connections add to, and its region.
    pub(super) counter: (Piece, MemoryRegion),
    /// Where keys for SENDs with invalidate point.
    pub(super) token_range: Range<usize>,
    /// The last region that lost its key to such a SEND.
    pub(super) spent: Option<MemoryRegion>,
    /// Receives wake it only if they are solicited.
    is_solicited_only: bool,
    pub(super) context: Context,
    pub(super) host: Host,
    events_seen: u64,
    /// It sleeps until its channel wakes it.
    pub(super) sleeps: bool,
}

/// Bytes of the region that SENDs invalidate.
const TOKEN_BYTES: usize = 64;

impl Client {
    /// An application on a host, and the lanes of its connections. `number` tells it from all others.
    pub(super) fn new(
        host: &Host,
        settings: &ConversationSettings,
        number: u64,
        stream: &mut Stream,
    ) -> Checked<(Self, Vec<Lane>)> {
        let context = Context::from_endpoint(host.connect()?).or_say("opening a session")?;
        let pd = context.alloc_pd().or_say("making a domain")?;
        let channel = settings.uses_channel.then(|| context.create_channel()).transpose().or_say("making a channel")?;
        let cqe = (settings.cap.max_send_wr + settings.cap.max_recv_wr) * settings.ops.len() as u32;
        let init = CqInit { cqe, channel: channel.as_ref(), comp_vector: None };
        let send_cq = context.create_cq(&init).or_say("making a CQ")?;
        let recv_cq = if settings.uses_one_cq {
            send_cq.clone()
        } else {
            context.create_cq(&init).or_say("making a second CQ")?
        };
        let inbox_bytes = (settings.cap.max_recv_wr * settings.send_bytes_max) as usize;
        let mut layout = Layout::new();
        let counter_range = layout.add(8);
        let token_range = layout.add(TOKEN_BYTES);
        let shared_range = layout.add(if settings.uses_srq { inbox_bytes } else { 0 });
        let lane_inbox_bytes = if settings.uses_srq { 0 } else { inbox_bytes };
        // An incident may send one more byte than a receive takes.
        let message_bytes = settings.message_bytes_max.max(settings.send_bytes_max) as usize + 1;
        let lane = |_| Lane::new(&mut layout, message_bytes, lane_inbox_bytes);
        let mut lanes: Vec<Lane> = settings.ops.iter().map(lane).collect();
        let base = if stream.random_ratio(1, 4) { u64::MAX } else { number << 32 };
        let memory = Memory::new(&context, &layout, base, stream)?;
        for lane in &mut lanes {
            lane.region = Some(memory.register(&pd, &lane.range)?);
        }
        let word = Piece { at: counter_range.start, length: 8 };
        let counter = (word, memory.register(&pd, &counter_range)?);
        let shared = if settings.uses_srq {
            let attr = SrqAttr { max_wr: settings.cap.max_recv_wr, max_sge: settings.cap.max_recv_sge, srq_limit: 0 };
            let queue = pd.create_srq(Some(&recv_cq), attr).or_say("making an SRQ")?;
            let region = memory.register(&pd, &shared_range)?;
            let receives = Receives::new(settings, shared_range, number << 8 | 0xff);
            Some(SharedReceives { queue, region, receives })
        } else {
            None
        };
        let client = Self {
            send_cq,
            recv_cq,
            channel,
            shared,
            pd,
            memory,
            counter,
            token_range,
            spent: None,
            is_solicited_only: settings.wakes_on_solicited(),
            context,
            host: host.clone(),
            events_seen: 0,
            sleeps: false,
        };
        Ok((client, lanes))
    }

    /// Makes a QP with the conversation's sizes.
    pub(super) fn create_qp(&self, settings: &ConversationSettings) -> Checked<QueuePair> {
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: &self.send_cq,
            recv_cq: &self.recv_cq,
            srq: self.shared.as_ref().map(|shared| &shared.queue),
            cap: settings.cap,
            sq_sig_all: settings.sq_sig_all,
        };
        self.pd.create_qp(&init).or_say("making a QP")
    }

    /// Takes completions from both CQs, some at a time, until there are none.
    pub(super) fn poll(&self) -> Vec<WorkCompletion> {
        let mut found = Vec::new();
        let mut batch = [WorkCompletion::default(); 8];
        for cq in [&self.send_cq, &self.recv_cq] {
            loop {
                let count = cq.poll(&mut batch);
                if count == 0 {
                    break;
                }
                found.extend_from_slice(&batch[..count]);
            }
        }
        found
    }

    /// Takes the asynchronous events that the host has sent. Each must be there.
    pub(super) fn events(&mut self) -> Checked<Vec<AsyncEvent>> {
        let sent = self.host.event_count(self.context.session());
        let mut events = Vec::new();
        while self.events_seen < sent {
            let event = self.context.get_async_event(Some(Duration::ZERO)).or_say("asking for an event")?;
            require!(event.is_some(), "the host sent {sent} events, {} came", self.events_seen);
            events.extend(event);
            self.events_seen += 1;
        }
        Ok(events)
    }

    /// True if a sleeping application has been woken: its channel's descriptor is readable, as `poll(2)` would tell it.
    pub(super) fn take_wake(&mut self) -> Checked<bool> {
        let Some(channel) = self.channel.as_ref().filter(|_| self.sleeps) else { return Ok(false) };
        let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::ZERO).or_say("polling the channel")? == 0 {
            return Ok(false);
        }
        while channel.try_get().or_say("looking at the channel")?.is_some() {
            self.sleeps = false;
        }
        require!(!self.sleeps, "the channel's descriptor is readable, but no CQ has a notification");
        Ok(true)
    }

    /// Asks both CQs to ring the channel.
    pub(super) fn arm(&self) {
        self.send_cq.req_notify(false);
        self.recv_cq.req_notify(self.is_solicited_only);
    }

    /// Posts what is due to the SRQ.
    pub(super) fn post_shared(&mut self, now: Time, stream: &mut Stream) -> Checked {
        let Self { shared, memory, .. } = self;
        let Some(SharedReceives { queue, region, receives }) = shared else { return Ok(()) };
        receives.post_due(now, stream, |wr_id, pieces| {
            let sges = memory.sges(pieces, region.lkey());
            queue.post_recv(&RecvWr::new(wr_id, &sges)).or_say("posting a receive to the SRQ")
        })
    }

    /// Posts what is due to a QP.
    pub(super) fn post_receives(
        &self,
        qp: &QueuePair,
        lkey: u32,
        receives: &mut Receives,
        now: Time,
        stream: &mut Stream,
    ) -> Checked {
        receives.post_due(now, stream, |wr_id, pieces| {
            let sges = self.memory.sges(pieces, lkey);
            qp.post_recv(&RecvWr::new(wr_id, &sges)).or_say("posting a receive")
        })
    }
}
