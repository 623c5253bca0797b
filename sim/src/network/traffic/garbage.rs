//! A client that writes over its own rings.

use rand::{Rng, RngCore};
use shm::mapping::Mapping;
use shm::segment::BlockAddress;

use crate::random::Stream;
use crate::violation::{Checked, OrSay};

/// Most random bytes that are written to one place in one go.
const BYTES_MAX: usize = 256;
/// Places that are written to.
const WRITES: usize = 64;

/// Writes random bytes over rings and doorbells.
pub(super) fn write_garbage(rings: &[(Mapping, BlockAddress)], stream: &mut Stream) -> Checked {
    for _ in 0..WRITES {
        if rings.is_empty() {
            break;
        }
        let (mapping, block) = &rings[stream.random_range(0..rings.len())];
        let length = stream.random_range(1..=BYTES_MAX.min(block.bytes as usize));
        // Indices lie at a block's start: every other time they are hit.
        let last = if stream.random() { 0 } else { block.bytes - length as u64 };
        let offset = block.offset + stream.random_range(0..=last);
        let mut bytes = vec![0; length];
        stream.fill_bytes(&mut bytes);
        mapping.write(offset, &bytes).or_say("writing garbage to a ring")?;
    }
    Ok(())
}
