//! Where DPDK's memory comes from.

use std::fs;

/// Where packet buffers and rings lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryMode {
    /// Files in a mounted hugetlbfs, unlinked at once. Needs a mount that the user may write to. A process has to have a file
    /// prefix of its own.
    Hugepages,
    /// Anonymous hugepages: no mount, no files, any number of processes; works for an ordinary user, too. The pages must be reserved.
    InMemory,
    /// Ordinary pages, `mib` MiB at most, touched when used: needs nothing. Devices that do their own DMA cannot be used.
    NoHuge {
        /// Limit of all DPDK memory of the process, in MiB: 64 to 1,048,576.
        mib: u32,
    },
}

impl MemoryMode {
    /// Limit in MiB that [`MemoryMode::best_available`] sets when there are no hugepages.
    pub const DEFAULT_NO_HUGE_MIB: u32 = 1024;

    /// [`MemoryMode::InMemory`] where at least `mib_min` MiB of hugepages are free, else [`MemoryMode::NoHuge`].
    #[must_use]
    pub fn best_available(mib_min: u32) -> Self {
        let free: u64 = hugepage_sizes().iter().map(HugepageSize::free_bytes).sum();
        if free >> 20 >= u64::from(mib_min.max(1)) {
            Self::InMemory
        } else {
            Self::NoHuge { mib: Self::DEFAULT_NO_HUGE_MIB.max(mib_min) }
        }
    }
}

/// One size of hugepage that the kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugepageSize {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Pages reserved.
    pub total_count: u64,
    /// Pages that nobody uses.
    pub free_count: u64,
}

impl HugepageSize {
    /// Bytes that nobody uses.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_count.saturating_mul(self.page_bytes)
    }
}

/// The hugepage sizes of this kernel, ascending; empty when it has none.
#[must_use]
pub fn hugepage_sizes() -> Vec<HugepageSize> {
    let Ok(entries) = fs::read_dir("/sys/kernel/mm/hugepages") else { return Vec::new() };
    let mut sizes: Vec<HugepageSize> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let kib: u64 = entry.file_name().to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let read =
                |name: &str| -> Option<u64> { fs::read_to_string(entry.path().join(name)).ok()?.trim().parse().ok() };
            let (total_count, free_count) = (read("nr_hugepages")?, read("free_hugepages")?);
            Some(HugepageSize { page_bytes: kib.checked_mul(1024)?, total_count, free_count })
        })
        .collect();
    sizes.sort_by_key(|size| size.page_bytes);
    sizes
}

/// A hugetlbfs mount point of this process, if there is one.
#[must_use]
pub fn hugetlbfs_mount() -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (directory, kind) = (fields.next()?, fields.next()?);
        (kind == "hugetlbfs").then(|| directory.to_owned())
    })
}
