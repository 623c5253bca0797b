//! An echo over connections that the connection manager makes: no TCP, only addresses and a port of RDMA's own.
//!
//! ```text
//! cargo run --release -p ferroce --example cm_echo -- serve                      # on the server
//! cargo run --release -p ferroce --example cm_echo -- say SERVER hello           # on the client
//! ```
//!
//! `--socket PATH` names the daemon's socket, `--port` the port. The server is one thread that sleeps on two descriptors, that of
//! its event channel and that of its completion channel, and serves any number of clients; the client waits in each call.
//! Client and server greet each other in the private data of the handshake. `serve --once` ends with its first client.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use ferroce::cm::{CmEvent, CmEventType, CmId, ConnParam, EventChannel, PortSpace, SyncId};
use ferroce::{
    AccessFlags, CompletionChannel, CompletionQueue, Context, CqInit, DEFAULT_SOCKET, MemoryPool, MemoryRegion,
    PageSize, ProtectionDomain, QpCap, QpInit, Qpn, QueuePair, RecvWr, SendWr, WorkCompletion,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Echoes what is said, over RDMA connections.
#[derive(Parser)]
struct Options {
    /// The daemon's socket.
    #[arg(long, default_value = DEFAULT_SOCKET, global = true)]
    socket: PathBuf,
    /// Port of the service.
    #[arg(long, default_value_t = 7471, global = true)]
    port: u16,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Echoes what clients say.
    Serve {
        /// Address to listen on; all of them unless it is given.
        #[arg(long, default_value_t = IpAddr::V6(Ipv6Addr::UNSPECIFIED))]
        address: IpAddr,
        /// End with the first client.
        #[arg(long)]
        once: bool,
    },
    /// Says something, and prints the answer.
    Say {
        /// Host of the server.
        server: String,
        /// What to say, at most 1024 bytes.
        text: String,
    },
}

/// Bytes of a message at most.
const MESSAGE_BYTES: u32 = 1024;
/// Messages of a client that the server has room for.
const SLOTS: u32 = 4;
/// Clients at a time; more are rejected.
const CLIENTS_MAX: usize = 256;
/// How long an address may take to be found.
const PATIENCE: Duration = Duration::from_secs(2);

const CAP: QpCap =
    QpCap { max_send_wr: SLOTS, max_recv_wr: SLOTS, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let context = Context::connect(&options.socket)?;
    match &options.command {
        Command::Serve { address, once } => {
            Server::new(&context)?.serve(SocketAddr::new(*address, options.port), *once)
        }
        Command::Say { server, text } => say(&context, server, options.port, text),
    }
}

/// Private data has no length of its own on the wire: a greeting ends with its first zero.
fn greeting(private_data: &[u8]) -> String {
    let text = private_data.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).escape_debug().to_string()
}

struct Server {
    pd: ProtectionDomain,
    completions: CompletionChannel,
    cq: CompletionQueue,
    events: EventChannel,
    clients: BTreeMap<u32, Client>,
}

struct Client {
    id: CmId,
    qp: QueuePair,
    /// A message's place is its work request's number.
    slots: MemoryRegion,
}

impl Server {
    fn new(context: &Context) -> anyhow::Result<Self> {
        let completions = context.create_channel()?;
        let cq = context.create_cq(&CqInit {
            cqe: CLIENTS_MAX as u32 * 2 * SLOTS,
            channel: Some(&completions),
            ..CqInit::default()
        })?;
        let (pd, events) = (context.alloc_pd()?, EventChannel::new(context)?);
        Ok(Self { pd, completions, cq, events, clients: BTreeMap::new() })
    }

    fn serve(mut self, address: SocketAddr, once: bool) -> anyhow::Result<()> {
        let listener = self.events.create_id(PortSpace::Tcp)?;
        listener.bind_addr(address)?;
        listener.listen(16)?;
        println!("listening on {address}");
        self.cq.req_notify(false);
        loop {
            let mut fds = [self.events.as_fd(), self.completions.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            poll(&mut fds, PollTimeout::NONE)?;
            while let Some(cq) = self.completions.try_get()? {
                cq.req_notify(false);
                self.echo()?;
            }
            while let Some(event) = self.events.try_get_event()? {
                match event.event_type() {
                    CmEventType::ConnectRequest => self.accept(&event)?,
                    CmEventType::Disconnected => {
                        println!("{:?} has gone", event.info().peer);
                        event.id().disconnect()?;
                        self.clients.retain(|_, client| &client.id != event.id());
                        if once {
                            return Ok(());
                        }
                    }
                    // A client that vanished before it was connected.
                    _ if event.error().is_some() => self.clients.retain(|_, client| &client.id != event.id()),
                    _ => {}
                }
            }
        }
    }

    fn accept(&mut self, event: &CmEvent) -> anyhow::Result<()> {
        if self.clients.len() == CLIENTS_MAX {
            return Ok(event.id().reject(b"too many clients")?);
        }
        println!("{:?} says {}", event.info().peer, greeting(event.private_data()));
        let id = event.id().clone();
        let qp = id.create_qp(&self.pd, &QpInit { cap: CAP, ..QpInit::rc(&self.cq) })?;
        let pool = MemoryPool::new(&self.pd.context(), u64::from(SLOTS * MESSAGE_BYTES), PageSize::Base)?;
        let slots = pool.register_all(&self.pd, AccessFlags::LOCAL_WRITE)?;
        let client = Client { id, qp, slots };
        for slot in 0..u64::from(SLOTS) {
            client.post_recv(slot)?;
        }
        client.id.accept(&ConnParam { private_data: b"welcome".to_vec(), ..event.answer() })?;
        self.clients.insert(client.qp.qpn().value(), client);
        Ok(())
    }

    /// Sends back what came in. A message's place is free for the next when its answer has gone.
    fn echo(&self) -> anyhow::Result<()> {
        let mut completions = [WorkCompletion::default(); 32];
        loop {
            let count = self.cq.poll(&mut completions);
            if count == 0 {
                return Ok(());
            }
            for completion in completions[..count].iter().filter(|completion| completion.is_ok()) {
                let Some(client) = self.client(completion.qpn) else { continue };
                let slot = completion.wr_id;
                if completion.is_recv() {
                    let sge = client.slots.sge(slot * u64::from(MESSAGE_BYTES), completion.byte_len)?;
                    client.qp.post_send(&SendWr::send(slot, &[sge]).signaled())?;
                } else {
                    client.post_recv(slot)?;
                }
            }
        }
    }

    fn client(&self, qpn: Qpn) -> Option<&Client> {
        self.clients.get(&qpn.value())
    }
}

impl Client {
    fn post_recv(&self, slot: u64) -> anyhow::Result<()> {
        let sge = self.slots.sge(slot * u64::from(MESSAGE_BYTES), MESSAGE_BYTES)?;
        Ok(self.qp.post_recv(&RecvWr::new(slot, &[sge]))?)
    }
}

fn say(context: &Context, server: &str, port: u16, text: &str) -> anyhow::Result<()> {
    let length = u32::try_from(text.len())?;
    ensure!((1..=MESSAGE_BYTES).contains(&length), "{length} bytes to say, 1 to {MESSAGE_BYTES} are possible");
    let address = (server, port).to_socket_addrs()?.next().with_context(|| format!("{server} has no address"))?;
    let pd = context.alloc_pd()?;
    let completions = context.create_channel()?;
    let cq = context.create_cq(&CqInit { cqe: 16, channel: Some(&completions), ..CqInit::default() })?;
    let pool = MemoryPool::new(context, 2 * u64::from(MESSAGE_BYTES), PageSize::Base)?;
    let memory = pool.register_all(&pd, AccessFlags::LOCAL_WRITE)?;

    let mut id = SyncId::new(context, PortSpace::Tcp)?;
    id.resolve_addr(None, address, PATIENCE)?;
    id.resolve_route(PATIENCE)?;
    let qp = id.create_qp(&pd, &QpInit { cap: CAP, ..QpInit::rc(&cq) })?;
    qp.post_recv(&RecvWr::new(1, &[memory.sge(0, MESSAGE_BYTES)?]))?;
    cq.req_notify(false);
    let param =
        ConnParam { retry_count: 7, rnr_retry_count: 7, private_data: b"hello".to_vec(), ..ConnParam::default() };
    id.connect(&param)?;
    println!(
        "connected to {address}, which says {}",
        id.event().map(|event| greeting(event.private_data())).unwrap_or_default()
    );

    memory.write(u64::from(MESSAGE_BYTES), text.as_bytes())?;
    qp.post_send(&SendWr::send(0, &[memory.sge(u64::from(MESSAGE_BYTES), length)?]).signaled())?;
    let answer = wait_for(&completions, 1)?;
    let mut bytes = vec![0; answer.byte_len as usize];
    memory.read(0, &mut bytes)?;
    println!("{}", String::from_utf8_lossy(&bytes));
    ensure!(bytes == text.as_bytes(), "that is not what was said");
    id.disconnect()?;
    Ok(())
}

/// Waits for a work request to complete.
fn wait_for(completions: &CompletionChannel, wr_id: u64) -> anyhow::Result<WorkCompletion> {
    loop {
        let cq = completions.wait(Some(Duration::from_secs(10)))?.context("no answer within 10 s")?;
        cq.req_notify(false);
        let mut found = [WorkCompletion::default(); 16];
        let count = cq.poll(&mut found);
        for completion in &found[..count] {
            ensure!(completion.is_ok(), "work request {} failed: {}", completion.wr_id, completion.status);
            if completion.wr_id == wr_id {
                return Ok(*completion);
            }
        }
    }
}
