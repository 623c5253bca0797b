//! What all QPs of a shard share, apart from the QPs themselves, so that one QP and its surroundings can be borrowed at once.

use std::collections::VecDeque;
use std::sync::Arc;

use shm::control::AsyncEvent;
use shm::layout::{Cqe, Sge};
use shm::ring::BadIndex;
use wire::Frame;
use wire::buf::Dest;

use crate::QPN_INDEX_MASK;
use crate::ah::AhTable;
use crate::cc::Profile;
use crate::config::{PortConfig, RecoveryConfig, TransportConfig};
use crate::counters::{PortCounters, ShardCounters};
use crate::cq::{CqTable, Pushed};
use crate::events::EventQueue;
use crate::mcast::McastTable;
use crate::mr::MrTable;
use crate::neigh::{NeighPacket, NeighTable};
use crate::post_mortem::BreakQueue;
use crate::qos::{Lane, PortQos};
use crate::qp::keep::{KeepPool, Origin};
use crate::ready::{Output, ReadyQueues};
use crate::srq::{Srq, SrqRecv, XrcPlace};
use crate::time::Time;
use crate::timer::TimerWheel;

/// A port as one shard knows it.
#[derive(Debug)]
pub(crate) struct PortState {
    pub(crate) config: PortConfig,
    pub(crate) neighbours: NeighTable,
    pub(crate) counters: PortCounters,
    pub(crate) ready: ReadyQueues,
    pub(crate) qos: PortQos,
    /// Congestion control of the QPs that have no settings of their own.
    pub(crate) congestion: Arc<Profile>,
    /// Answers to neighbours that wait for room.
    pub(crate) neigh_replies: VecDeque<NeighPacket>,
}

/// The surroundings of a QP.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) now: Time,
    pub(crate) transport: TransportConfig,
    pub(crate) recovery: RecoveryConfig,
    /// Packets that came early, of all QPs.
    pub(crate) keep: KeepPool,
    pub(crate) mrs: MrTable,
    pub(crate) ahs: AhTable,
    pub(crate) mcast: McastTable,
    pub(crate) cqs: CqTable,
    pub(crate) srqs: Vec<Option<Box<Srq>>>,
    pub(crate) ports: Vec<PortState>,
    pub(crate) timers: TimerWheel,
    /// When QPs with a rate may send again.
    pub(crate) pacing: TimerWheel,
    pub(crate) events: EventQueue,
    pub(crate) counters: ShardCounters,
    /// QPs that broke by themselves.
    pub(crate) breaks: BreakQueue,
    /// CQs that have just overrun: the QPs on them go to ERR.
    pub(crate) overrun_cqs: Vec<u32>,
}

impl Env {
    /// Puts a QP in one of its port's queues, in its lane.
    #[inline]
    pub(crate) fn schedule(&mut self, port: u8, output: Output, lane: Lane, index: u32, scheduled: &mut u8) {
        if let Some(port) = self.ports.get_mut(usize::from(port)) {
            port.ready.schedule(output, lane, index, scheduled);
        }
    }

    #[inline]
    pub(crate) fn count_transmit(&mut self, port: u8, dest: Dest, frame_bytes: usize) {
        if let Some(port) = self.ports.get_mut(usize::from(port)) {
            if dest == Dest::Wire {
                port.counters.tx_roce_packets += 1;
                port.counters.tx_roce_bytes += frame_bytes as u64;
            } else {
                port.counters.local_packets += 1;
            }
        }
    }

    /// Where a frame came in.
    pub(crate) fn origin(&self, port: u8, frame: &Frame<'_>) -> Origin {
        let priority = self.ports.get(usize::from(port)).map_or(0, |port| port.qos.map().of_frame(frame));
        Origin { port, priority: priority as u8 }
    }

    /// Writes a completion. If the CQ overruns, its owner is told and the QPs on it break.
    #[inline]
    pub(crate) fn push_completion(&mut self, cq: u32, cqe: &Cqe, solicited: bool) {
        match self.cqs.push(cq, cqe, solicited) {
            Pushed::Done => {}
            Pushed::Lost => self.counters.cq_overrun += 1,
            Pushed::Overrun { session, handle } => {
                self.counters.cq_overrun += 1;
                self.push_event(session, AsyncEvent::CqErr { cq: handle });
                self.overrun_cqs.push(cq);
            }
        }
    }

    #[cold]
    pub(crate) fn push_event(&mut self, session: u32, event: AsyncEvent) {
        if !self.events.push(session, event) {
            self.counters.events_lost += 1;
        }
    }

    /// The CQ has overrun: the SRQs of XRC whose receives complete there give none any more.
    #[cold]
    pub(crate) fn break_srqs_of(&mut self, cq: u32) {
        let Self { srqs, events, counters, .. } = self;
        for srq in srqs.iter_mut().flatten().filter(|srq| srq.xrc.is_some_and(|xrc| xrc.cq == cq)) {
            srq.broken = true;
            if !events.push(srq.session, AsyncEvent::SrqErr { srq: srq.handle }) {
                counters.events_lost += 1;
            }
        }
    }

    /// The SRQ of XRC with this number.
    #[inline]
    pub(crate) fn xrc_srq(&self, srqn: u32) -> Option<(&Srq, XrcPlace)> {
        let srq = self.srqs.get((srqn & QPN_INDEX_MASK) as usize)?.as_deref()?;
        let place = srq.xrc.filter(|place| place.srqn == srqn)?;
        Some((srq, place))
    }

    /// Takes a receive from an SRQ: `None` if there is none.
    pub(crate) fn take_srq(&mut self, srq: u32, sges: &mut [Sge]) -> Result<Option<SrqRecv>, BadIndex> {
        let Some(Some(srq)) = self.srqs.get_mut(srq as usize) else { return Ok(None) };
        let (session, handle) = (srq.session, srq.handle);
        match srq.take(sges) {
            Ok(None) => Ok(None),
            Ok(Some(recv)) => {
                if recv.limit_reached {
                    self.push_event(session, AsyncEvent::SrqLimitReached { srq: handle });
                }
                Ok(Some(recv))
            }
            Err(bad) => {
                self.counters.bad_ring_index += 1;
                self.push_event(session, AsyncEvent::SrqErr { srq: handle });
                Err(bad)
            }
        }
    }
}
