//! The memory that a test moves: a pool, or memory of each of the kinds that programs register.

use clap::ValueEnum;
use ferroce::{
    AccessFlags, Context, MemoryPool, MemoryRegion, MemoryTiers, OwnMemory, PageSize, ProcessRegion, ProtectionDomain,
    Sge, VerbsError,
};
use serde::{Deserialize, Serialize};

/// Which memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MemoryKind {
    /// Made to be shared with the engine
    #[default]
    Pool,
    /// Private memory, as malloc has it: the engine reaches it by system calls
    Malloc,
    /// Memory that the process shares with others (MAP_SHARED, SysV, POSIX): the engine maps it, if it may
    Shared,
    /// Private memory that moves into a file which the engine maps once it has been used enough
    Moved,
}

impl MemoryKind {
    /// How far the engine may go for it.
    pub(crate) const fn tiers(self) -> MemoryTiers {
        match self {
            Self::Malloc => MemoryTiers::Process,
            Self::Pool | Self::Shared => MemoryTiers::Shared,
            Self::Moved => MemoryTiers::Moved,
        }
    }
}

/// Memory that is registered, all of it.
#[derive(Debug)]
pub(crate) enum Memory {
    Pool(MemoryRegion),
    // The region goes first.
    Own(ProcessRegion, Own),
}

/// [`OwnMemory`], which has nothing to show.
pub(crate) struct Own(OwnMemory);

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Own").field(&self.0.bytes()).finish()
    }
}

impl Memory {
    /// Makes `bytes` bytes and registers them.
    ///
    /// # Errors
    /// No memory, or what the engine refuses.
    pub(crate) fn new(
        context: &Context,
        pd: &ProtectionDomain,
        kind: MemoryKind,
        bytes: u64,
        rights: AccessFlags,
    ) -> Result<Self, VerbsError> {
        if kind == MemoryKind::Pool {
            return MemoryPool::new(context, bytes, PageSize::Base)?.register_all(pd, rights).map(Self::Pool);
        }
        context.set_memory_tiers(kind.tiers());
        context.set_memory_log(|line| eprintln!("{line}"));
        // Whole pages, as a pool has: both sides' memory is of one length, whatever its kind.
        let own = OwnMemory::new(bytes.next_multiple_of(4096), kind == MemoryKind::Shared)?;
        let range = own.range();
        Ok(Self::Own(pd.register_process_memory(range, range.addr(), rights)?, Own(own)))
    }

    pub(crate) fn addr(&self) -> u64 {
        match self {
            Self::Pool(region) => region.addr(),
            Self::Own(region, _) => region.addr(),
        }
    }

    pub(crate) fn rkey(&self) -> u32 {
        match self {
            Self::Pool(region) => region.rkey(),
            Self::Own(region, _) => region.rkey(),
        }
    }

    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Pool(region) => region.length(),
            Self::Own(region, _) => region.length(),
        }
    }

    /// The SGE for a part of it.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`], as of the two below.
    pub(crate) fn sge(&self, offset: u64, length: u32) -> Result<Sge, VerbsError> {
        match self {
            Self::Pool(region) => region.sge(offset, length),
            Self::Own(region, _) => region.sge(offset, length),
        }
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), VerbsError> {
        match self {
            Self::Pool(region) => region.write(offset, data),
            Self::Own(_, own) => own.0.write(offset, data).map_err(|_| self.out_of_range(offset, data.len())),
        }
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VerbsError> {
        match self {
            Self::Pool(region) => region.read(offset, out),
            Self::Own(_, own) => own.0.read(offset, out).map_err(|_| self.out_of_range(offset, out.len())),
        }
    }

    fn out_of_range(&self, offset: u64, length: usize) -> VerbsError {
        VerbsError::OutOfRange { offset, length: length as u64, limit: self.length() }
    }
}
