//! One end: its QP, its memory, what it has sent and what it waits for.

use std::collections::VecDeque;
use std::ops::Range;

use engine::Time;
use ferroce::{
    AccessFlags, AddressHandle, CompletionQueue, Context, CqInit, MemoryRegion, ProtectionDomain, QpCap, QpInit,
    QpType, Qpn, QueuePair, RecvWr, SendWr, WcStatus, WorkCompletion,
};
use rand::Rng;

use super::{UnreliableSettings, draw_if};
use crate::app::memory::{Layout, Memory, Piece};
use crate::host::Host;
use crate::random::{Stream, chance, log_uniform};
use crate::violation::{Checked, OrSay, require};

/// Q_Key of both ends, and one that neither has.
pub(super) const QKEY: u32 = 0x1111_1111;
const OTHER_QKEY: u32 = 0x2222_2222;
/// An L_Key that nobody has.
const BAD_LKEY: u32 = 0x0bad_0bad;
/// Longest message that goes inline.
const INLINE_BYTES: u32 = 64;
/// Shortest message that can say its own number.
const NAME_BYTES: u32 = 4;

/// What was done with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Sent,
    Stray,
    Refused,
    Flushed,
}

/// A message that was posted.
#[derive(Clone, Debug)]
pub(super) struct Message {
    tag: u64,
    number: u32,
    pub(super) length: u32,
    pub(super) is_write: bool,
    has_imm: bool,
    is_named: bool,
    is_signaled: bool,
    /// Where a WRITE goes: offset in the peer's pool.
    pub(super) target: usize,
    pub(super) fate: Fate,
    /// Times that it arrived.
    pub(super) came: u32,
}

impl Message {
    /// True if a receive goes to it.
    pub(super) fn takes_receive(&self) -> bool {
        !self.is_write || self.has_imm
    }

    /// Its bytes. Those of a WRITE are none of them 0, so that what did not come can be told.
    pub(super) fn content(&self) -> Vec<u8> {
        let byte = |at: u32| {
            let word =
                (self.tag << 32 | u64::from(self.number) << 20 ^ u64::from(at / 4)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (word >> (24 + 8 * (at % 4))) as u8 | 1
        };
        let mut bytes: Vec<u8> = (0..self.length).map(byte).collect();
        if self.is_named {
            bytes[..NAME_BYTES as usize].copy_from_slice(&self.number.to_le_bytes());
        }
        bytes
    }
}

/// One end.
pub(super) struct End {
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    /// Where its datagrams go.
    pub(super) to: Option<(AddressHandle, Qpn)>,
    region: MemoryRegion,
    pub(super) memory: Memory,
    pub(super) pd: ProtectionDomain,
    pub(super) context: Context,
    tag: u64,
    sources: Range<usize>,
    inbox: Range<usize>,
    targets: Range<usize>,
    /// Bytes of a receive's buffer.
    slot_bytes: usize,
    messages: Vec<Message>,
    /// Numbers of the messages whose sends have not completed.
    outstanding: VecDeque<u32>,
    /// A send has failed: those behind it are flushed.
    has_failed: bool,
    posted: VecDeque<(u64, usize)>,
    due: VecDeque<(Time, usize)>,
    next_recv: u64,
}

impl End {
    pub(super) fn new(host: &Host, settings: &UnreliableSettings, side: usize, stream: &mut Stream) -> Checked<Self> {
        let context = Context::from_endpoint(host.connect()?).or_say("opening a session")?;
        let pd = context.alloc_pd().or_say("making a domain")?;
        let (sends, receives) = (settings.max_send_wr, settings.max_recv_wr);
        let cq = context.create_cq(&CqInit { cqe: sends + receives, ..CqInit::default() }).or_say("making a CQ")?;
        let longest = settings.message_bytes_max as usize;
        let slot_bytes = longest + settings.grh_bytes() as usize;
        let incoming = settings.messages[1 - side] as usize;
        let mut layout = Layout::new();
        let lengths = [sends as usize * longest, receives as usize * slot_bytes, incoming * longest];
        // One region, of which each part is written at times of its own.
        let range = layout.add(lengths.iter().sum());
        let mut at = range.start;
        let [sources, inbox, targets] = lengths.map(|length| {
            at += length;
            at - length..at
        });
        let mut memory = Memory::new(&context, &layout, 1 << 32, stream)?;
        memory.put(targets.start, &vec![0; targets.len()])?;
        // What lies there is looked at message by message.
        memory.forget(inbox.clone());
        memory.forget(targets.clone());
        let region = memory.register(&pd, &range)?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_BYTES,
        };
        let init = if settings.service == QpType::Ud { QpInit::ud(&cq) } else { QpInit::uc(&cq) };
        let qp = pd.create_qp(&QpInit { cap, ..init }).or_say("making a QP")?;
        if settings.service == QpType::Uc {
            qp.to_init(1, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE).or_say("to INIT")?;
        }
        Ok(Self {
            qp,
            cq,
            to: None,
            region,
            memory,
            pd,
            context,
            tag: side as u64 + 1,
            sources,
            inbox,
            targets,
            slot_bytes,
            messages: Vec::new(),
            outstanding: VecDeque::new(),
            has_failed: false,
            posted: VecDeque::new(),
            due: (0..receives as usize).map(|slot| (Time::ZERO, slot)).collect(),
            next_recv: 0,
        })
    }

    pub(super) fn poll(&self) -> Vec<WorkCompletion> {
        let mut found = Vec::new();
        let mut batch = [WorkCompletion::default(); 8];
        loop {
            let count = self.cq.poll(&mut batch);
            if count == 0 {
                return found;
            }
            found.extend_from_slice(&batch[..count]);
        }
    }

    pub(super) fn wants_to_send(&self, settings: &UnreliableSettings, side: usize) -> bool {
        !self.has_failed
            && self.messages.len() < settings.messages[side] as usize
            && self.outstanding.len() < settings.max_send_wr as usize
    }

    /// Where the peer may write: start in the pool, address of the pool's first byte, key.
    pub(super) fn target(&self) -> (usize, u64, u32) {
        (self.targets.start, self.memory.addr(0), self.region.rkey())
    }

    /// Draws the next message.
    fn draw(&self, settings: &UnreliableSettings, side: usize, targets: usize, stream: &mut Stream) -> Message {
        let number = self.messages.len() as u32;
        let is_datagram = settings.service == QpType::Ud;
        let length = log_uniform(stream, settings.message_bytes_max);
        let is_write = draw_if(stream, !is_datagram, settings.write_ppm);
        let is_named = !is_write && length >= NAME_BYTES && stream.random();
        let has_imm = if is_write { stream.random() } else { !is_named };
        let is_bad = length > 0 && chance(stream, settings.bad_lkey_ppm);
        let is_stray = draw_if(stream, is_datagram, settings.stray_ppm);
        // The last free slot must come back, and so must the last message.
        let is_last =
            self.outstanding.len() + 1 >= settings.max_send_wr as usize || number + 1 == settings.messages[side];
        Message {
            tag: self.tag,
            number,
            length,
            is_write,
            has_imm,
            is_named,
            is_signaled: is_last || chance(stream, settings.signal_ppm),
            target: targets + number as usize * settings.message_bytes_max as usize,
            fate: match (is_bad, is_stray) {
                (true, _) => Fate::Refused,
                (_, true) => Fate::Stray,
                _ => Fate::Sent,
            },
            came: 0,
        }
    }

    /// Posts the next message.
    pub(super) fn post_send(
        &mut self,
        settings: &UnreliableSettings,
        side: usize,
        (targets, base, rkey): (usize, u64, u32),
        stream: &mut Stream,
    ) -> Checked {
        let message = self.draw(settings, side, targets, stream);
        let content = message.content();
        let slot = message.number as usize % settings.max_send_wr as usize;
        let at = self.sources.start + slot * settings.message_bytes_max as usize;
        self.memory.put(at, &content)?;
        let is_bad = message.fate == Fate::Refused;
        let lkey = if is_bad { BAD_LKEY } else { self.region.lkey() };
        let sges = self.memory.sges(&[Piece { at, length: content.len() }], lkey);
        let wr_id = u64::from(message.number);
        let mut wr = if message.is_write {
            SendWr::write(wr_id, &sges, base + message.target as u64, rkey)
        } else {
            SendWr::send(wr_id, &sges)
        };
        if message.has_imm {
            wr = wr.with_imm(message.number);
        }
        if message.is_signaled {
            wr = wr.signaled();
        }
        if let Some((ah, qpn)) = &self.to {
            wr = wr.to(ah, *qpn, if message.fate == Fate::Stray { OTHER_QKEY } else { QKEY });
        }
        if settings.inline && !is_bad && message.length <= INLINE_BYTES {
            wr = wr.inline(&content);
        }
        self.qp.post_send(&wr).or_say("posting")?;
        self.outstanding.push_back(message.number);
        self.messages.push(message);
        Ok(())
    }

    /// A send has completed: the one that is due, with the status it must have.
    pub(super) fn complete_send(&mut self, wc: &WorkCompletion) -> Checked {
        while let Some(number) = self.outstanding.pop_front() {
            let message = &mut self.messages[number as usize];
            if wc.wr_id != u64::from(number) {
                let is_silent = !message.is_signaled && message.fate != Fate::Refused && !self.has_failed;
                require!(is_silent, "send {} completed, {number} before it did not", wc.wr_id);
                continue;
            }
            let due = match (self.has_failed, message.fate) {
                (true, _) => WcStatus::WrFlushErr,
                (false, Fate::Refused) => WcStatus::LocProtErr,
                (false, _) => WcStatus::Success,
            };
            require!(wc.status == due, "send {number} ({}) completed with {}, not {due}", message.fate, wc.status);
            require!(message.is_signaled || !wc.is_ok(), "send {number} completed though it did not ask to");
            if self.has_failed {
                message.fate = Fate::Flushed;
            }
            self.has_failed |= !wc.is_ok();
            return Ok(());
        }
        Err(format!("send {} completed ({}), but it is not outstanding", wc.wr_id, wc.status))
    }

    /// Out of SQE, once everything behind the send that failed is flushed.
    pub(super) fn resume(&mut self) -> Checked {
        if self.has_failed && self.outstanding.is_empty() {
            self.qp.resume().or_say("from SQE to RTS")?;
            self.has_failed = false;
        }
        Ok(())
    }

    /// Posts the receives that are due.
    pub(super) fn post_receives(&mut self, now: Time) -> Checked {
        while self.due.front().is_some_and(|&(at, _)| at <= now) {
            let Some((_, slot)) = self.due.pop_front() else { break };
            let piece = Piece { at: self.inbox.start + slot * self.slot_bytes, length: self.slot_bytes };
            let sges = self.memory.sges(&[piece], self.region.lkey());
            self.qp.post_recv(&RecvWr::new(self.next_recv, &sges)).or_say("posting a receive")?;
            self.posted.push_back((self.next_recv, slot));
            self.next_recv += 1;
        }
        Ok(())
    }

    /// A receive has completed: the one that is due. Its slot, which will be posted again.
    pub(super) fn take_receive(
        &mut self,
        wr_id: u64,
        settings: &UnreliableSettings,
        now: Time,
        stream: &mut Stream,
    ) -> Checked<usize> {
        let Some((due, slot)) = self.posted.pop_front() else {
            return Err(format!("receive {wr_id} completed, but none is posted"));
        };
        require!(wr_id == due, "receive {wr_id} completed, {due} was next");
        let delay = if settings.recv_delay_ns == 0 { 0 } else { stream.random_range(0..=settings.recv_delay_ns) };
        let at = now.add_ns(delay).max(self.due.back().map_or(Time::ZERO, |&(at, _)| at));
        self.due.push_back((at, slot));
        Ok(slot)
    }

    pub(super) fn next_receive_at(&self) -> Option<Time> {
        self.due.front().map(|&(at, _)| at)
    }

    /// The first `length` bytes of a receive's buffer.
    pub(super) fn received(&self, slot: usize, length: u32) -> Checked<Vec<u8>> {
        require!(length as usize <= self.slot_bytes, "{length} bytes came to a receive of {}", self.slot_bytes);
        self.memory.real(&[Piece { at: self.inbox.start + slot * self.slot_bytes, length: length as usize }])
    }

    /// What lies at an offset of the pool.
    pub(super) fn written(&self, at: usize, length: u32) -> Checked<Vec<u8>> {
        self.memory.real(&[Piece { at, length: length as usize }])
    }

    pub(super) fn message(&mut self, number: u32) -> Checked<&mut Message> {
        self.messages.get_mut(number as usize).ok_or_else(|| format!("message {number} arrived, which was not sent"))
    }

    pub(super) fn message_count(&self) -> u32 {
        self.messages.len() as u32
    }

    pub(super) fn is_done(&self, messages: u32) -> bool {
        self.messages.len() == messages as usize && self.outstanding.is_empty() && !self.has_failed
    }

    pub(super) fn unfinished(&self, messages: u32) -> String {
        format!("{} of {messages} messages posted, {} outstanding", self.messages.len(), self.outstanding.len())
    }

    /// Each message that was sent as it should has come.
    pub(super) fn check_all_came(&self) -> Checked {
        let must_come = |message: &&Message| message.fate == Fate::Sent && message.takes_receive();
        let lost = self.messages.iter().filter(must_come).find(|message| message.came == 0);
        match lost {
            Some(message) => Err(format!("message {} did not arrive, though nothing was lost", message.number)),
            None => Ok(()),
        }
    }
}
