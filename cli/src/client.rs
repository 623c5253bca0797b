//! The daemon as the commands see it: one method a question.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use shm::ABI_VERSION;
use shm::attr::{DeviceAttr, GidEntry, PortAttr, RecoveryPolicy};
use shm::control::congestion::{CongestionChange, CongestionReport, CongestionTarget};
use shm::control::post_mortem::{PostMortem, PostMortemSummary};
use shm::control::{CallError, Endpoint, MrSummary, QpDetail, QpSummary, Reply, Request, SessionSummary, Stats};
use shm::qos::{PortQos, QosChange};
use shm::socket::SocketEndpoint;

/// How long the daemon may take to accept and to answer, seconds. Its control thread answers within milliseconds.
const PATIENCE_S: i64 = 5;

/// Why the daemon gave no answer.
#[derive(thiserror::Error, Debug)]
pub(crate) enum ClientError {
    /// Nobody listens there.
    #[error(
        "no daemon answers at {}: {error}; start one (`ferroced --socket {}` and its devices) or name its socket by \
         --socket or FERROCE_SOCKET",
        path.display(), path.display()
    )]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// What the operating system says.
        error: io::Error,
    },
    /// The socket's permissions forbid it.
    #[error("{} may not be used by this user: {error}; the daemon's `socket_mode` decides who may", path.display())]
    Forbidden {
        /// The socket.
        path: PathBuf,
        /// What the operating system says.
        error: io::Error,
    },
    /// The daemon speaks another version of the control messages.
    #[error("the daemon at {} does not understand this ferroce: {message}", path.display())]
    Version {
        /// The socket.
        path: PathBuf,
        /// The daemon's or our own sentence.
        message: String,
    },
    /// The daemon accepted us and is silent.
    #[error("the daemon did not answer within {PATIENCE_S} s")]
    Silent,
    /// The call failed.
    #[error(transparent)]
    Call(CallError),
    /// The daemon said no.
    #[error("{message} (errno {errno})")]
    Refused {
        /// Errno of the verbs' man pages.
        errno: i32,
        /// Why, in a sentence.
        message: String,
    },
    /// What was asked for cannot be: a value out of range, or of something that there is not.
    #[error("{message}")]
    Impossible {
        /// Why, in a sentence.
        message: String,
    },
    /// The answer is one to another question.
    #[error("the daemon answered another question than {0}: is it another version?")]
    Unexpected(&'static str),
}

impl From<CallError> for ClientError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Io(error) if error.kind() == ErrorKind::WouldBlock => Self::Silent,
            other => Self::Call(other),
        }
    }
}

/// A session with a daemon that makes no objects.
pub(crate) struct Client {
    endpoint: SocketEndpoint,
}

impl Client {
    /// Connects and says hello.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`], [`ClientError::Forbidden`], [`ClientError::Version`], [`ClientError::Silent`].
    pub(crate) fn connect(path: &Path) -> Result<Self, ClientError> {
        let client = Self { endpoint: connect_within_patience(path).map_err(|errno| unreachable(path, errno))? };
        let version = |message| ClientError::Version { path: path.to_owned(), message };
        let hello = Request::Hello { abi_version: ABI_VERSION, client_name: "ferroce".to_owned() };
        match client.call(&hello) {
            Ok(Reply::Hello { abi_version: ABI_VERSION, .. }) => Ok(client),
            Ok(Reply::Hello { abi_version, .. }) => {
                Err(version(format!("it speaks version {abi_version} of the control messages, ferroce {ABI_VERSION}")))
            }
            Ok(_) => Err(ClientError::Unexpected("hello")),
            Err(ClientError::Refused { errno, message }) if errno == Errno::EPROTO as i32 => Err(version(message)),
            Err(error) => Err(error),
        }
    }

    /// Asks; a refusal is an error.
    fn call(&self, request: &Request) -> Result<Reply, ClientError> {
        match self.endpoint.call(request, &[])? {
            (Reply::Refused { errno, message }, _) => match Errno::from_raw(errno) {
                Errno::EINVAL | Errno::ENOENT => Err(ClientError::Impossible { message }),
                _ => Err(ClientError::Refused { errno, message }),
            },
            (reply, _) => Ok(reply),
        }
    }

    /// What the device can do.
    pub(crate) fn device(&self) -> Result<DeviceAttr, ClientError> {
        match self.call(&Request::QueryDevice)? {
            Reply::Device(device) => Ok(device),
            _ => Err(ClientError::Unexpected("query device")),
        }
    }

    /// State of a port; they count from 1.
    pub(crate) fn port(&self, port_num: u8) -> Result<PortAttr, ClientError> {
        match self.call(&Request::QueryPort { port_num })? {
            Reply::Port(port) => Ok(port),
            _ => Err(ClientError::Unexpected("query port")),
        }
    }

    /// GID table of a port.
    pub(crate) fn gids(&self, port_num: u8) -> Result<Vec<GidEntry>, ClientError> {
        match self.call(&Request::QueryGids { port_num })? {
            Reply::Gids(gids) => Ok(gids),
            _ => Err(ClientError::Unexpected("query GIDs")),
        }
    }

    /// Counters of the whole daemon.
    pub(crate) fn stats(&self) -> Result<Stats, ClientError> {
        match self.call(&Request::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            _ => Err(ClientError::Unexpected("stats")),
        }
    }

    /// QPs of all sessions, by rising QPN.
    pub(crate) fn qps(&self) -> Result<Vec<QpSummary>, ClientError> {
        let mut all: Vec<QpSummary> = Vec::new();
        loop {
            let after = all.last().map(|qp| qp.qpn);
            let Reply::Qps { qps, more } = self.call(&Request::ListQps { after })? else {
                return Err(ClientError::Unexpected("list QPs"));
            };
            // A page that does not go on from the last one would make this loop endless.
            let goes_on = qps.first().is_some_and(|first| after.is_none_or(|last| first.qpn > last));
            if more && !goes_on {
                return Err(ClientError::Unexpected("list QPs"));
            }
            all.extend(qps);
            if !more {
                return Ok(all);
            }
        }
    }

    /// All about one QP.
    pub(crate) fn qp(&self, qpn: u32) -> Result<QpDetail, ClientError> {
        match self.call(&Request::QpDetail { qpn })? {
            Reply::QpDetail(detail) => Ok(*detail),
            _ => Err(ClientError::Unexpected("QP detail")),
        }
    }

    /// Quality of service of a port, or of all.
    pub(crate) fn qos(&self, port_num: Option<u8>) -> Result<Vec<PortQos>, ClientError> {
        match self.call(&Request::ShowQos { port_num })? {
            Reply::Qos(ports) => Ok(ports),
            _ => Err(ClientError::Unexpected("show QoS")),
        }
    }

    /// Changes it, and returns what it is now.
    pub(crate) fn set_qos(&self, port_num: Option<u8>, change: QosChange) -> Result<Vec<PortQos>, ClientError> {
        match self.call(&Request::SetQos { port_num, change: Box::new(change) })? {
            Reply::Qos(ports) => Ok(ports),
            _ => Err(ClientError::Unexpected("set QoS")),
        }
    }

    /// The congestion control of a port or a QP.
    pub(crate) fn congestion(&self, target: CongestionTarget) -> Result<CongestionReport, ClientError> {
        self.call_congestion(&Request::ShowCongestion { target })
    }

    /// Changes it; what it is then.
    pub(crate) fn set_congestion(
        &self,
        target: CongestionTarget,
        change: CongestionChange,
    ) -> Result<CongestionReport, ClientError> {
        self.call_congestion(&Request::SetCongestion { target, change })
    }

    /// Takes back what was changed; what it is then.
    pub(crate) fn reset_congestion(&self, target: CongestionTarget) -> Result<CongestionReport, ClientError> {
        self.call_congestion(&Request::ResetCongestion { target })
    }

    fn call_congestion(&self, request: &Request) -> Result<CongestionReport, ClientError> {
        match self.call(request)? {
            Reply::Congestion(report) => Ok(*report),
            _ => Err(ClientError::Unexpected("congestion control")),
        }
    }

    /// Changes how a QP makes up for lost packets.
    pub(crate) fn set_recovery(&self, qpn: u32, policy: RecoveryPolicy) -> Result<(), ClientError> {
        match self.call(&Request::SetRecovery { qpn, policy })? {
            Reply::Done => Ok(()),
            _ => Err(ClientError::Unexpected("set recovery")),
        }
    }

    /// Why a QP broke.
    pub(crate) fn why(&self, qpn: u32) -> Result<PostMortem, ClientError> {
        match self.call(&Request::WhyQp { qpn })? {
            Reply::PostMortem(found) => Ok(*found),
            _ => Err(ClientError::Unexpected("why QP")),
        }
    }

    /// QPs that broke, the newest first.
    pub(crate) fn post_mortems(&self) -> Result<Vec<PostMortemSummary>, ClientError> {
        match self.call(&Request::ListPostMortems)? {
            Reply::PostMortems(found) => Ok(found),
            _ => Err(ClientError::Unexpected("list post-mortems")),
        }
    }

    /// Regions of all sessions, by rising session and number.
    pub(crate) fn mrs(&self) -> Result<Vec<MrSummary>, ClientError> {
        let place = |mr: &MrSummary| (mr.session, mr.number);
        let mut all: Vec<MrSummary> = Vec::new();
        loop {
            let after = all.last().map(place);
            let Reply::Mrs { mrs, more } = self.call(&Request::ListMrs { after })? else {
                return Err(ClientError::Unexpected("list regions"));
            };
            // As for QPs.
            let goes_on = mrs.first().is_some_and(|first| after.is_none_or(|last| place(first) > last));
            if more && !goes_on {
                return Err(ClientError::Unexpected("list regions"));
            }
            all.extend(mrs);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Clients of the daemon, this one among them.
    pub(crate) fn sessions(&self) -> Result<Vec<SessionSummary>, ClientError> {
        match self.call(&Request::ListSessions)? {
            Reply::Sessions(sessions) => Ok(sessions),
            _ => Err(ClientError::Unexpected("list sessions")),
        }
    }
}

/// Connects with time limits on everything: a tool that looks for what is wrong must not hang with it.
fn connect_within_patience(path: &Path) -> Result<SocketEndpoint, Errno> {
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    let patience = TimeVal::seconds(PATIENCE_S);
    setsockopt(&fd, sockopt::SendTimeout, &patience)?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &patience)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(SocketEndpoint::new(fd))
}

fn unreachable(path: &Path, errno: Errno) -> ClientError {
    let (path, error) = (path.to_owned(), io::Error::from(errno));
    match errno {
        // The send timeout bounds the connect as well.
        Errno::EAGAIN => ClientError::Silent,
        Errno::EACCES | Errno::EPERM => ClientError::Forbidden { path, error },
        _ => ClientError::NoDaemon { path, error },
    }
}
