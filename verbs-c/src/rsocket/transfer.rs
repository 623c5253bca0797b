//! Sending and receiving.

use std::ffi::c_int;
use std::net::SocketAddr;

use nix::errno::Errno;
use nix::libc;

use super::datagram;
use super::socket::{Inner, Patience, Socket};
use super::vectors::Vectors;
use crate::entry::{self, Failure};

/// Flags that sending knows. (Nothing raises SIGPIPE here, and all that is sent goes at once.)
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_MORE | libc::MSG_EOR;
/// Flags that receiving knows.
const RECEIVE_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_PEEK | libc::MSG_CMSG_CLOEXEC;

/// Sends everything, or what can be sent without waiting; of a datagram socket one message, to a destination of its own or the
/// socket's.
///
/// # Errors
/// Before the first byte only. `EAGAIN`; `EPIPE` if nothing can be sent any more, `ECONNRESET` and the like once if that is the peer's or
/// the network's doing; `ENOTCONN`, `EOPNOTSUPP` for other flags. `EISCONN` for a stream with a destination, `EMSGSIZE` for a message that is too long.
pub(super) fn send(
    socket: &Socket,
    from: &mut Vectors<'_>,
    to: Option<SocketAddr>,
    flags: c_int,
) -> Result<usize, Failure> {
    if let Some(sent) = datagram::send(socket, from, to, flags) {
        return sent;
    }
    if to.is_some() {
        // It has a destination of its own.
        return Err(Errno::EISCONN.into());
    }
    if flags & !SEND_FLAGS != 0 {
        return Err(entry::NOT_OFFERED);
    }
    run(socket, socket.patience(flags), from, |inner, from| {
        let connection = match inner.connection()? {
            Ok(connection) => connection,
            Err(failure) => return Some(Err(failure)),
        };
        let stream = &mut connection.stream;
        if stream.is_write_closed() {
            return Some(Err(Failure(stream.error.take().unwrap_or(libc::EPIPE))));
        }
        none_if_zero(stream.send(from))
    })
}

/// Writes everything to the peer's buffer that is mapped at `offset`, or what can be written without waiting.
///
/// # Errors
/// As [`send`]; `EINVAL` if nothing is mapped there.
pub(super) fn write_mapped(
    socket: &Socket,
    from: &mut Vectors<'_>,
    offset: u64,
    flags: c_int,
) -> Result<usize, Failure> {
    if flags & !SEND_FLAGS != 0 {
        return Err(entry::NOT_OFFERED);
    }
    let total = from.left();
    run(socket, socket.patience(flags), from, |inner, from| {
        let connection = match inner.connection()? {
            Ok(connection) => connection,
            Err(failure) => return Some(Err(failure)),
        };
        let stream = &mut connection.stream;
        if stream.is_write_closed() {
            return Some(Err(Failure(stream.error.take().unwrap_or(libc::EPIPE))));
        }
        let done = (total - from.left()) as u64;
        let Some(at) = offset.checked_add(done) else { return Some(Err(entry::INVALID)) };
        none_if_zero(stream.write_mapped(from, at))
    })
}

/// Nothing done is not possible yet.
fn none_if_zero(done: Result<u32, Failure>) -> Option<Result<u32, Failure>> {
    Some(done).filter(|done| *done != Ok(0))
}

/// Goes on until all bytes are done, or waiting is over.
fn run(
    socket: &Socket,
    patience: Patience,
    from: &mut Vectors<'_>,
    mut step: impl FnMut(&mut Inner, &mut Vectors<'_>) -> Option<Result<u32, Failure>>,
) -> Result<usize, Failure> {
    let total = from.left();
    while from.left() > 0 {
        match socket.wait(patience, |inner| step(inner, from)) {
            Ok(_) => {}
            Err(failure) if from.left() == total => return Err(failure),
            // What was done counts; the next call hears of the failure if it lasts.
            Err(_) => break,
        }
    }
    Ok(total - from.left())
}

/// What was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Bytes that were copied; of a message with `MSG_TRUNC` all that it had.
    pub(super) bytes: usize,
    /// Who sent a message.
    pub(super) from: Option<SocketAddr>,
    /// Flags of a message (`MSG_TRUNC`).
    pub(super) flags: c_int,
}

/// Receives what has come, at least a byte of it; with `MSG_WAITALL` as much as there is room for. Of a datagram socket one message.
///
/// # Errors
/// `EAGAIN`; `ECONNRESET` and the like, once, if the connection has broken; `ENOTCONN`, `EOPNOTSUPP` for other flags.
pub(super) fn receive(socket: &Socket, into: &mut Vectors<'_>, flags: c_int) -> Result<Received, Failure> {
    let Some(message) = datagram::receive(socket, into, flags) else {
        let bytes = receive_stream(socket, into, flags)?;
        return Ok(Received { bytes, from: None, flags: 0 });
    };
    let datagram::Received { from, copied, whole } = message?;
    let bytes = if flags & libc::MSG_TRUNC != 0 { whole } else { copied };
    Ok(Received { bytes, from: Some(from), flags: if copied < whole { libc::MSG_TRUNC } else { 0 } })
}

fn receive_stream(socket: &Socket, into: &mut Vectors<'_>, flags: c_int) -> Result<usize, Failure> {
    if flags & !RECEIVE_FLAGS != 0 {
        return Err(entry::NOT_OFFERED);
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let all = flags & libc::MSG_WAITALL != 0 && !peek;
    let total = into.left();
    if total == 0 {
        // Still an error if there is no connection.
        return socket.with(|inner| inner.connection().map_or(Ok(0), |connection| connection.map(|_| 0)));
    }
    let patience = socket.patience(flags);
    let received = socket.wait(patience, |inner| {
        let connection = match inner.connection()? {
            Ok(connection) => connection,
            Err(failure) => return Some(Err(failure)),
        };
        let stream = &mut connection.stream;
        if stream.unread() > 0 {
            if let Err(failure) = stream.receive(into, peek) {
                return Some(Err(failure));
            }
            return (!all || into.left() == 0).then_some(Ok(()));
        }
        if !stream.is_read_closed() {
            return None;
        }
        // What has come is told first.
        let error = if into.left() == total { stream.error.take() } else { None };
        Some(error.map_or(Ok(()), |errno| Err(Failure(errno))))
    });
    match received {
        Ok(()) => Ok(total - into.left()),
        Err(_) if into.left() < total => Ok(total - into.left()),
        Err(failure) => Err(failure),
    }
}
