//! Where DPDK's memory comes from.

use std::fs;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

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

/// Bytes that this process may still lock into memory (RLIMIT_MEMLOCK, less what it has locked); `None` where nothing limits it: with
/// CAP_IPC_LOCK outside of user namespaces.
#[must_use]
pub fn lockable_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let (limit_bytes, _) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    let locked_bytes = locked_bytes(&status, &uid_map)?;
    (limit_bytes != RLIM_INFINITY).then(|| limit_bytes.saturating_sub(locked_bytes))
}

/// Bytes that are locked; `None` if the kernel does not count them against a limit.
fn locked_bytes(status: &str, uid_map: &str) -> Option<u64> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let capabilities = u64::from_str_radix(field("CapEff:"), 16).unwrap_or(0);
    // In a user namespace, which has fewer users, a capability is only the namespace's.
    let all_users = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    if capabilities & CAP_IPC_LOCK != 0 && all_users {
        return None;
    }
    let kib: u64 = field("VmLck:").trim_end_matches("kB").trim().parse().unwrap_or(0);
    Some(kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_counts_unless_the_capability_is_the_machine_s() {
        let status = "Name:\tferroced\nVmLck:\t    4096 kB\nCapEff:\t000001ffffffffff\n";
        let all = "         0          0 4294967295\n";
        assert_eq!(locked_bytes(status, all), None);
        assert_eq!(locked_bytes(status, "         0      65534          1\n"), Some(4096 * 1024));
        assert_eq!(locked_bytes("VmLck:\t       0 kB\nCapEff:\t0000000000003000\n", all), Some(0));
    }
}
