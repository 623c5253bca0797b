//! Single loops over one part each, whose instructions can be counted: `scripts/callgrind` does.

use std::hint::black_box;
use std::time::Instant;

use clap::ValueEnum;
use shm::layout::{Cqe, QueueShape, SendWqe, Sge};
use shm::ring::{Body, CqPoller, CqWriter, SendFetcher, SendPoster, cq_block_bytes, qp_block_bytes};
use shm::segment::{Block, SegmentAllocator, SegmentError};
use wire::{Bth, Frame, MacAddr, Opcode, PathFields, PathTemplate, Psn, Qpn, RethRepr, Rkey, icrc};

use crate::args::MicroArgs;
use crate::error::{PerfError, Result};

/// Work requests in the measured ring.
const RING_DEPTH: u32 = 128;
/// Posted, fetched and completed at a time.
const RING_BATCH: u32 = 32;
/// Payload of the measured packets, bytes.
const PAYLOAD_BYTES: usize = 64;
/// Payload of the measured ICRC, bytes: a packet of path MTU 1024.
const ICRC_BYTES: usize = 1024;

/// What a loop goes through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Writing a 64-byte RDMA WRITE packet, ICRC included
    Emit,
    /// Parsing it and checking its ICRC
    Parse,
    /// The CRC of 1024 bytes
    Icrc,
    /// A work request into the ring and out, and its completion back
    Ring,
}

/// Runs a loop and prints its time.
///
/// # Errors
/// No memory for a ring.
pub(crate) fn run(args: &MicroArgs) -> Result<()> {
    let start = Instant::now();
    let turns = match args.part {
        Part::Emit => emit(args.iters),
        Part::Parse => parse(args.iters)?,
        Part::Icrc => crc(args.iters),
        Part::Ring => ring(args.iters)?,
    };
    let ns = start.elapsed().as_nanos() as f64 / turns as f64;
    println!("{:?}: {turns} turns, {ns:.1} ns each", args.part);
    Ok(())
}

fn template() -> PathTemplate {
    let fields = PathFields {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src_ip: daemon::embedded::PAIR_ADDRESSES[0],
        dst_ip: daemon::embedded::PAIR_ADDRESSES[1],
        traffic_class: 2,
        hop_limit: 64,
        udp_src_port: 0xc000,
        ipv4_ident: 0,
        flow_label: 0,
        roce_v1: false,
    };
    PathTemplate::new(&fields).expect("both addresses are IPv4")
}

fn write_packet(template: &PathTemplate, buffer: &mut [u8], psn: Psn, payload: &[u8]) -> usize {
    let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(17), psn);
    let reth = RethRepr { va: 0x1000, rkey: Rkey(7), dma_len: 64 }.to_bytes();
    template
        .write_packet(buffer, &bth, &reth, payload.len(), |room, crc| shm::copy_crc::copy_slice_crc(room, payload, crc))
}

fn emit(turns: u64) -> u64 {
    let (template, payload, mut buffer) = (template(), [0x5a; PAYLOAD_BYTES], [0; 256]);
    for turn in 0..turns {
        let psn = Psn::new(turn as u32);
        black_box(write_packet(black_box(&template), &mut buffer, psn, black_box(&payload)));
        black_box(&buffer);
    }
    turns
}

fn parse(turns: u64) -> Result<u64> {
    let mut buffer = [0; 256];
    let length = write_packet(&template(), &mut buffer, Psn::new(1), &[0x5a; PAYLOAD_BYTES]);
    for _ in 0..turns {
        let frame = Frame::parse(black_box(&buffer[..length]));
        let frame = frame.map_err(|error| PerfError::Data(format!("our own packet: {error}")))?;
        if !frame.icrc_ok() {
            return Err(PerfError::Data("our own packet has a wrong ICRC".to_owned()));
        }
        black_box((frame.reth(), frame.payload()));
    }
    Ok(turns)
}

fn crc(turns: u64) -> u64 {
    let data = [0x5a; ICRC_BYTES];
    for _ in 0..turns {
        black_box(icrc::update(icrc::SEED, black_box(&data)));
    }
    turns
}

fn block(bytes: u64) -> Result<Block> {
    match SegmentAllocator::new(1 << 30).allocate(bytes) {
        Ok((block, _)) => Ok(block),
        Err(SegmentError::Map(error)) => Err(error.into()),
        Err(error) => Err(PerfError::Data(error.to_string())),
    }
}

fn ring(turns: u64) -> Result<u64> {
    let bad = |_| PerfError::Data("a ring does not fit its own memory".to_owned());
    let shape = QueueShape::send(RING_DEPTH, 1, 0);
    let sends = block(qp_block_bytes(shape, QueueShape::default()))?;
    let completions = block(cq_block_bytes(RING_DEPTH))?;
    let mut poster = SendPoster::new(&sends, shape, RING_DEPTH).map_err(bad)?;
    let mut fetcher = SendFetcher::new(&sends, shape).map_err(bad)?;
    let mut writer = CqWriter::new(&completions, RING_DEPTH).map_err(bad)?;
    let mut poller = CqPoller::new(&completions, RING_DEPTH).map_err(bad)?;
    let broken = || PerfError::Data("the ring has lost a work request".to_owned());
    let sges = [Sge { addr: 0x1000, length: 64, lkey: 1 }];
    let mut done = 0;
    while done < turns {
        for number in 0..u64::from(RING_BATCH) {
            let wqe = SendWqe { wr_id: done + number, ..SendWqe::default() };
            poster.post(wqe, Body::Sges(black_box(&sges))).map_err(|_| broken())?;
        }
        poster.publish();
        let mut fetched = [Sge::default(); 1];
        for _ in 0..fetcher.available().map_err(|_| broken())? {
            let wqe = fetcher.fetch(&mut fetched, &mut []).map_err(|_| broken())?;
            writer.push(&Cqe { wr_id: wqe.wr_id, ..Cqe::default() }).map_err(|_| broken())?;
        }
        fetcher.retire(RING_BATCH);
        while let Some(cqe) = poller.next() {
            if cqe.wr_id != done {
                return Err(broken());
            }
            done += 1;
        }
        poller.publish();
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_does_its_turns() {
        assert_eq!(emit(10), 10);
        assert_eq!(parse(10).unwrap(), 10);
        assert_eq!(crc(10), 10);
        // In whole batches.
        assert_eq!(ring(100).unwrap(), 128);
    }
}
