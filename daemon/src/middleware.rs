//! What may stand between an lcore and a port: faults from a seed, and a capture.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use pmd::{Burst, FaultInjector, FaultRateError, FaultRates, Mbuf, Mempool, PcapTap, PcapTapError, QueuePair};
use thiserror::Error;

/// Faults on a port's receive side, for tests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FaultSetup {
    /// How often.
    pub rates: FaultRates,
    /// Lcore `n` draws from `seed + n`.
    pub seed: u64,
}

/// Why middleware could not be set up.
#[derive(Debug, Error)]
pub enum MiddlewareError {
    /// The capture's file.
    #[error("capture file {}: {source}", .path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The capture's header.
    #[error(transparent)]
    Capture(#[from] PcapTapError),
    /// A rate.
    #[error(transparent)]
    Rate(#[from] FaultRateError),
}

/// What an lcore gets of a port.
pub(crate) type LcoreQueues = (QueuePair, Option<Box<Middleware>>);

/// The middleware of one queue pair.
#[derive(Debug)]
pub(crate) struct Middleware {
    faults: Option<FaultInjector>,
    capture: Option<PcapTap<BufWriter<File>>>,
}

impl Middleware {
    /// What is asked for, for the queue pair of lcore `queue`; `None` if that is nothing.
    pub(crate) fn new(
        faults: Option<FaultSetup>,
        capture_file: Option<&Path>,
        queue: u64,
        pool: &Mempool,
    ) -> Result<Option<Box<Self>>, MiddlewareError> {
        if faults.is_none() && capture_file.is_none() {
            return Ok(None);
        }
        let inject = |setup: FaultSetup| FaultInjector::new(setup.rates, setup.seed.wrapping_add(queue), pool.clone());
        let faults = faults.map(inject).transpose()?;
        let capture = capture_file.map(|path| open_capture(path, queue)).transpose()?;
        Ok(Some(Box::new(Self { faults, capture })))
    }

    /// Frames that have just come in: the capture sees what the shard will see.
    pub(crate) fn received(&mut self, burst: &mut Burst) {
        if let Some(faults) = &mut self.faults {
            faults.apply(burst);
        }
        self.record(burst);
    }

    /// Frames that are about to go out.
    pub(crate) fn record(&mut self, frames: &[Mbuf]) {
        // A full disk ends the capture, not the engine.
        if self.capture.as_mut().is_some_and(|capture| capture.record(frames).is_err()) {
            tracing::warn!("a capture could not be written and ends here");
            self.capture = None;
        }
    }
}

/// Each queue pair has a file of its own: the first the one that was named, the others with their number behind.
fn open_capture(path: &Path, queue: u64) -> Result<PcapTap<BufWriter<File>>, MiddlewareError> {
    let path = match queue {
        0 => path.to_owned(),
        _ => PathBuf::from(format!("{}.{queue}", path.display())),
    };
    let file = File::create(&path).map_err(|source| MiddlewareError::File { path, source })?;
    Ok(PcapTap::new(BufWriter::new(file))?)
}
