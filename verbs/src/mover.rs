//! The thread that moves private memory which is used a lot into files that the engine maps: see [`shm::relocate`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use shm::control::{MOVE_CELL_BYTES, MOVE_CHUNK_BYTES, MOVE_FILE_BYTES_MAX, Request};
use shm::process_memory::OwnRange;
use shm::relocate::{self, MoveFile, Relocator};

use crate::VerbsError;
use crate::context::ContextInner;
use crate::error::lock;
use crate::process_memory::query_use;

/// Smaller regions stay: a chunk of them would not pay its mapping.
const BYTES_MIN: u64 = 1 << 20;
/// A region moves once so many times its size went by system call.
const USE_FACTOR: u64 = 4;
/// How often regions are looked at.
const TICK: Duration = Duration::from_millis(20);
/// A chunk that takes longer is followed by a smaller one.
const STALL_LONG: Duration = Duration::from_millis(4);
/// A chunk that takes less is followed by a larger one.
const STALL_SHORT: Duration = Duration::from_millis(1);
/// Regions that are looked at in a tick: each takes a message.
const LOOKS_MAX: usize = 32;

/// All regions of process memory of all sessions of this process: what two sessions have does not move, for the other's engine would
/// not know.
static REGISTERED: Mutex<BTreeMap<u64, (usize, Range<u64>)>> = Mutex::new(BTreeMap::new());

/// A region's entry in the list; taken out when dropped.
pub(crate) struct Registered(u64);

impl Registered {
    pub(crate) fn new(context: &Arc<ContextInner>, range: OwnRange) -> Self {
        let mut all = lock(&REGISTERED);
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, (id(context), range.addr()..range.addr() + range.length()));
        Self(number)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&REGISTERED).remove(&self.0);
    }
}

/// What distinguishes sessions of this process.
fn id(context: &Arc<ContextInner>) -> usize {
    Arc::as_ptr(context).addr()
}

/// True if another session has registered a part of a range.
fn is_shared(context: &Arc<ContextInner>, range: &Range<u64>) -> bool {
    let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
    lock(&REGISTERED).values().any(|(session, other)| *session != id(context) && overlaps(other))
}

/// A region that may move.
struct Candidate {
    range: OwnRange,
    lkey: u32,
    gone: Arc<AtomicBool>,
}

/// The thread, and what it looks at.
pub(crate) struct Mover {
    thread: Thread,
    candidates: Arc<Mutex<Vec<Candidate>>>,
}

impl Mover {
    /// Has a region looked at from now on; starts the thread with the first one. Where no memory can be moved, nothing happens, and
    /// the log says why.
    pub(crate) fn watch(context: &Arc<ContextInner>, range: OwnRange, lkey: u32, gone: &Arc<AtomicBool>) {
        if range.length() < BYTES_MIN {
            return;
        }
        let mover = context.own_process.mover.get_or_init(|| {
            Self::start(context)
                .map_err(|error| relocate::explain(&error))
                .inspect_err(|reason| context.own_process.tell(|| format!("memory stays where it is: {reason}")))
                .ok()
        });
        if let Some(Self { thread, candidates }) = mover {
            lock(candidates).push(Candidate { range, lkey, gone: Arc::clone(gone) });
            thread.unpark();
        }
    }

    fn start(context: &Arc<ContextInner>) -> std::io::Result<Self> {
        let relocator = Relocator::open()?;
        let candidates = Arc::<Mutex<Vec<Candidate>>>::default();
        let (theirs, context) = (Arc::clone(&candidates), Arc::downgrade(context));
        let body = move || {
            if relocate::block_signals().is_ok() {
                run(&relocator, &theirs, &context);
            }
        };
        let thread = thread::Builder::new().name("ferroce-mover".to_owned()).spawn(body)?.thread().clone();
        Ok(Self { thread, candidates })
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.thread.unpark();
    }
}

/// How much moves at a time. Who touches it waits for as long as that takes, which is a matter of the machine and of who else wants its
/// cores: a smaller chunk needs less of them, and is less likely to lose its turn half-way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pace {
    chunk_bytes: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { chunk_bytes: MOVE_CHUNK_BYTES / 4 }
    }
}

impl Pace {
    /// Where the chunk ends that begins at an address.
    const fn end_of_chunk(self, addr: u64) -> u64 {
        (addr / self.chunk_bytes + 1) * self.chunk_bytes
    }

    /// A chunk took so long.
    fn took(&mut self, time: Duration) {
        if time > STALL_LONG {
            self.chunk_bytes = (self.chunk_bytes / 2).max(MOVE_CELL_BYTES);
        } else if time < STALL_SHORT {
            self.chunk_bytes = (self.chunk_bytes * 2).min(MOVE_CHUNK_BYTES);
        }
    }
}

/// Looks at the candidates in turns until the session ends.
fn run(relocator: &Relocator, candidates: &Mutex<Vec<Candidate>>, context: &Weak<ContextInner>) {
    let mut pace = Pace::default();
    loop {
        let has_some = !lock(candidates).is_empty();
        if has_some {
            thread::park_timeout(TICK);
        } else {
            thread::park();
        }
        let Some(context) = context.upgrade().filter(|context| !context.events.is_dead()) else { return };
        // In turns: those that stay candidates go to the end.
        let count = lock(candidates).len().min(LOOKS_MAX);
        for _ in 0..count {
            let candidate = {
                let mut all = lock(candidates);
                if all.is_empty() { break } else { all.remove(0) }
            };
            if candidate.gone.load(Relaxed) {
                continue;
            }
            // A region that has just gone is refused.
            let Ok(used) = query_use(&context, candidate.lkey) else { continue };
            if used.copied_bytes < USE_FACTOR.saturating_mul(candidate.range.length()) {
                lock(candidates).push(candidate);
                continue;
            }
            let outcome = move_region(relocator, &context, &candidate, &mut pace);
            context.own_process.tell(|| outcome.unwrap_or_else(|error| format!("memory stays where it is: {error}")));
        }
    }
}

/// Moves what can be moved of a region, and tells how it went.
fn move_region(
    relocator: &Relocator,
    context: &Arc<ContextInner>,
    candidate: &Candidate,
    pace: &mut Pace,
) -> Result<String, VerbsError> {
    let os = |call| move |error| VerbsError::Os { call, error };
    let start = Instant::now();
    let mut pieces = relocator.pieces(candidate.range).map_err(os("reading /proc/self/maps"))?;
    pieces.retain(|piece| !is_shared(context, piece));
    let (mut moved, mut longest) = (0, Duration::ZERO);
    let mut rest = pieces.as_slice();
    while !rest.is_empty() {
        let (batch, bytes) = batch(rest);
        rest = &rest[batch.len()..];
        let mut file = MoveFile::new(bytes).map_err(os("making a file to move into"))?;
        context.call_with(&Request::MoveOpen { bytes }, &[file.fd()])?;
        for piece in batch {
            let mut at = piece.start;
            while at < piece.end && !candidate.gone.load(Relaxed) {
                let part = at..piece.end.min(pace.end_of_chunk(at));
                at = part.end;
                if let Some(time) = move_piece(relocator, context, candidate, &mut file, &part) {
                    longest = longest.max(time);
                    pace.took(time);
                }
            }
        }
        moved += file.bytes() - file.left();
    }
    let (addr, length, time) = (candidate.range.addr(), candidate.range.length(), start.elapsed());
    Ok(format!(
        "region of {length} bytes at {addr:#x}: {moved} of them have moved in {:.1} ms, of which a chunk took {:.2} ms at most",
        time.as_secs_f64() * 1e3,
        longest.as_secs_f64() * 1e3
    ))
}

/// The pieces that go into one file, and their bytes.
fn batch(pieces: &[Range<u64>]) -> (&[Range<u64>], u64) {
    let (mut count, mut bytes) = (0, 0);
    for piece in pieces {
        let length = piece.end - piece.start;
        if bytes + length > MOVE_FILE_BYTES_MAX {
            break;
        }
        (count, bytes) = (count + 1, bytes + length);
    }
    (&pieces[..count], bytes)
}

/// Moves one piece: how long whoever touched it had to wait; `None` if it stays.
fn move_piece(
    relocator: &Relocator,
    context: &Arc<ContextInner>,
    candidate: &Candidate,
    file: &mut MoveFile,
    piece: &Range<u64>,
) -> Option<Duration> {
    let _still = lock(&context.own_process.still);
    if candidate.gone.load(Relaxed) {
        return None;
    }
    context.own_process.forget_kept(piece);
    let window = relocator.prepare(file, piece).ok()?;
    context.call(&window.request()).ok()?;
    let (mut window, mut outcome) = (Some(window), None);
    context.endpoint.exclusively(piece, &mut |copy| {
        let start = Instant::now();
        outcome = window.take().map(|window| window.run(copy).map(|()| start.elapsed()));
    });
    match outcome {
        Some(Ok(time)) => Some(time),
        Some(Err(_)) | None => {
            // If it is the daemon that has gone, there is nobody to be told.
            let _ = context.call(&Request::MoveAbandon);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_shrink_while_they_take_long_and_grow_while_they_do_not() {
        let mut pace = Pace::default();
        let sizes = |pace: &mut Pace, millis: &[u64]| -> Vec<u64> {
            let took = |&millis| {
                pace.took(Duration::from_millis(millis));
                pace.chunk_bytes >> 10
            };
            millis.iter().map(took).collect()
        };
        assert_eq!(sizes(&mut pace, &[0, 0, 0]), [1024, 2048, 2048]);
        assert_eq!(sizes(&mut pace, &[2, 21, 5, 5, 5]), [2048, 1024, 512, 256, 256]);
        assert_eq!(sizes(&mut pace, &[0, 2]), [512, 512]);
        assert_eq!([0, (512 << 10) - 1, 512 << 10].map(|addr| pace.end_of_chunk(addr) >> 10), [512, 512, 1024]);
    }
}
