//! The way from the client library to a simulated engine.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use shm::control::{CallError, Endpoint, Reply, Request};

use super::{Host, Inner, Session};

/// A client's session. Calls are answered at once, at the host's present time.
pub(super) struct SessionEndpoint {
    host: Host,
    session: u32,
    is_polled: bool,
}

impl SessionEndpoint {
    pub(super) fn new(host: Host, session: u32) -> Self {
        let is_polled = host.settings().is_polled;
        Self { host, session, is_polled }
    }
}

impl Endpoint for SessionEndpoint {
    fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        let fds = fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<Result<Vec<_>, _>>()?;
        let mut inner = self.host.lock();
        inner.is_called = true;
        let Inner { control, engine, sessions, .. } = &mut *inner;
        let now = engine.now;
        let (reply, mut fds) = control.handle(engine, self.session, now, request.clone(), fds);
        match &reply {
            Reply::Hello { .. } => {
                let (ours, theirs) = shm::socket::pair()?;
                let ours = UnixDatagram::from(ours);
                ours.set_nonblocking(true)?;
                fds.push(theirs);
                let session = Session { events: ours.into(), event_count: 0, segments: Vec::new(), blocks: Vec::new() };
                sessions.insert(self.session, session);
            }
            Reply::Cq { block, .. } | Reply::Srq { block, .. } => {
                note_rings(sessions.get_mut(&self.session), &[*block], &fds)?
            }
            Reply::Qp { block, doorbell, .. } => {
                note_rings(sessions.get_mut(&self.session), &[*block, *doorbell], &fds)?;
            }
            _ => {}
        }
        Ok((reply, fds))
    }

    fn make_progress(&self) {
        // The world's clock stands still: only this host has a turn, at the present time.
        self.host.make_progress();
    }

    fn is_polled(&self) -> bool {
        self.is_polled
    }

    fn wants_core(&self) -> bool {
        false
    }
}

impl Drop for SessionEndpoint {
    fn drop(&mut self) {
        self.host.lock().close(self.session);
    }
}

/// Remembers where a client's rings are. Files come along for segments it has not seen, lowest number first.
fn note_rings(
    session: Option<&mut Session>,
    blocks: &[shm::segment::BlockAddress],
    fds: &[OwnedFd],
) -> std::io::Result<()> {
    let Some(session) = session else { return Ok(()) };
    let mut fds = fds.iter();
    let segments = blocks.iter().map(|block| block.segment as usize + 1).max().unwrap_or(0);
    while session.segments.len() < segments
        && let Some(fd) = fds.next()
    {
        session.segments.push(fd.try_clone()?);
    }
    session.blocks.extend_from_slice(blocks);
    Ok(())
}
