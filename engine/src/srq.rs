//! A shared receive queue's engine side.

use shm::layout::Sge;
use shm::ring::{BadIndex, RecvFetcher};

/// An SRQ. One shard owns it and is its only consumer.
#[derive(Debug)]
pub struct Srq {
    pub(crate) fetcher: RecvFetcher,
    pub(crate) session: u32,
    pub(crate) handle: u32,
    pub(crate) pd: u32,
    /// Raise an event when fewer receives than this are left; 0 = off.
    pub(crate) limit: u32,
    /// The client corrupted the ring, or its CQ has overrun: no receive is taken any more.
    pub(crate) broken: bool,
    /// What makes it an SRQ of XRC.
    pub(crate) xrc: Option<XrcPlace>,
}

/// Where an SRQ of XRC belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcPlace {
    /// Number that requests name it by.
    pub srqn: u32,
    /// XRC domain (unique in the engine).
    pub xrcd: u32,
    /// Index of the CQ for its receives, in the same shard.
    pub cq: u32,
}

impl Srq {
    /// An SRQ of a session, known there by `handle`.
    pub fn new(fetcher: RecvFetcher, session: u32, handle: u32, pd: u32, xrc: Option<XrcPlace>) -> Self {
        Self { fetcher, session, handle, pd, limit: 0, broken: false, xrc }
    }

    /// Takes a receive; `limit_reached` of the result asks for the SRQ limit event.
    pub(crate) fn take(&mut self, sges: &mut [Sge]) -> Result<Option<SrqRecv>, BadIndex> {
        if self.broken {
            return Ok(None);
        }
        let available = match self.fetcher.available() {
            Ok(available) => available,
            Err(bad) => {
                self.broken = true;
                return Err(bad);
            }
        };
        if available == 0 {
            return Ok(None);
        }
        let wqe = self.fetcher.fetch(sges);
        let limit_reached = available - 1 < self.limit;
        if limit_reached {
            self.limit = 0;
        }
        Ok(Some(SrqRecv { wqe, pd: self.pd, limit_reached }))
    }
}

/// A receive out of an SRQ.
pub(crate) struct SrqRecv {
    /// wr_id and number of SGEs, or the wr_id of a receive whose SGE count was wrong.
    pub(crate) wqe: Result<(u64, usize), u64>,
    /// Domain of the regions that it may name.
    pub(crate) pd: u32,
    /// The limit was passed by this receive.
    pub(crate) limit_reached: bool,
}
