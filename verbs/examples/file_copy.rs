//! Sends a file into another host's memory by RDMA WRITE and brings it back by RDMA READ; all three SHA-256 must agree.
//!
//! ```text
//! cargo run --release -p ferroce --example file_copy -- serve                 # on the server
//! cargo run --release -p ferroce --example file_copy -- send SERVER FILE      # on the client
//! ```
//!
//! `--socket PATH` names the daemon's socket, `--port` the TCP port on which the two find each other. The client tells the
//! file's size, the server offers that much memory; its processor takes no part until the client asks for the digest.
//! The server serves one client after another; `--once` ends it after the first.
#![forbid(unsafe_code)]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, Subcommand};
use ferroce::exchange::{self, ConnectionInfo};
use ferroce::{
    AccessFlags, CompletionQueue, ConnectAttr, Context, CqInit, DEFAULT_SOCKET, MemoryPool, MemoryRegion, PageSize,
    ProtectionDomain, QpCap, QpInit, QueuePair, SendWr, WorkCompletion,
};
use sha2::{Digest, Sha256};

/// Copies a file to another host's memory by WRITE, and back by READ.
#[derive(Parser)]
struct Options {
    /// The daemon's socket.
    #[arg(long, default_value = DEFAULT_SOCKET, global = true)]
    socket: PathBuf,
    /// TCP port on which the two programs find each other.
    #[arg(long, default_value_t = 18517, global = true)]
    port: u16,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Offers memory.
    Serve {
        /// End after one client.
        #[arg(long)]
        once: bool,
    },
    /// Copies a file there and back.
    Send {
        /// Host of the server.
        server: String,
        /// The file.
        file: PathBuf,
    },
}

/// Bytes of one WRITE or READ.
const PIECE_BYTES: u32 = 1 << 20;
/// Pieces outstanding.
const OUTSTANDING_MAX: usize = 8;
/// Largest file that a server takes.
const FILE_BYTES_MAX: u64 = 16 << 30;
/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which way the bytes go.
#[derive(Clone, Copy)]
enum Direction {
    Write,
    Read,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let context = Context::connect(&options.socket)?;
    match &options.command {
        Command::Serve { once } => serve(&options, &context, *once),
        Command::Send { server, file } => send(&options, &context, server, file),
    }
}

/// Makes a QP, and connects it with the one that the peer on this stream has made.
fn connect(
    pd: &ProtectionDomain,
    stream: &TcpStream,
    region: &MemoryRegion,
) -> anyhow::Result<(QueuePair, CompletionQueue, ConnectionInfo)> {
    let cq = pd.context().create_cq(&CqInit { cqe: 64, ..CqInit::default() })?;
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let qp = pd.create_qp(&QpInit { cap, ..QpInit::rc(&cq) })?;
    let attr = ConnectAttr::default();
    let local = ConnectionInfo::new(&qp, exchange::random_psn(), &attr)?.with_region(region);
    let remote = exchange::tcp(stream, &[local])?[0];
    ferroce::connect_rc(&qp, &local, &remote, &attr)?;
    exchange::sync(stream)?;
    Ok((qp, cq, remote))
}

fn digest(region: &MemoryRegion) -> anyhow::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES as usize];
    let mut offset = 0;
    while offset < region.length() {
        let length = (region.length() - offset).min(u64::from(PIECE_BYTES)) as usize;
        region.read(offset, &mut piece[..length])?;
        hasher.update(&piece[..length]);
        offset += length as u64;
    }
    Ok(hasher.finalize().into())
}

fn serve(options: &Options, context: &Context, once: bool) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("::", options.port)).or_else(|_| TcpListener::bind(("0.0.0.0", options.port)));
    let listener = listener.with_context(|| format!("listening on port {}", options.port))?;
    println!("offering memory on port {}", options.port);
    for stream in listener.incoming() {
        let stream = stream?;
        let peer = stream.peer_addr()?;
        match serve_one(context, &stream) {
            Ok(bytes) => println!("{peer} copied {bytes} bytes"),
            Err(error) if once => return Err(error),
            Err(error) => eprintln!("{peer}: {error:#}"),
        }
        if once {
            break;
        }
    }
    Ok(())
}

fn serve_one(context: &Context, stream: &TcpStream) -> anyhow::Result<u64> {
    let size: [u8; 8] =
        exchange::receive(stream, 8)?.try_into().ok().context("the client's first message is no size")?;
    let size = u64::from_be_bytes(size);
    ensure!((1..=FILE_BYTES_MAX).contains(&size), "a file of {size} bytes: 1 to {FILE_BYTES_MAX} are taken");
    let pd = context.alloc_pd()?;
    let pool = MemoryPool::new(context, size, PageSize::Base)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let region = pool.register(&pd, 0..size, access)?;
    let (_qp, _cq, _) = connect(&pd, stream, &region)?;
    // The client says that its WRITEs are done, and gets the digest of what they left here.
    exchange::receive(stream, 1)?;
    exchange::send(stream, &digest(&region)?)?;
    // The QP must live until the client has its bytes back.
    exchange::receive(stream, 1)?;
    Ok(size)
}

fn send(options: &Options, context: &Context, server: &str, file: &Path) -> anyhow::Result<()> {
    let data = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let size = data.len() as u64;
    ensure!(size > 0, "{} is empty: there is nothing to copy", file.display());
    let original: [u8; 32] = Sha256::digest(&data).into();
    let pd = context.alloc_pd()?;
    let pool = MemoryPool::new(context, size, PageSize::Base)?;
    pool.write(0, &data)?;
    drop(data);
    let region = pool.register(&pd, 0..size, AccessFlags::LOCAL_WRITE)?;

    let stream = TcpStream::connect((server, options.port));
    let stream = stream.with_context(|| format!("connecting to {server} port {}", options.port))?;
    exchange::send(&stream, &size.to_be_bytes())?;
    let (qp, cq, remote) = connect(&pd, &stream, &region)?;

    let started = Instant::now();
    transfer(&qp, &cq, &region, &remote, Direction::Write)?;
    let write_s = started.elapsed().as_secs_f64();
    exchange::send(&stream, &[1])?;
    let there = exchange::receive(&stream, 32)?;

    pool.zero(0..size)?;
    let started = Instant::now();
    transfer(&qp, &cq, &region, &remote, Direction::Read)?;
    let read_s = started.elapsed().as_secs_f64();
    exchange::send(&stream, &[1])?;
    let back = digest(&region)?;

    let gbit = size as f64 * 8.0 / 1e9;
    println!("WRITE {size} bytes in {write_s:.3} s ({:.2} Gbit/s)", gbit / write_s);
    println!("READ  {size} bytes in {read_s:.3} s ({:.2} Gbit/s)", gbit / read_s);
    println!("SHA-256 here       {}", hex(&original));
    println!("SHA-256 there      {}", hex(&there));
    println!("SHA-256 after READ {}", hex(&back));
    ensure!(there == original, "the server's memory holds something else");
    ensure!(back == original, "what came back is something else");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Moves the whole region, with several pieces on the way at any time.
fn transfer(
    qp: &QueuePair,
    cq: &CompletionQueue,
    region: &MemoryRegion,
    remote: &ConnectionInfo,
    direction: Direction,
) -> anyhow::Result<()> {
    let (mut offset, mut outstanding) = (0, 0);
    while offset < region.length() || outstanding > 0 {
        let mut batch = qp.send_batch();
        while offset < region.length() && outstanding < OUTSTANDING_MAX {
            let length = (region.length() - offset).min(u64::from(PIECE_BYTES)) as u32;
            let sges = [region.sge(offset, length)?];
            let addr = remote.addr + offset;
            let wr = match direction {
                Direction::Write => SendWr::write(offset, &sges, addr, remote.rkey),
                Direction::Read => SendWr::read(offset, &sges, addr, remote.rkey),
            };
            batch.post(&wr.signaled())?;
            offset += u64::from(length);
            outstanding += 1;
        }
        batch.commit();
        wait(cq)?;
        outstanding -= 1;
    }
    Ok(())
}

/// Waits for the next completion.
fn wait(cq: &CompletionQueue) -> anyhow::Result<()> {
    let mut completion = [WorkCompletion::default()];
    let started = Instant::now();
    while cq.poll(&mut completion) == 0 {
        if started.elapsed() > PATIENCE {
            bail!("nothing came for {} s", PATIENCE.as_secs());
        }
    }
    let [completion] = completion;
    ensure!(completion.is_ok(), "work request {} failed: {}", completion.wr_id, completion.status);
    Ok(())
}
