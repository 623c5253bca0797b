//! The floor: what moving a test's frames costs at the least, whatever the transport.
//!
//! For the very frames that the transport sends, through the same driver, in bursts of 32: allocate, copy the payload in from
//! memory like the application's and CRC the frame, transmit; receive, CRC, copy the payload out, free. No transport, no
//! rings, no control. A benchmark's ratio to this says what the transport adds.

use std::thread;
use std::time::{Duration, Instant};

use pmd::{Burst, Eal, PortConfig, QueuePair, RingPairConfig, ring_pair};
use shm::mapping::{Mapping, PageSize};
use wire::{Bth, EthernetRepr, Ipv4Repr, UdpRepr, icrc};

use crate::error::{PerfError, Result};
use crate::link::Link;
use crate::params::{Connection, Params, Verb};
use crate::patience::Patience;

/// Frames in a burst.
const BURST_FRAMES: usize = 32;
/// Before the extension headers.
const HEADER_BYTES: usize = EthernetRepr::LEN + Ipv4Repr::LEN + UdpRepr::LEN + Bth::LEN;
/// The largest extension headers: those of an atomic.
const EXT_BYTES_MAX: usize = 28;
const RETH_BYTES: usize = 16;
const AETH_BYTES: usize = 4;
const DETH_BYTES: usize = 8;
/// Bursts between two looks at the clock.
const BURSTS_PER_LOOK: u32 = 32;
/// How long one measurement takes.
pub(crate) const DURATION: Duration = Duration::from_millis(100);
/// A device without a frame for so long does not work.
const SILENCE: Duration = Duration::from_secs(5);
/// After the sender's last frame: how long until the last one has come that comes at all.
const SETTLING: Duration = Duration::from_millis(20);

/// One frame of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    /// Ethernet header to the last extension header.
    header_bytes: usize,
    payload_bytes: usize,
    /// Where the payload begins in its message.
    offset: u64,
}

impl Shape {
    const fn pad_bytes(self) -> usize {
        self.payload_bytes.wrapping_neg() & 3
    }

    const fn frame_bytes(self) -> usize {
        self.header_bytes + self.payload_bytes + self.pad_bytes() + icrc::LEN
    }
}

/// The frames of a test's messages and where their payloads lie.
#[derive(Clone, Debug)]
pub(crate) struct FramePlan {
    shapes: Vec<Shape>,
    slots: u32,
    stride: u64,
    footprint: u64,
}

impl FramePlan {
    /// The frames that carry the payload: requests, or a READ's responses.
    pub(crate) fn new(params: &Params, mtu_bytes: u32) -> Self {
        let count = params.size.div_ceil(mtu_bytes);
        let shape = |number: u32| {
            let offset = number * mtu_bytes;
            let is_end = number == 0 || number + 1 == count;
            let (ext_bytes, payload_bytes) = match params.test.verb {
                Verb::Write => (if number == 0 { RETH_BYTES } else { 0 }, params.size - offset),
                Verb::Send if params.connection == Connection::Ud => (DETH_BYTES, params.size - offset),
                Verb::Send => (0, params.size - offset),
                Verb::Read => (if is_end { AETH_BYTES } else { 0 }, params.size - offset),
                Verb::Atomic => (EXT_BYTES_MAX, 0),
            };
            let payload_bytes = payload_bytes.min(mtu_bytes) as usize;
            Shape { header_bytes: HEADER_BYTES + ext_bytes, payload_bytes, offset: u64::from(offset) }
        };
        Self {
            shapes: (0..count).map(shape).collect(),
            slots: params.slots(),
            stride: u64::from(params.stride()),
            footprint: u64::from(params.footprint()),
        }
    }

    /// Frames of a message.
    pub(crate) fn frames(&self) -> usize {
        self.shapes.len()
    }

    /// Walks through the frames of message after message.
    fn walk(&self) -> Walk<'_> {
        Walk { plan: self, shape: 0, slot: 0 }
    }
}

/// The place of the next frame.
struct Walk<'a> {
    plan: &'a FramePlan,
    shape: usize,
    slot: u32,
}

impl Walk<'_> {
    /// The next frame, and where its payload lies in the area.
    #[inline]
    fn next(&mut self) -> (Shape, u64) {
        let shape = self.plan.shapes[self.shape];
        let offset = u64::from(self.slot) * self.plan.stride + shape.offset;
        self.shape += 1;
        if self.shape == self.plan.shapes.len() {
            self.shape = 0;
            self.slot = if self.slot + 1 == self.plan.slots { 0 } else { self.slot + 1 };
        }
        (shape, offset)
    }
}

/// The sending half.
struct FloorSender<'a> {
    pair: &'a mut QueuePair,
    walk: Walk<'a>,
    source: Mapping,
    burst: Burst,
}

impl<'a> FloorSender<'a> {
    fn new(pair: &'a mut QueuePair, plan: &'a FramePlan) -> Result<Self> {
        let source = area(plan)?;
        source.write(0, &crate::side::pattern(1, plan.footprint as usize)).map_err(|_| outside())?;
        Ok(Self { pair, walk: plan.walk(), source, burst: Burst::new() })
    }

    /// Builds a burst, unless an earlier one waits, and transmits it; returns how many frames the port took.
    #[inline]
    fn send(&mut self) -> Result<usize> {
        if self.burst.is_empty() {
            self.pair.tx.pool().alloc_bulk(&mut self.burst, BURST_FRAMES);
            for mbuf in self.burst.iter_mut() {
                let (shape, offset) = self.walk.next();
                let frame_bytes = shape.frame_bytes();
                let frame = mbuf.resize(frame_bytes).ok_or(PerfError::FloorCrc(frame_bytes))?;
                let (header, rest) = frame.split_at_mut(shape.header_bytes);
                header.copy_from_slice(&HEADER[..shape.header_bytes]);
                let (payload, tail) = rest.split_at_mut(shape.payload_bytes);
                let crc = icrc::update(icrc::SEED, &header[EthernetRepr::LEN..]);
                let crc = self.source.read_crc(offset, payload, crc).map_err(|_| outside())?;
                let (pad, crc_field) = tail.split_at_mut(shape.pad_bytes());
                pad.fill(0);
                let crc = if pad.is_empty() { crc } else { icrc::update(crc, pad) };
                crc_field.copy_from_slice(&crc.to_le_bytes());
            }
        }
        Ok(self.pair.tx.transmit(&mut self.burst))
    }
}

/// What a frame's headers are; their values cost nothing.
const HEADER: [u8; HEADER_BYTES + EXT_BYTES_MAX] = [0x5a; HEADER_BYTES + EXT_BYTES_MAX];

/// The receiving half.
struct FloorReceiver<'a> {
    pair: &'a mut QueuePair,
    walk: Walk<'a>,
    sink: Mapping,
    burst: Burst,
    /// Frames may be lost on this device, and others may come in.
    is_lossy: bool,
}

impl<'a> FloorReceiver<'a> {
    fn new(pair: &'a mut QueuePair, plan: &'a FramePlan, is_lossy: bool) -> Result<Self> {
        Ok(Self { pair, walk: plan.walk(), sink: area(plan)?, burst: Burst::new(), is_lossy })
    }

    /// Takes what has come; returns how many frames that were.
    #[inline]
    fn receive(&mut self) -> Result<usize> {
        self.pair.rx.burst(&mut self.burst);
        let mut count = 0;
        for mbuf in self.burst.iter() {
            let frame = mbuf.data();
            let (mut shape, mut offset) = self.walk.next();
            // After a loss: the next frame of this size, in whatever message.
            let mut skipped = 0;
            while self.is_lossy && shape.frame_bytes() != frame.len() && skipped < self.walk.plan.shapes.len() {
                (shape, offset) = self.walk.next();
                skipped += 1;
            }
            let covered = EthernetRepr::LEN..shape.frame_bytes() - icrc::LEN;
            let Some(bytes) = frame.get(covered.clone()) else { continue };
            let crc = icrc::update(icrc::SEED, bytes).to_le_bytes();
            if frame.get(covered.end..covered.end + icrc::LEN) != Some(&crc) {
                if self.is_lossy {
                    continue;
                }
                return Err(PerfError::FloorCrc(frame.len()));
            }
            let payload = &frame[shape.header_bytes..shape.header_bytes + shape.payload_bytes];
            self.sink.write(offset, payload).map_err(|_| outside())?;
            count += 1;
        }
        self.burst.clear();
        Ok(count)
    }
}

fn area(plan: &FramePlan) -> Result<Mapping> {
    let mapping = Mapping::create(c"ferroce-floor", plan.footprint, PageSize::Base)?;
    mapping.populate(0, mapping.bytes())?;
    Ok(mapping)
}

/// Every offset of a plan lies in its area.
fn outside() -> PerfError {
    PerfError::Data("the floor left its memory".to_owned())
}

/// Two ports joined by rings, for the floor alone.
pub(crate) struct FloorRings {
    sender: QueuePair,
    receiver: QueuePair,
    eal: Eal,
}

impl FloorRings {
    /// Makes them, like those of the two engines.
    ///
    /// # Errors
    /// What DPDK says.
    pub(crate) fn new(eal: Eal) -> Result<Self> {
        let (first, second) = ring_pair(eal, RingPairConfig::default())?;
        let config = PortConfig::default();
        let (mut first, mut second) = (first.configure(&config)?, second.configure(&config)?);
        let taken = first.take_queue_pairs().pop().zip(second.take_queue_pairs().pop());
        let (sender, receiver) = taken.ok_or(PerfError::Thread("floor"))?;
        Ok(Self { sender, receiver, eal })
    }

    /// Messages per second with both halves on this thread.
    ///
    /// # Errors
    /// [`PerfError::FloorSilent`], [`PerfError::FloorCrc`].
    pub(crate) fn one_thread(&mut self, plan: &FramePlan, duration: Duration) -> Result<f64> {
        let _registered = self.eal.register_thread()?;
        let mut sender = FloorSender::new(&mut self.sender, plan)?;
        let mut receiver = FloorReceiver::new(&mut self.receiver, plan, false)?;
        let (start, mut frames) = (Instant::now(), 0_u64);
        loop {
            for _ in 0..BURSTS_PER_LOOK {
                sender.send()?;
                frames += receiver.receive()? as u64;
            }
            let elapsed = start.elapsed();
            if elapsed >= duration {
                return rate(frames, elapsed, plan);
            }
        }
    }

    /// Messages per second with a thread for each half.
    ///
    /// # Errors
    /// As [`FloorRings::one_thread`].
    pub(crate) fn two_threads(&mut self, plan: &FramePlan, duration: Duration) -> Result<f64> {
        let Self { sender, receiver, eal } = self;
        let (eal, start) = (*eal, Instant::now());
        let end = start + duration;
        let frames = thread::scope(|scope| {
            let sending = scope.spawn(move || -> Result<()> {
                let _registered = eal.register_thread()?;
                let mut sender = FloorSender::new(sender, plan)?;
                send_until(&mut sender, end)
            });
            let receiving = scope.spawn(move || -> Result<u64> {
                let _registered = eal.register_thread()?;
                let mut receiver = FloorReceiver::new(receiver, plan, false)?;
                receive_until(&mut receiver, end)
            });
            sending.join().map_err(|_| PerfError::Thread("floor"))??;
            receiving.join().map_err(|_| PerfError::Thread("floor"))?
        })?;
        // What is left in the rings is no part of the next measurement.
        let mut rest = FloorReceiver::new(&mut self.receiver, plan, true)?;
        while rest.receive()? > 0 {}
        rate(frames, duration, plan)
    }
}

fn rate(frames: u64, elapsed: Duration, plan: &FramePlan) -> Result<f64> {
    if frames == 0 {
        return Err(PerfError::FloorSilent(elapsed.as_secs()));
    }
    Ok(frames as f64 / elapsed.as_secs_f64() / plan.frames() as f64)
}

fn send_until(sender: &mut FloorSender<'_>, end: Instant) -> Result<()> {
    let mut patience = Patience::new();
    while Instant::now() < end {
        for _ in 0..BURSTS_PER_LOOK {
            if sender.send()? == 0 {
                patience.empty_turn()?;
            } else {
                patience.reset();
            }
        }
    }
    Ok(())
}

fn receive_until(receiver: &mut FloorReceiver<'_>, end: Instant) -> Result<u64> {
    let (mut frames, mut patience) = (0, Patience::new());
    while Instant::now() < end {
        for _ in 0..BURSTS_PER_LOOK {
            let count = receiver.receive()?;
            frames += count as u64;
            if count == 0 {
                patience.empty_turn()?;
            } else {
                patience.reset();
            }
        }
    }
    Ok(frames)
}

/// This process is the sender, through a device that leads to another process; returns that one's messages per second.
///
/// # Errors
/// As [`FloorRings::one_thread`].
pub(crate) fn send_to_peer(eal: Eal, pair: &mut QueuePair, plan: &FramePlan, link: &Link) -> Result<f64> {
    let _registered = eal.register_thread()?;
    let mut sender = FloorSender::new(pair, plan)?;
    link.sync()?;
    // A device may take its time until its peer is connected: the measurement begins with the first frame.
    let start = Instant::now();
    while sender.send()? == 0 {
        if start.elapsed() > SILENCE {
            return Err(PerfError::FloorSilent(SILENCE.as_secs()));
        }
    }
    send_until(&mut sender, Instant::now() + DURATION)?;
    thread::sleep(SETTLING);
    link.send(&())?;
    link.receive()
}

/// This process is the receiver of [`send_to_peer`].
///
/// # Errors
/// As there.
pub(crate) fn receive_from_peer(eal: Eal, pair: &mut QueuePair, plan: &FramePlan, link: &Link) -> Result<()> {
    let _registered = eal.register_thread()?;
    let mut receiver = FloorReceiver::new(pair, plan, true)?;
    link.sync()?;
    let (mut first, mut last, mut frames) = (None, Instant::now(), 0_u64);
    while !link.has_message()? {
        for _ in 0..BURSTS_PER_LOOK {
            let count = receiver.receive()?;
            if count > 0 {
                last = Instant::now();
                first.get_or_insert(last);
                frames += count as u64;
            }
        }
    }
    let () = link.receive()?;
    let elapsed = first.map_or(Duration::ZERO, |first| last - first);
    let per_s = frames as f64 / elapsed.as_secs_f64().max(1e-9) / plan.frames() as f64;
    link.send(&per_s)?;
    if frames == 0 { Err(PerfError::FloorSilent(0)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Test;
    use crate::params::tests::params;

    fn frame_bytes(verb: Verb, size: u32, mtu_bytes: u32) -> Vec<usize> {
        let params = Params { size, ..params(Test::bandwidth(verb)) };
        FramePlan::new(&params, mtu_bytes).shapes.iter().map(|shape| shape.frame_bytes()).collect()
    }

    #[test]
    fn frames_are_as_long_as_the_transports() {
        assert_eq!(frame_bytes(Verb::Write, 64, 4096), [54 + 16 + 64 + 4]);
        assert_eq!(frame_bytes(Verb::Write, 2049, 1024), [54 + 16 + 1024 + 4, 54 + 1024 + 4, 54 + 4 + 4]);
        assert_eq!(frame_bytes(Verb::Read, 4096, 1024), [54 + 4 + 1028, 54 + 1028, 54 + 1028, 54 + 4 + 1028]);
        assert_eq!(frame_bytes(Verb::Send, 3, 256), [54 + 4 + 4]);
        assert_eq!(frame_bytes(Verb::Atomic, 8, 4096), [54 + 28 + 4]);
    }

    #[test]
    fn a_walk_goes_through_all_slots_and_begins_again() {
        let params = Params { size: 2048, ..params(Test::bandwidth(Verb::Write)) };
        let plan = FramePlan::new(&params, 1024);
        let mut walk = plan.walk();
        let offsets: Vec<u64> = (0..5).map(|_| walk.next().1).collect();
        assert_eq!(offsets, [0, 1024, 2048, 3072, 0]);
    }

    #[test]
    fn frames_come_through_and_wrong_ones_do_not_count() {
        let eal = daemon::embedded::start_dpdk().unwrap();
        let params = Params { size: 5000, ..params(Test::bandwidth(Verb::Write)) };
        let plan = FramePlan::new(&params, 1024);
        let mut rings = FloorRings::new(eal).unwrap();
        assert!(rings.one_thread(&plan, Duration::from_millis(5)).unwrap() > 0.0);
        assert!(rings.two_threads(&plan, Duration::from_millis(50)).unwrap() > 0.0);
        let mut receiver = FloorReceiver::new(&mut rings.receiver, &plan, false).unwrap();
        let mut burst = Burst::new();
        burst.push(rings.sender.tx.frame(&[1; 1200]).unwrap()).unwrap();
        rings.sender.tx.transmit(&mut burst);
        assert!(matches!(receiver.receive(), Err(PerfError::FloorCrc(1200))));
    }
}
