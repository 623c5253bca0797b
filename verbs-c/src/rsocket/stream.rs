//! A connection: its queue pair, its memory, and the protocol between them.
//!
//! Nothing waits here. Whoever has the socket's lock lets [`Stream::process`] take what has completed, and then asks what is possible.

use std::collections::VecDeque;
use std::ffi::c_int;

use ferroce::cm::CmId;
use ferroce::{
    CompletionChannel, CompletionQueue, Context, CqInit, PostError, ProcessRegion, ProtectionDomain, QpCap, QpInit,
    QueuePair, RecvWr, SendWr, WcStatus, WorkCompletion,
};
use nix::errno::Errno;

use super::flow::{ReceiveWindow, SendWindow};
use super::memory::{Memory, Sizes};
use super::options::Options;
use super::vectors::Vectors;
use super::wire::{ByteOrder, Hello, IomapEntry, Message, RemoteBuffer};
use crate::entry::Failure;

/// Messages of the protocol itself that may be on their way at a time; as many of the peer's, for which receives are kept.
const CONTROL_SLOTS: u32 = 4;
/// Receives for the peer's own such messages, and for a few that are on their way when they are posted anew.
const SPARE_RECEIVES: u32 = 2 * CONTROL_SLOTS;
/// Bytes of one transfer at most: the peer gets to see the first of a long run early.
const TRANSFER_BYTES_MAX: u32 = 64 << 10;
/// Bytes of the ring that must be free, so that it is not filled in crumbs.
const SEND_LOW_WATER: u32 = 2048;
/// Completions taken at a time.
const BATCH: usize = 32;

/// Marks of a work request, above the bytes of the ring that it frees.
const WORK_RECEIVE: u64 = 1 << 32;
const WORK_CONTROL: u64 = 1 << 33;

/// What is known of the peer once it has introduced itself.
#[derive(Debug)]
struct Peer {
    window: SendWindow,
    order: ByteOrder,
    /// Its table of receive buffers, and which entry we write next.
    table: RemoteBuffer,
    next_entry: u32,
    /// Entries of its table of mapped buffers.
    iomap_entries: u32,
}

/// A buffer of the application that the peer may write to.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) addr: usize,
    pub(super) bytes: usize,
    /// Its place in the peer's table, unless it is for our own use only.
    pub(super) index: Option<u16>,
    /// Until it goes.
    _region: ProcessRegion,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Stream {
    // First: a QP goes before its CQ, and before the memory that it uses.
    qp: QueuePair,
    cq: CompletionQueue,
    pub(super) channel: CompletionChannel,
    pub(super) mappings: Vec<Mapping>,
    memory: Memory,
    pub(super) pd: ProtectionDomain,
    peer: Option<Peer>,
    receive: ReceiveWindow,
    credits: u16,
    send_slots: u32,
    inline_max: u32,
    /// Work requests that have not completed: of data, and of the protocol.
    data_posted: u32,
    control_posted: u32,
    /// What the peer still has to hear of mappings, before the next data.
    iomap_news: VecDeque<(u16, IomapEntry)>,
    /// A last word that waits for a place.
    farewell: Option<Message>,
    /// The peer has confirmed the connection, or was heard of on it. Before that it may not be ready for what we send.
    pub(super) confirmed: bool,
    /// The peer sends no more.
    peer_silent: bool,
    /// The connection has ended; nothing can be sent.
    ended: bool,
    /// We read, or write, no more.
    pub(super) read_shut: bool,
    pub(super) write_shut: bool,
    /// Why it has ended, if not by a farewell, until somebody was told.
    pub(super) error: Option<c_int>,
    armed: bool,
}

impl Stream {
    /// Everything that a connection needs, with all receives posted. The id gets the QP.
    pub(super) fn new(context: &Context, id: &CmId, options: &Options) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let channel = context.create_channel()?;
        let depth_max = context.device().max_qp_wr;
        let send_slots = options.send_queue.min(depth_max);
        let spared = u16::try_from(depth_max.saturating_sub(SPARE_RECEIVES)).unwrap_or(u16::MAX);
        let credits = options.receive_queue.min(spared);
        let receives = u32::from(credits) + SPARE_RECEIVES;
        let cq = CqInit { cqe: send_slots + receives, channel: Some(&channel), comp_vector: None };
        let cq = context.create_cq(&cq)?;
        let sizes = Sizes {
            receive_half: options.receive_bytes / 2,
            send: options.send_bytes,
            iomap_entries: options.iomap_entries,
        };
        let memory = Memory::new(&pd, sizes)?;
        let inline_max = options.inline_bytes;
        let cap = QpCap {
            max_send_wr: send_slots,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            // Entries of tables always go inline.
            max_inline_data: inline_max.max(IomapEntry::BYTES as u32),
        };
        let qp = id.create_qp(&pd, &QpInit { cap, sq_sig_all: true, ..QpInit::rc(&cq) })?;
        let receive = ReceiveWindow::new(sizes.receive_half, credits);
        let stream = Self {
            qp,
            cq,
            channel,
            mappings: Vec::new(),
            memory,
            pd,
            peer: None,
            receive,
            credits,
            send_slots,
            inline_max,
            data_posted: 0,
            control_posted: 0,
            iomap_news: VecDeque::new(),
            farewell: None,
            confirmed: false,
            peer_silent: false,
            ended: false,
            read_shut: false,
            write_shut: false,
            error: None,
            armed: false,
        };
        for _ in 0..receives {
            stream.post_receive()?;
        }
        Ok(stream)
    }

    /// What we tell the peer of ourselves.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            order: ByteOrder::OWN,
            credits: self.credits,
            iomap_entries: self.memory.sizes().iomap_entries,
            table: self.memory.table(),
            data: self.memory.half(0),
        }
    }

    /// What the peer says of itself.
    pub(super) fn meet(&mut self, hello: &Hello) {
        self.peer = Some(Peer {
            window: SendWindow::new(hello.data, hello.credits),
            order: hello.order,
            table: hello.table,
            // Its first entry stands for the buffer that our private data named.
            next_entry: 1 % hello.table.length,
            iomap_entries: hello.iomap_entries,
        });
    }

    /// Entries of the peer's table of mapped buffers.
    pub(super) fn peer_iomap_entries(&self) -> u32 {
        self.peer.as_ref().map_or(0, |peer| peer.iomap_entries)
    }

    /// Asks for a notification of the next completion, if none is asked for.
    pub(super) fn arm(&mut self) {
        if !std::mem::replace(&mut self.armed, true) {
            self.cq.req_notify(false);
        }
    }

    /// Takes the notifications that have come. False if the daemon is gone.
    pub(super) fn take_notifications(&mut self) -> bool {
        self.armed = false;
        loop {
            match self.channel.try_get() {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Takes what has completed, and tells the peer what it has to know.
    pub(super) fn process(&mut self) {
        let mut completions = [WorkCompletion::default(); BATCH];
        loop {
            let count = self.cq.poll(&mut completions);
            for completion in &completions[..count] {
                self.complete(completion);
            }
            if count < BATCH {
                break;
            }
        }
        self.send_control();
    }

    fn complete(&mut self, completion: &WorkCompletion) {
        let is_receive = completion.wr_id & WORK_RECEIVE != 0;
        if !is_receive {
            if completion.wr_id & WORK_CONTROL != 0 {
                self.control_posted -= 1;
            } else {
                self.data_posted -= 1;
                // The bytes are the low half.
                self.memory.free((completion.wr_id & u64::from(u32::MAX)) as u32);
            }
        }
        if !completion.is_ok() {
            self.fail(meaning(completion.status));
        } else if is_receive {
            self.confirmed = true;
            if let Some(word) = completion.imm() {
                self.hear(Message::from_word(word));
            }
            // A broken connection takes no more; and what can't be posted has broken.
            if !self.ended && self.post_receive().is_err() {
                self.fail(Errno::EIO);
            }
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Data(bytes) => match self.receive.arrived(bytes) {
                Ok(()) if self.read_shut => self.receive.consume(bytes),
                Ok(()) => {}
                Err(_) => self.fail(Errno::EPROTO),
            },
            Message::Credit(limit) => {
                let (Some(peer), memory) = (&mut self.peer, &self.memory) else { return };
                peer.window.set_limit(limit);
                if let Some(buffer) = peer.window.expected_entry().and_then(|index| memory.take_table_entry(index)) {
                    peer.window.add_buffer(buffer);
                }
            }
            Message::IomapUpdated(_) => self.receive.note_consumed(),
            Message::Shutdown => {
                self.peer_silent = true;
                self.ended |= self.write_shut;
            }
            Message::Disconnect => {
                self.peer_silent = true;
                self.ended = true;
            }
            Message::KeepAlive | Message::Reserved => {}
        }
    }

    /// The connection has broken, unless it had ended before.
    pub(super) fn fail(&mut self, errno: Errno) {
        if !self.ended {
            self.error = Some(errno as c_int);
        }
        self.ended = true;
        self.peer_silent = true;
    }

    fn post_receive(&self) -> Result<(), PostError> {
        self.qp.post_recv(&RecvWr::new(WORK_RECEIVE, &[]))
    }

    /// Sends credit updates that are due, and then the farewell if there is one.
    fn send_control(&mut self) {
        while self.may_control()
            && let Some(update) = self.receive.take_update()
        {
            let message = Message::Credit(update.limit);
            match (update.half_at, &mut self.peer) {
                (Some(at), Some(peer)) => {
                    let entry = self.memory.half(at).to_bytes(peer.order);
                    let to = peer.table.addr.wrapping_add(u64::from(peer.next_entry) * RemoteBuffer::BYTES as u64);
                    let key = peer.table.key;
                    peer.next_entry = (peer.next_entry + 1) % peer.table.length;
                    self.post_control(message, &entry, to, key);
                }
                _ => self.post_control(message, &[], 0, 0),
            }
        }
        if self.may_control()
            && let Some(farewell) = self.farewell.take()
        {
            self.post_control(farewell, &[], 0, 0);
        }
    }

    fn may_control(&self) -> bool {
        self.peer.is_some() && self.confirmed && !self.ended && self.control_posted < CONTROL_SLOTS
    }

    fn post_control(&mut self, message: Message, entry: &[u8], to: u64, key: u32) {
        let wr = SendWr::write(WORK_CONTROL, &[], to, key).with_imm(message.to_word());
        let wr = if entry.is_empty() { wr } else { wr.inline(entry) };
        match self.qp.post_send(&wr) {
            Ok(()) => self.control_posted += 1,
            Err(_) => self.fail(Errno::ECONNRESET),
        }
    }

    fn has_data_slot(&self) -> bool {
        self.data_posted + CONTROL_SLOTS < self.send_slots
    }

    fn has_ring(&self) -> bool {
        self.memory.send_free() >= SEND_LOW_WATER.min(self.memory.sizes().send / 2) || self.memory.send_is_idle()
    }

    /// True if data can be sent now.
    pub(super) fn can_send(&self) -> bool {
        let room = self.peer.as_ref().is_some_and(|peer| peer.window.room() > 0);
        room && !self.ended && !self.write_shut && self.has_data_slot() && self.has_ring()
    }

    /// True if something can be written to the peer's mapped buffers now.
    pub(super) fn can_write_mapped(&self) -> bool {
        self.peer.is_some() && !self.ended && !self.write_shut && self.has_data_slot() && self.has_ring()
    }

    /// True if sending can't ever be possible again.
    pub(super) fn is_write_closed(&self) -> bool {
        self.ended || self.write_shut
    }

    /// True if nothing will come any more but what is there.
    pub(super) fn is_read_closed(&self) -> bool {
        self.peer_silent || self.read_shut
    }

    /// True if the connection has ended for both.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// True if the peer has everything that we had to say.
    pub(super) fn is_all_sent(&self) -> bool {
        self.ended || (self.data_posted == 0 && self.control_posted == 0 && self.farewell.is_none())
    }

    /// Sends what the peer has to hear of mappings. False if it can't be now.
    fn send_iomap_news(&mut self) -> Result<bool, Failure> {
        while let Some(&(index, entry)) = self.iomap_news.front() {
            let Some(peer) = self.peer.as_mut().filter(|peer| peer.window.has_credit()) else { return Ok(false) };
            if self.data_posted + CONTROL_SLOTS >= self.send_slots {
                return Ok(false);
            }
            // Behind its table of receive buffers.
            let before = u64::from(peer.table.length) * RemoteBuffer::BYTES as u64;
            let to = peer.table.addr.wrapping_add(before + u64::from(index) * IomapEntry::BYTES as u64);
            let bytes = entry.to_bytes(peer.order);
            let wr = SendWr::write(0, &[], to, peer.table.key).with_imm(Message::IomapUpdated(index).to_word());
            self.qp.post_send(&wr.inline(&bytes))?;
            peer.window.spend_credit();
            self.data_posted += 1;
            self.iomap_news.pop_front();
        }
        Ok(true)
    }

    /// Sends a message with the next bytes; returns how many. 0: it can't be now.
    pub(super) fn send(&mut self, from: &mut Vectors<'_>) -> Result<u32, Failure> {
        if !self.send_iomap_news()? || !self.can_send() {
            return Ok(0);
        }
        let Some(peer) = &mut self.peer else { return Ok(0) };
        let max = peer.window.room().min(TRANSFER_BYTES_MAX);
        let head = from.head();
        if head.len() == from.left() && head.len() <= self.inline_max.min(max) as usize {
            let bytes = head.len() as u32;
            let Some((to, key)) = peer.window.spend(bytes) else { return Ok(0) };
            let wr = SendWr::write(0, &[], to, key).with_imm(Message::Data(bytes).to_word());
            self.qp.post_send(&wr.inline(head))?;
            self.data_posted += 1;
            from.advance(bytes as usize);
            return Ok(bytes);
        }
        let bytes = fill(&self.memory, from, max)?;
        let sges = [self.memory.take(bytes)?];
        let Some((to, key)) = peer.window.spend(bytes) else { return Ok(0) };
        let wr = SendWr::write(bytes.into(), &sges, to, key).with_imm(Message::Data(bytes).to_word());
        self.qp.post_send(&wr)?;
        self.data_posted += 1;
        Ok(bytes)
    }

    /// Writes the next bytes to the peer's buffer that is mapped at `offset`; returns how many. 0: it can't be now.
    ///
    /// # Errors
    /// `EINVAL` if nothing is mapped there.
    pub(super) fn write_mapped(&mut self, from: &mut Vectors<'_>, offset: u64) -> Result<u32, Failure> {
        if !self.send_iomap_news()? || !self.can_write_mapped() {
            return Ok(0);
        }
        let to = self.memory.find_mapped(offset).ok_or(crate::entry::INVALID)?;
        let bytes = fill(&self.memory, from, to.length.min(TRANSFER_BYTES_MAX))?;
        let sges = [self.memory.take(bytes)?];
        self.qp.post_send(&SendWr::write(bytes.into(), &sges, to.addr, to.key))?;
        self.data_posted += 1;
        Ok(bytes)
    }

    /// Bytes that wait to be read.
    pub(super) fn unread(&self) -> u32 {
        self.receive.unread()
    }

    /// Copies what waits, as far as there is room; unless it is only a look, it is gone then. Returns how many bytes.
    pub(super) fn receive(&mut self, into: &mut Vectors<'_>, peek: bool) -> Result<usize, Failure> {
        let mut done = 0_u32;
        loop {
            let skip = if peek { done } else { 0 };
            let (at, bytes) = self.receive.readable(skip, u32::MAX);
            let part = into.head_mut(bytes as usize);
            if part.is_empty() {
                break;
            }
            self.memory.read(at, part)?;
            // At most `bytes`.
            let part = part.len() as u32;
            into.advance(part as usize);
            if !peek {
                self.receive.consume(part);
            }
            done += part;
        }
        self.send_control();
        Ok(done as usize)
    }

    /// Gives up what waits, and what will come.
    pub(super) fn discard(&mut self) {
        self.read_shut = true;
        self.receive.consume(u32::MAX);
        self.send_control();
    }

    /// Says goodbye once there is a place for it.
    pub(super) fn say(&mut self, farewell: Message) {
        self.farewell = Some(farewell);
        self.send_control();
    }

    /// Tells the peer, before the next data, what is in an entry of its table of mapped buffers.
    pub(super) fn announce(&mut self, index: u16, entry: IomapEntry) {
        self.iomap_news.push_back((index, entry));
    }

    /// Keeps a mapped buffer.
    pub(super) fn add_mapping(&mut self, addr: usize, bytes: usize, index: Option<u16>, region: ProcessRegion) {
        self.mappings.push(Mapping { addr, bytes, index, _region: region });
    }
}

/// Writes the next bytes, at most `max`, into the ring, in one piece; returns how many.
fn fill(memory: &Memory, from: &mut Vectors<'_>, max: u32) -> Result<u32, Failure> {
    let max = max.min(memory.send_room());
    let mut done = 0;
    while done < max && from.left() > 0 {
        let head = from.head();
        let part = &head[..head.len().min((max - done) as usize)];
        memory.write(done, part)?;
        // At most what `max` leaves.
        let bytes = part.len() as u32;
        from.advance(bytes as usize);
        done += bytes;
    }
    Ok(done)
}

/// What a socket says of a work request that failed.
fn meaning(status: WcStatus) -> Errno {
    match status {
        WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr => Errno::ETIMEDOUT,
        WcStatus::LocLenErr | WcStatus::LocQpOpErr | WcStatus::LocProtErr | WcStatus::GeneralErr => Errno::EIO,
        _ => Errno::ECONNRESET,
    }
}
