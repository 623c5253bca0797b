//! Moving payload between packets and the application's memory, through lists of SGEs.

use shm::attr::AccessFlags;
use shm::layout::Sge;

use crate::cause::ErrorCause;
use crate::mr::{MrFault, MrTable};

impl From<MrFault> for ErrorCause {
    fn from(fault: MrFault) -> Self {
        match fault {
            MrFault::UnknownKey => Self::UnknownKey,
            MrFault::WrongPd => Self::WrongPd,
            MrFault::OutOfRange => Self::OutOfRange,
            MrFault::NoRight => Self::NoRight,
            MrFault::NotMapped => Self::NotMapped,
        }
    }
}

/// Sum of the lengths, or `None` if it passes 2^32 - 1.
#[inline]
pub(crate) fn total_length(sges: &[Sge]) -> Option<u32> {
    sges.iter().try_fold(0u32, |sum, sge| sum.checked_add(sge.length))
}

/// Checks that every SGE lies in a region of the domain with the needed rights. Empty SGEs are not looked at.
#[inline]
pub(crate) fn check(mrs: &MrTable, pd: u32, sges: &[Sge], needed: AccessFlags) -> Result<(), MrFault> {
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        mrs.resolve(sge.lkey, pd, sge.addr, sge.length, needed)?;
    }
    Ok(())
}

/// Calls `piece` with the parts of the SGEs that make up the message's bytes `skip .. skip + length`, in order: region key,
/// address, and which bytes of the packet they are.
#[inline]
fn for_each_piece(
    sges: &[Sge],
    mut skip: u32,
    length: usize,
    mut piece: impl FnMut(&Sge, u64, core::ops::Range<usize>) -> Result<(), MrFault>,
) -> Result<(), MrFault> {
    let mut done = 0;
    for sge in sges {
        if skip >= sge.length {
            skip -= sge.length;
            continue;
        }
        let take = ((sge.length - skip) as usize).min(length - done);
        if take == 0 {
            break;
        }
        piece(sge, sge.addr.wrapping_add(u64::from(skip)), done..done + take)?;
        done += take;
        skip = 0;
    }
    if done == length { Ok(()) } else { Err(MrFault::OutOfRange) }
}

/// Copies the message's bytes from offset `skip` into a packet and continues the packet's ICRC over them.
#[inline]
pub(crate) fn gather(
    mrs: &MrTable,
    pd: u32,
    sges: &[Sge],
    skip: u32,
    payload: &mut [u8],
    mut crc: u32,
) -> Result<u32, MrFault> {
    for_each_piece(sges, skip, payload.len(), |sge, addr, range| {
        let region = mrs.resolve(sge.lkey, pd, addr, range.len() as u32, AccessFlags::NONE)?;
        let part = payload.get_mut(range).ok_or(MrFault::OutOfRange)?;
        crc = region.read_crc(0, part, crc)?;
        Ok(())
    })?;
    Ok(crc)
}

/// Copies a packet's payload to the message's bytes from offset `skip`.
#[inline]
pub(crate) fn scatter(mrs: &MrTable, pd: u32, sges: &[Sge], skip: u32, payload: &[u8]) -> Result<(), MrFault> {
    for_each_piece(sges, skip, payload.len(), |sge, addr, range| {
        let region = mrs.resolve(sge.lkey, pd, addr, range.len() as u32, AccessFlags::LOCAL_WRITE)?;
        let part = payload.get(range).ok_or(MrFault::OutOfRange)?;
        region.write(0, part)
    })
}
