//! Buffers of an application that its peer writes to directly, by an offset that both know.

use std::ffi::{c_int, c_void};

use ferroce::{AccessFlags, OwnRange};
use nix::errno::Errno;
use nix::libc;

use super::socket::{Inner, Phase, Socket};
use super::stream::{Mapping, Stream};
use super::wire::{IomapEntry, RemoteBuffer};
use crate::entry::{self, Failure};

/// Stands for an offset that is chosen here: the buffer's address.
const ANY_OFFSET: i64 = -1;

/// The connection, also if the peer has not confirmed it yet.
fn stream(inner: &mut Inner) -> Result<&mut Stream, Failure> {
    match &mut inner.phase {
        Phase::Connected(connection) if !connection.stream.is_ended() => Ok(&mut connection.stream),
        _ => Err(Errno::ENOTCONN.into()),
    }
}

/// `riomap`: the offset that the peer knows the buffer by, from the next data on that it receives.
///
/// # Errors
/// `EINVAL` for flags, rights or an offset that there are not; `ENOMEM` if the peer's table has no room; `EFAULT` if the memory is not
/// there; `ENOTCONN`.
///
/// # Safety
/// The memory is the peer's to write until it is unmapped.
pub(super) unsafe fn map(
    socket: &Socket,
    buffer: *mut c_void,
    bytes: usize,
    rights: (c_int, c_int),
    offset: i64,
) -> Result<i64, Failure> {
    let (prot, flags) = rights;
    let is_for_peer = match prot {
        libc::PROT_NONE => false,
        libc::PROT_WRITE => true,
        _ => return Err(entry::INVALID),
    };
    let length = u32::try_from(bytes).ok().filter(|&length| length > 0).ok_or(entry::INVALID)?;
    let offset = if offset == ANY_OFFSET { buffer.addr() as i64 } else { offset };
    if flags != 0 || offset < 0 {
        return Err(entry::INVALID);
    }
    socket.change(|inner| {
        let stream = stream(inner)?;
        let index = if is_for_peer { Some(free_index(stream)?) } else { None };
        let access =
            if is_for_peer { AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE } else { AccessFlags::LOCAL_WRITE };
        let addr = buffer.addr() as u64;
        // SAFETY: the caller's promise.
        let range = unsafe { OwnRange::new(buffer.cast(), bytes) };
        let region = stream.pd.register_process_memory(range, addr, access)?;
        if let Some(index) = index {
            let buffer = RemoteBuffer { addr, key: region.rkey(), length };
            stream.announce(index, IomapEntry { offset: offset.cast_unsigned(), buffer });
        }
        stream.add_mapping(buffer.addr(), bytes, index, region);
        Ok(offset)
    })
}

fn free_index(stream: &Stream) -> Result<u16, Failure> {
    let entries = u16::try_from(stream.peer_iomap_entries()).unwrap_or(u16::MAX);
    let is_free = |index: &u16| stream.mappings.iter().all(|mapping| mapping.index != Some(*index));
    (0..entries).find(is_free).ok_or(Errno::ENOMEM.into())
}

/// `riounmap`: at once the peer can't write to it any more; it hears of that with the next data.
///
/// # Errors
/// `EINVAL` if there is no such mapping.
pub(super) fn unmap(socket: &Socket, buffer: *mut c_void, bytes: usize) -> Result<(), Failure> {
    socket.change(|inner| {
        let Phase::Connected(connection) = &mut inner.phase else { return Err(Errno::ENOTCONN.into()) };
        let stream = &mut connection.stream;
        let wanted = |mapping: &Mapping| mapping.addr == buffer.addr() && mapping.bytes == bytes;
        let at = stream.mappings.iter().position(wanted).ok_or(entry::INVALID)?;
        let mapping = stream.mappings.swap_remove(at);
        if let Some(index) = mapping.index {
            stream.announce(index, IomapEntry { offset: 0, buffer: RemoteBuffer::default() });
        }
        Ok(())
    })
}
