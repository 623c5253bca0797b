//! Protection domains and memory regions.

use std::sync::Arc;

use shm::attr::AccessFlags;
use shm::control::Reply;

use super::session::{MrBook, Session};
use super::{Control, Refusal, errno, refuse};
use crate::command::{Command, Shards};
use crate::mr::MrEntry;

/// A part of attached memory, and the address under which it is to be known.
pub(super) struct Range {
    pub(super) memory: u32,
    pub(super) offset: u64,
    pub(super) addr: u64,
    pub(super) length: u64,
}

/// Draws of a random key before the table is called full. It is at most half full: 64 failures in a row do not happen.
const KEY_DRAWS: u32 = 64;

impl Control {
    pub(super) fn alloc_pd(&mut self, session: &mut Session) -> Result<Reply, Refusal> {
        let reply = session.add_pd(self.next_pd)?;
        self.next_pd = self.next_pd.wrapping_add(1).max(1);
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
        let Some(attached) = session.memories.get_mut(&memory) else {
            return refuse(errno::EINVAL, format!("memory {memory} does not exist"));
        };
        let bytes = attached.mapping.bytes();
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
        let (own, max) = (session.mrs.len(), self.config.limits.max_mr);
        self.check_share(session, "regions", max, |s| s.mrs.len())?;
        let Some(attached) = session.memories.get_mut(&memory) else { unreachable!("it was there above") };
        let key = self.draw_key(own)?;
        let entry = MrEntry {
            key,
            pd: pd_number,
            access,
            addr: if access.contains(AccessFlags::ZERO_BASED) { 0 } else { addr },
            length,
            mapping: Arc::clone(&attached.mapping),
            offset,
        };
        let fits = self.mrs.insert(entry.clone());
        assert!(fits, "the key was drawn for a free slot");
        let added = self.command_all(shards, || Command::AddMr(Box::new(entry.clone())));
        assert!(added, "the shards' tables have room where the master copy has");
        attached.users += 1;
        session.use_pd(pd, true);
        session.mrs.insert(key, MrBook { pd, memory });
        Ok(Reply::Mr { lkey: key, rkey: key })
    }

    /// A key for a region of the session whose books are outside `self` at this time and hold `own` regions.
    fn draw_key(&mut self, own: usize) -> Result<u32, Refusal> {
        let max = self.config.limits.max_mr;
        let others = self.sessions.values().map(|s| s.mrs.len() as u64).sum::<u64>();
        let in_use = others + own as u64;
        if in_use >= u64::from(max) {
            return refuse(errno::ENOMEM, format!("the limit of {max} regions is reached"));
        }
        for _ in 0..KEY_DRAWS {
            let key = ((self.entropy)() >> 32) as u32;
            if key != 0 && self.mrs.has_room_for(key) {
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
        let Some(book) = session.mrs.remove(&key) else {
            return refuse(errno::EINVAL, format!("region {key:#x} does not exist"));
        };
        self.drop_mr(shards, key);
        session.use_pd(book.pd, false);
        if let Some(memory) = session.memories.get_mut(&book.memory) {
            memory.users -= 1;
        }
        Ok(Reply::Done)
    }

    /// Takes a region from every shard; once this returns, none of them touches its memory.
    pub(super) fn drop_mr<S: Shards>(&mut self, shards: &mut S, key: u32) {
        self.mrs.remove(key);
        self.command_all(shards, || Command::RemoveMr { key });
    }
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
