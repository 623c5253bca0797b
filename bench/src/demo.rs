//! The demonstration: a file goes from one engine to another and back, every operation is tried, and each is measured.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use daemon::embedded::{PAIR_ADDRESSES, engine_config, polled_pair};
use ferroce::exchange::{self, ConnectionInfo};
use ferroce::{
    AccessFlags, CompletionQueue, ConnectAttr, Context, CqInit, MemoryPool, MemoryRegion, PageSize, QpInit, QueuePair,
    RecvWr, SendWr, WorkCompletion,
};
use sha2::{Digest as _, Sha256};

use crate::error::{PerfError, Result, io_error};
use crate::memory::MemoryKind;
use crate::params::{Connection, Params, Stop, Test, Verb};
use crate::single_thread;
use crate::stats::gbit_per_s;

/// Longest file that the demonstration takes: it is held four times.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a message when the file moves.
const CHUNK_BYTES: u64 = 1 << 20;
/// Work requests under way when the file moves.
const CHUNKS_AHEAD: u64 = 16;
/// Where atomics land, in a page behind the file.
const COUNTER_BYTES: u64 = 4096;
/// SENDs with an immediate.
const GREETINGS: [(&str, u32); 3] = [("hello", 1), ("from the other engine", 2), ("good bye", 3)];
const SECONDS_PER_MEASUREMENT: f64 = 0.15;
/// A completion is late after this.
const PATIENCE: Duration = Duration::from_secs(10);

/// One end of the connection.
struct End {
    context: Context,
    cq: CompletionQueue,
    qp: QueuePair,
    region: MemoryRegion,
    info: ConnectionInfo,
}

impl End {
    fn new(context: Context, bytes: u64) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(&CqInit { cqe: 512, ..CqInit::default() })?;
        let qp = pd.create_qp(&QpInit::rc(&cq))?;
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let pool = MemoryPool::new(&context, bytes, PageSize::Base)?;
        let region = pool.register_all(&pd, rights | AccessFlags::REMOTE_ATOMIC)?;
        let info = ConnectionInfo::new(&qp, exchange::random_psn(), &ConnectAttr::default())?.with_region(&region);
        Ok(Self { context, cq, qp, region, info })
    }

    /// Waits for one completion.
    fn wait(&self) -> Result<WorkCompletion> {
        let (mut completion, start) = ([WorkCompletion::default()], Instant::now());
        while self.cq.poll(&mut completion) == 0 {
            if start.elapsed() > PATIENCE {
                return Err(PerfError::Silent(PATIENCE.as_secs()));
            }
        }
        let [completion] = completion;
        if completion.is_ok() { Ok(completion) } else { Err(PerfError::Completion(completion)) }
    }

    /// Posts `count` signalled work requests, a few at a time, and waits for all.
    fn post_all(&self, count: u64, post: impl Fn(u64) -> Result<()>) -> Result<Duration> {
        let start = Instant::now();
        for number in 0..count {
            if number >= CHUNKS_AHEAD {
                self.wait()?;
            }
            post(number)?;
        }
        for _ in 0..count.min(CHUNKS_AHEAD) {
            self.wait()?;
        }
        Ok(start.elapsed())
    }
}

/// Runs the whole demonstration with a file.
///
/// # Errors
/// Whatever goes wrong; wrong bytes above all.
pub(crate) fn run(path: &Path) -> Result<()> {
    let file = read_file(path)?;
    println!(
        "two engines in this process, {} and {}, joined by net_ring: no root, no hugepages, no RDMA device",
        PAIR_ADDRESSES[0], PAIR_ADDRESSES[1]
    );
    let [there, here] = polled_pair(&engine_config("ferroce0"))?;
    let server = Context::from_endpoint(there.connect()?)?;
    let client = Context::from_endpoint(here.connect()?)?;
    let bytes = (file.len() as u64).next_multiple_of(COUNTER_BYTES) * 2 + COUNTER_BYTES;
    let (server_end, client_end) = (End::new(server, bytes)?, End::new(client, bytes)?);
    ferroce::connect_rc(&server_end.qp, &server_end.info, &client_end.info, &ConnectAttr::default())?;
    ferroce::connect_rc(&client_end.qp, &client_end.info, &server_end.info, &ConnectAttr::default())?;
    move_file(path, &file, &client_end, &server_end)?;
    send_greetings(&client_end, &server_end)?;
    count_atomically(&client_end, &server_end)?;
    measure(&client_end.context, &server_end.context)
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let what = || path.display().to_string();
    let bytes = fs::metadata(path).map_err(io_error(what()))?.len();
    if bytes == 0 || bytes > FILE_BYTES_MAX {
        let legal = format!("the demonstration moves files of 1 to {FILE_BYTES_MAX} bytes");
        return Err(PerfError::Setting { name: "size of the file", value: bytes.to_string(), legal });
    }
    fs::read(path).map_err(io_error(what()))
}

/// WRITEs the file to the server's memory, READs it back into another place, and compares the three.
fn move_file(path: &Path, file: &[u8], client: &End, server: &End) -> Result<()> {
    let bytes = file.len() as u64;
    let (back, remote) = (bytes.next_multiple_of(COUNTER_BYTES), server.info);
    client.region.write(0, file)?;
    let count = bytes.div_ceil(CHUNK_BYTES);
    let chunk = |number: u64| {
        let offset = number * CHUNK_BYTES;
        (offset, (bytes - offset).min(CHUNK_BYTES) as u32)
    };
    let written = client.post_all(count, |number| {
        let (offset, length) = chunk(number);
        let sges = [client.region.sge(offset, length)?];
        Ok(client.qp.post_send(&SendWr::write(number, &sges, remote.addr + offset, remote.rkey).signaled())?)
    })?;
    let read = client.post_all(count, |number| {
        let (offset, length) = chunk(number);
        let sges = [client.region.sge(back + offset, length)?];
        Ok(client.qp.post_send(&SendWr::read(number, &sges, remote.addr + offset, remote.rkey).signaled())?)
    })?;
    println!(
        "\n{}, {bytes} bytes: RDMA WRITE to the server in {written:.1?}, RDMA READ back in {read:.1?}",
        path.display()
    );
    let digests = [digest(file), region_digest(server, 0, bytes)?, region_digest(client, back, bytes)?];
    for (digest, place) in digests.iter().zip(["the file", "written to the server", "read back"]) {
        println!("  SHA-256 {digest}  {place}");
    }
    if digests.iter().any(|digest| *digest != digests[0]) {
        return Err(PerfError::Data("the SHA-256 sums differ".to_owned()));
    }
    println!("  all equal");
    Ok(())
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn region_digest(end: &End, offset: u64, bytes: u64) -> Result<String> {
    let mut data = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    end.region.read(offset, &mut data)?;
    Ok(digest(&data))
}

/// SENDs with immediates: each must arrive as it was sent.
fn send_greetings(client: &End, server: &End) -> Result<()> {
    println!();
    for (text, imm) in GREETINGS {
        let room = [server.region.sge(0, text.len() as u32)?];
        server.qp.post_recv(&RecvWr::new(u64::from(imm), &room))?;
        client.region.write(0, text.as_bytes())?;
        let data = [client.region.sge(0, text.len() as u32)?];
        client.qp.post_send(&SendWr::send(u64::from(imm), &data).with_imm(imm).signaled())?;
        let received = server.wait()?;
        client.wait()?;
        let mut found = vec![0; received.byte_len as usize];
        server.region.read(0, &mut found)?;
        let found = String::from_utf8_lossy(&found);
        if found != text || received.imm() != Some(imm) {
            return Err(PerfError::Data(format!(
                "`{text}` with immediate {imm} came as `{found}`, {:?}",
                received.imm()
            )));
        }
        println!("SEND with immediate {imm}: \"{found}\"");
    }
    Ok(())
}

/// Fetch and add, then compare and swap, on a word of the server's.
fn count_atomically(client: &End, server: &End) -> Result<()> {
    let offset = server.region.length() - COUNTER_BYTES;
    let (addr, rkey) = (server.info.addr + offset, server.info.rkey);
    let result = [client.region.sge(offset, 8)?];
    let atomic = |wr: SendWr<'_>| -> Result<u64> {
        client.qp.post_send(&wr.signaled())?;
        client.wait()?;
        let mut word = [0; 8];
        client.region.read(offset, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    };
    let before_add = atomic(SendWr::atomic_faa(1, &result, addr, rkey, 42))?;
    let before_swap = atomic(SendWr::atomic_cas(2, &result, addr, rkey, 42, 1000))?;
    let before_refusal = atomic(SendWr::atomic_cas(3, &result, addr, rkey, 42, 7))?;
    let mut word = [0; 8];
    server.region.read(offset, &mut word)?;
    let word = u64::from_ne_bytes(word);
    println!(
        "fetch and add 42: was {before_add}; compare 42 and swap 1000: was {before_swap}; again: was {before_refusal}; now {word}"
    );
    if (before_add, before_swap, before_refusal, word) == (0, 42, 1000, 1000) {
        return Ok(());
    }
    Err(PerfError::Data("an atomic has another result".to_owned()))
}

/// Measures each operation, as `ferroce-perf` does, and prints the table.
fn measure(client: &Context, server: &Context) -> Result<()> {
    const KINDS: [(&str, Verb, &[u32]); 4] = [
        ("WRITE", Verb::Write, &[64, 4096, 1 << 20]),
        ("READ", Verb::Read, &[64, 4096, 1 << 20]),
        ("SEND", Verb::Send, &[64, 4096, 1 << 20]),
        ("fetch and add", Verb::Atomic, &[8]),
    ];
    println!("\nmeasuring: application and both engines on one core, data checked at the end of each measurement");
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["operation", "bytes", "messages/s", "Gbit/s", "latency p50 [us]", "p99 [us]", "p99.9 [us]"]);
    for (name, verb, sizes) in KINDS {
        for &size in sizes {
            let (throughput, _) = single_thread::run(client, server, &params(Test::bandwidth(verb), size), 0)?;
            let (latency, _) = single_thread::run(client, server, &params(Test::latency(verb), size), 0)?;
            let micros = |ns: u64| format!("{:.2}", ns as f64 / 1e3);
            let times =
                latency.latencies.summary().map(|times| [times.p50_ns, times.p99_ns, times.p999_ns].map(micros));
            let [p50, p99, p999] = times.unwrap_or_default();
            let per_s = throughput.per_s();
            let rates = [format!("{per_s:.0}"), format!("{:.2}", gbit_per_s(per_s, size))];
            let [per_s, gbit] = rates;
            table.add_row([name.to_owned(), size.to_string(), per_s, gbit, p50, p99, p999]);
        }
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    println!("{table}");
    println!("latency: one way for WRITE and SEND (half of a round trip), there and back for READ and fetch and add");
    Ok(())
}

fn params(test: Test, size: u32) -> Params {
    Params {
        test,
        connection: Connection::Rc,
        size,
        stop: Stop::Seconds(SECONDS_PER_MEASUREMENT),
        qps: 1,
        tx_depth: 128,
        rx_depth: 512,
        cq_mod: 64,
        post_list: 32,
        inline: 0,
        bidirectional: false,
        mtu: None,
        recovery: None,
        outstanding: 16,
        cc: None,
        rate: None,
        memory: MemoryKind::Pool,
    }
}
