//! `ferroce rping`: connects by address, and moves pings to and fro by READ and WRITE, as librdmacm's `rping` does, and with it.
//!
//! One thread: it sleeps until the connection manager or the completion channel has something, and each connection is a
//! [`connection::Connection`] that takes the next step of the exchange.

mod connection;
mod exchange;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use ferroce::cm::{CmError, CmEvent, CmEventType, CmId, ConnParam, EventChannel, PortSpace};
use ferroce::{
    CompletionChannel, CompletionQueue, Context, CqInit, ProtectionDomain, VerbsError, WcStatus, WorkCompletion,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::connection::{Connection, Progress, Reporter};
use self::exchange::{SIZE_MAX, SIZE_MIN};
use crate::outcome::{CommandError, Outcome};

/// How long the address and the route may take to be found; rping's own.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Clients that a persistent server has at a time; more are rejected.
const CONNECTIONS_MAX: usize = 64;
/// Requests that may wait for the server: all the clients that it takes may come at once. (rping's own server says 3.)
const BACKLOG: u32 = CONNECTIONS_MAX as u32;

/// Arguments of `ferroce rping`, with rping's letters.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Be the server.
    #[arg(short, long, required_unless_present = "client", conflicts_with = "client")]
    server: bool,
    /// Be the client.
    #[arg(short, long, requires = "addr")]
    client: bool,
    /// Address of the server; the server itself listens there, else on every IPv4 address (`::` = every address).
    #[arg(short, long, value_name = "ADDRESS", value_parser = parse_address)]
    addr: Option<IpAddr>,
    /// Port of the server.
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
    /// Our address (client).
    #[arg(short = 'I', long, value_name = "ADDRESS", value_parser = parse_address)]
    source: Option<IpAddr>,
    /// Pings; 0 = until someone disconnects (client).
    #[arg(short = 'C', long, default_value_t = 0)]
    count: u32,
    /// Bytes of a ping (client; a server takes any).
    #[arg(short = 'S', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(SIZE_MIN..=SIZE_MAX))]
    size: u32,
    /// Print the pings.
    #[arg(short, long)]
    verbose: bool,
    /// Compare what comes back with what was sent (client).
    #[arg(short = 'V', long)]
    validate: bool,
    /// Print each step.
    #[arg(short, long)]
    debug: bool,
    /// Serve one client after the other, and several at a time, until interrupted.
    #[arg(short = 'P', long, conflicts_with = "client")]
    persistent: bool,
    /// Make the QP and take it through its states here, not in the client library.
    #[arg(short = 'q', long)]
    own_qp: bool,
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    let mut found = (text, 0).to_socket_addrs().map_err(|error| format!("no such address or host: {error}"))?;
    found.next().map(|addr| addr.ip()).ok_or_else(|| "the host has no address".to_owned())
}

/// Runs a client, or a server, to its end.
pub(crate) fn run(socket: &Path, args: &Args, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let context = Context::connect(socket)?;
    let completions = context.create_channel()?;
    let cqe = u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX) * connection::CQE;
    let cq = context.create_cq(&CqInit { cqe, channel: Some(&completions), ..CqInit::default() })?;
    let pd = context.alloc_pd()?;
    let channel = EventChannel::new(&context)?;
    let id = channel.create_id(PortSpace::Tcp)?;
    let report = Reporter { out, verbose: args.verbose, debug: args.debug };
    let mut rping = Rping { args, channel, completions, cq, pd, id, connections: Vec::new(), report };
    rping.cq.req_notify(false);
    rping.begin()?;
    loop {
        if let Some(outcome) = rping.turn()? {
            return Ok(outcome);
        }
    }
}

struct Rping<'a, W> {
    args: &'a Args,
    connections: Vec<Connection>,
    /// The client's, or the listener.
    id: CmId,
    channel: EventChannel,
    cq: CompletionQueue,
    completions: CompletionChannel,
    pd: ProtectionDomain,
    report: Reporter<'a, W>,
}

impl<W: Write> Rping<'_, W> {
    fn begin(&mut self) -> Result<(), CommandError> {
        let address = self.args.addr.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let address = SocketAddr::new(address, self.args.port);
        if self.args.server {
            self.id.bind_addr(address)?;
            self.id.listen(BACKLOG)?;
            self.report.debug(format_args!("listening on {address}"))
        } else {
            let source = self.args.source.map(|source| SocketAddr::new(source, 0));
            Ok(self.id.resolve_addr(source, address, RESOLVE_TIMEOUT)?)
        }
    }

    /// Sleeps until something happens, and does what follows. The outcome, once everything is done.
    fn turn(&mut self) -> Result<Option<Outcome>, CommandError> {
        self.report.out.flush()?;
        let mut fds = [self.channel.as_fd(), self.completions.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        // Completions first: what a connection still says comes before its end.
        while let Some(cq) = self.completions.try_get()? {
            cq.req_notify(false);
            self.take_completions()?;
        }
        while let Some(event) = self.channel.try_get_event()? {
            self.report.debug(format_args!("cma event {event}"))?;
            if let Some(outcome) = self.take_event(&event)? {
                // The last pings may have come with the peer's end.
                self.take_completions()?;
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }

    fn take_completions(&mut self) -> Result<(), CommandError> {
        let mut completions = [WorkCompletion::default(); 32];
        loop {
            let count = self.cq.poll(&mut completions);
            if count == 0 {
                return Ok(());
            }
            for completion in &completions[..count] {
                self.take_completion(completion)?;
            }
        }
    }

    fn take_completion(&mut self, completion: &WorkCompletion) -> Result<(), CommandError> {
        let Some(connection) = self.connections.iter_mut().find(|one| one.qpn() == completion.qpn) else {
            return Ok(());
        };
        let progress = match completion.status {
            WcStatus::Success => connection.take(completion, &mut self.report)?,
            // The connection has ended; its event says so.
            WcStatus::WrFlushErr => Progress::Goes,
            status => {
                eprintln!("cq completion failed: {status}");
                Progress::Failed
            }
        };
        match progress {
            Progress::Goes => Ok(()),
            Progress::Done | Progress::Failed => connection.end(progress == Progress::Failed),
        }
    }

    fn take_event(&mut self, event: &CmEvent) -> Result<Option<Outcome>, CommandError> {
        match event.event_type() {
            CmEventType::AddrResolved => self.id.resolve_route(RESOLVE_TIMEOUT)?,
            CmEventType::RouteResolved => self.connect()?,
            CmEventType::ConnectRequest => self.serve(event)?,
            CmEventType::ConnectResponse => {
                if let Some(connection) = self.find(event) {
                    connection.confirm()?;
                }
                self.established(event)?;
            }
            CmEventType::Established => self.established(event)?,
            CmEventType::Disconnected => {
                eprintln!("{} DISCONNECT EVENT...", if self.args.server { "server" } else { "client" });
                return Ok(self.disconnected(event));
            }
            CmEventType::TimewaitExit | CmEventType::AddrChange => {}
            _ => return self.failed(event),
        }
        Ok(None)
    }

    fn find(&mut self, event: &CmEvent) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.id() == event.id())
    }

    fn connect(&mut self) -> Result<(), CommandError> {
        let connection = Connection::client(&self.id, &self.pd, &self.cq, self.args)?;
        let param = ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            qp_num: connection.qpn().value(),
            ..ConnParam::default()
        };
        self.connections.push(connection);
        Ok(self.id.connect(&param)?)
    }

    fn serve(&mut self, event: &CmEvent) -> Result<(), CommandError> {
        let limit = if self.args.persistent { CONNECTIONS_MAX } else { 1 };
        if self.connections.len() >= limit {
            self.report.debug(format_args!("rejecting a client over the limit of {limit}"))?;
            return Ok(event.id().reject(&[])?);
        }
        match Connection::server(event, &self.pd, &self.cq, self.args) {
            Ok(connection) => self.connections.push(connection),
            // A client that is gone again, or asks for what can't be, is no reason to leave the others.
            Err(error) if self.args.persistent && !error.is_disconnected() => eprintln!("ferroce: {error}"),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn established(&mut self, event: &CmEvent) -> Result<(), CommandError> {
        match self.connections.iter_mut().find(|connection| connection.id() == event.id()) {
            Some(connection) => connection.begin(&mut self.report),
            None => Ok(()),
        }
    }

    fn disconnected(&mut self, event: &CmEvent) -> Option<Outcome> {
        let index = self.connections.iter().position(|connection| connection.id() == event.id())?;
        let outcome = self.connections.swap_remove(index).finish();
        (!self.args.persistent).then_some(outcome)
    }

    fn failed(&mut self, event: &CmEvent) -> Result<Option<Outcome>, CommandError> {
        let name = event.event_type().name();
        eprintln!("cma event RDMA_CM_EVENT_{name}, error {}", event.status());
        self.connections.retain(|connection| connection.id() != event.id());
        if self.args.persistent && event.id() != &self.id {
            return Ok(None);
        }
        let unknown = CmError::Event { event: event.event_type(), status: event.status(), message: String::new() };
        Err(VerbsError::from(event.error().unwrap_or(unknown)).into())
    }
}
