//! Address handles: where datagrams go. Each shard has all of them, so that a QP on any shard can use those of its domain.
//!
//! A key is 24 bits of index and 8 random bits, as with memory keys. It comes back in every work request, from a client's
//! memory: the index is looked up, then key and protection domain must be those of the entry, so that a handle that was
//! destroyed, or is another domain's, fails the work request that names it.

use shm::attr::AhAttr;

use crate::path::Path;
use crate::qp::state::{AttrLimits, ModifyError, check_ah};
use crate::shard::Env;

/// Bits of a key below the index.
pub(crate) const TAG_BITS: u32 = 8;

/// An address handle.
#[derive(Debug)]
struct Ah {
    key: u32,
    pd: u32,
    path: Path,
}

/// The address handles of a shard, by index.
#[derive(Debug, Default)]
pub(crate) struct AhTable(Vec<Option<Box<Ah>>>);

impl AhTable {
    /// The path of a work request's address handle, if it is of this protection domain.
    #[inline]
    pub(crate) fn path(&self, handle: u64, pd: u32) -> Option<&Path> {
        let key = u32::try_from(handle).ok()?;
        let ah = self.0.get((key >> TAG_BITS) as usize)?.as_deref()?;
        (ah.key == key && ah.pd == pd).then_some(&ah.path)
    }
}

impl Env {
    /// Adds an address handle, if its address vector is one that a datagram can have.
    pub(crate) fn add_ah(&mut self, key: u32, pd: u32, attr: &AhAttr, limits: &AttrLimits) -> Result<(), ModifyError> {
        check_ah(attr, limits)?;
        let path = Path::resolve(&mut self.ports, attr, 0)?;
        let (index, table) = ((key >> TAG_BITS) as usize, &mut self.ahs.0);
        if index >= table.len() {
            table.resize_with(index + 1, || None);
        }
        if let Some(place) = table.get_mut(index)
            && let Some(old) = place.replace(Box::new(Ah { key, pd, path }))
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
