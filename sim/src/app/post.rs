//! Posting: what an operation is on the wire, and what it does to the model.

use ferroce::{PostError, SendFlags, SendWr, WcOpcode};
use rand::Rng;

use super::Conversation;
use super::client::Client;
use super::connection::{End, Landing, Message, PostedSend};
use super::memory::{Piece, scatter};
use super::plan::{Op, OpKind};
use crate::random::Stream;
use crate::violation::{Checked, OrSay};

/// What an operation does on the peer's side, beside the model of its target.
#[derive(Default)]
struct Remote {
    addr: u64,
    rkey: u32,
    compare: u64,
    operand: u64,
    imm: Option<u32>,
    invalidates: Option<u32>,
}

/// An operation with everything drawn.
struct Drawn {
    op: Op,
    /// Local pieces: what is sent, or where the answer goes.
    pieces: Vec<Piece>,
    remote: Remote,
    landing: Landing,
    message: Option<Message>,
    sink: std::ops::Range<usize>,
    /// The range of the peer's target that it reads or changes.
    target: std::ops::Range<usize>,
}

fn overlap(one: &std::ops::Range<usize>, other: &std::ops::Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Conversation {
    /// Posts what a side has to post and has room for. True if it stopped for no reason.
    pub(super) fn post_sends(&mut self, side: usize, index: usize) -> Checked<bool> {
        let most = self.settings.cap.max_send_wr as usize;
        loop {
            let end = &self.connections[index].ends[side];
            let (Some(&op), true) = (end.ops.front(), end.outstanding.len() < most) else { return Ok(false) };
            let asked = end.outstanding.iter().any(|posted| posted.is_signaled);
            let planned = self.draw(side, index, op)?;
            let is_planned = planned.is_some();
            let drawn = match planned {
                Some(drawn) => drawn,
                None if asked => return Ok(false),
                // No room for the answer, and nothing outstanding would tell that there is room again: something empty does.
                None => match self.draw(side, index, Op::new(OpKind::Write, 0))? {
                    Some(drawn) => drawn,
                    None => return Ok(false),
                },
            };
            let [end, peer] = ends(&mut self.connections[index].ends, side);
            let [client, _] = ends(&mut self.clients, side);
            if is_planned {
                end.ops.pop_front();
                end.posted_ops += 1;
            }
            let is_read = drawn.op.kind == OpKind::Read;
            end.sent.add(if is_read { drawn.op.length.div_ceil(self.settings.path_mtu.bytes()) } else { 0 });
            post(client, end, peer, drawn, self.settings.sq_sig_all, most)?;
            // Not always all in one go.
            if self.stream.random_ratio(1, 8) {
                return Ok(true);
            }
        }
    }

    /// Draws places and values, and changes the model. `None` if there is no room for the answer yet.
    fn draw(&mut self, side: usize, index: usize, op: Op) -> Checked<Option<Drawn>> {
        let stream = &mut self.stream;
        let [client, peer_client] = ends(&mut self.clients, side);
        let [end, peer] = ends(&mut self.connections[index].ends, side);
        let length = op.length as usize;
        let sge_count = stream.random_range(1..=self.settings.cap.max_send_sge as usize);
        let brings = op.kind == OpKind::Read || op.kind.is_atomic();
        let mut drawn = Drawn {
            op,
            pieces: Vec::new(),
            remote: Remote { rkey: peer.lane.key(), ..Remote::default() },
            landing: Landing::None,
            message: None,
            sink: 0..0,
            target: 0..0,
        };
        if brings {
            let outstanding = &end.outstanding;
            let taken = |range: &std::ops::Range<usize>| outstanding.iter().any(|posted| overlap(&posted.sink, range));
            let Some(sink) = end.lane.take_sink(length, taken) else { return Ok(None) };
            drawn.pieces = scatter(stream, sink.clone(), sge_count);
            drawn.sink = sink;
        } else {
            drawn.pieces = end.lane.draw_source(stream, length, sge_count);
        }
        match op.kind {
            OpKind::Send | OpKind::SendImm | OpKind::SendInv => draw_send(&mut drawn, client, peer_client, stream)?,
            OpKind::Write | OpKind::WriteImm => draw_write(&mut drawn, client, peer_client, peer, stream),
            OpKind::Read => draw_read(&mut drawn, client, peer_client, peer, stream),
            OpKind::Cas | OpKind::Faa => draw_atomic(&mut drawn, client, peer_client, peer, stream)?,
            OpKind::SharedFaa => draw_shared(&mut drawn, peer_client, stream),
        }
        // What changes memory that an earlier READ may have to be asked for again must wait for it (IBTA table 79).
        let changes = matches!(op.kind, OpKind::Write | OpKind::WriteImm | OpKind::Cas | OpKind::Faa);
        drawn.op.fence |= changes && end.outstanding.iter().any(|posted| overlap(&posted.reads, &drawn.target));
        Ok(Some(drawn))
    }
}

/// One side's, and the other's.
pub(super) fn ends<T>(both: &mut [T; 2], side: usize) -> [&mut T; 2] {
    let [first, second] = both;
    if side == 0 { [first, second] } else { [second, first] }
}

fn draw_send(drawn: &mut Drawn, client: &Client, peer: &Client, stream: &mut Stream) -> Checked {
    let op = drawn.op;
    let mut made = None;
    if op.kind == OpKind::SendInv {
        let token = peer.memory.register(&peer.pd, &peer.token_range)?;
        drawn.remote.invalidates = Some(token.rkey());
        made = Some(token);
    }
    drawn.remote.imm = (op.kind == OpKind::SendImm).then(|| stream.random());
    drawn.message = Some(Message {
        opcode: WcOpcode::Recv,
        length: op.length,
        imm: drawn.remote.imm,
        token: made,
        data: Some(client.memory.model(&drawn.pieces)),
    });
    Ok(())
}

fn draw_write(drawn: &mut Drawn, client: &Client, peer_client: &mut Client, peer: &End, stream: &mut Stream) {
    let op = drawn.op;
    let target = peer.lane.draw_target(stream, op.length as usize);
    peer_client.memory.set_model(&[target], &client.memory.model(&drawn.pieces));
    drawn.target = target.at..target.at + target.length;
    drawn.remote.addr = peer_client.memory.addr(target.at);
    if op.kind == OpKind::WriteImm {
        let imm = stream.random();
        drawn.remote.imm = Some(imm);
        drawn.message = Some(Message {
            opcode: WcOpcode::RecvRdmaWithImm,
            length: op.length,
            imm: Some(imm),
            token: None,
            data: None,
        });
    }
}

fn draw_read(drawn: &mut Drawn, client: &mut Client, peer_client: &Client, peer: &End, stream: &mut Stream) {
    let target = peer.lane.draw_target(stream, drawn.op.length as usize);
    let expected = peer_client.memory.model(&[target]);
    client.memory.set_model(&drawn.pieces, &expected);
    drawn.target = target.at..target.at + target.length;
    drawn.remote.addr = peer_client.memory.addr(target.at);
    drawn.landing = Landing::Sink { pieces: drawn.pieces.clone(), expected };
}

fn draw_atomic(
    drawn: &mut Drawn,
    client: &mut Client,
    peer_client: &mut Client,
    peer: &End,
    stream: &mut Stream,
) -> Checked {
    let word = peer.lane.draw_word(stream);
    let original: [u8; 8] =
        peer_client.memory.model(&[word]).try_into().map_err(|_| "a word is not 8 bytes".to_owned())?;
    let value = u64::from_ne_bytes(original);
    let remote = &mut drawn.remote;
    remote.operand = stream.random();
    let after = if drawn.op.kind == OpKind::Faa {
        value.wrapping_add(remote.operand)
    } else {
        let hits = stream.random();
        remote.compare = if hits { value } else { stream.random() };
        if remote.compare == value { remote.operand } else { value }
    };
    remote.addr = peer_client.memory.addr(word.at);
    peer_client.memory.set_model(&[word], &after.to_ne_bytes());
    client.memory.set_model(&drawn.pieces, &original);
    drawn.target = word.at..word.at + 8;
    drawn.landing = Landing::Sink { pieces: drawn.pieces.clone(), expected: original.to_vec() };
    Ok(())
}

fn draw_shared(drawn: &mut Drawn, peer_client: &Client, stream: &mut Stream) {
    let (word, region) = &peer_client.counter;
    let add = stream.random();
    drawn.remote.addr = peer_client.memory.addr(word.at);
    drawn.remote.rkey = region.rkey();
    drawn.remote.operand = add;
    drawn.landing = Landing::Shared { pieces: drawn.pieces.clone(), add };
}

/// Hands a drawn operation over to the queue.
fn post(client: &Client, end: &mut End, peer: &mut End, drawn: Drawn, signal_all: bool, most: usize) -> Checked {
    let Drawn { op, pieces, remote, landing, message, sink, target } = drawn;
    let wr_id = end.next_wr_id;
    end.next_wr_id += 1;
    // The last free slot must come back.
    let is_last = end.ops.is_empty() || end.outstanding.len() + 1 >= most;
    let earlier = end.outstanding.iter().any(|posted| posted.is_signaled);
    let asks = op.signaled || end.ops.is_empty() || (is_last && !earlier);
    let sges = client.memory.sges(&pieces, end.lane.key());
    let mut wr = match op.kind {
        OpKind::Send | OpKind::SendImm | OpKind::SendInv => SendWr::send(wr_id, &sges),
        OpKind::Write | OpKind::WriteImm => SendWr::write(wr_id, &sges, remote.addr, remote.rkey),
        OpKind::Read => SendWr::read(wr_id, &sges, remote.addr, remote.rkey),
        OpKind::Cas => SendWr::atomic_cas(wr_id, &sges, remote.addr, remote.rkey, remote.compare, remote.operand),
        OpKind::Faa | OpKind::SharedFaa => SendWr::atomic_faa(wr_id, &sges, remote.addr, remote.rkey, remote.operand),
    };
    if let Some(imm) = remote.imm {
        wr = wr.with_imm(imm);
    }
    if let Some(rkey) = remote.invalidates {
        wr = wr.with_invalidate(rkey);
    }
    let mut flags = SendFlags::NONE;
    for (wanted, flag) in
        [(asks, SendFlags::SIGNALED), (op.fence, SendFlags::FENCE), (op.solicited, SendFlags::SOLICITED)]
    {
        flags = if wanted { flags | flag } else { flags };
    }
    wr = wr.with_flags(flags);
    let data = client.memory.model(&pieces);
    let qp = end.qp.as_ref().ok_or("posting to a QP that is gone")?;
    let is_inline = op.inline && sink.is_empty() && data.len() <= qp.cap().max_inline_data as usize;
    if is_inline && matches!(landing, Landing::None) {
        wr = wr.inline(&data);
    }
    match qp.post_send(&wr) {
        Err(PostError::Full) => return Err("the send queue is full though completions made room".to_owned()),
        other => other.or_say("posting")?,
    }
    let is_read = op.kind == OpKind::Read;
    let brings = is_read || op.kind.is_atomic();
    end.outstanding.push_back(PostedSend {
        wr_id,
        opcode: opcode(op.kind),
        is_signaled: asks || signal_all,
        byte_len: if brings { op.length } else { 0 },
        landing,
        sink,
        reads: if is_read { target } else { 0..0 },
        must_fail: false,
    });
    peer.incoming.extend(message);
    Ok(())
}

/// What the completion calls it.
fn opcode(kind: OpKind) -> WcOpcode {
    match kind {
        OpKind::Send | OpKind::SendImm | OpKind::SendInv => WcOpcode::Send,
        OpKind::Write | OpKind::WriteImm => WcOpcode::RdmaWrite,
        OpKind::Read => WcOpcode::RdmaRead,
        OpKind::Cas => WcOpcode::CompSwap,
        OpKind::Faa | OpKind::SharedFaa => WcOpcode::FetchAdd,
    }
}
