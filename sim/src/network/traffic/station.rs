//! A host's application: the objects that all of its connections share.

use std::ops::Range;

use ferroce::{
    AccessFlags, CompletionQueue, Context, CqInit, Gid, MemoryPool, MemoryRegion, PageSize, ProtectionDomain, QpCap,
    QpInit, QpType, QueuePair, WorkCompletion,
};

use super::TrafficSettings;
use super::arena::{Arena, fill};
use crate::host::Host;
use crate::violation::{Checked, OrSay, require};

/// Completions that wait at most: more than all connections of a host have outstanding between two looks.
const CQ_DEPTH: u32 = 8_192;
/// Address of the region's first byte, for all who use it.
const REGION_ADDR: u64 = 0x1000_0000;
/// Bytes of a check at a time.
const CHECK_BYTES: usize = 4_096;

pub(super) struct Station {
    pub(super) host: Host,
    pub(super) context: Context,
    pub(super) gid: Gid,
    pub(super) region: MemoryRegion,
    /// Its client has died, or has ruined its rings: nothing of it counts any more.
    pub(super) is_lost: bool,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    arena: Arena,
}

impl Station {
    pub(super) fn new(host: &Host, settings: &TrafficSettings) -> Checked<Self> {
        let context = Context::from_endpoint(host.connect()?).or_say("connecting")?;
        let pd = context.alloc_pd().or_say("allocating a PD")?;
        let cq =
            context.create_cq(&CqInit { cqe: CQ_DEPTH, channel: None, comp_vector: None }).or_say("making a CQ")?;
        let bytes = if settings.verifies { settings.arena_bytes } else { u64::from(settings.message_bytes) };
        let pool = MemoryPool::new(&context, bytes, PageSize::Base).or_say("making a pool")?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        // Addresses are in packets: the same in every run.
        let region = pool.register_at(&pd, 0..pool.bytes(), REGION_ADDR, access).or_say("registering")?;
        let gids = context.query_gids(1).or_say("asking for the GIDs")?;
        let gid = gids.iter().find(|entry| entry.index == 0).ok_or("the port has no GID 0")?.gid;
        let arena = Arena::new(bytes);
        Ok(Self { host: host.clone(), context, gid, region, is_lost: false, pd, cq, arena })
    }

    pub(super) fn create_qp(&self, settings: &TrafficSettings) -> Checked<QueuePair> {
        let cap = QpCap {
            max_send_wr: u32::from(settings.outstanding),
            max_recv_wr: settings.receives() as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init =
            QpInit { qp_type: QpType::Rc, send_cq: &self.cq, recv_cq: &self.cq, srq: None, cap, sq_sig_all: false };
        self.pd.create_qp(&init).or_say("making a QP")
    }

    pub(super) fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        self.cq.poll(out)
    }

    /// Room for a flow's bytes, all zeros.
    pub(super) fn take(&mut self, length: u64) -> Option<Range<u64>> {
        self.arena.take(length)
    }

    /// Puts a flow's bytes into a range.
    pub(super) fn put(&self, range: &Range<u64>, flow: u32) -> Checked {
        self.for_pieces(range, |station, at, piece| {
            fill(flow, at - range.start, piece);
            station.region.write(at, piece).or_say("writing a flow's bytes")
        })
    }

    /// Checks that a range has a flow's bytes.
    pub(super) fn check(&self, range: &Range<u64>, flow: u32) -> Checked {
        let mut real = [0; CHECK_BYTES];
        self.for_pieces(range, |station, at, expected| {
            fill(flow, at - range.start, expected);
            let real = &mut real[..expected.len()];
            station.region.read(at, real).or_say("reading a flow's bytes")?;
            let wrong = real.iter().zip(&*expected).position(|(real, expected)| real != expected);
            let place = wrong.map_or(0, |wrong| at - range.start + wrong as u64);
            require!(wrong.is_none(), "flow {flow}: byte {place} of {} is wrong", range.end - range.start);
            Ok(())
        })
    }

    /// Clears a range and lets others have it.
    pub(super) fn give_back(&mut self, range: &Range<u64>) -> Checked {
        self.for_pieces(range, |station, at, piece| {
            piece.fill(0);
            station.region.write(at, piece).or_say("clearing a flow's bytes")
        })?;
        self.arena.give_back(range);
        Ok(())
    }

    /// With no flow left, nothing may be in the region.
    pub(super) fn check_at_rest(&self) -> Checked {
        require!(self.arena.is_empty(), "flows are left in the arena");
        let mut real = [0; CHECK_BYTES];
        self.for_pieces(&(0..self.region.length()), |station, at, piece| {
            let real = &mut real[..piece.len()];
            station.region.read(at, real).or_say("reading the arena")?;
            let wrong = real.iter().position(|&byte| byte != 0);
            require!(wrong.is_none(), "somebody wrote to byte {} where no flow is", at + wrong.unwrap_or(0) as u64);
            Ok(())
        })
    }

    fn for_pieces(&self, range: &Range<u64>, mut each: impl FnMut(&Self, u64, &mut [u8]) -> Checked) -> Checked {
        let mut piece = [0; CHECK_BYTES];
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(CHECK_BYTES as u64);
            each(self, at, &mut piece[..length as usize])?;
            at += length;
        }
        Ok(())
    }
}
