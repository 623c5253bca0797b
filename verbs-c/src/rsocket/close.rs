//! The end of a connection: half of it, all of it, in peace or not.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;

use super::socket::{Patience, Phase, Socket};
use super::wire::Message;
use crate::entry::{self, Failure};

/// How long the peer is waited for that has not taken everything yet, unless the program says otherwise (`SO_LINGER`): closing must end,
/// whatever the peer does.
const LINGER: Duration = Duration::from_secs(10);

/// `rshutdown`: ends a direction, and returns when the peer has everything.
///
/// # Errors
/// `ENOTCONN`, `EINVAL` for a direction that does not exist.
pub(super) fn shutdown(socket: &Socket, how: c_int) -> Result<(), Failure> {
    let (read, write) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Err(entry::INVALID),
    };
    let linger = socket.change(|inner| {
        // A listener takes no more; that it has no connection is no reason to keep it.
        if let Phase::Listening(_) = inner.phase {
            inner.phase = Phase::Failed(Some(libc::EINVAL));
            return Ok(Duration::ZERO);
        }
        let Phase::Connected(connection) = &mut inner.phase else { return Err(Failure::from(Errno::ENOTCONN)) };
        let stream = &mut connection.stream;
        let was_open = !(stream.read_shut && stream.write_shut);
        if read && !stream.read_shut {
            stream.discard();
        }
        let is_news = write && !stream.write_shut;
        stream.write_shut |= write;
        if was_open && stream.read_shut && stream.write_shut {
            stream.say(Message::Disconnect);
        } else if is_news {
            stream.say(Message::Shutdown);
        }
        Ok(inner.options.linger.unwrap_or(LINGER))
    })?;
    wait_until_sent(socket, linger);
    Ok(())
}

/// Waits until the peer has everything, but no longer than that.
fn wait_until_sent(socket: &Socket, linger: Duration) {
    let patience = Patience::Until(Instant::now() + linger);
    // Late is late: there is nobody to tell.
    let _ = socket.wait(patience, |inner| match &inner.phase {
        Phase::Connected(connection) => connection.stream.is_all_sent().then_some(Ok(())),
        Phase::Datagrams(datagrams) => datagrams.is_all_sent().then_some(Ok(())),
        _ => Some(Ok(())),
    });
}

/// `rclose`: says goodbye if that was not done, waits until the peer has everything, and ends the connection.
pub(super) fn close(socket: &Socket) {
    let linger = socket.with(|inner| inner.options.linger);
    if linger != Some(Duration::ZERO) {
        // Not connected: nothing to end, but messages may be on their way.
        if shutdown(socket, libc::SHUT_RDWR).is_err() {
            wait_until_sent(socket, linger.unwrap_or(LINGER));
        }
    }
    let last = socket.change(|inner| {
        inner.closed = true;
        std::mem::replace(&mut inner.phase, Phase::Idle)
    });
    // Takes a while: messages to the daemon.
    drop(last);
}
