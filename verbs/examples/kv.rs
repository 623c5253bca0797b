//! A key-value store whose clients look things up in the server's memory by one-sided RDMA READ; the server's processor sees
//! only the changes, which come as SENDs.
//!
//! ```text
//! cargo run --release -p ferroce --example kv -- serve                      # on the server
//! cargo run --release -p ferroce --example kv -- put SERVER KEY VALUE       # on the client
//! cargo run --release -p ferroce --example kv -- get SERVER KEY
//! cargo run --release -p ferroce --example kv -- bench SERVER -n 10000
//! ```
//!
//! `--socket PATH` names the daemon's socket, `--port` the TCP port on which the two find each other.
//!
//! The table is an array of buckets; a key may be in any of the [`WINDOW`] buckets from its hash on, which a client fetches by
//! one READ. A READ may meet a change half way. So each bucket has a version, odd while it is being changed, and a digest of
//! its version and contents; a client that sees an odd version or a wrong digest reads again.
#![forbid(unsafe_code)]

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, Subcommand};
use ferroce::exchange::{self, ConnectionInfo};
use ferroce::{
    AccessFlags, CompletionChannel, CompletionQueue, ConnectAttr, Context, CqInit, DEFAULT_SOCKET, MemoryPool,
    MemoryRegion, PageSize, ProtectionDomain, QpCap, QpInit, QueuePair, RecvWr, SendWr, WorkCompletion,
};
use sha2::{Digest, Sha256};

/// A key-value store over one-sided RDMA READ.
#[derive(Parser)]
struct Options {
    /// The daemon's socket.
    #[arg(long, default_value = DEFAULT_SOCKET, global = true)]
    socket: PathBuf,
    /// TCP port on which server and client find each other.
    #[arg(long, default_value_t = 18517, global = true)]
    port: u16,
    /// Index of our GID.
    #[arg(long, default_value_t = 0, global = true)]
    gid_index: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keeps a table and serves it.
    Serve {
        /// Buckets of the table.
        #[arg(long, default_value_t = 65536, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
        buckets: u64,
    },
    /// Stores a value.
    Put {
        /// Host of the server.
        server: String,
        /// The key, at most 32 bytes.
        key: String,
        /// The value, at most 70 bytes.
        value: String,
    },
    /// Looks a value up.
    Get {
        /// Host of the server.
        server: String,
        /// The key.
        key: String,
    },
    /// Stores some keys, then times look-ups of them.
    Bench {
        /// Host of the server.
        server: String,
        /// Look-ups.
        #[arg(short = 'n', long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
        lookups: u32,
    },
}

/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match &options.command {
        Command::Serve { buckets } => serve(&options, *buckets),
        Command::Put { server, key, value } => Client::connect(&options, server)?.put(key.as_bytes(), value.as_bytes()),
        Command::Get { server, key } => match Client::connect(&options, server)?.get(key.as_bytes())? {
            Some(value) => {
                println!("{}", String::from_utf8_lossy(&value));
                Ok(())
            }
            None => bail!("no such key: {key}"),
        },
        Command::Bench { server, lookups } => bench(&Client::connect(&options, server)?, *lookups),
    }
}

/// A bucket: version (u64), digest (8 bytes), key length, value length, key, value.
mod bucket {
    use super::{Digest, Sha256};

    pub(crate) const BYTES: usize = 120;
    pub(crate) const KEY_BYTES_MAX: usize = 32;
    pub(crate) const VALUE_BYTES_MAX: usize = BYTES - VALUE;
    /// Where the digest is, and what it covers beside the version begins.
    pub(crate) const DIGEST: usize = 8;
    pub(crate) const CONTENTS: usize = 16;
    const KEY: usize = 18;
    const VALUE: usize = KEY + KEY_BYTES_MAX;

    /// One bucket as it was read.
    pub(crate) enum Seen<'a> {
        /// Nothing was ever there.
        Empty,
        /// It was being changed: read again.
        Torn,
        /// A key and its value.
        Entry(&'a [u8], &'a [u8]),
    }

    /// The part that the digest covers, for a key and a value within their limits.
    pub(crate) fn contents(key: &[u8], value: &[u8]) -> [u8; BYTES - CONTENTS] {
        let mut out = [0; BYTES - CONTENTS];
        out[0] = key.len() as u8;
        out[1] = value.len() as u8;
        out[KEY - CONTENTS..][..key.len()].copy_from_slice(key);
        out[VALUE - CONTENTS..][..value.len()].copy_from_slice(value);
        out
    }

    /// Digest of a version and what belongs to it.
    pub(crate) fn digest(version: u64, contents: &[u8]) -> [u8; 8] {
        let digest = Sha256::new().chain_update(version.to_ne_bytes()).chain_update(contents).finalize();
        let mut out = [0; 8];
        out.copy_from_slice(&digest[..8]);
        out
    }

    /// Understands the bytes of a bucket.
    pub(crate) fn parse(bytes: &[u8; BYTES]) -> Seen<'_> {
        let mut version = [0; 8];
        version.copy_from_slice(&bytes[..8]);
        let version = u64::from_ne_bytes(version);
        if bytes.iter().all(|&byte| byte == 0) {
            return Seen::Empty;
        }
        if version % 2 == 1 || bytes[DIGEST..CONTENTS] != digest(version, &bytes[CONTENTS..]) {
            return Seen::Torn;
        }
        let key = bytes[KEY..VALUE].get(..usize::from(bytes[16]));
        let value = bytes[VALUE..].get(..usize::from(bytes[17]));
        match (key, value) {
            (Some(key), Some(value)) => Seen::Entry(key, value),
            _ => Seen::Torn,
        }
    }
}

/// Buckets in which a key may be, from its hash on.
const WINDOW: u64 = 8;
const WINDOW_BYTES: usize = WINDOW as usize * bucket::BYTES;

/// Offset of a key's window in a table of `bucket_count` buckets and one window more.
fn window(key: &[u8], bucket_count: u64) -> u64 {
    let digest = Sha256::digest(key);
    let mut hash = [0; 8];
    hash.copy_from_slice(&digest[..8]);
    u64::from_ne_bytes(hash) % bucket_count * bucket::BYTES as u64
}

/// Bytes of a table.
fn table_bytes(bucket_count: u64) -> u64 {
    (bucket_count + WINDOW) * bucket::BYTES as u64
}

/// The buckets of a window.
fn buckets(bytes: &[u8; WINDOW_BYTES]) -> impl Iterator<Item = &[u8; bucket::BYTES]> {
    bytes.as_chunks().0.iter()
}

/// PUT as it is SENT: key length, value length, key, value. The answer is one byte, one of these.
const STORED: u8 = 0;
const REFUSED: u8 = 1;
const FULL: u8 = 2;
const PUT_BYTES_MAX: u32 = 2 + bucket::KEY_BYTES_MAX as u32 + bucket::VALUE_BYTES_MAX as u32;

/// The server's side of the table. One thread changes it at a time; nobody holds up the readers.
struct Table {
    memory: MemoryRegion,
    bucket_count: u64,
    change: Mutex<()>,
}

impl Table {
    /// Stores what a PUT says; the answer.
    fn put(&self, message: &[u8]) -> anyhow::Result<u8> {
        let [key_length, value_length, rest @ ..] = message else { return Ok(REFUSED) };
        let Some((key, value)) = rest.split_at_checked(usize::from(*key_length)) else { return Ok(REFUSED) };
        if value.len() != usize::from(*value_length)
            || key.len() > bucket::KEY_BYTES_MAX
            || value.len() > bucket::VALUE_BYTES_MAX
        {
            return Ok(REFUSED);
        }
        let Ok(_alone) = self.change.lock() else { bail!("another thread failed while it changed the table") };
        let start = window(key, self.bucket_count);
        let mut bytes = [0; WINDOW_BYTES];
        self.memory.read(start, &mut bytes)?;
        let place = buckets(&bytes).position(|bytes| match bucket::parse(bytes) {
            bucket::Seen::Entry(there, _) => there == key,
            bucket::Seen::Empty | bucket::Seen::Torn => true,
        });
        let Some(place) = place else { return Ok(FULL) };
        let offset = start + (place * bucket::BYTES) as u64;
        let word = self.memory.atomic_u64(offset)?;
        // Only this server writes versions, under the lock.
        let version = word.load(Relaxed) / 2 * 2;
        let contents = bucket::contents(key, value);
        word.store(version + 1, Relaxed);
        // Readers may see this in any order, or half: that is what the digest is for.
        self.memory.write(offset + bucket::CONTENTS as u64, &contents)?;
        self.memory.write(offset + bucket::DIGEST as u64, &bucket::digest(version + 2, &contents))?;
        word.store(version + 2, Relaxed);
        Ok(STORED)
    }
}

/// One end of a connection: a QP, and memory for messages.
struct Link {
    qp: QueuePair,
    cq: CompletionQueue,
    channel: CompletionChannel,
    messages: MemoryRegion,
    remote: ConnectionInfo,
    stream: TcpStream,
}

impl Link {
    /// Connects with the peer on this stream, offers it `offer` (or nothing), and posts one receive.
    fn new(
        options: &Options,
        pd: &ProtectionDomain,
        stream: TcpStream,
        offer: Option<&MemoryRegion>,
    ) -> anyhow::Result<Self> {
        let context = pd.context();
        let channel = context.create_channel()?;
        let cq = context.create_cq(&CqInit { cqe: 16, channel: Some(&channel), comp_vector: None })?;
        let cap =
            QpCap { max_send_wr: 4, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: PUT_BYTES_MAX };
        let qp = pd.create_qp(&QpInit { cap, ..QpInit::rc(&cq) })?;
        let messages = MemoryPool::new(&context, 4096, PageSize::Base)?.register_all(pd, AccessFlags::LOCAL_WRITE)?;
        let attr = ConnectAttr { sgid_index: options.gid_index, ..ConnectAttr::default() };
        let local = ConnectionInfo::new(&qp, exchange::random_psn(), &attr)?;
        let local = offer.map_or(local, |region| local.with_region(region));
        let remote = exchange::tcp(&stream, &[local])?[0];
        ferroce::connect_rc(&qp, &local, &remote, &attr)?;
        let link = Self { qp, cq, channel, messages, remote, stream };
        link.post_recv()?;
        exchange::sync(&link.stream)?;
        Ok(link)
    }

    fn post_recv(&self) -> anyhow::Result<()> {
        Ok(self.qp.post_recv(&RecvWr::new(0, &[self.messages.sge(0, PUT_BYTES_MAX)?]))?)
    }

    /// The next completion, if one comes in time. Sleeps for it.
    fn next(&self, timeout: Duration) -> anyhow::Result<Option<WorkCompletion>> {
        let mut completion = [WorkCompletion::default()];
        if self.cq.poll(&mut completion) == 0 {
            self.cq.req_notify(false);
            // What came before the request raises no event.
            if self.cq.poll(&mut completion) == 0
                && (self.channel.wait(Some(timeout))?.is_none() || self.cq.poll(&mut completion) == 0)
            {
                return Ok(None);
            }
        }
        let [completion] = completion;
        ensure!(completion.is_ok(), "work request {} failed: {}", completion.wr_id, completion.status);
        Ok(Some(completion))
    }

    /// As [`Link::next`], but a completion must come.
    fn wait(&self) -> anyhow::Result<WorkCompletion> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(completion) = self.next(PATIENCE)? {
                return Ok(completion);
            }
        }
        bail!("the server does not answer")
    }
}

fn serve(options: &Options, bucket_count: u64) -> anyhow::Result<()> {
    let context = Context::connect(&options.socket)?;
    let pd = context.alloc_pd()?;
    let bytes = table_bytes(bucket_count);
    let memory = MemoryPool::new(&context, bytes, PageSize::Base)?.register(&pd, 0..bytes, AccessFlags::REMOTE_READ)?;
    let table = Table { memory, bucket_count, change: Mutex::new(()) };
    let listener = TcpListener::bind(("::", options.port)).or_else(|_| TcpListener::bind(("0.0.0.0", options.port)));
    let listener = listener.with_context(|| format!("listening on port {}", options.port))?;
    println!("a table of {bucket_count} buckets on port {}", options.port);
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let stream = stream?;
            let peer = stream.peer_addr()?;
            let (pd, table) = (&pd, &table);
            scope.spawn(move || {
                let link = Link::new(options, pd, stream, Some(&table.memory));
                if let Err(error) = link.and_then(|link| serve_client(&link, table)) {
                    eprintln!("{peer}: {error:#}");
                }
            });
        }
        Ok(())
    })
}

/// Stores what a client SENDs, until it closes the stream.
fn serve_client(link: &Link, table: &Table) -> anyhow::Result<()> {
    link.stream.set_nonblocking(true)?;
    loop {
        let Some(completion) = link.next(Duration::from_millis(200))? else {
            match link.stream.peek(&mut [0]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                _ => return Ok(()),
            }
        };
        if completion.is_recv() {
            let mut message = [0; PUT_BYTES_MAX as usize];
            let message = &mut message[..completion.byte_len as usize];
            link.messages.read(0, message)?;
            let answer = table.put(message)?;
            link.post_recv()?;
            link.qp.post_send(&SendWr::send(0, &[]).inline(&[answer]).signaled())?;
        }
    }
}

struct Client {
    link: Link,
    bucket_count: u64,
    /// Where windows are READ to.
    window: MemoryRegion,
}

impl Client {
    fn connect(options: &Options, server: &str) -> anyhow::Result<Self> {
        let context = Context::connect(&options.socket)?;
        let pd = context.alloc_pd()?;
        let stream = TcpStream::connect((server, options.port));
        let stream = stream.with_context(|| format!("connecting to {server} port {}", options.port))?;
        let pool = MemoryPool::new(&context, WINDOW_BYTES as u64, PageSize::Base)?;
        let window = pool.register_all(&pd, AccessFlags::LOCAL_WRITE)?;
        let link = Link::new(options, &pd, stream, None)?;
        let bucket_count = (link.remote.length / bucket::BYTES as u64).saturating_sub(WINDOW);
        ensure!(bucket_count > 0, "the server offers no table");
        Ok(Self { link, bucket_count, window })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        ensure!(
            key.len() <= bucket::KEY_BYTES_MAX,
            "a key of {} bytes, {} is the most",
            key.len(),
            bucket::KEY_BYTES_MAX
        );
        let max = bucket::VALUE_BYTES_MAX;
        ensure!(value.len() <= max, "a value of {} bytes, {max} is the most", value.len());
        let message = [&[key.len() as u8, value.len() as u8][..], key, value];
        self.link.qp.post_send(&SendWr::send(0, &[]).inline_pieces(&message).signaled())?;
        // Our SEND and the answer to it complete in any order.
        let mut answer = [0];
        for _ in 0..2 {
            if self.link.wait()?.is_recv() {
                self.link.messages.read(0, &mut answer)?;
            }
        }
        self.link.post_recv()?;
        match answer {
            [STORED] => Ok(()),
            [FULL] => bail!("no room: all {WINDOW} buckets of this key are taken"),
            _ => bail!("the server refuses it"),
        }
    }

    /// One READ, or more of them if the server is changing the window at this moment.
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        const ATTEMPTS: u32 = 1000;
        let remote_addr = self.link.remote.addr + window(key, self.bucket_count);
        let sges = [self.window.sge(0, WINDOW_BYTES as u32)?];
        for _ in 0..ATTEMPTS {
            self.link.qp.post_send(&SendWr::read(1, &sges, remote_addr, self.link.remote.rkey).signaled())?;
            self.link.wait()?;
            let mut bytes = [0; WINDOW_BYTES];
            self.window.read(0, &mut bytes)?;
            let mut torn = false;
            for bytes in buckets(&bytes) {
                match bucket::parse(bytes) {
                    bucket::Seen::Entry(there, value) if there == key => return Ok(Some(value.to_vec())),
                    bucket::Seen::Entry(..) | bucket::Seen::Empty => {}
                    bucket::Seen::Torn => torn = true,
                }
            }
            if !torn {
                return Ok(None);
            }
        }
        bail!("the buckets of this key were being changed at each of {ATTEMPTS} attempts")
    }
}

fn bench(client: &Client, lookups: u32) -> anyhow::Result<()> {
    const KEYS: u32 = 100;
    for i in 0..KEYS {
        client.put(format!("bench-{i}").as_bytes(), format!("value-{i}").as_bytes())?;
    }
    let started = Instant::now();
    for i in 0..lookups {
        let i = i % KEYS;
        let value = client.get(format!("bench-{i}").as_bytes())?;
        ensure!(value.as_deref() == Some(format!("value-{i}").as_bytes()), "key bench-{i} has another value");
    }
    let us = started.elapsed().as_secs_f64() * 1e6 / f64::from(lookups);
    println!("{lookups} look-ups, {us:.2} us each, every value right");
    Ok(())
}
