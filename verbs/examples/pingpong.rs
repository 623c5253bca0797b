//! A message goes to a peer and comes back, again and again: how long does that take?
//!
//! Start a daemon on each host (or one for both programs), then
//!
//! ```text
//! cargo run --release -p ferroce --example pingpong --                       # on the server
//! cargo run --release -p ferroce --example pingpong -- SERVER -s 64 -n 10000 # on the client
//! ```
//!
//! `--socket PATH` names the daemon's socket, `--events` sleeps until a completion comes in place of polling for it. QPN, PSN,
//! GID and keys are traded over TCP (`--port`), as perftest does.
#![forbid(unsafe_code)]

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use ferroce::exchange::{self, ConnectionInfo};
use ferroce::{
    AccessFlags, CompletionChannel, CompletionQueue, ConnectAttr, Context, CqInit, DEFAULT_SOCKET, MemoryPool,
    MemoryRegion, PageSize, QpInit, QueuePair, RecvWr, SendWr, WorkCompletion,
};

/// Sends a message to a peer and waits for it to come back.
#[derive(Parser)]
struct Options {
    /// Host of the server; without it, this is the server.
    server: Option<String>,
    /// Message size, bytes.
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: u32,
    /// Round trips.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// TCP port on which the two programs find each other.
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Index of our GID.
    #[arg(short, long, default_value_t = 0)]
    gid_index: u8,
    /// Sleep until a completion comes.
    #[arg(short, long)]
    events: bool,
    /// The daemon's socket.
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

const SEND: u64 = 1;
const RECV: u64 = 2;
/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// One end of the connection.
struct Side {
    size: u32,
    qp: QueuePair,
    cq: CompletionQueue,
    /// Given if we sleep for completions.
    channel: Option<CompletionChannel>,
    outgoing: MemoryRegion,
    incoming: MemoryRegion,
}

impl Side {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let context = Context::connect(&options.socket)?;
        let pd = context.alloc_pd()?;
        let channel = if options.events { Some(context.create_channel()?) } else { None };
        let cq = context.create_cq(&CqInit { cqe: 16, channel: channel.as_ref(), comp_vector: None })?;
        let qp = pd.create_qp(&QpInit::rc(&cq))?;
        let bytes = u64::from(options.size);
        let pool = MemoryPool::new(&context, 2 * bytes, PageSize::Base)?;
        let outgoing = pool.register(&pd, 0..bytes, AccessFlags::NONE)?;
        let incoming = pool.register(&pd, bytes..2 * bytes, AccessFlags::LOCAL_WRITE)?;
        Ok(Self { size: options.size, qp, cq, channel, outgoing, incoming })
    }

    fn connect(&self, stream: &TcpStream, gid_index: u8) -> anyhow::Result<()> {
        let attr = ConnectAttr { sgid_index: gid_index, ..ConnectAttr::default() };
        let local = ConnectionInfo::new(&self.qp, exchange::random_psn(), &attr)?;
        let remote = exchange::tcp(stream, &[local])?[0];
        println!("local  {local}\nremote {remote}");
        ferroce::connect_rc(&self.qp, &local, &remote, &attr)?;
        // The first message must find a receive.
        self.post_recv()?;
        Ok(exchange::sync(stream)?)
    }

    fn post_recv(&self) -> anyhow::Result<()> {
        Ok(self.qp.post_recv(&RecvWr::new(RECV, &[self.incoming.sge(0, self.size)?]))?)
    }

    /// Marks the message, so that an old one is not taken for it.
    fn post_send(&self, mark: u8) -> anyhow::Result<()> {
        self.outgoing.write(0, &[mark])?;
        self.outgoing.write(u64::from(self.size) - 1, &[mark])?;
        Ok(self.qp.post_send(&SendWr::send(SEND, &[self.outgoing.sge(0, self.size)?]).signaled())?)
    }

    fn check_received(&self, mark: u8) -> anyhow::Result<()> {
        let (mut first, mut last) = ([0], [0]);
        self.incoming.read(0, &mut first)?;
        self.incoming.read(u64::from(self.size) - 1, &mut last)?;
        ensure!(first == [mark] && last == [mark], "message {mark} came as {first:?} .. {last:?}");
        Ok(())
    }

    /// Waits until a send and a receive have completed, in any order.
    fn wait_for_both(&self) -> anyhow::Result<()> {
        let (mut sent, mut received) = (false, false);
        let mut completions = [WorkCompletion::default(); 4];
        let started = Instant::now();
        while !(sent && received) {
            let mut count = self.cq.poll(&mut completions);
            if let (0, Some(channel)) = (count, &self.channel) {
                self.cq.req_notify(false);
                // What came before the request raises no event.
                count = self.cq.poll(&mut completions);
                if count == 0 {
                    channel.wait(Some(PATIENCE))?;
                }
            }
            for completion in &completions[..count] {
                ensure!(completion.is_ok(), "work request {} failed: {}", completion.wr_id, completion.status);
                match completion.wr_id {
                    SEND => sent = true,
                    _ => {
                        ensure!(
                            completion.byte_len == self.size,
                            "the peer's messages have {} bytes",
                            completion.byte_len
                        );
                        received = true;
                    }
                }
            }
            if count == 0 && started.elapsed() > PATIENCE {
                bail!("no message came for {} s", PATIENCE.as_secs());
            }
        }
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let side = Side::new(&options)?;
    let stream = match &options.server {
        Some(server) => {
            let address = (server.as_str(), options.port);
            TcpStream::connect(address).with_context(|| format!("connecting to {server} port {}", options.port))?
        }
        None => {
            let listener =
                TcpListener::bind(("::", options.port)).or_else(|_| TcpListener::bind(("0.0.0.0", options.port)));
            listener.with_context(|| format!("listening on port {}", options.port))?.accept()?.0
        }
    };
    side.connect(&stream, options.gid_index)?;
    let started = Instant::now();
    if options.server.is_some() {
        for i in 0..options.iters {
            // The message i, and its echo.
            side.post_send(i as u8)?;
            side.wait_for_both()?;
            side.check_received(i as u8)?;
            if i + 1 < options.iters {
                side.post_recv()?;
            }
        }
    } else {
        serve(&side, options.iters)?;
    }
    let elapsed = started.elapsed();
    let us = elapsed.as_secs_f64() * 1e6 / f64::from(options.iters);
    println!("{} bytes, {} round trips, {us:.2} us each", options.size, options.iters);
    exchange::sync(&stream).context("the peer did not finish")
}

/// Sends every message back. Both sides must be started with the same number of round trips.
fn serve(side: &Side, iters: u32) -> anyhow::Result<()> {
    let mut completions = [WorkCompletion::default(); 4];
    let (mut received_count, mut sent_count) = (0, 0);
    let mut last = Instant::now();
    while sent_count < iters {
        let mut count = side.cq.poll(&mut completions);
        if let (0, Some(channel)) = (count, &side.channel) {
            side.cq.req_notify(false);
            count = side.cq.poll(&mut completions);
            if count == 0 {
                channel.wait(Some(PATIENCE))?;
            }
        }
        for completion in &completions[..count] {
            ensure!(completion.is_ok(), "work request {} failed: {}", completion.wr_id, completion.status);
            if completion.wr_id == SEND {
                sent_count += 1;
                continue;
            }
            ensure!(completion.byte_len == side.size, "the peer's messages have {} bytes", completion.byte_len);
            let mark = received_count as u8;
            side.check_received(mark)?;
            received_count += 1;
            if received_count < iters {
                side.post_recv()?;
            }
            side.post_send(mark)?;
        }
        if count > 0 {
            last = Instant::now();
        } else if last.elapsed() > PATIENCE {
            bail!("no message came for {} s", PATIENCE.as_secs());
        }
    }
    Ok(())
}
