//! What each side of a connection may send, and what it owes the other: credits and receive buffers. Without memory or queues.

use std::collections::VecDeque;

use super::wire::RemoteBuffer;

/// Receive buffers that a host shows its peer at a time: the two halves of its receive memory.
pub(super) const TABLE_ENTRIES: u32 = 2;

/// Our right to send data: the peer's receive buffers, and credits for messages.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// Buffers that were taken from our table, the current one first. Filled to the last byte before the next is used.
    buffers: VecDeque<RemoteBuffer>,
    /// Entry of our table that the peer writes next.
    next_entry: u32,
    /// Messages sent, modulo 2^16.
    sent: u16,
    /// The first that may not be sent.
    limit: u16,
}

impl SendWindow {
    /// As the peer's private data says. Its first buffer stands for entry 0 of our table.
    pub(super) fn new(first: RemoteBuffer, credits: u16) -> Self {
        let buffers = Some(first).filter(|buffer| buffer.length > 0).into_iter().collect();
        Self { buffers, next_entry: 1, sent: 0, limit: credits }
    }

    /// Index in our table of the entry that may be new when a credit update comes; `None` while its last content is in use.
    pub(super) fn expected_entry(&self) -> Option<u32> {
        (self.buffers.len() < TABLE_ENTRIES as usize).then_some(self.next_entry)
    }

    /// Takes the entry that was expected.
    pub(super) fn add_buffer(&mut self, buffer: RemoteBuffer) {
        self.buffers.push_back(buffer);
        self.next_entry = (self.next_entry + 1) % TABLE_ENTRIES;
    }

    pub(super) fn set_limit(&mut self, limit: u16) {
        self.limit = limit;
    }

    pub(super) fn has_credit(&self) -> bool {
        self.sent != self.limit
    }

    /// Bytes that the next message may have; 0 if none may be sent.
    pub(super) fn room(&self) -> u32 {
        if self.has_credit() { self.buffers.front().map_or(0, |buffer| buffer.length) } else { 0 }
    }

    /// Spends a credit and the first `bytes` of the current buffer, at most [`SendWindow::room`]; returns where they go: address and
    /// key.
    pub(super) fn spend(&mut self, bytes: u32) -> Option<(u64, u32)> {
        let buffer = self.buffers.front_mut()?;
        let to = (buffer.addr, buffer.key);
        buffer.length = buffer.length.checked_sub(bytes)?;
        buffer.addr = buffer.addr.wrapping_add(u64::from(bytes));
        if buffer.length == 0 {
            self.buffers.pop_front();
        }
        self.spend_credit();
        Some(to)
    }

    /// Spends a credit for a message without data.
    pub(super) fn spend_credit(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }
}

/// The peer has written more than it may, or says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Overflow;

/// The peer's right to send data: what it was shown of our receive memory, a ring of two halves, and how many messages we have consumed.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    half: u32,
    /// Receives that are posted for data.
    credits: u16,
    /// Lengths of the messages that wait to be read; the first may be read in part.
    messages: VecDeque<u32>,
    /// Bytes that wait.
    unread: u32,
    /// Where the next of them is.
    read_at: u32,
    /// Bytes that the peer may still write.
    granted: u32,
    /// Bytes that were read, and not shown to the peer again.
    freed: u32,
    /// The half that is shown next.
    next_half: u32,
    /// Messages consumed, modulo 2^16.
    consumed: u16,
    /// An update is due when this many are.
    due: u16,
}

/// What to tell the peer now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Update {
    /// The first message that it may not send, modulo 2^16.
    pub(super) limit: u16,
    /// Offset of the half of the memory that it may fill again.
    pub(super) half_at: Option<u32>,
}

impl ReceiveWindow {
    /// Of `2 * half` bytes. The peer knows of the first half, and of `credits`.
    pub(super) fn new(half: u32, credits: u16) -> Self {
        Self {
            half,
            credits,
            messages: VecDeque::new(),
            unread: 0,
            read_at: 0,
            granted: half,
            freed: half,
            next_half: 1,
            consumed: 0,
            due: credits / 2,
        }
    }

    /// Notes a message of data that has come. One without bytes is only a message.
    ///
    /// # Errors
    /// [`Overflow`] if it is longer than what is left of the buffer that it must be in.
    pub(super) fn arrived(&mut self, bytes: u32) -> Result<(), Overflow> {
        // A message lies in one buffer; what is granted beyond the current half is the other one, whole.
        let current = if self.granted > self.half { self.granted - self.half } else { self.granted };
        if bytes > current {
            return Err(Overflow);
        }
        if bytes == 0 {
            self.note_consumed();
        } else {
            self.granted -= bytes;
            self.unread += bytes;
            self.messages.push_back(bytes);
        }
        Ok(())
    }

    /// Notes a message that took a receive and has nothing to read.
    pub(super) fn note_consumed(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// Bytes that wait to be read.
    pub(super) fn unread(&self) -> u32 {
        self.unread
    }

    /// The next bytes to read, at most `max`, from `skip` bytes on: offset in the memory and length, which ends with the memory.
    pub(super) fn readable(&self, skip: u32, max: u32) -> (u32, u32) {
        let at = (self.read_at + skip) % (2 * self.half);
        let left = self.unread.saturating_sub(skip);
        (at, left.min(max).min(2 * self.half - at))
    }

    /// Frees the first `bytes` of what waits.
    pub(super) fn consume(&mut self, bytes: u32) {
        let mut left = bytes.min(self.unread);
        self.unread -= left;
        self.freed += left;
        self.read_at = (self.read_at + left) % (2 * self.half);
        while let Some(first) = self.messages.front_mut()
            && left > 0
        {
            let part = left.min(*first);
            *first -= part;
            left -= part;
            if *first == 0 {
                self.messages.pop_front();
                self.note_consumed();
            }
        }
    }

    /// The update that is due, if one is; the caller sends it.
    pub(super) fn take_update(&mut self) -> Option<Update> {
        let has_half = self.freed >= self.half;
        // As many apart as there are credits at most, so that the sign of the difference means something.
        let is_due = self.consumed.wrapping_sub(self.due).cast_signed() >= 0;
        if !has_half && !is_due {
            return None;
        }
        self.due = self.consumed.wrapping_add(self.credits / 2);
        let half_at = has_half.then(|| {
            let at = self.next_half * self.half;
            self.freed -= self.half;
            self.granted += self.half;
            self.next_half = (self.next_half + 1) % TABLE_ENTRIES;
            at
        });
        Some(Update { limit: self.consumed.wrapping_add(self.credits), half_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u32 = 100;

    fn buffer(addr: u64, length: u32) -> RemoteBuffer {
        RemoteBuffer { addr, key: 7, length }
    }

    /// A connected pair: what one may send, and what the other has told it.
    struct Pair {
        send: SendWindow,
        receive: ReceiveWindow,
        /// The sender's table as the receiver writes it.
        remote_entry: u32,
    }

    impl Pair {
        fn new(credits: u16) -> Self {
            let send = SendWindow::new(buffer(0, HALF), credits);
            Self { send, receive: ReceiveWindow::new(HALF, credits), remote_entry: 1 }
        }

        fn send(&mut self, bytes: u32) -> u32 {
            let bytes = bytes.min(self.send.room());
            if bytes > 0 {
                self.send.spend(bytes).unwrap();
                self.receive.arrived(bytes).unwrap();
            }
            bytes
        }

        fn update(&mut self) -> bool {
            let Some(update) = self.receive.take_update() else { return false };
            self.send.set_limit(update.limit);
            if let Some(at) = update.half_at {
                assert_eq!(self.send.expected_entry(), Some(self.remote_entry));
                self.send.add_buffer(buffer(at.into(), HALF));
                self.remote_entry = (self.remote_entry + 1) % TABLE_ENTRIES;
            }
            true
        }
    }

    #[test]
    fn the_second_half_is_shown_at_once_and_then_each_that_is_read() {
        let mut pair = Pair::new(100);
        assert!(pair.update());
        assert!(!pair.update());
        assert_eq!((pair.send(1000), pair.send(1000), pair.send(1)), (HALF, HALF, 0));
        assert_eq!(pair.receive.readable(0, 1000), (0, 200));
        pair.receive.consume(HALF - 1);
        assert!(!pair.update(), "not all of the half is read");
        pair.receive.consume(1);
        assert!(pair.update());
        assert_eq!(pair.send(1000), HALF);
        assert_eq!(pair.receive.readable(0, 1000), (HALF, HALF), "up to the end of the memory");
        assert_eq!(pair.receive.readable(HALF, 1000), (0, HALF), "and from its beginning");
    }

    #[test]
    fn credits_end_and_come_back_when_half_of_them_are_consumed() {
        let mut pair = Pair::new(8);
        pair.update();
        for _ in 0..8 {
            assert_eq!(pair.send(1), 1);
        }
        assert_eq!((pair.send(1), pair.send.has_credit()), (0, false));
        pair.receive.consume(3);
        assert!(!pair.update());
        pair.receive.consume(1);
        assert!(pair.update());
        let sent: u32 = (0..10).map(|_| pair.send(1)).sum();
        assert_eq!(sent, 4);
    }

    #[test]
    fn a_long_stream_in_odd_pieces_neither_stops_nor_passes_what_is_granted() {
        let mut pair = Pair::new(6);
        let (mut sent, mut read) = (0_u64, 0_u64);
        for turn in 0..200_000_u32 {
            sent += u64::from(pair.send(turn % 37 + 1));
            let (_, bytes) = pair.receive.readable(0, turn % 29 + 1);
            pair.receive.consume(bytes);
            read += u64::from(bytes);
            pair.update();
            assert_eq!(u64::from(pair.receive.unread()), sent - read);
        }
        // Past the wrap of the counters of messages.
        assert!(read > 1_000_000, "{read}");
    }

    #[test]
    fn a_peer_that_says_more_than_it_may_is_found_out() {
        let mut receive = ReceiveWindow::new(HALF, 8);
        assert_eq!(receive.arrived(HALF + 1), Err(Overflow));
        receive.take_update();
        assert_eq!(receive.arrived(HALF + 1), Err(Overflow), "no message lies in two buffers");
        receive.arrived(HALF).unwrap();
        receive.arrived(HALF).unwrap();
        assert_eq!(receive.arrived(1), Err(Overflow));
        // Messages of nothing take no memory.
        for _ in 0..100_000 {
            receive.arrived(0).unwrap();
        }
        assert_eq!(receive.messages.len(), 2);
    }

    #[test]
    fn a_table_entry_is_taken_only_when_its_last_content_is_used_up() {
        let mut send = SendWindow::new(buffer(0, 1), 9);
        assert_eq!(send.expected_entry(), Some(1));
        send.add_buffer(buffer(50, 5));
        assert_eq!(send.expected_entry(), None);
        assert_eq!(send.spend(1), Some((0, 7)));
        assert_eq!((send.expected_entry(), send.room()), (Some(0), 5));
        assert_eq!((send.spend(2), send.room(), send.spend(4)), (Some((50, 7)), 3, None));
    }
}
