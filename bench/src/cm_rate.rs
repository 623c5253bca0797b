//! How fast connections are opened and closed: every message of the handshake, a new QP on each side, and its end.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use daemon::embedded::{PAIR_ADDRESSES, engine_config, polled_pair};
use ferroce::cm::{CmEvent, CmEventType, CmId, ConnParam, EventChannel, PortSpace};
use ferroce::{CompletionQueue, Context, CqInit, ProtectionDomain, QpCap, QpInit, VerbsError};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::args::CmRateArgs;
use crate::error::{PerfError, Result, io_error};
use crate::machine::Machine;

/// How long an address may take to be found.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the client says in the request by which it ends the server.
const END: &[u8] = b"end";
/// Most requests that wait for the server.
const BACKLOG: u32 = 1024;
const CAP: QpCap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// What a run has shown; the JSON.
#[derive(Debug, Serialize)]
struct CmRateReport {
    test: &'static str,
    /// Opened and closed.
    connections: u32,
    /// At a time.
    outstanding: u32,
    seconds: f64,
    connections_per_s: f64,
    /// From the request to the answer, median.
    connect_p50_us: f64,
    /// The slowest of a hundred.
    connect_p99_us: f64,
    machine: Machine,
}

/// One side: its session and what QPs need.
struct Host {
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Host {
    fn new(context: &Context) -> Result<Self> {
        let (channel, pd) = (EventChannel::new(context)?, context.alloc_pd()?);
        let cq = context.create_cq(&CqInit { cqe: 16, ..CqInit::default() })?;
        Ok(Self { channel, pd, cq })
    }

    fn create_qp(&self, id: &CmId) -> Result<()> {
        id.create_qp(&self.pd, &QpInit { cap: CAP, ..QpInit::rc(&self.cq) })?;
        Ok(())
    }
}

/// The side that listens.
struct Server {
    host: Host,
    _listener: CmId,
    clients: BTreeMap<u32, CmId>,
    ended: bool,
}

impl Server {
    fn new(context: &Context, address: SocketAddr) -> Result<Self> {
        let host = Host::new(context)?;
        let listener = host.channel.create_id(PortSpace::Tcp)?;
        listener.bind_addr(address)?;
        listener.listen(BACKLOG)?;
        Ok(Self { host, _listener: listener, clients: BTreeMap::new(), ended: false })
    }

    fn take(&mut self, event: &CmEvent) -> Result<()> {
        let id = event.id();
        match event.event_type() {
            CmEventType::ConnectRequest if event.private_data().starts_with(END) => {
                id.reject(END)?;
                self.ended = true;
            }
            CmEventType::ConnectRequest => {
                self.host.create_qp(id)?;
                id.accept(&event.answer())?;
                self.clients.insert(id.handle(), id.clone());
            }
            CmEventType::Disconnected => {
                id.disconnect()?;
                self.clients.remove(&id.handle());
            }
            // A client that went away before it was connected.
            _ if event.error().is_some() => drop(self.clients.remove(&id.handle())),
            _ => {}
        }
        Ok(())
    }
}

/// The side that connects, again and again.
struct Client {
    host: Host,
    address: SocketAddr,
    /// Connections on their way, and when they were asked for.
    open: BTreeMap<u32, (CmId, Instant)>,
    begun: u32,
    closed: u32,
    total: u32,
    latency_ns: Histogram<u64>,
}

impl Client {
    fn new(context: &Context, address: SocketAddr, args: &CmRateArgs) -> Result<Self> {
        let longest_ns = PATIENCE.as_nanos() as u64;
        let latency_ns = Histogram::new_with_bounds(1, longest_ns, 3);
        let latency_ns = latency_ns.map_err(|error| PerfError::Protocol(error.to_string()))?;
        let (open, host) = (BTreeMap::new(), Host::new(context)?);
        let mut client = Self { host, address, open, begun: 0, closed: 0, total: args.iters, latency_ns };
        for _ in 0..args.outstanding.min(args.iters) {
            client.begin()?;
        }
        Ok(client)
    }

    fn begin(&mut self) -> Result<()> {
        let id = self.host.channel.create_id(PortSpace::Tcp)?;
        id.resolve_addr(None, self.address, RESOLVE_TIMEOUT)?;
        self.open.insert(id.handle(), (id, Instant::now()));
        self.begun += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.closed == self.total
    }

    fn take(&mut self, event: &CmEvent) -> Result<()> {
        let id = event.id();
        match event.event_type() {
            CmEventType::AddrResolved => id.resolve_route(RESOLVE_TIMEOUT)?,
            CmEventType::RouteResolved => {
                self.host.create_qp(id)?;
                if let Some((_, asked)) = self.open.get_mut(&id.handle()) {
                    *asked = Instant::now();
                }
                id.connect(&ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() })?;
            }
            CmEventType::Established => {
                if let Some((_, asked)) = self.open.get(&id.handle()) {
                    self.latency_ns.saturating_record(asked.elapsed().as_nanos() as u64);
                }
                id.disconnect()?;
            }
            CmEventType::Disconnected => {
                self.open.remove(&id.handle());
                self.closed += 1;
                if self.begun < self.total {
                    self.begin()?;
                }
            }
            _ => {
                if let Some(error) = event.error() {
                    return Err(VerbsError::from(error).into());
                }
            }
        }
        Ok(())
    }

    /// Tells the server that this was all.
    fn end(&self) -> Result<()> {
        let channel = &self.host.channel;
        let id = channel.create_id(PortSpace::Tcp)?;
        id.resolve_addr(None, self.address, RESOLVE_TIMEOUT)?;
        loop {
            let event = next(channel)?;
            if event.id() != &id {
                continue;
            }
            match event.event_type() {
                CmEventType::AddrResolved => id.resolve_route(RESOLVE_TIMEOUT)?,
                CmEventType::RouteResolved => {
                    self.host.create_qp(&id)?;
                    id.connect(&ConnParam { private_data: END.to_vec(), ..ConnParam::default() })?;
                }
                // Rejected: that is its answer.
                _ => return Ok(()),
            }
        }
    }
}

fn next(channel: &EventChannel) -> Result<CmEvent> {
    channel.get_event(Some(PATIENCE))?.ok_or(PerfError::Silent(PATIENCE.as_secs()))
}

/// Opens and closes as many connections as asked for, or serves them.
///
/// # Errors
/// What the engine or the peer refuses; a peer that falls silent.
pub(crate) fn run(args: &CmRateArgs) -> Result<()> {
    if args.engine.embedded {
        return embedded(args);
    }
    let context = Context::connect(&args.engine.socket)?;
    match &args.server {
        None => serve(&context, SocketAddr::new(args.listen, args.port)),
        Some(host) => {
            let address = (host.as_str(), args.port).to_socket_addrs().map_err(io_error(host))?.next();
            let address = address.ok_or(PerfError::Conflict("the server's name has no address"))?;
            let start = Instant::now();
            let mut client = Client::new(&context, address, args)?;
            while !client.is_done() {
                let event = next(&client.host.channel)?;
                client.take(&event)?;
            }
            report(&client, start.elapsed(), args)?;
            client.end()
        }
    }
}

fn serve(context: &Context, address: SocketAddr) -> Result<()> {
    let mut server = Server::new(context, address)?;
    eprintln!("waiting for connections to port {}", address.port());
    while !server.ended {
        if let Some(event) = server.host.channel.get_event(None)? {
            server.take(&event)?;
        }
    }
    Ok(())
}

/// Both sides and both engines on this thread.
fn embedded(args: &CmRateArgs) -> Result<()> {
    let nodes = polled_pair(&engine_config("ferroce0"))?;
    let contexts = [Context::from_endpoint(nodes[0].connect()?)?, Context::from_endpoint(nodes[1].connect()?)?];
    let address = SocketAddr::new(PAIR_ADDRESSES[1], args.port);
    let mut server = Server::new(&contexts[1], address)?;
    let start = Instant::now();
    let mut client = Client::new(&contexts[0], address, args)?;
    let mut moved = Instant::now();
    while !client.is_done() {
        for context in &contexts {
            context.make_progress();
        }
        while let Some(event) = server.host.channel.try_get_event()? {
            server.take(&event)?;
        }
        while let Some(event) = client.host.channel.try_get_event()? {
            client.take(&event)?;
            moved = Instant::now();
        }
        if moved.elapsed() > PATIENCE {
            return Err(PerfError::Silent(PATIENCE.as_secs()));
        }
    }
    report(&client, start.elapsed(), args)
}

fn report(client: &Client, elapsed: Duration, args: &CmRateArgs) -> Result<()> {
    let quantile_us = |quantile| client.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    let seconds = elapsed.as_secs_f64();
    let report = CmRateReport {
        test: "cm_rate",
        connections: client.closed,
        outstanding: args.outstanding,
        seconds,
        connections_per_s: f64::from(client.closed) / seconds,
        connect_p50_us: quantile_us(0.5),
        connect_p99_us: quantile_us(0.99),
        machine: Machine::new(false)?,
    };
    if args.json {
        let text = serde_json::to_string(&report).map_err(|error| PerfError::Protocol(error.to_string()))?;
        println!("{text}");
        return Ok(());
    }
    println!(
        "cm_rate: {} connections opened and closed in {:.2} s, {} at a time: {:.0} a second; from request to answer {:.0} us \
         (p99 {:.0} us)",
        report.connections,
        report.seconds,
        report.outstanding,
        report.connections_per_s,
        report.connect_p50_us,
        report.connect_p99_us
    );
    Ok(())
}

/// Where a server listens unless it is told.
pub(crate) const LISTEN_DEFAULT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
