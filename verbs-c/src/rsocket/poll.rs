//! Waiting for many sockets, and for descriptors of the kernel's along with them.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{self, pollfd};
use nix::poll::PollFlags;

use super::options::Defaults;
use super::socket::{self, Patience, Socket, Waiting, poll_timeout};
use crate::entry::Failure;

/// What is told even if nobody asked.
const ALWAYS: PollFlags = PollFlags::POLLERR.union(PollFlags::POLLHUP).union(PollFlags::POLLNVAL);

/// The sockets among the descriptors of a call, each with its place.
fn sockets(fds: &[pollfd]) -> Vec<Option<Arc<Socket>>> {
    fds.iter().map(|fd| socket::find(fd.fd).ok()).collect()
}

/// Calls the kernel's `poll`.
fn kernel(fds: &mut [pollfd], timeout: c_int) -> Result<(), Failure> {
    // SAFETY: as many as there are.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    Errno::result(count)?;
    Ok(())
}

/// `rpoll`: how many have something to tell.
///
/// # Errors
/// `EINTR`, or what the kernel says.
pub(super) fn poll(fds: &mut [pollfd], patience: Patience) -> Result<c_int, Failure> {
    let sockets = sockets(fds);
    let of_kernel: Vec<usize> = (0..fds.len()).filter(|&at| sockets[at].is_none()).collect();
    let mut found = look(fds, &sockets, |socket| socket.with(|inner| inner.readiness()));
    if found == 0 {
        found = look(fds, &sockets, |socket| socket.with_news(None, |inner| inner.readiness()));
    }
    found += look_at_kernel(fds, &of_kernel)?;
    if found > 0 || matches!(patience, Patience::None) {
        return Ok(found);
    }
    let end = Instant::now() + Defaults::get().polling;
    while Instant::now() < end {
        found = look(fds, &sockets, |socket| socket.with(|inner| inner.readiness()));
        if found > 0 {
            return Ok(found);
        }
    }
    sleep(fds, &sockets, &of_kernel, patience)
}

/// Asks each socket; returns how many have something to tell.
fn look(fds: &mut [pollfd], sockets: &[Option<Arc<Socket>>], ask: impl Fn(&Socket) -> PollFlags) -> c_int {
    let mut found = 0;
    for (fd, socket) in fds.iter_mut().zip(sockets) {
        let Some(socket) = socket else { continue };
        let wanted = PollFlags::from_bits_retain(fd.events) | ALWAYS;
        fd.revents = (ask(socket) & wanted).bits();
        found += c_int::from(fd.revents != 0);
    }
    found
}

fn look_at_kernel(fds: &mut [pollfd], places: &[usize]) -> Result<c_int, Failure> {
    if places.is_empty() {
        return Ok(0);
    }
    let mut asked: Vec<pollfd> = places.iter().map(|&at| fds[at]).collect();
    kernel(&mut asked, 0)?;
    Ok(copy_back(fds, places, &asked))
}

fn copy_back(fds: &mut [pollfd], places: &[usize], asked: &[pollfd]) -> c_int {
    let mut found = 0;
    for (&at, asked) in places.iter().zip(asked) {
        fds[at].revents = asked.revents;
        found += c_int::from(asked.revents != 0);
    }
    found
}

fn sleep(
    fds: &mut [pollfd],
    sockets: &[Option<Arc<Socket>>],
    of_kernel: &[usize],
    patience: Patience,
) -> Result<c_int, Failure> {
    let waiting = Waiting::new()?;
    sockets.iter().flatten().for_each(|socket| waiting.add(socket));
    // The kernel's own first, then our waker, then each socket's channels.
    let mut asked: Vec<pollfd> = of_kernel.iter().map(|&at| fds[at]).collect();
    let readable = |fd: c_int| pollfd { fd, events: libc::POLLIN, revents: 0 };
    asked.push(readable(waiting.waker.as_fd().as_raw_fd()));
    asked.extend(sockets.iter().flatten().map(|socket| readable(socket.epoll().0.as_raw_fd())));
    loop {
        let found = look(fds, sockets, |socket| socket.with_news(Some(&waiting.waker), |inner| inner.readiness()));
        if found > 0 {
            return Ok(found + look_at_kernel(fds, of_kernel)?);
        }
        let left = patience.left();
        kernel(&mut asked, c_int::from(poll_timeout(left)))?;
        waiting.drain();
        let found = copy_back(fds, of_kernel, &asked);
        if found > 0 {
            let ours = look(fds, sockets, |socket| socket.with_news(None, |inner| inner.readiness()));
            return Ok(found + ours);
        }
        if patience.left().is_some_and(|left| left.is_zero()) {
            return Ok(look(fds, sockets, |socket| socket.with_news(None, |inner| inner.readiness())));
        }
    }
}

/// A timeout of `rpoll`.
pub(super) fn patience(timeout_ms: c_int) -> Patience {
    match u64::try_from(timeout_ms) {
        Ok(0) => Patience::None,
        Ok(milliseconds) => Patience::Until(Instant::now() + Duration::from_millis(milliseconds)),
        Err(_) => Patience::Forever,
    }
}

/// What `select` means by each of its sets, in words of `poll`: the event to ask for, and those that count.
const SETS: [(PollFlags, PollFlags); 3] = [
    (PollFlags::POLLIN, PollFlags::POLLIN.union(PollFlags::POLLHUP).union(PollFlags::POLLERR)),
    (PollFlags::POLLOUT, PollFlags::POLLOUT.union(PollFlags::POLLERR)),
    (PollFlags::POLLPRI, PollFlags::POLLPRI),
];

/// `rselect`: the sets for reading, writing and exceptions become those that are ready; returns how many bits are set.
///
/// # Errors
/// `EINVAL` for more descriptors than a set has; `EBADF`; as [`poll`].
pub(super) fn select(
    count: c_int,
    sets: &mut [Option<&mut libc::fd_set>; 3],
    patience: Patience,
) -> Result<c_int, Failure> {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
        return Err(crate::entry::INVALID);
    }
    let mut fds = Vec::new();
    for fd in 0..count {
        let mut events = PollFlags::empty();
        for (set, (ask, _)) in sets.iter().zip(SETS) {
            // SAFETY: the number is below the set's size.
            events.set(ask, set.as_deref().is_some_and(|set| unsafe { libc::FD_ISSET(fd, set) }));
        }
        if !events.is_empty() {
            fds.push(pollfd { fd, events: events.bits(), revents: 0 });
        }
    }
    poll(&mut fds, patience)?;
    if fds.iter().any(|fd| PollFlags::from_bits_retain(fd.revents).contains(PollFlags::POLLNVAL)) {
        return Err(Errno::EBADF.into());
    }
    let mut set_bits = 0;
    for (set, (ask, counts)) in sets.iter_mut().zip(SETS) {
        let Some(set) = set else { continue };
        // SAFETY: a set of the program's.
        unsafe { libc::FD_ZERO(&raw mut **set) };
        for fd in &fds {
            let (asked, told) = (PollFlags::from_bits_retain(fd.events), PollFlags::from_bits_retain(fd.revents));
            if asked.contains(ask) && told.intersects(counts) {
                // SAFETY: the number is below the set's size.
                unsafe { libc::FD_SET(fd.fd, &raw mut **set) };
                set_bits += 1;
            }
        }
    }
    Ok(set_bits)
}
