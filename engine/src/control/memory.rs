//! Protection domains and memory regions.

use std::sync::Arc;

use shm::attr::{AccessFlags, MwType};
use shm::control::{RENEWED_PARTS_MAX, Reply};
use shm::process_memory::ADDRESS_END;
use shm::vma::Vma;

use super::session::{MwBook, Session};
use super::{Control, Refusal, errno, refuse};
use crate::command::{Answer, Command, Shards};
use crate::mr::window::Window;
use crate::mr::{Backing, MrEntry};
use crate::time::Time;

/// A part of attached memory, and the address under which it is to be known.
pub(super) struct Range {
    pub(super) memory: u32,
    pub(super) offset: u64,
    pub(super) addr: u64,
    pub(super) length: u64,
}

/// A part of the client's process, and the address under which it is to be known.
pub(super) struct ProcessRange {
    pub(super) addr: u64,
    pub(super) iova: u64,
    pub(super) length: u64,
    /// Map what is shared.
    pub(super) share: bool,
}

/// Draws of a random key before the table is called full. It is at most half full: 64 failures in a row do not happen.
const KEY_DRAWS: u32 = 64;
/// How often processes are asked whether they still have what regions map that were registered anew.
const LOOK_NS: u64 = 1_000_000_000;

impl Control {
    pub(super) fn alloc_pd(&mut self, session: &mut Session) -> Result<Reply, Refusal> {
        let reply = session.add_pd(self.next_pd)?;
        // The upper half is for windows of one QP.
        self.next_pd = (self.next_pd + 1) & (u32::MAX >> 1);
        self.next_pd = self.next_pd.max(1);
        Ok(reply)
    }

    pub(super) fn reg_mr<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        pd: u32,
        range: Range,
        access: AccessFlags,
    ) -> Result<Reply, Refusal> {
        let pd_number = session.pd(pd)?;
        check_access(access)?;
        let Range { memory, offset, addr, length } = range;
        let Some(attached) = session.memories.get(&memory) else {
            return refuse(errno::EINVAL, format!("memory {memory} does not exist"));
        };
        let bytes = attached.backing.end();
        let inside = offset.checked_add(length).is_some_and(|end| end <= bytes);
        if length == 0 || !inside || addr.checked_add(length).is_none() {
            let message =
                format!("a region of {length} bytes at offset {offset} does not lie in memory of {bytes} bytes");
            return refuse(errno::EINVAL, message);
        }
        let populated = attached.populated_bytes;
        if offset + length > populated {
            let message =
                format!("only the first {populated} bytes of memory {memory} are faulted in: PopulateMemory does more");
            return refuse(errno::EINVAL, message);
        }
        let backing = Arc::clone(&attached.backing);
        let entry = MrEntry::region(pd_number, access, addr..addr + length, backing, offset);
        let key = self.add_mr(shards, session, entry)?;
        session.add_mr(key, pd, Some(memory));
        Ok(Reply::Mr { lkey: key, rkey: key })
    }

    pub(super) fn reg_process_memory<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        pd: u32,
        range: ProcessRange,
        access: AccessFlags,
    ) -> Result<Reply, Refusal> {
        let pd_number = session.pd(pd)?;
        check_access(access)?;
        let ProcessRange { addr, iova, length, share } = range;
        let Some(process) = &mut session.process else {
            return refuse(errno::EINVAL, "RegProcessMemory needs AttachProcess before it");
        };
        let end = addr.checked_add(length).filter(|&end| end <= ADDRESS_END);
        let (Some(end), Some(_)) = (end, iova.checked_add(length)) else {
            let message =
                format!("a region of {length} bytes at {addr:#x}, known as {iova:#x}, passes the last address");
            return refuse(errno::EINVAL, message);
        };
        // A look at both ends tells most mistakes at once. What lies between is told when it is used.
        let missing = |at| process.memory().read(at, &mut [0]).is_err();
        let unmapped = [addr, end.saturating_sub(1)].into_iter().find(|&at| missing(at));
        if let Some(at) = unmapped.filter(|_| length > 0) {
            return refuse(errno::EFAULT, format!("address {at:#x} is not mapped in the client's process"));
        }
        let backing = Arc::new(Backing::Process(process.range(addr..end, share)));
        let entry = MrEntry::region(pd_number, access, iova..iova + length, backing, addr);
        let key = self.add_mr(shards, session, entry)?;
        session.add_mr(key, pd, None);
        Ok(Reply::Mr { lkey: key, rkey: key })
    }

    /// Draws a key for a region of a session, and gives the region to all shards.
    fn add_mr<S: Shards>(&mut self, shards: &mut S, session: &Session, mut entry: MrEntry) -> Result<u32, Refusal> {
        entry.key = self.draw_key(session)?;
        if entry.access.contains(AccessFlags::ZERO_BASED) {
            entry.addr = 0;
        }
        let fits = self.mrs.insert(entry.clone());
        assert!(fits, "the key was drawn for a free slot");
        let added = self.command_all(shards, || Command::AddMr(Box::new(entry.clone())));
        assert!(added, "the shards' tables have room where the master copy has");
        Ok(entry.key)
    }

    /// A key for a region or window of the session whose books are outside `self` at this time.
    fn draw_key(&mut self, own: &Session) -> Result<u32, Refusal> {
        let max = self.config.limits.max_mr;
        let held = |s: &Session| s.mrs.len() + s.mws.len();
        self.check_share(own, "regions and windows", max, held)?;
        let in_use = (self.sessions.values().map(held).sum::<usize>() + held(own)) as u64;
        if in_use >= u64::from(max) {
            return refuse(errno::ENOMEM, format!("the limit of {max} regions and windows is reached"));
        }
        for _ in 0..KEY_DRAWS {
            let key = ((self.entropy)() >> 32) as u32;
            if key >> 8 != 0 && self.mrs.has_room_for(key) {
                return Ok(key);
            }
        }
        refuse(errno::ENOMEM, "no key is free for the region")
    }

    pub(super) fn dereg_mr<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        key: u32,
    ) -> Result<Reply, Refusal> {
        if !session.mrs.contains_key(&key) {
            return refuse(errno::EINVAL, format!("region {key:#x} does not exist"));
        }
        self.check_no_windows(shards, session, key)?;
        let Some(book) = session.mrs.remove(&key) else { unreachable!("it was there") };
        session.renewed.remove(&key);
        self.drop_mr(shards, key);
        session.use_pd(book.pd, false);
        if let Some(memory) = book.memory.and_then(|memory| session.memories.get_mut(&memory)) {
            memory.users -= 1;
        }
        Ok(Reply::Done)
    }

    /// Deregisters a region and registers its range under a new key.
    pub(super) fn renew_mr<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        now: Time,
        key: u32,
        share: bool,
    ) -> Result<Reply, Refusal> {
        let known = self.mrs.get(key).filter(|_| session.mrs.contains_key(&key)).cloned();
        let pd = session.mrs.get(&key).map(|book| book.pd);
        let reply = self.dereg_mr(shards, session, key)?;
        let (Some(old), Some(pd)) = (known, pd) else { unreachable!("it was deregistered") };
        let (Some(range), Some(process)) = (old.backing.process(), &mut session.process) else { return Ok(reply) };
        // What is mapped for the old one, which is still there, need not be mapped again.
        let range = process.range(range.range(), share);
        let mapped: Vec<Vma> = range.shared().iter().map(|piece| piece.part).collect();
        if mapped.len() > RENEWED_PARTS_MAX {
            return Ok(reply);
        }
        let access = AccessFlags(old.access.0 & AccessFlags::ALL.0);
        let iova = old.addr..old.addr + old.length;
        let entry = MrEntry::region(old.pd, access, iova, Arc::new(Backing::Process(range)), old.offset);
        // At a limit it is gone, as was asked for.
        let Ok(key) = self.add_mr(shards, session, entry) else { return Ok(reply) };
        session.add_mr(key, pd, None);
        if !mapped.is_empty() {
            session.renewed.insert(key);
            self.next_look = self.next_look.min(now.add_ns(LOOK_NS));
        }
        Ok(Reply::RenewedMr { lkey: key, rkey: key, mapped })
    }

    /// Lets go of memory that is mapped for regions which were registered anew, and that their processes have unmapped: such a region
    /// may be one that nobody has asked for yet, and nobody may ever do.
    pub(super) fn let_go_of_unmapped(&mut self, now: Time) {
        let mut is_any_left = false;
        for session in self.sessions.values_mut() {
            let Some(process) = &session.process else { continue };
            let range = |&key: &u32| self.mrs.get(key).and_then(|entry| entry.backing.process());
            process.let_go_of_unmapped(session.renewed.iter().filter_map(range));
            session.renewed.retain(|key| range(key).is_some_and(crate::mr::process::ProcessRange::has_shared));
            is_any_left |= !session.renewed.is_empty();
        }
        self.next_look = if is_any_left { now.add_ns(LOOK_NS) } else { Time::NEVER };
    }

    /// No window may be bound to a region that goes. While that is looked at, none can be.
    fn check_no_windows<S: Shards>(&self, shards: &mut S, session: &Session, key: u32) -> Result<(), Refusal> {
        if session.mws.is_empty() {
            return Ok(());
        }
        let mut bound = 0;
        for shard in 0..self.config.shard_count {
            if let Answer::Windows(windows) = shards.command(shard, Command::HoldMr { key, held: true }) {
                bound += windows;
            }
        }
        if bound == 0 {
            return Ok(());
        }
        self.command_all(shards, || Command::HoldMr { key, held: false });
        let message = format!("region {key:#x} has {bound} memory windows bound to it: invalidate or free them first");
        refuse(errno::EBUSY, message)
    }

    pub(super) fn alloc_mw<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        pd: u32,
        kind: MwType,
    ) -> Result<Reply, Refusal> {
        let pd_number = session.pd(pd)?;
        let spread = session.doorbells.iter().flatten().count();
        if kind == MwType::Type1 && spread > 1 {
            return refuse(
                errno::EOPNOTSUPP,
                format!("QPs of this session are on {spread} lcores: a window of type 1 is bound on one, use type 2"),
            );
        }
        let key = self.draw_key(session)?;
        let window = Window { key, kind, pd: pd_number, region: 0 };
        let fits = self.mrs.insert_window(window);
        assert!(fits, "the key was drawn for a free slot");
        let added = self.command_all(shards, || Command::AddMw(window));
        assert!(added, "the shards' tables have room where the master copy has");
        session.use_pd(pd, true);
        let mw = mw_handle(key);
        session.mws.insert(mw, MwBook { pd, kind });
        Ok(Reply::Mw { mw, rkey: key })
    }

    pub(super) fn dealloc_mw<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &mut Session,
        mw: u32,
    ) -> Result<Reply, Refusal> {
        let Some(book) = session.mws.remove(&mw) else {
            return refuse(errno::EINVAL, format!("memory window {mw:#x} does not exist"));
        };
        self.drop_mw(shards, mw);
        session.use_pd(book.pd, false);
        Ok(Reply::Done)
    }

    /// Takes a window from every shard.
    pub(super) fn drop_mw<S: Shards>(&mut self, shards: &mut S, mw: u32) {
        // Any tag will do.
        let key = mw << 8;
        self.mrs.remove_window(key);
        self.command_all(shards, || Command::RemoveMw { key });
    }

    /// Takes a region from every shard; once this returns, none of them touches its memory.
    pub(super) fn drop_mr<S: Shards>(&mut self, shards: &mut S, key: u32) {
        self.mrs.remove(key);
        self.command_all(shards, || Command::RemoveMr { key });
    }
}

/// A window's handle: the part of its key that binds leave alone.
const fn mw_handle(key: u32) -> u32 {
    key >> 8
}

/// IBTA 10.6.3.3: a peer may write only where the owner may.
fn check_access(access: AccessFlags) -> Result<(), Refusal> {
    if access.without(AccessFlags::ALL) != AccessFlags::NONE {
        return refuse(errno::EINVAL, format!("access flags {:#x} have bits without a meaning", access.0));
    }
    let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(writes) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return refuse(errno::EINVAL, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well");
    }
    Ok(())
}
