//! Address handles: where datagrams go. Each shard has all of them, so that a QP on any shard can use those of its domain.
//!
//! A key is 24 bits of index and 8 random bits, as with memory keys. It comes back in every work request, from a client's
//! memory: the index is looked up, then key and protection domain must be those of the entry, so that a handle that was
//! destroyed, or is another domain's, fails the work request that names it.

use std::cell::Cell;

use shm::attr::AhAttr;

use crate::cc::ParamId;
use crate::pacer::Pacer;
use crate::path::Path;
use crate::qp::state::{AttrLimits, ModifyError, check_ah};
use crate::shard::Env;
use crate::time::Time;

/// Bits of a key below the index.
pub(crate) const TAG_BITS: u32 = 8;

/// An address handle.
#[derive(Debug)]
pub(crate) struct Ah {
    key: u32,
    pd: u32,
    path: Path,
    /// `None` if its address vector sets no static rate that is slower than the port.
    pace: Option<Box<Pace>>,
}

/// The static rate of an address handle: what all QPs of a shard send by it. IBTA 9.11.
#[derive(Debug)]
struct Pace {
    rate_bps: u64,
    /// Changed while the handle is only read.
    pacer: Cell<Pacer>,
}

impl Ah {
    /// Where its datagrams go.
    #[inline]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// When the next datagram may go, if its static rate does not let one go now.
    #[inline]
    pub(crate) fn wait_until(&self, env: &Env) -> Option<Time> {
        let pace = self.pace.as_deref()?;
        let port = env.ports.get(usize::from(self.path.port()))?;
        pace.wait_until(env.now, port.congestion.get(ParamId::Burst))
    }

    /// A datagram goes, in a frame of so many bytes.
    #[inline]
    pub(crate) fn charge(&self, frame_bytes: usize) {
        if let Some(pace) = &self.pace {
            let mut pacer = pace.pacer.get();
            pacer.charge(frame_bytes as u64);
            pace.pacer.set(pacer);
        }
    }
}

impl Pace {
    #[cold]
    fn wait_until(&self, now: Time, burst_bytes: u64) -> Option<Time> {
        let mut pacer = self.pacer.get();
        pacer.advance(now, self.rate_bps, burst_bytes);
        self.pacer.set(pacer);
        (!pacer.may_send()).then(|| pacer.ready_at(self.rate_bps))
    }
}

/// The address handles of a shard, by index.
#[derive(Debug, Default)]
pub(crate) struct AhTable(Vec<Option<Box<Ah>>>);

impl AhTable {
    /// A work request's address handle, if it is of this protection domain.
    #[inline]
    pub(crate) fn get(&self, handle: u64, pd: u32) -> Option<&Ah> {
        let key = u32::try_from(handle).ok()?;
        let ah = self.0.get((key >> TAG_BITS) as usize)?.as_deref()?;
        (ah.key == key && ah.pd == pd).then_some(ah)
    }
}

impl Env {
    /// Adds an address handle, if its address vector is one that a datagram can have.
    pub(crate) fn add_ah(&mut self, key: u32, pd: u32, attr: &AhAttr, limits: &AttrLimits) -> Result<(), ModifyError> {
        check_ah(attr, limits)?;
        let path = Path::resolve(&mut self.ports, attr, 0)?;
        let pacer = Cell::new(Pacer::new(self.now));
        let pace = path.static_rate_bps(&self.ports).map(|rate_bps| Box::new(Pace { rate_bps, pacer }));
        let (index, table) = ((key >> TAG_BITS) as usize, &mut self.ahs.0);
        if index >= table.len() {
            table.resize_with(index + 1, || None);
        }
        if let Some(place) = table.get_mut(index)
            && let Some(old) = place.replace(Box::new(Ah { key, pd, path, pace }))
        {
            old.path.release(&mut self.ports);
        }
        Ok(())
    }

    /// Priorities of a port are others now: handles find their lanes anew.
    pub(crate) fn refresh_ahs(&mut self, port: u8) {
        for ah in self.ahs.0.iter_mut().flatten().filter(|ah| ah.path.port() == port) {
            ah.path.refresh(&self.ports);
        }
    }

    /// Removes an address handle; false if there is none with this key.
    pub(crate) fn remove_ah(&mut self, key: u32) -> bool {
        let place = self.ahs.0.get_mut((key >> TAG_BITS) as usize);
        let Some(ah) = place.and_then(|place| place.take_if(|ah| ah.key == key)) else { return false };
        ah.path.release(&mut self.ports);
        true
    }
}
