//! The end of a conversation: what must hold when nothing moves any more.

use engine::Time;

use super::connection::{Connection, Phase};
use super::{Conversation, IncidentKind, word};
use crate::inspect::{Figures, check_pair_at_rest};
use crate::violation::{Checked, require};

impl Conversation {
    /// Compares every byte of both sides with the model, and the shared words with what was added to them.
    pub(crate) fn check_at_rest(&mut self) -> Checked {
        self.check_frozen()?;
        for side in [0, 1] {
            self.check_counter(side)?;
            self.clients[side].memory.check().map_err(|what| format!("side {side}: {what}"))?;
            let client = &self.clients[side];
            let may_overrun = self.settings.incident.is_some_and(|incident| incident.kind == IncidentKind::Garbage);
            let overrun = client.send_cq.is_overrun() || client.recv_cq.is_overrun();
            require!(may_overrun || !overrun, "side {side}: a CQ has overrun");
        }
        for (connection, number) in self.connections.iter().zip(0..) {
            self.check_connection(connection).map_err(|what| format!("connection {number}: {what}"))?;
        }
        Ok(())
    }

    /// Both QPs of a connection that is up and was left in peace have done all that the other asked for, once.
    fn check_connection(&self, connection: &Connection) -> Checked {
        let [Some(first), Some(second)] = connection.ends.each_ref().map(|end| end.qp.as_ref()) else { return Ok(()) };
        let is_up = connection.phase == Phase::Up && !connection.is_broken();
        if !is_up || connection.is_disturbed || self.is_abandoned() || self.is_dead != [false; 2] {
            return Ok(());
        }
        let figures = [Figures::of(&self.clients[0].context, first)?, Figures::of(&self.clients[1].context, second)?];
        for side in [0, 1] {
            let checked = check_pair_at_rest(&figures[side], &figures[1 - side], connection.ends[side].sent);
            checked.map_err(|what| format!("side {side}: {what}"))?;
        }
        Ok(())
    }

    /// Additions are atomic if their befores and afters form one chain from the first value to the last.
    fn check_counter(&mut self, side: usize) -> Checked {
        let client = &mut self.clients[side];
        let piece = client.counter.0;
        if self.is_counter_unknown[side] {
            client.memory.forget(piece.at..piece.at + piece.length);
            return Ok(());
        }
        let real = client.memory.real(&[piece])?;
        let additions = &self.additions[side];
        let mut befores: Vec<u64> = additions.iter().map(|&(before, _)| before).chain([word(&real)]).collect();
        let afters = additions.iter().map(|&(before, add)| before.wrapping_add(add));
        let mut afters: Vec<u64> = afters.chain([self.counter_starts[side]]).collect();
        befores.sort_unstable();
        afters.sort_unstable();
        require!(befores == afters, "side {side}: {} additions to the shared word were not atomic", additions.len());
        client.memory.set_model(&[piece], &real);
        Ok(())
    }

    /// Begins the end: connections that are up are closed, and every receive comes back flushed.
    pub(crate) fn begin_closing(&mut self, now: Time) -> Checked {
        self.is_closing = true;
        if !self.settings.ends_by_flush {
            return Ok(());
        }
        for index in 0..self.connections.len() {
            if self.connections[index].phase == Phase::Up {
                self.connections[index].is_final = true;
                self.advance(index, now)?;
            }
        }
        Ok(())
    }
}
