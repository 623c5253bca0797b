//! What lies where in a process's address space, as `/proc/pid/maps` tells.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat, major, minor};
use serde::{Deserialize, Serialize};

/// A mapping of a process, or a part of one: a line of its `maps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// The process may read it.
    pub readable: bool,
    /// The process may write it.
    pub writable: bool,
    /// What is written is seen by all who map the same (`MAP_SHARED`).
    pub shared: bool,
    /// Where in its file it begins, bytes.
    pub offset: u64,
    /// Device of the file, major and minor; 0 if there is none.
    pub device: (u32, u32),
    /// Inode of the file, 0 if there is none.
    pub inode: u64,
}

impl Vma {
    /// True for memory of the process alone, without a file: what an allocator gets.
    pub const fn is_private_anonymous(&self) -> bool {
        !self.shared && self.inode == 0 && self.readable && self.writable
    }

    /// The part of it that lies in a range which it overlaps.
    #[must_use]
    pub fn part(&self, range: &Range<u64>) -> Self {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        Self { start, end, offset: self.offset.wrapping_add(start - self.start), ..*self }
    }

    /// True if all of `part` is in it: the same bytes of the same file, shared, to be read and written, at the same addresses. The file
    /// must not have gone meanwhile, or another may have its number.
    pub const fn has(&self, part: &Self) -> bool {
        self.start <= part.start
            && part.end <= self.end
            && self.shared
            && self.readable
            && self.writable
            && self.inode == part.inode
            && self.device.0 == part.device.0
            && self.device.1 == part.device.1
            && self.offset.wrapping_add(part.start - self.start) == part.offset
    }

    /// What distinguishes the memory behind a mapping from all other: file and place.
    pub const fn identity(&self) -> ((u32, u32), u64, u64, u64, u64) {
        (self.device, self.inode, self.offset, self.start, self.end)
    }
}

/// Device and inode of a file of memory, as [`Vma::device`] and [`Vma::inode`] have them.
///
/// # Errors
/// What the operating system says.
pub fn file_identity(file: impl AsFd) -> std::io::Result<((u32, u32), u64)> {
    let found = fstat(file)?;
    let number = |half: u64| u32::try_from(half).unwrap_or(u32::MAX);
    Ok(((number(major(found.st_dev)), number(minor(found.st_dev))), found.st_ino))
}

/// The kernel's `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const QUERY_READABLE: u64 = 1;
const QUERY_WRITABLE: u64 = 2;
const QUERY_SHARED: u64 = 8;
/// Of an address without a mapping, the next one above it.
const QUERY_COVERING_OR_NEXT: u64 = 16;

mod ioctl {
    nix::ioctl_readwrite!(procmap_query, b'f', 17, super::ProcmapQuery);
}

/// The `maps` file of a process.
#[derive(Debug)]
pub struct Maps(File);

impl Maps {
    /// This process's.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open_own() -> std::io::Result<Self> {
        File::open("/proc/self/maps").map(Self)
    }

    /// Of the process whose folder of `/proc` is `folder`.
    ///
    /// # Errors
    /// What the operating system says: `EACCES` if we may not look into that process.
    pub fn open_at(folder: BorrowedFd<'_>) -> std::io::Result<Self> {
        let fd = openat(folder, "maps", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self(fd.into()))
    }

    /// The mapping that `addr` is in, or else the next above it; `None` above the last.
    ///
    /// Cost: half a microsecond by an ioctl (Linux 6.11); before, the file is read.
    ///
    /// # Errors
    /// What the operating system says: the process may be gone.
    pub fn at_or_above(&self, addr: u64) -> std::io::Result<Option<Vma>> {
        let size = size_of::<ProcmapQuery>() as u64;
        let query_flags = QUERY_COVERING_OR_NEXT;
        let mut query = ProcmapQuery { size, query_flags, query_addr: addr, ..ProcmapQuery::default() };
        // SAFETY: the structure is the kernel's, has its size in it, and asks for no name to be written elsewhere.
        match unsafe { ioctl::procmap_query(self.0.as_raw_fd(), &raw mut query) } {
            Ok(_) => Ok(Some(Vma {
                start: query.vma_start,
                end: query.vma_end,
                readable: query.vma_flags & QUERY_READABLE != 0,
                writable: query.vma_flags & QUERY_WRITABLE != 0,
                shared: query.vma_flags & QUERY_SHARED != 0,
                offset: query.vma_offset,
                device: (query.dev_major, query.dev_minor),
                inode: query.inode,
            })),
            Err(Errno::ENOENT) => Ok(None),
            Err(Errno::ENOTTY) => self.read_until(addr),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The mapping that `addr` is in.
    ///
    /// # Errors
    /// As [`Maps::at_or_above`].
    pub fn at(&self, addr: u64) -> std::io::Result<Option<Vma>> {
        Ok(self.at_or_above(addr)?.filter(|vma| vma.start <= addr))
    }

    /// The same from the text.
    fn read_until(&self, addr: u64) -> std::io::Result<Option<Vma>> {
        let mut file = &self.0;
        file.rewind()?;
        for line in BufReader::new(file).lines() {
            if let Some(vma) = parse_line(&line?).filter(|vma| vma.end > addr) {
                return Ok(Some(vma));
            }
        }
        Ok(None)
    }
}

/// `start-end rwxs offset major:minor inode name`, numbers but the inode in hexadecimal.
fn parse_line(line: &str) -> Option<Vma> {
    let mut words = line.split_ascii_whitespace();
    let mut word = || words.next();
    let (start, end) = word()?.split_once('-')?;
    let rights = word()?;
    let offset = word()?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let hex_u32 = |digits| u32::from_str_radix(digits, 16).ok();
    let (start, end, offset) = (hex(start)?, hex(end)?, hex(offset)?);
    Some(Vma {
        start,
        end,
        readable: rights.starts_with('r'),
        writable: rights.get(1..2) == Some("w"),
        shared: rights.ends_with('s'),
        offset,
        device: (hex_u32(major)?, hex_u32(minor)?),
        inode,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, PageSize};

    #[test]
    fn the_text_and_the_ioctl_tell_the_same() {
        let mapping = Mapping::create(c"vma-test", 3 * 4096, PageSize::Base).unwrap();
        let addr = mapping.as_ptr().addr() as u64;
        let maps = Maps::open_own().unwrap();
        let on_stack = (&raw const maps).addr() as u64;
        for addr in [addr, addr + 3 * 4096 - 1, on_stack] {
            let vma = maps.at(addr).unwrap().unwrap();
            assert!((vma.start..vma.end).contains(&addr), "{vma:?}");
            assert_eq!(maps.read_until(addr).unwrap(), Some(vma));
        }
        let vma = maps.at(addr).unwrap().unwrap();
        assert!(vma.shared && vma.readable && vma.writable && vma.inode != 0);
        assert!(maps.at(on_stack).unwrap().unwrap().is_private_anonymous());
        assert_eq!(maps.at(64).unwrap(), None);
        assert!(maps.at_or_above(64).unwrap().is_some());
    }

    #[test]
    fn a_mapping_has_its_parts_and_nothing_else() {
        let mapping = Mapping::create(c"vma-test", 3 * 4096, PageSize::Base).unwrap();
        let other = Mapping::create(c"vma-test", 3 * 4096, PageSize::Base).unwrap();
        let maps = Maps::open_own().unwrap();
        let vma = maps.at(mapping.as_ptr().addr() as u64).unwrap().unwrap();
        assert_eq!((vma.device, vma.inode), file_identity(mapping.fd()).unwrap());
        assert_ne!((vma.device, vma.inode), file_identity(other.fd()).unwrap());
        let part = vma.part(&(vma.start + 4096..vma.end + 4096));
        assert_eq!((part.start, part.end, part.offset), (vma.start + 4096, vma.end, 4096));
        assert!(vma.has(&part) && vma.has(&vma) && part.has(&part) && !part.has(&vma));
        assert!(!vma.has(&Vma { offset: 0, ..part }) && !vma.has(&Vma { inode: vma.inode + 1, ..part }));
        assert!(!vma.has(&Vma { device: (vma.device.0, vma.device.1 + 1), ..part }));
        assert!(!Vma { writable: false, ..vma }.has(&part) && !Vma { shared: false, ..vma }.has(&part));
    }

    #[test]
    fn a_line_that_is_none_is_no_mapping() {
        for line in ["", "x", "1-2", "1-2 rw-s 0 00:01 z", "1-2 rw-s 0 0001 3", "g-2 rw-s 0 0:1 3"] {
            assert_eq!(parse_line(line), None, "{line:?}");
        }
        let vma = parse_line("7f00-8f00 r--s 00001000 00:0b 1234 /memfd:x (deleted)").unwrap();
        assert_eq!((vma.start, vma.end, vma.offset, vma.device, vma.inode), (0x7f00, 0x8f00, 0x1000, (0, 11), 1234));
        assert!(vma.readable && !vma.writable && vma.shared);
    }
}
