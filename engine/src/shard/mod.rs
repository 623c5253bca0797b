//! One lcore's part of the engine: its QPs, CQs, timers and its queue pair of each port.
//!
//! Sans-IO: frames, doorbells, time and commands go in by `handle_*` and [`Shard::command`]; frames, wakes and events come
//! out by `poll_*`. One turn of the owner's loop:
//!
//! ```text
//! for each port   receive a burst; handle_frame for each, and on every shard for [`is_for_all_shards`];
//!                 handle_backlog, if it wants_backlog
//!                 handle_doorbells, handle_timers
//! for each port   poll_transmit into a batch; send it
//!                 poll_wake, poll_event, poll_notice until they are empty
//! ```
//!
//! After the objects are made, none of these allocates, locks, formats or calls the system.

mod commands;
mod env;
mod gsi;
mod neighbours;
mod pauses;
mod receive;
mod transmit;

use shm::attr::QpType;
use std::collections::VecDeque;
use std::sync::Arc;

use shm::doorbell::DoorbellPage;
use shm::wake::Notifier;

use crate::ah::AhTable;
use crate::cc::Profile;
use crate::config::EngineConfig;
use crate::counters::{PortCounters, ShardCounters};
use crate::cq::CqTable;
use crate::events::{Event, EventQueue};
use crate::mcast::McastTable;
use crate::mr::MrTable;
use crate::neigh::NeighTable;
use crate::post_mortem::BreakQueue;
use crate::qos::PortQos;
use crate::qp::Qp;
use crate::qp::keep::KeepPool;
use crate::ready::{Output, ReadyQueues};
use crate::time::Time;
use crate::timer::TimerWheel;
pub(crate) use env::{Env, PortState};
use gsi::Gsi;
pub use pauses::is_for_all_shards;

/// Asynchronous events that a shard holds until its owner takes them.
const EVENT_CAPACITY: usize = 4096;

/// Answers to neighbours that wait for room; more are dropped, and asked for again.
const NEIGH_REPLIES_MAX: usize = 32;

/// QPs that are looked at in one turn for the sake of post-mortems, however many broke in it.
const PEER_LOOKS_MAX: usize = 4096;

/// A client's doorbells on this shard.
#[derive(Debug)]
struct SessionDoorbells {
    session: u32,
    page: DoorbellPage,
    /// Doorbell index to QP index.
    qps: Vec<u32>,
}

/// One lcore's part of the engine.
#[derive(Debug)]
pub struct Shard {
    id: u8,
    config: Arc<EngineConfig>,
    qps: Vec<Option<Box<Qp>>>,
    sessions: Vec<SessionDoorbells>,
    env: Env,
    gsi: Gsi,
}

impl Shard {
    /// A shard without QPs at time `now`.
    pub fn new(id: u8, config: Arc<EngineConfig>, now: Time) -> Self {
        let ports = config.ports.iter().map(|port| PortState {
            config: port.clone(),
            neighbours: NeighTable::new(config.limits.max_neighbour as usize),
            counters: PortCounters::default(),
            ready: ReadyQueues::default(),
            qos: PortQos::new(&config.qos, id, config.shard_count),
            congestion: Arc::new(Profile::new(config.congestion, port.speed_mbps)),
            neigh_replies: VecDeque::with_capacity(NEIGH_REPLIES_MAX),
        });
        let env = Env {
            now,
            transport: config.transport,
            recovery: config.recovery,
            keep: KeepPool::new(config.recovery.kept_packets, config.ports.len()),
            mrs: MrTable::new(config.limits.max_mr),
            ahs: AhTable::default(),
            mcast: McastTable::default(),
            cqs: CqTable::default(),
            srqs: Vec::new(),
            ports: ports.collect(),
            timers: TimerWheel::new(now),
            pacing: TimerWheel::new(now),
            events: EventQueue::new(EVENT_CAPACITY),
            breaks: BreakQueue::new(config.limits.max_post_mortem as usize),
            counters: ShardCounters::default(),
            overrun_cqs: Vec::with_capacity(64),
        };
        let gsi = Gsi::new(id, config.ports.len());
        Self { id, config, qps: Vec::new(), sessions: Vec::new(), env, gsi }
    }

    /// Its number.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// Serves doorbells of all sessions, a bounded number of words. True if any was set.
    #[inline]
    pub fn handle_doorbells(&mut self, now: Time) -> bool {
        self.env.now = now;
        let mut budget = self.env.transport.doorbell_words;
        let mut found = false;
        for i in 0..self.sessions.len() {
            for word in 0..DoorbellPage::SUMMARY_WORDS {
                let summary = self.sessions[i].page.take_summary(word);
                if summary != 0 {
                    found = true;
                    self.serve_summary(i, word, summary, &mut budget);
                }
            }
        }
        if found && self.sessions.len() > 1 {
            // Whoever was served first is served last in the next turn.
            self.sessions.rotate_left(1);
        }
        found
    }

    fn serve_summary(&mut self, session: usize, summary_word: u32, mut summary: u64, budget: &mut u32) {
        while summary != 0 {
            let word = summary_word * 64 + summary.trailing_zeros();
            summary &= summary - 1;
            if *budget == 0 {
                self.sessions[session].page.put_back(word, 0);
                continue;
            }
            *budget -= 1;
            let mut bits = self.sessions[session].page.take_word(word);
            while bits != 0 {
                let doorbell = word * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                self.env.counters.doorbells += 1;
                // A bit that belongs to no QP is a client's mistake, and harms nobody.
                let Some(&index) = self.sessions[session].qps.get(doorbell as usize) else { continue };
                if let Some(Some(qp)) = self.qps.get_mut(index as usize) {
                    qp.handle_doorbell(&mut self.env);
                }
            }
        }
    }

    /// Fires what is due. True if anything was.
    #[inline]
    pub fn handle_timers(&mut self, now: Time) -> bool {
        self.env.now = now;
        let mut fired = false;
        while let Some((index, _)) = self.env.timers.pop_expired(now) {
            fired = true;
            if let Some(Some(qp)) = self.qps.get_mut(index as usize) {
                qp.handle_timer(&mut self.env);
            }
        }
        while let Some((index, _)) = self.env.pacing.pop_expired(now) {
            fired = true;
            if let Some(Some(qp)) = self.qps.get_mut(index as usize) {
                qp.handle_pacing(&mut self.env);
            }
        }
        fired
    }

    /// When [`Shard::handle_timers`], a neighbour's request or the end of a pause is due next; [`Time::NEVER`] if nothing is.
    pub fn next_deadline(&self) -> Time {
        let wheels = [&self.env.timers, &self.env.pacing].map(|wheel| wheel.next_deadline().unwrap_or(Time::NEVER));
        let timers = wheels[0].min(wheels[1]);
        self.env.ports.iter().fold(timers, |earliest, port| earliest.min(port.next_deadline()))
    }

    /// Timers that are set: none without QPs. For checks; looks at every timer.
    pub fn timer_count(&self) -> usize {
        [&self.env.timers, &self.env.pacing].map(TimerWheel::scheduled_count).into_iter().sum()
    }

    /// Completes work requests of QPs in ERR, a bounded number in a turn.
    #[inline]
    fn flush_some(&mut self, port: u8) {
        while let Some(state) = self.env.ports.get_mut(usize::from(port))
            && let Some(lane) = state.ready.flush_lane()
        {
            let Some((index, _)) = state.ready.pop(Output::Flush, lane) else { return };
            let Some(Some(qp)) = self.qps.get_mut(index as usize) else { continue };
            qp.scheduled &= !(Output::Flush as u8);
            if qp.flush(&mut self.env, self.config.transport.flush_wqes) {
                self.env.schedule(port, Output::Flush, qp.lane, index, &mut qp.scheduled);
                return;
            }
        }
    }

    /// QPs whose CQ has overrun can't report any more: they break. IBTA 11.6.3.2. Of XRC it is the SRQ that does: QPs of the
    /// domain have others to serve.
    #[inline]
    fn break_overrun_cqs(&mut self) {
        while let Some(cq) = self.env.overrun_cqs.pop() {
            self.env.break_srqs_of(cq);
            let reports_there =
                |qp: &&mut Box<Qp>| qp.kind != QpType::XrcRecv && (qp.send_cq == cq || qp.recv_cq == cq);
            for qp in self.qps.iter_mut().flatten().filter(reports_there) {
                qp.break_for_cq(&mut self.env);
            }
        }
    }

    /// Adds to the records of QPs that have just broken whether their peers still talk to others here.
    #[cold]
    fn complete_breaks(&mut self) {
        let Self { qps, env, .. } = self;
        let mut looks = PEER_LOOKS_MAX;
        env.breaks.complete(|record| {
            let Some(peer) = record.path.map(|path| path.dst_ip) else { return };
            let others = qps.iter().flatten().filter(|qp| qp.qpn().value() != record.qpn).take(looks);
            let mut seen = 0;
            let heard = others.inspect(|_| seen += 1).filter_map(|qp| qp.heard_from(peer)).max();
            looks -= seen;
            record.others_heard = heard.unwrap_or(Time::NEVER);
        });
    }

    /// A channel to notify: a CQ has completions that its client asked to be told of. Call until `None`, once a turn.
    #[inline]
    pub fn poll_wake(&mut self) -> Option<Arc<Notifier>> {
        self.env.cqs.poll_wake()
    }

    /// An asynchronous event for a client. Call until `None`.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.env.events.pop()
    }

    /// True if [`Shard::poll_event`] has something.
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.env.events.is_empty()
    }

    /// Tells all clients that the shard is about to sleep. True if work has come meanwhile: then it must not.
    pub fn announce_sleep(&self) -> bool {
        let mut work = false;
        for session in &self.sessions {
            // Every one of them must know, so no short cut.
            work |= session.page.announce_sleep();
        }
        work
    }

    /// Tells all clients that the shard is awake.
    pub fn announce_awake(&self) {
        for session in &self.sessions {
            session.page.announce_awake();
        }
    }

    /// Counts a turn of the owner's loop.
    #[inline]
    pub fn count_turn(&mut self, idle: bool) {
        self.env.counters.turns += 1;
        self.env.counters.idle_turns += u64::from(idle);
    }

    /// The shard's counters.
    pub fn counters(&self) -> ShardCounters {
        let process = self.env.mrs.process_tally();
        ShardCounters {
            process_memory_reads: process.reads,
            process_memory_writes: process.writes,
            process_memory_faults: process.faults,
            process_memory_mapped: process.mapped,
            ..self.env.counters
        }
    }

    /// What this shard saw of a port.
    pub fn port_counters(&self, port: u8) -> Option<&PortCounters> {
        self.env.ports.get(usize::from(port)).map(|p| &p.counters)
    }
}
