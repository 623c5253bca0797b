//! Memory windows: keys that open a part of a region to the peer, bound and invalidated on the data path. IBTA 10.6.7.

use std::sync::Arc;

use shm::attr::{AccessFlags, MwType};
use wire::Qpn;

use super::{HELD, KEY_TAG_BITS, MrEntry, MrTable, REMOTE_RIGHTS};
use crate::cause::ErrorCause;

/// A memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Its key.
    pub key: u32,
    /// Kind.
    pub kind: MwType,
    /// The protection domain that it was made in.
    pub pd: u32,
    /// Key of the region that it is bound to; 0 if it is not.
    pub region: u32,
}

/// What makes an entry of the table a window; its key is the entry's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Kind.
    pub kind: MwType,
    /// The protection domain that it was made in.
    pub pd: u32,
    /// Key of the region that it is bound to.
    pub region: u32,
}

/// What a slot of the table holds.
#[derive(Debug)]
pub(super) enum Place {
    /// Nothing.
    Free,
    /// A region, or a window that is bound.
    Entry(MrEntry),
    /// A window that is not bound: its key opens nothing.
    Unbound(Window),
}

/// A slot: one cache line for a lookup to load.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot(pub(super) Place);

const _: () = assert!(size_of::<Slot>() == 64);

/// What is to be bound to what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bind {
    /// Any key of the window.
    pub(crate) window: u32,
    /// The key that it gets.
    pub(crate) key: u32,
    /// Key of the region.
    pub(crate) region: u32,
    /// First address, as users of the region know it.
    pub(crate) addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub(crate) length: u64,
    /// What the peer may do.
    pub(crate) access: AccessFlags,
}

/// In place of a protection domain: the one QP that a window of type 2 is bound for. Domains are numbered below 2^31.
#[inline]
pub(crate) const fn scope_of(qpn: Qpn) -> u32 {
    1 << 31 | qpn.value()
}

impl MrTable {
    /// Takes a window, not bound. Returns false if its slot is in use.
    #[must_use = "a window that does not fit is dropped"]
    pub(crate) fn insert_window(&mut self, window: Window) -> bool {
        let fits = self.has_room_for(window.key);
        if fits {
            let slot = self.slot_of(window.key);
            self.slots[slot].0 = Place::Unbound(Window { region: 0, ..window });
            self.windows.push(slot);
        }
        fits
    }

    /// Takes a window back, bound or not; `key` may be any that it ever had. False if there is none.
    pub(crate) fn remove_window(&mut self, key: u32) -> bool {
        let slot = self.slot_of(key);
        let found = self.window_at(slot).is_some_and(|window| is_same_window(window.key, key));
        if found {
            self.unbind(slot);
            self.slots[slot].0 = Place::Free;
            self.windows.retain(|&other| other != slot);
        }
        found
    }

    fn window_at(&self, slot: usize) -> Option<Window> {
        match &self.slots[slot].0 {
            Place::Entry(entry) => {
                entry.window.map(|Bound { kind, pd, region }| Window { key: entry.key, kind, pd, region })
            }
            Place::Unbound(window) => Some(*window),
            Place::Free => None,
        }
    }

    /// Binds a window for a QP and its domain, or unbinds one of type 1. IBTA 10.6.7.2, 11.4.1.1.
    ///
    /// # Errors
    /// The cause with which the work request completes; nothing was changed.
    #[cold]
    pub(crate) fn bind(&mut self, bind: Bind, pd: u32, qpn: Qpn) -> Result<(), ErrorCause> {
        let slot = self.slot_of(bind.window);
        let window = self.window_at(slot).filter(|window| is_same_window(window.key, bind.window));
        let window = window.filter(|window| window.pd == pd).ok_or(ErrorCause::WindowUnusable)?;
        let is_bound = window.region != 0;
        let own_key = is_same_window(window.key, bind.key);
        // A key of type 2 that stays the same would open to whoever still has it what it opened before.
        let key_fits = own_key && (window.kind == MwType::Type1 || bind.key != window.key);
        if !key_fits || (window.kind == MwType::Type2 && is_bound) {
            return Err(ErrorCause::WindowUnusable);
        }
        if bind.length == 0 {
            return match window.kind {
                MwType::Type1 => {
                    self.unbind(slot);
                    self.slots[slot].0 = Place::Unbound(Window { key: bind.key, region: 0, ..window });
                    Ok(())
                }
                MwType::Type2 => Err(ErrorCause::WindowRange),
            };
        }
        let entry = self.bound_entry(bind, window, qpn)?;
        self.unbind(slot);
        self.slots[slot].0 = Place::Entry(entry);
        if let Some(region) = self.region_mut(bind.region) {
            region.windows += 1;
        }
        Ok(())
    }

    /// What a window becomes by a bind.
    fn bound_entry(&self, bind: Bind, window: Window, qpn: Qpn) -> Result<MrEntry, ErrorCause> {
        let is_zero_based = bind.access.contains(AccessFlags::ZERO_BASED);
        let rights = bind.access.without(AccessFlags::ZERO_BASED);
        if rights.without(REMOTE_RIGHTS) != AccessFlags::NONE || (is_zero_based && window.kind == MwType::Type1) {
            return Err(ErrorCause::WindowRange);
        }
        let region = self.get(bind.region).filter(|region| region.window.is_none() && region.pd == window.pd);
        let region = region.ok_or(ErrorCause::WindowRegion)?;
        let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let allows = region.access.contains(AccessFlags::MW_BIND)
            && !region.access.contains(AccessFlags::ZERO_BASED)
            && !region.access.contains(HELD)
            && (!rights.intersects(writes) || region.access.contains(AccessFlags::LOCAL_WRITE));
        if !allows {
            return Err(ErrorCause::WindowRegion);
        }
        let start = bind.addr.checked_sub(region.addr).ok_or(ErrorCause::WindowRange)?;
        if region.length.checked_sub(start).is_none_or(|rest| bind.length > rest) {
            return Err(ErrorCause::WindowRange);
        }
        Ok(MrEntry {
            key: bind.key,
            pd: if window.kind == MwType::Type2 { scope_of(qpn) } else { window.pd },
            access: rights,
            addr: if is_zero_based { 0 } else { bind.addr },
            length: bind.length,
            backing: Arc::clone(&region.backing),
            offset: region.offset + start,
            windows: 0,
            window: Some(Bound { kind: window.kind, pd: window.pd, region: bind.region }),
        })
    }

    /// Unbinds the window of a slot, if there is one that is bound. It keeps its last key.
    fn unbind(&mut self, slot: usize) {
        let Some(window) = self.window_at(slot).filter(|window| window.region != 0) else { return };
        self.slots[slot].0 = Place::Unbound(Window { region: 0, ..window });
        if let Some(region) = self.region_mut(window.region) {
            region.windows -= 1;
        }
    }

    fn region_mut(&mut self, key: u32) -> Option<&mut MrEntry> {
        let slot = self.slot_of(key);
        match &mut self.slots[slot].0 {
            Place::Entry(entry) if entry.key == key && entry.window.is_none() => Some(entry),
            _ => None,
        }
    }

    /// Makes a key open nothing any more, as LOCAL_INV and SEND with invalidate ask: unbinds a window of type 2 that is bound for
    /// this QP, or takes all remote rights from a region of its domain that has some and no windows. False if `key` is neither.
    #[must_use = "a key that can't be invalidated is an error of whoever asked for it"]
    #[cold]
    pub(crate) fn invalidate(&mut self, key: u32, pd: u32, qpn: Qpn) -> bool {
        let slot = self.slot_of(key);
        let Place::Entry(entry) = &mut self.slots[slot].0 else { return false };
        if entry.key != key {
            return false;
        }
        if entry.window.is_some() {
            let is_own = entry.pd == scope_of(qpn);
            if is_own {
                self.unbind(slot);
            }
            return is_own;
        }
        let can = entry.pd == pd && entry.windows == 0 && entry.access.intersects(REMOTE_RIGHTS);
        if can {
            entry.access = entry.access.without(REMOTE_RIGHTS);
        }
        can
    }

    /// Unbinds all windows of type 2 that are bound for a QP: it is gone, and its number may be another's soon.
    pub(crate) fn unbind_all_of(&mut self, qpn: Qpn) {
        for at in 0..self.windows.len() {
            let slot = self.windows[at];
            if matches!(&self.slots[slot].0, Place::Entry(entry) if entry.pd == scope_of(qpn)) {
                self.unbind(slot);
            }
        }
    }

    /// Keeps windows from being bound to a region, or allows it again. Returns how many are; `None` if there is no such region.
    pub(crate) fn hold(&mut self, key: u32, held: bool) -> Option<u32> {
        let region = self.region_mut(key)?;
        region.access = if held { region.access | HELD } else { region.access.without(HELD) };
        Some(region.windows)
    }
}

const fn is_same_window(one: u32, other: u32) -> bool {
    one >> KEY_TAG_BITS == other >> KEY_TAG_BITS
}
