//! A server that offers a file in memory, and a client that fetches it by RDMA READ: the server's processor does not move a
//! byte of it.
//!
//! ```text
//! cargo run --release -p ferroce --example file_server -- serve FILE           # on the server
//! cargo run --release -p ferroce --example file_server -- fetch SERVER COPY    # on the client
//! ```
//!
//! `--socket PATH` names the daemon's socket, `--port` the TCP port on which the two find each other. The server SENDs the
//! file's size and SHA-256; the client READs the bytes, several pieces at a time, checks the digest and writes the file.
//! The server goes on serving, one thread a client; `--once` ends it after the first.
#![forbid(unsafe_code)]

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, Subcommand};
use ferroce::exchange::{self, ConnectionInfo};
use ferroce::{
    AccessFlags, CompletionQueue, ConnectAttr, Context, CqInit, DEFAULT_SOCKET, MemoryPool, MemoryRegion, PageSize,
    ProtectionDomain, QpCap, QpInit, QueuePair, RecvWr, SendWr, WorkCompletion,
};
use sha2::{Digest, Sha256};

/// Serves a file by RDMA READ, or fetches it.
#[derive(Parser)]
struct Options {
    /// The daemon's socket.
    #[arg(long, default_value = DEFAULT_SOCKET, global = true)]
    socket: PathBuf,
    /// TCP port on which the two programs find each other.
    #[arg(long, default_value_t = 18516, global = true)]
    port: u16,
    /// Index of our GID.
    #[arg(long, default_value_t = 0, global = true)]
    gid_index: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Offers a file.
    Serve {
        /// The file.
        file: PathBuf,
        /// End after one client.
        #[arg(long)]
        once: bool,
    },
    /// Fetches the file.
    Fetch {
        /// Host of the server.
        server: String,
        /// Where to write it.
        copy: PathBuf,
    },
}

/// Bytes of one READ.
const PIECE_BYTES: u32 = 1 << 20;
/// READs outstanding.
const READ_COUNT_MAX: usize = 16;
/// What the server SENDs: the file's size (u64, big endian) and its SHA-256.
const HEADER_BYTES: u32 = 8 + 32;
/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let context = Context::connect(&options.socket)?;
    match &options.command {
        Command::Serve { file, once } => serve(&options, &context, file, *once),
        Command::Fetch { server, copy } => fetch(&options, &context, server, copy),
    }
}

/// Makes a QP, and connects it with the one that the peer on this stream has made.
fn connect(
    options: &Options,
    pd: &ProtectionDomain,
    stream: &TcpStream,
    region: &MemoryRegion,
    before_sync: impl FnOnce(&QueuePair) -> anyhow::Result<()>,
) -> anyhow::Result<(QueuePair, CompletionQueue, ConnectionInfo)> {
    let cq = pd.context().create_cq(&CqInit { cqe: 64, ..CqInit::default() })?;
    let cap =
        QpCap { max_send_wr: 32, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: HEADER_BYTES };
    let qp = pd.create_qp(&QpInit { cap, ..QpInit::rc(&cq) })?;
    let attr = ConnectAttr { sgid_index: options.gid_index, ..ConnectAttr::default() };
    let local = ConnectionInfo::new(&qp, exchange::random_psn(), &attr)?.with_region(region);
    let remote = exchange::tcp(stream, &[local])?[0];
    ferroce::connect_rc(&qp, &local, &remote, &attr)?;
    before_sync(&qp)?;
    exchange::sync(stream)?;
    Ok((qp, cq, remote))
}

/// Waits for the next completion.
fn next(cq: &CompletionQueue) -> anyhow::Result<WorkCompletion> {
    let mut completion = [WorkCompletion::default()];
    let started = Instant::now();
    while cq.poll(&mut completion) == 0 {
        if started.elapsed() > PATIENCE {
            bail!("nothing came for {} s", PATIENCE.as_secs());
        }
    }
    let [completion] = completion;
    ensure!(completion.is_ok(), "work request {} failed: {}", completion.wr_id, completion.status);
    Ok(completion)
}

fn serve(options: &Options, context: &Context, file: &Path, once: bool) -> anyhow::Result<()> {
    let data = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let size = data.len() as u64;
    let digest: [u8; 32] = Sha256::digest(&data).into();
    let pd = context.alloc_pd()?;
    let pool = MemoryPool::new(context, size.max(1), PageSize::Base)?;
    pool.write(0, &data)?;
    drop(data);
    let region = pool.register(&pd, 0..size, AccessFlags::REMOTE_READ)?;
    let listener = TcpListener::bind(("::", options.port)).or_else(|_| TcpListener::bind(("0.0.0.0", options.port)));
    let listener = listener.with_context(|| format!("listening on port {}", options.port))?;
    println!("serving {} ({size} bytes) on port {}", file.display(), options.port);
    let serve_one = |stream: &TcpStream| -> anyhow::Result<()> {
        let (qp, cq, _) = connect(options, &pd, stream, &region, |_| Ok(()))?;
        let header = [&size.to_be_bytes()[..], &digest];
        qp.post_send(&SendWr::send(0, &[]).inline_pieces(&header).signaled())?;
        next(&cq)?;
        // The QP must live until the client has what it wants; then it closes the stream.
        let mut stream = stream;
        ensure!(stream.read(&mut [0])? == 0, "the client says more than was agreed");
        Ok(())
    };
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let stream = stream?;
            let peer = stream.peer_addr()?;
            let client = scope.spawn(move || match serve_one(&stream) {
                Ok(()) => println!("{peer} has it"),
                Err(error) => eprintln!("{peer}: {error:#}"),
            });
            if once {
                let _ = client.join();
                break;
            }
        }
        Ok(())
    })
}

fn fetch(options: &Options, context: &Context, server: &str, copy: &Path) -> anyhow::Result<()> {
    let pd = context.alloc_pd()?;
    let headers = MemoryPool::new(context, u64::from(HEADER_BYTES), PageSize::Base)?;
    let header = headers.register_all(&pd, AccessFlags::LOCAL_WRITE)?;
    let stream = TcpStream::connect((server, options.port));
    let stream = stream.with_context(|| format!("connecting to {server} port {}", options.port))?;
    let (qp, cq, remote) = connect(options, &pd, &stream, &header, |qp| {
        Ok(qp.post_recv(&RecvWr::new(0, &[header.sge(0, HEADER_BYTES)?]))?)
    })?;
    let received = next(&cq)?;
    ensure!(received.byte_len == HEADER_BYTES, "a header of {} bytes, {HEADER_BYTES} expected", received.byte_len);
    let (mut size, mut digest) = ([0; 8], [0; 32]);
    header.read(0, &mut size)?;
    header.read(8, &mut digest)?;
    let size = u64::from_be_bytes(size);
    ensure!(size == remote.length, "a file of {size} bytes in a region of {}", remote.length);

    let pool = MemoryPool::new(context, size.max(1), PageSize::Base)?;
    let region = pool.register(&pd, 0..size, AccessFlags::LOCAL_WRITE)?;
    let started = Instant::now();
    read_all(&qp, &cq, &region, &remote)?;
    let elapsed = started.elapsed().as_secs_f64();

    let mut data = vec![0; usize::try_from(size)?];
    region.read(0, &mut data)?;
    ensure!(Sha256::digest(&data)[..] == digest, "the digest of what came is another: the file is not written");
    std::fs::write(copy, &data).with_context(|| format!("writing {}", copy.display()))?;
    let gbit_per_s = size as f64 * 8.0 / elapsed / 1e9;
    println!("{size} bytes in {elapsed:.3} s ({gbit_per_s:.2} Gbit/s), SHA-256 equal, written to {}", copy.display());
    Ok(())
}

/// READs the peer's region into ours, with several READs on the way at any time.
fn read_all(
    qp: &QueuePair,
    cq: &CompletionQueue,
    region: &MemoryRegion,
    remote: &ConnectionInfo,
) -> anyhow::Result<()> {
    let (mut offset, mut outstanding) = (0, 0);
    while offset < region.length() || outstanding > 0 {
        let mut batch = qp.send_batch();
        while offset < region.length() && outstanding < READ_COUNT_MAX {
            let length = (region.length() - offset).min(u64::from(PIECE_BYTES)) as u32;
            let sges = [region.sge(offset, length)?];
            batch.post(&SendWr::read(offset, &sges, remote.addr + offset, remote.rkey).signaled())?;
            offset += u64::from(length);
            outstanding += 1;
        }
        batch.commit();
        next(cq)?;
        outstanding -= 1;
    }
    Ok(())
}
