//! An application's memory and the model of it: a shadow of every byte, changed as the operations say, compared with the
//! real bytes at rest. Guard zones lie around every region: nobody may write there.

use std::ops::Range;

use ferroce::{AccessFlags, Context, MemoryPool, MemoryRegion, PageSize, ProtectionDomain, Sge};
use rand::Rng;
use rand::RngCore;
use rand::seq::SliceRandom;

use crate::random::Stream;
use crate::violation::{Checked, OrSay, require};

/// Bytes between regions, and around them.
const GUARD_BYTES: usize = 512;

/// A part of the pool: where, and how many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) at: usize,
    pub(super) length: usize,
}

/// Hands out ranges of a pool that does not exist yet, with guards between them.
#[derive(Debug)]
pub(super) struct Layout {
    end: usize,
}

impl Layout {
    pub(super) fn new() -> Self {
        Self { end: GUARD_BYTES }
    }

    /// A range for a region. It starts at a multiple of 8, as atomics need, and ends anywhere.
    pub(super) fn add(&mut self, bytes: usize) -> Range<usize> {
        let range = self.end..self.end + bytes;
        self.end = (range.end + GUARD_BYTES).next_multiple_of(8);
        range
    }
}

/// A pool and its shadow.
pub(super) struct Memory {
    pool: MemoryPool,
    shadow: Vec<u8>,
    /// Address of the pool's first byte for users of its regions.
    base: u64,
    /// Ranges about which nothing is known any more.
    unknown: Vec<Range<usize>>,
}

impl Memory {
    /// A pool with room for what was laid out, full of random bytes.
    pub(super) fn new(context: &Context, layout: &Layout, base: u64, stream: &mut Stream) -> Checked<Self> {
        let pool = MemoryPool::new(context, layout.end as u64, PageSize::Base).or_say("making a pool")?;
        let bytes = pool.bytes() as usize;
        // A region at the very top of the address space must not pass it.
        let base = base.min((u64::MAX - bytes as u64) & !0xfff);
        let mut memory = Self { pool, shadow: vec![0; bytes], base, unknown: Vec::new() };
        memory.refill(&(0..bytes), stream)?;
        Ok(memory)
    }

    /// Registers a range. Its addresses are the pool's.
    pub(super) fn register(&self, pd: &ProtectionDomain, range: &Range<usize>) -> Checked<MemoryRegion> {
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let bytes = range.start as u64..range.end as u64;
        self.pool.register_at(pd, bytes, self.addr(range.start), access).or_say("registering a region")
    }

    /// The address of a byte of the pool.
    pub(super) fn addr(&self, at: usize) -> u64 {
        self.base + at as u64
    }

    pub(super) fn sges(&self, pieces: &[Piece], lkey: u32) -> Vec<Sge> {
        pieces.iter().map(|piece| Sge { addr: self.addr(piece.at), length: piece.length as u32, lkey }).collect()
    }

    /// Gives a range new random bytes, as its owner may.
    pub(super) fn refill(&mut self, range: &Range<usize>, stream: &mut Stream) -> Checked {
        stream.fill_bytes(&mut self.shadow[range.clone()]);
        self.pool.write(range.start as u64, &self.shadow[range.clone()]).or_say("filling the pool")
    }

    /// Writes bytes, as their owner may.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> Checked {
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
        self.pool.write(at as u64, bytes).or_say("filling the pool")
    }

    /// What the model says the pieces hold, one after the other.
    pub(super) fn model(&self, pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| &self.shadow[piece.at..piece.at + piece.length]).copied().collect()
    }

    /// Changes the model: `data` goes over the pieces, one after the other, as far as it reaches.
    pub(super) fn set_model(&mut self, pieces: &[Piece], mut data: &[u8]) {
        for piece in pieces {
            let (now, later) = data.split_at(piece.length.min(data.len()));
            self.shadow[piece.at..piece.at + now.len()].copy_from_slice(now);
            data = later;
        }
    }

    /// What the pieces really hold.
    pub(super) fn real(&self, pieces: &[Piece]) -> Checked<Vec<u8>> {
        let mut bytes = vec![0; pieces.iter().map(|piece| piece.length).sum()];
        let mut rest = &mut bytes[..];
        for piece in pieces {
            let (part, later) = rest.split_at_mut(piece.length);
            self.pool.read(piece.at as u64, part).or_say("reading the pool")?;
            rest = later;
        }
        Ok(bytes)
    }

    /// Takes what is really there for the model: a message may have arrived in part.
    pub(super) fn adopt(&mut self, pieces: &[Piece]) -> Checked {
        let real = self.real(pieces)?;
        self.set_model(pieces, &real);
        Ok(())
    }

    /// All of the pool.
    pub(super) fn all(&self) -> Range<usize> {
        0..self.shadow.len()
    }

    /// Nothing is known of this range any more: the connection that wrote here has broken.
    pub(super) fn forget(&mut self, range: Range<usize>) {
        self.unknown.push(range);
    }

    /// True if the range has been given up.
    pub(super) fn is_unknown(&self, at: usize) -> bool {
        self.unknown.iter().any(|range| range.contains(&at))
    }

    /// Changes a byte as nobody may; the result changes it back.
    #[cfg(test)]
    pub(super) fn damage(&self, at: usize) -> impl FnOnce(&Self) + use<> {
        let mut byte = [0];
        self.pool.read(at as u64, &mut byte).expect("the byte is inside the pool");
        self.pool.write(at as u64, &[!byte[0]]).expect("the byte is inside the pool");
        move |memory| memory.pool.write(at as u64, &byte).expect("the byte is inside the pool")
    }

    /// Compares every byte with the model.
    pub(super) fn check(&self) -> Checked {
        let real = self.real(&[Piece { at: 0, length: self.shadow.len() }])?;
        if real == self.shadow {
            return Ok(());
        }
        let wrong = (0..real.len()).find(|&at| real[at] != self.shadow[at] && !self.is_unknown(at));
        let Some(at) = wrong else { return Ok(()) };
        let count = (at..real.len()).take_while(|&at| real[at] != self.shadow[at]).count();
        Err(format!("{count} bytes at offset {at:#x} of the pool differ from the model"))
    }
}

/// The memory of one end of a connection: one region.
pub(super) struct Lane {
    pub(super) range: Range<usize>,
    /// What is sent; never changes.
    pub(super) source: Range<usize>,
    /// Where READs and atomics bring their data.
    pub(super) sink: Range<usize>,
    /// What the peer writes, reads and adds to.
    pub(super) target: Range<usize>,
    /// Receives' buffers; empty with an SRQ.
    pub(super) inbox: Range<usize>,
    /// `None` once it was deregistered.
    pub(super) region: Option<MemoryRegion>,
    /// Where the next sink goes.
    sink_next: usize,
}

/// Room beyond the longest message, so that one may begin at many places.
const SLACK_BYTES: usize = 4_096;

impl Lane {
    /// Lays a lane out for messages of `message_bytes`, receives' buffers of `inbox_bytes` in all.
    pub(super) fn new(layout: &mut Layout, message_bytes: usize, inbox_bytes: usize) -> Self {
        let slack = message_bytes + SLACK_BYTES;
        let lengths = [slack, 2 * message_bytes + SLACK_BYTES, slack, inbox_bytes];
        let range = layout.add(lengths.iter().sum());
        let mut at = range.start;
        let [source, sink, target, inbox] = lengths.map(|length| {
            at += length;
            at - length..at
        });
        let sink_next = sink.start;
        Self { range, source, sink, target, inbox, region: None, sink_next }
    }

    /// The region's key, for both kinds of use; 0 if there is none.
    pub(super) fn key(&self) -> u32 {
        self.region.as_ref().map_or(0, MemoryRegion::lkey)
    }

    /// `count` pieces of the source, `length` bytes in all.
    pub(super) fn draw_source(&self, stream: &mut Stream, length: usize, count: usize) -> Vec<Piece> {
        let lengths = partition(stream, length, count);
        let place = |length: usize, stream: &mut Stream| {
            let at = stream.random_range(self.source.start..=self.source.end - length);
            Piece { at, length }
        };
        lengths.into_iter().map(|length| place(length, stream)).collect()
    }

    /// A place of `length` bytes in the target.
    pub(super) fn draw_target(&self, stream: &mut Stream, length: usize) -> Piece {
        Piece { at: stream.random_range(self.target.start..=self.target.end - length), length }
    }

    /// A word of the target.
    pub(super) fn draw_word(&self, stream: &mut Stream) -> Piece {
        let first = self.target.start.div_ceil(8);
        Piece { at: stream.random_range(first..self.target.end / 8) * 8, length: 8 }
    }

    /// A place of `length` bytes in the sink that does not touch any of `taken`, from where the last one ended.
    pub(super) fn take_sink(&mut self, length: usize, taken: impl Fn(&Range<usize>) -> bool) -> Option<Range<usize>> {
        let next = if self.sink_next + length > self.sink.end { self.sink.start } else { self.sink_next };
        let range = next..next + length;
        if taken(&range) {
            return None;
        }
        self.sink_next = range.end;
        Some(range)
    }
}

/// Cuts a range into `count` pieces and shuffles them: that is the order in which data go there.
pub(super) fn scatter(stream: &mut Stream, range: Range<usize>, count: usize) -> Vec<Piece> {
    let mut at = range.start;
    let mut pieces: Vec<Piece> = partition(stream, range.len(), count)
        .into_iter()
        .map(|length| {
            at += length;
            Piece { at: at - length, length }
        })
        .collect();
    pieces.shuffle(stream);
    pieces
}

/// `count` lengths (some may be 0) that add up to `length`.
fn partition(stream: &mut Stream, length: usize, count: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (1..count).map(|_| stream.random_range(0..=length)).collect();
    cuts.extend([0, length]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Checks that bytes are what they must be, and names the first that is not.
pub(super) fn compare(what: &str, real: &[u8], expected: &[u8]) -> Checked {
    let wrong = real.iter().zip(expected).position(|(real, expected)| real != expected);
    require!(wrong.is_none(), "{what}: byte {} of {} is wrong", wrong.unwrap_or(0), expected.len());
    require!(real.len() == expected.len(), "{what}: {} bytes instead of {}", real.len(), expected.len());
    Ok(())
}
