//! What goes wrong on purpose. The connection, or the client, that is hit fails; nobody else notices.

use ferroce::{SendWr, Sge, WcOpcode};
use rand::{Rng, RngCore};

use super::Conversation;
use super::connection::{Landing, Phase, PostedSend};
use super::memory::{Piece, compare};
use super::plan::{Incident, IncidentKind};
use super::post::ends;
use crate::violation::{Checked, OrSay};

/// Most random bytes that are written to one place of a ring in one go.
const GARBAGE_BYTES_MAX: usize = 256;
/// Writes of random bytes in a step, and steps with such writes.
const GARBAGE_WRITES: usize = 16;
const GARBAGE_STEPS: u32 = 24;

impl Conversation {
    /// Lets the conversation's incident happen if it is time. True if it changed anything.
    pub(super) fn meet_incident(&mut self, side: usize) -> Checked<bool> {
        let Some(Incident { kind, side: wanted, after_ops }) = self.settings.incident else { return Ok(false) };
        let end = &self.connections[0].ends[side];
        let is_up = self.connections[0].phase == Phase::Up && !self.connections[0].is_broken();
        if wanted != side || end.posted_ops < after_ops || self.incident_met || !is_up {
            return Ok(false);
        }
        if matches!(
            kind,
            IncidentKind::BadRkey | IncidentKind::OutOfRange | IncidentKind::TooLong | IncidentKind::BadLkey
        ) && end.outstanding.len() >= self.settings.cap.max_send_wr as usize
        {
            return Ok(false);
        }
        self.incident_met = true;
        self.connections[0].is_disturbed = true;
        match kind {
            IncidentKind::BadRkey | IncidentKind::OutOfRange => self.post_bad_access(side, kind)?,
            IncidentKind::TooLong => {
                let length = self.settings.send_bytes_max as usize + 1;
                self.post_bad_send(side, length, self.connections[0].ends[side].lane.key())?;
            }
            IncidentKind::BadLkey => self.post_bad_send(side, 1, 0x0bad_0bad)?,
            IncidentKind::Dereg => self.dereg(side)?,
            IncidentKind::DestroyQp => {
                let client = &mut self.clients[side];
                let end = &mut self.connections[0].ends[side];
                end.vanish().ok_or("the QP is gone already")?.destroy().or_say("destroying a QP")?;
                client.memory.forget(end.lane.range.clone());
                if let Some(shared) = &client.shared {
                    // A receive that it had taken vanished with it.
                    client.memory.forget(shared.receives.range());
                }
                self.connections[0].ends[1 - side].ops.clear();
                self.connections[0].is_final = true;
                self.is_counter_unknown = [true; 2];
            }
            IncidentKind::Kill => self.kill(side)?,
            IncidentKind::Garbage => {
                self.abandon();
                self.garbage_left = GARBAGE_STEPS;
            }
        }
        Ok(true)
    }

    /// A WRITE, READ or atomic that the peer must refuse.
    fn post_bad_access(&mut self, side: usize, kind: IncidentKind) -> Checked {
        let [client, peer_client] = ends(&mut self.clients, side);
        let [end, peer] = ends(&mut self.connections[0].ends, side);
        let key = peer.lane.key();
        let (rkey, addr) = match kind {
            // The last bytes lie in the guard zone.
            IncidentKind::OutOfRange => (key, peer_client.memory.addr(peer.lane.range.end) - 4),
            _ => match peer_client.spent.as_ref().filter(|_| self.stream.random()) {
                // Here was a key once, until the peer got a SEND that took it away.
                Some(spent) => (spent.rkey(), spent.addr()),
                None => (key ^ 1 << self.stream.random_range(0..32), peer_client.memory.addr(peer.lane.target.start)),
            },
        };
        let piece = Piece { at: end.lane.sink.start, length: 8 };
        let sges = client.memory.sges(&[piece], end.lane.key());
        let wr_id = end.next_wr_id;
        let (wr, opcode) = if self.stream.random() {
            (SendWr::read(wr_id, &sges, addr, rkey), WcOpcode::RdmaRead)
        } else {
            (SendWr::write(wr_id, &sges, addr, rkey), WcOpcode::RdmaWrite)
        };
        self.post_bad(side, &wr.signaled(), opcode)
    }

    /// A SEND that fails: it is longer than the receive, or its SGE is wrong.
    fn post_bad_send(&mut self, side: usize, length: usize, lkey: u32) -> Checked {
        let end = &self.connections[0].ends[side];
        let piece = Piece { at: end.lane.source.start, length };
        let sges: Vec<Sge> = self.clients[side].memory.sges(&[piece], lkey);
        let wr = SendWr::send(end.next_wr_id, &sges).signaled();
        self.post_bad(side, &wr, WcOpcode::Send)
    }

    fn post_bad(&mut self, side: usize, wr: &SendWr<'_>, opcode: WcOpcode) -> Checked {
        let end = &mut self.connections[0].ends[side];
        end.qp.as_ref().ok_or("posting to a QP that is gone")?.post_send(wr).or_say("posting")?;
        end.outstanding.push_back(PostedSend {
            wr_id: wr.wr_id(),
            opcode,
            is_signaled: true,
            byte_len: 0,
            landing: Landing::None,
            sink: 0..0,
            reads: 0..0,
            must_fail: true,
        });
        end.next_wr_id += 1;
        Ok(())
    }

    /// Deregisters a side's region. From now on nobody may change its bytes, whatever is on the way.
    fn dereg(&mut self, side: usize) -> Checked {
        let memory = &self.clients[side].memory;
        let lane = &mut self.connections[0].ends[side].lane;
        let region = lane.region.take().ok_or("the region is gone already")?;
        region.dereg().or_say("deregistering")?;
        self.frozen = Some((side, lane.range.clone(), memory.real(&[whole(&lane.range)])?));
        Ok(())
    }

    /// The side's client dies: the engine must let go of all of its memory at once.
    fn kill(&mut self, side: usize) -> Checked {
        let client = &mut self.clients[side];
        client.host.kill(client.context.session());
        let all = client.memory.all();
        self.frozen = Some((side, all.clone(), client.memory.real(&[whole(&all)])?));
        for connection in &mut self.connections {
            client.memory.forget(connection.ends[side].lane.range.clone());
            connection.ends[1 - side].ops.clear();
            let end = &mut connection.ends[side];
            // The handle stays until the end, as a dead process's memory does not matter to anybody.
            self.graveyard.extend(end.vanish());
            connection.is_final = true;
            connection.is_disturbed = true;
        }
        if let Some(shared) = &client.shared {
            client.memory.forget(shared.receives.range());
        }
        self.is_counter_unknown = [true; 2];
        self.is_dead[side] = true;
        Ok(())
    }

    /// Nothing is known of this conversation any more.
    fn abandon(&mut self) {
        for (side, client) in self.clients.iter_mut().enumerate() {
            for connection in &mut self.connections {
                client.memory.forget(connection.ends[side].lane.range.clone());
                connection.phase = Phase::Closed;
                connection.is_disturbed = true;
                connection.is_final = true;
            }
            if let Some(shared) = &client.shared {
                client.memory.forget(shared.receives.range());
            }
        }
        self.is_counter_unknown = [true; 2];
    }

    /// Writes random bytes over the rings and doorbells of the side whose incident it is.
    pub(super) fn write_garbage(&mut self, side: usize) -> Checked {
        let client = &self.clients[side];
        let rings = client.host.rings(client.context.session());
        for _ in 0..GARBAGE_WRITES {
            let (mapping, block) = &rings[self.stream.random_range(0..rings.len())];
            let length = self.stream.random_range(1..=GARBAGE_BYTES_MAX.min(block.bytes as usize));
            // Indices and arm words lie at a block's start: every other time they are hit.
            let last = if self.stream.random() { 0 } else { block.bytes - length as u64 };
            let offset = block.offset + self.stream.random_range(0..=last);
            let mut bytes = vec![0; length];
            self.stream.fill_bytes(&mut bytes);
            mapping.write(offset, &bytes).or_say("writing garbage to a ring")?;
        }
        self.garbage_left -= 1;
        Ok(())
    }

    /// Checks that memory which no engine may touch any more has stayed as it was.
    pub(super) fn check_frozen(&mut self) -> Checked {
        let Some((side, range, before)) = self.frozen.take() else { return Ok(()) };
        let now = self.clients[side].memory.real(&[whole(&range)])?;
        compare("memory that was taken back from the engine", &now, &before)
    }
}

fn whole(range: &std::ops::Range<usize>) -> Piece {
    Piece { at: range.start, length: range.len() }
}
