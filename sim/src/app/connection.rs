//! A connection: two QPs, their life, and what is outstanding on them.

use std::collections::VecDeque;
use std::ops::Range;

use engine::Time;
use ferroce::{MemoryRegion, Psn, QueuePair, RemoteQp, SendWr, WcOpcode, WcStatus};
use rand::Rng;

use super::Conversation;
use super::client::{Client, Receives};
use super::memory::{Lane, Piece};
use super::plan::{ConversationSettings, Op};
use crate::inspect::{Progress, Requests};
use crate::random::Stream;
use crate::violation::{Checked, OrSay, require};

/// What is to be looked at when a work request has completed.
#[derive(Clone, Debug)]
pub(super) enum Landing {
    /// Nothing on this side.
    None,
    /// Bytes that a READ or atomic brought.
    Sink { pieces: Vec<Piece>, expected: Vec<u8> },
    /// What the shared word was before `add`.
    Shared { pieces: Vec<Piece>, add: u64 },
}

/// A send work request that has not completed.
#[derive(Clone, Debug)]
pub(super) struct PostedSend {
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) is_signaled: bool,
    pub(super) byte_len: u32,
    pub(super) landing: Landing,
    /// The sink range it lands in.
    pub(super) sink: Range<usize>,
    /// The range of the peer's target that a READ reads.
    pub(super) reads: Range<usize>,
    /// It is wrong on purpose.
    pub(super) must_fail: bool,
}

/// A message that will complete a receive.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) opcode: WcOpcode,
    pub(super) length: u32,
    pub(super) imm: Option<u32>,
    /// The region whose key it invalidates.
    pub(super) token: Option<MemoryRegion>,
    /// The payload, if it lands in the receive's buffer.
    pub(super) data: Option<Vec<u8>>,
}

/// One end of a connection.
pub(super) struct End {
    /// `None` once it is gone: destroyed, or its client is.
    pub(super) qp: Option<QueuePair>,
    pub(super) lane: Lane,
    pub(super) ops: VecDeque<Op>,
    /// Operations posted so far.
    pub(super) posted_ops: usize,
    pub(super) next_wr_id: u64,
    pub(super) outstanding: VecDeque<PostedSend>,
    /// Its own receive queue, unless it has an SRQ.
    pub(super) receives: Option<Receives>,
    /// What the peer has sent and this end has not received, oldest first.
    pub(super) incoming: VecDeque<Message>,
    /// How the first failed work request failed.
    pub(super) failed: Option<WcStatus>,
    /// The receive that failed, likewise.
    pub(super) recv_failed: Option<WcStatus>,
    /// How far its QP was when it was last looked at.
    pub(super) progress: Progress,
    /// What was posted since its QP was last connected.
    pub(super) sent: Requests,
    /// The last work request to be flushed is posted.
    is_marked: bool,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Connected.
    Up,
    /// Broken: both ends are in ERR, and being flushed.
    Failing,
    /// Flushed: old packets die out before the QPs are used again.
    Lingering { until: Time },
    /// Nothing more will happen on it.
    Closed,
}

pub(super) struct Connection {
    pub(super) ends: [End; 2],
    pub(super) phase: Phase,
    /// Its end was asked for, or caused on purpose, and it will not come back.
    pub(super) is_final: bool,
    /// Something was done to it that may break it.
    pub(super) is_disturbed: bool,
}

impl End {
    /// An end without a QP yet. `tag` is in the upper bits of its wr_ids.
    pub(super) fn new(settings: &ConversationSettings, lane: Lane, ops: &[Op], tag: u64) -> Self {
        let receives = (!settings.uses_srq).then(|| Receives::new(settings, lane.inbox.clone(), tag << 1 | 1));
        Self {
            qp: None,
            lane,
            ops: ops.iter().copied().collect(),
            posted_ops: 0,
            next_wr_id: (tag << 1) << 32,
            outstanding: VecDeque::new(),
            receives,
            incoming: VecDeque::new(),
            failed: None,
            recv_failed: None,
            progress: Progress::default(),
            sent: Requests::default(),
            is_marked: false,
        }
    }

    /// True if all that this end sends has completed and all that it is sent has come.
    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.outstanding.is_empty() && self.incoming.is_empty()
    }

    /// True if nothing of it waits for a completion. Receives of an SRQ are not the QP's.
    pub(super) fn is_drained(&self) -> bool {
        let receives = self.receives.as_ref().map_or(0, |receives| receives.posted.len());
        self.qp.is_none() || (self.is_marked && self.outstanding.is_empty() && receives == 0)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.failed.is_some() || self.recv_failed.is_some() || self.qp.as_ref().is_some_and(QueuePair::is_in_error)
    }

    /// True if work is posted whose completion will tell of the peer's end.
    fn waits_for_peer(&self) -> bool {
        self.qp.is_some() && self.outstanding.iter().any(|posted| posted.is_signaled)
    }

    /// Posts a work request to a QP in ERR, once there is room. It is flushed last: before it, work requests that made no
    /// completion are done, and will make none.
    fn post_marker(&mut self, most: usize) -> Checked {
        let Some(qp) = self.qp.as_ref().filter(|_| !self.is_marked && self.outstanding.len() < most) else {
            return Ok(());
        };
        qp.post_send(&SendWr::send(self.next_wr_id, &[]).signaled()).or_say("posting in ERR")?;
        self.is_marked = true;
        self.outstanding.push_back(PostedSend {
            wr_id: self.next_wr_id,
            opcode: WcOpcode::Send,
            is_signaled: true,
            byte_len: 0,
            landing: Landing::None,
            sink: 0..0,
            reads: 0..0,
            must_fail: false,
        });
        self.next_wr_id += 1;
        Ok(())
    }

    pub(super) fn to_error(&self) -> Checked {
        match &self.qp {
            Some(qp) => qp.to_error().or_say("moving a QP to ERR"),
            None => Ok(()),
        }
    }

    /// The QP is gone, and with it all that was posted.
    pub(super) fn vanish(&mut self) -> Option<QueuePair> {
        self.outstanding.clear();
        self.incoming.clear();
        self.ops.clear();
        self.receives = None;
        self.qp.take()
    }
}

/// The first PSN of a direction.
fn draw_psn(settings: &ConversationSettings, stream: &mut Stream) -> Psn {
    let wrap = Psn::MASK + 1;
    Psn::new(if settings.starts_near_wrap { wrap - stream.random_range(0..512) } else { stream.random_range(0..wrap) })
}

impl Connection {
    pub(super) fn new(ends: [End; 2]) -> Self {
        Self { ends, phase: Phase::Up, is_final: false, is_disturbed: false }
    }

    /// True if one of the QPs is in ERR, or had better be.
    pub(super) fn is_broken(&self) -> bool {
        self.ends.iter().any(End::is_broken)
    }

    /// Takes both QPs from RESET to RTS.
    pub(super) fn connect(
        &mut self,
        clients: &[Client; 2],
        settings: &ConversationSettings,
        stream: &mut Stream,
    ) -> Checked {
        let psns = [draw_psn(settings, stream), draw_psn(settings, stream)];
        let attr = &settings.attr;
        for side in [0, 1] {
            let (Some(qp), Some(peer)) = (&self.ends[side].qp, &self.ends[1 - side].qp) else { continue };
            let gids = clients[1 - side].context.query_gids(1).or_say("asking for the peer's GIDs")?;
            let entry = gids.iter().find(|entry| entry.index == u32::from(attr.sgid_index));
            let gid = entry.ok_or("the peer's port has no such GID")?.gid;
            let remote = RemoteQp { qpn: peer.qpn(), psn: psns[1 - side], gid, path_mtu: settings.path_mtu };
            qp.to_init(1, attr.access).or_say("to INIT")?;
            qp.to_rtr(&remote, attr).or_say("to RTR")?;
            qp.to_rts(psns[side], attr).or_say("to RTS")?;
        }
        self.phase = Phase::Up;
        Ok(())
    }
}

impl Conversation {
    /// Goes on in the connection's life as far as it can now. True if it changed: the peer should know.
    pub(super) fn advance(&mut self, index: usize, now: Time) -> Checked<bool> {
        let most = self.settings.cap.max_send_wr as usize;
        let connection = &mut self.connections[index];
        match connection.phase {
            Phase::Up => {
                if !connection.is_final && !connection.is_broken() {
                    return Ok(false);
                }
                // Who has lost its peer finds out by itself, if it has anything to find out with.
                if connection.ends.iter().any(|end| end.waits_for_peer() && !end.is_broken()) {
                    return Ok(false);
                }
                for end in &mut connection.ends {
                    end.to_error()?;
                    end.is_marked = false;
                    end.post_marker(most)?;
                }
                connection.phase = Phase::Failing;
                Ok(true)
            }
            Phase::Failing => {
                for end in &mut connection.ends {
                    end.post_marker(most)?;
                }
                if connection.ends.iter().all(End::is_drained) { self.end_failing(index, now) } else { Ok(false) }
            }
            Phase::Lingering { .. } if connection.is_final => {
                self.close(index);
                Ok(true)
            }
            Phase::Lingering { until } if until <= now => {
                self.reconnect(index, now)?;
                Ok(true)
            }
            Phase::Lingering { .. } | Phase::Closed => Ok(false),
        }
    }

    fn end_failing(&mut self, index: usize, now: Time) -> Checked<bool> {
        let connection = &mut self.connections[index];
        let told = connection.ends.iter().any(|end| end.failed.is_some_and(|status| status != WcStatus::WrFlushErr));
        require!(told || connection.is_disturbed || self.is_closing, "the QPs went to ERR, and no completion says why");
        if connection.is_final {
            self.close(index);
        } else {
            connection.phase = Phase::Lingering { until: now.add_ns(self.linger_ns) };
        }
        Ok(true)
    }

    /// Nothing more will happen on a connection. Unless it was idle before, nobody knows what has arrived.
    fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.phase = Phase::Closed;
        if !self.is_closing {
            for (client, end) in self.clients.iter_mut().zip(&connection.ends) {
                client.memory.forget(end.lane.range.clone());
            }
        }
    }

    /// Brings a broken connection up again, with new memory contents: nobody knows what has arrived.
    fn reconnect(&mut self, index: usize, now: Time) -> Checked {
        self.check_frozen()?;
        let Self { clients, connections, settings, stream, .. } = self;
        let connection = &mut connections[index];
        for (client, end) in clients.iter_mut().zip(&mut connection.ends) {
            if let Some(qp) = &end.qp {
                qp.reset().or_say("to RESET")?;
            }
            end.failed = None;
            end.recv_failed = None;
            end.incoming.clear();
            end.progress = Progress::default();
            end.sent = Requests::default();
            if let Some(receives) = &mut end.receives {
                receives.clear(now);
            }
            client.memory.refill(&end.lane.range, stream)?;
            if end.lane.region.is_none() {
                end.lane.region = Some(client.memory.register(&client.pd, &end.lane.range)?);
            }
        }
        connection.connect(clients, settings, stream)?;
        connection.is_disturbed = false;
        self.reconnect_count += 1;
        Ok(())
    }
}
