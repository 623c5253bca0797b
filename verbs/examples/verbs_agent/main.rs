//! Drives queue pairs for somebody else, who says by lines of JSON what to do: for tests that need a program on either side of a
//! connection, such as the interoperation matrix (`docs/interop.md`), whose other side is the same program over another stack.
//!
//! ```text
//! echo '{"op": "port"}' | cargo run --release -p ferroce --example verbs_agent -- --socket /run/ferroce/ferroced.sock
//! ```
//!
//! A request is `{"op": NAME, ...}`, its answer `{"ok": true, ...}` or `{"error": SENTENCE}`. Objects are known by the numbers that
//! the answers gave them; opcodes, states, statuses, flags and rights are the numbers of libibverbs.
//!
//! | op | takes | gives |
//! | --- | --- | --- |
//! | `port` | | `gids`: pairs of index and GID; `mtu` in bytes |
//! | `mr` | `bytes`, `access` | `mr`, `lkey`, `rkey`, `addr` |
//! | `srq` | | `srq` |
//! | `qp` | `type`, `srq` if it shares receives | `qp`, `qpn`; it has a CQ of its own |
//! | `connect` | `qp`, `access`, `gid_index`, `gid`, `qpn`, `rq_psn`, `sq_psn`, `mtu`, `timeout`, `retry_cnt`, `rnr_retry`, `min_rnr_timer`, `rd_atomic` | |
//! | `start` | `qp` (UD), `qkey`, `sq_psn` | |
//! | `ah` | `gid_index`, `gid` | `ah` |
//! | `recv` | `queue` (a QP or an SRQ), `count`, `wr_id` of the first, `sge`; each begins where the one before ends | |
//! | `send` | `qp`, `wrs`: `wr_id`, `opcode`, `flags`, `sges`, `remote_addr`, `rkey`, `imm`, `invalidate`, `compare_add`, `swap`, and for UD `to`: `ah`, `qpn`, `qkey` | |
//! | `poll` | `qp`, `count`, `timeout` in seconds | `completions`, fewer if the time was over |
//! | `window` | `qp`, `mr`, `access` | `mr` (the number of the window), `rkey`: a window of type 2 on all of the region, bound |
//! | `write` | `mr`, `offset`, `hex` | |
//! | `read` | `mr`, `offset`, `bytes` | `hex` |
//! | `dereg` | `mr`, which may be a window | |
//! | `state` | `qp` | `state` |
//! | `attach` | `qp` (UD), `gid` of a group | |
//! | `cm_listen` | `addr`, `port`, `space` | `id` |
//! | `cm_connect` | `addr`, `port`, `space`, `private` | `id`, when the request is on its way |
//! | `cm_event` | `timeout` in seconds | `event`, null if there was none |
//! | `cm_accept` | `id`, `private`, and for UD `qp` | |
//! | `cm_reject` | `id`, `private` | |
//! | `cm_disconnect` | `id` | |
//! | `reset` | | everything is destroyed |
//!
//! An SGE is `mr`, `offset`, `bytes`, and `lkey` where another than the region's is to be used. Ids of port space TCP have a QP of
//! their own; `space`, `event.event` and `event.status` are the numbers of librdmacm.
#![forbid(unsafe_code)]

mod connections;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use clap::Parser;
use ferroce::{
    AccessFlags, AddressHandle, AhAttr, CompletionChannel, ConnectAttr, Context, CqInit, DEFAULT_SOCKET, Gid,
    MemoryPool, MemoryRegion, MemoryWindow, MwType, PageSize, PathMtu, ProtectionDomain, Psn, QpCap, QpInit, QpType,
    Qpn, QueuePair, RecvWr, RemoteQp, SendFlags, SendWr, Sge, SharedReceiveQueue, SrqAttr, WcFlags, WorkCompletion,
    WrOpcode, start_datagrams,
};
use serde::Deserialize;
use serde_json::{Value, json};

use connections::Connections;

/// Drives queue pairs as lines of JSON on standard input say.
#[derive(Parser)]
struct Options {
    /// The daemon's socket.
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

/// Work requests in each queue.
const QUEUE_DEPTH: u32 = 256;
const SGES_MAX: u32 = 4;

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Request {
    Port,
    Mr {
        bytes: u64,
        access: u32,
    },
    Srq,
    Qp {
        #[serde(rename = "type")]
        qp_type: u8,
        srq: Option<u32>,
    },
    Connect(Connect),
    Start {
        qp: u32,
        qkey: u32,
        sq_psn: u32,
    },
    Ah {
        gid_index: u8,
        gid: Ipv6Addr,
    },
    Attach {
        qp: u32,
        gid: Ipv6Addr,
    },
    Recv {
        queue: u32,
        count: u32,
        wr_id: u64,
        sge: SgeSpec,
    },
    Send {
        qp: u32,
        wrs: Vec<SendSpec>,
    },
    Poll {
        qp: u32,
        count: usize,
        timeout: f64,
    },
    Window {
        qp: u32,
        mr: u32,
        access: u32,
    },
    Write {
        mr: u32,
        offset: u64,
        hex: String,
    },
    Read {
        mr: u32,
        offset: u64,
        bytes: usize,
    },
    Dereg {
        mr: u32,
    },
    State {
        qp: u32,
    },
    CmListen {
        addr: IpAddr,
        port: u16,
        space: u16,
    },
    CmConnect {
        addr: IpAddr,
        port: u16,
        space: u16,
        private: String,
    },
    CmEvent {
        timeout: f64,
    },
    CmAccept {
        id: u32,
        private: String,
        qp: Option<u32>,
    },
    CmReject {
        id: u32,
        private: String,
    },
    CmDisconnect {
        id: u32,
    },
    Reset,
}

#[derive(Deserialize)]
struct Connect {
    qp: u32,
    access: u32,
    gid_index: u8,
    gid: Ipv6Addr,
    qpn: u32,
    rq_psn: u32,
    sq_psn: u32,
    mtu: u32,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    rd_atomic: u8,
}

#[derive(Deserialize)]
struct SgeSpec {
    mr: u32,
    offset: u64,
    bytes: u32,
    lkey: Option<u32>,
}

#[derive(Deserialize)]
struct SendSpec {
    wr_id: u64,
    opcode: u8,
    flags: u8,
    sges: Vec<SgeSpec>,
    remote_addr: u64,
    rkey: u32,
    imm: u32,
    invalidate: u32,
    compare_add: u64,
    swap: u64,
    to: Option<Destination>,
}

/// Where a datagram goes.
#[derive(Deserialize)]
struct Destination {
    ah: u32,
    qpn: u32,
    qkey: u32,
}

/// What requests have made.
enum Object {
    Mr(MemoryRegion),
    Window(MemoryWindow),
    Srq(SharedReceiveQueue),
    Qp(QueuePair, CompletionChannel),
    Ah(AddressHandle),
}

struct Agent {
    context: Context,
    pd: ProtectionDomain,
    objects: BTreeMap<u32, Object>,
    connections: Connections,
    /// The number of the last object.
    last: u32,
}

impl Agent {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let context = Context::connect(&options.socket)?;
        let pd = context.alloc_pd()?;
        let connections = Connections::new(&context, &pd)?;
        Ok(Self { context, pd, objects: BTreeMap::new(), connections, last: 0 })
    }

    fn keep(&mut self, object: Object) -> u32 {
        self.last += 1;
        self.objects.insert(self.last, object);
        self.last
    }

    fn mr(&self, number: u32) -> anyhow::Result<&MemoryRegion> {
        match self.objects.get(&number) {
            Some(Object::Mr(mr)) => Ok(mr),
            _ => Err(anyhow!("no region {number}")),
        }
    }

    fn qp(&self, number: u32) -> anyhow::Result<(&QueuePair, &CompletionChannel)> {
        match self.objects.get(&number) {
            Some(Object::Qp(qp, channel)) => Ok((qp, channel)),
            _ => Err(anyhow!("no queue pair {number}")),
        }
    }

    fn answer(&mut self, line: &str) -> Value {
        let request = serde_json::from_str(line).context("this is no request");
        match request.and_then(|request| self.serve(request)) {
            Ok(mut answer) => {
                answer["ok"] = Value::Bool(true);
                answer
            }
            Err(error) => json!({ "error": format!("{error:#}") }),
        }
    }

    fn serve(&mut self, request: Request) -> anyhow::Result<Value> {
        match request {
            Request::Port => return self.port(),
            Request::Mr { bytes, access } => return self.register(bytes, AccessFlags(access)),
            Request::Srq => {
                let attr = SrqAttr { max_wr: QUEUE_DEPTH, max_sge: SGES_MAX, srq_limit: 0 };
                let srq = self.pd.create_srq(None, attr)?;
                return Ok(json!({ "srq": self.keep(Object::Srq(srq)) }));
            }
            Request::Qp { qp_type, srq } => return self.create_qp(qp_type, srq),
            Request::Connect(connect) => self.connect(&connect)?,
            Request::Start { qp, qkey, sq_psn } => start_datagrams(self.qp(qp)?.0, 1, qkey, Psn::new(sq_psn))?,
            Request::Ah { gid_index, gid } => return self.create_ah(gid_index, gid),
            Request::Attach { qp, gid } => self.qp(qp)?.0.attach_mcast(Gid(gid.octets()))?,
            Request::Recv { queue, count, wr_id, sge } => self.post_recvs(queue, count, wr_id, sge)?,
            Request::Send { qp, wrs } => {
                for wr in &wrs {
                    self.post_send(qp, wr)?;
                }
            }
            Request::Poll { qp, count, timeout } => return self.poll(qp, count, Duration::try_from_secs_f64(timeout)?),
            Request::Window { qp, mr, access } => return self.bind(qp, mr, AccessFlags(access)),
            Request::Write { mr, offset, hex } => self.mr(mr)?.write(offset, &from_hex(&hex)?)?,
            Request::Read { mr, offset, bytes } => {
                let mut data = vec![0; bytes];
                self.mr(mr)?.read(offset, &mut data)?;
                return Ok(json!({ "hex": to_hex(&data) }));
            }
            Request::Dereg { mr } => match self.objects.remove(&mr) {
                Some(Object::Mr(mr)) => mr.dereg()?,
                Some(Object::Window(window)) => window.dealloc()?,
                _ => return Err(anyhow!("no region {mr}")),
            },
            Request::State { qp } => return Ok(json!({ "state": self.qp(qp)?.0.query()?.qp_state.code() })),
            Request::CmListen { addr, port, space } => {
                return Ok(json!({ "id": self.connections.listen(SocketAddr::new(addr, port), space)? }));
            }
            Request::CmConnect { addr, port, space, private } => {
                let id = self.connections.connect(SocketAddr::new(addr, port), space, from_hex(&private)?)?;
                return Ok(json!({ "id": id }));
            }
            Request::CmEvent { timeout } => {
                return Ok(json!({ "event": self.connections.event(Duration::try_from_secs_f64(timeout)?)? }));
            }
            Request::CmAccept { id, private, qp } => {
                let qpn = qp.map(|qp| Ok::<_, anyhow::Error>(self.qp(qp)?.0.qpn())).transpose()?;
                self.connections.accept(id, from_hex(&private)?, qpn)?;
            }
            Request::CmReject { id, private } => self.connections.id(id)?.reject(&from_hex(&private)?)?,
            Request::CmDisconnect { id } => self.connections.id(id)?.disconnect()?,
            Request::Reset => {
                self.connections.clear()?;
                // A region on which a window is bound stays: windows and QPs go first.
                self.objects.retain(|_, object| !matches!(object, Object::Window(_)));
                self.objects.retain(|_, object| !matches!(object, Object::Qp(..)));
                self.objects.clear();
            }
        }
        Ok(json!({}))
    }

    fn port(&self) -> anyhow::Result<Value> {
        let gids = self.context.query_gids(1)?;
        let gids: Vec<_> = gids.iter().map(|entry| (entry.index, Ipv6Addr::from(entry.gid.0).to_string())).collect();
        let mtu =
            PathMtu::from_code(self.context.query_port(1)?.active_mtu).context("the port's MTU has no meaning")?;
        Ok(json!({ "gids": gids, "mtu": mtu.bytes() }))
    }

    fn register(&mut self, bytes: u64, access: AccessFlags) -> anyhow::Result<Value> {
        let pool = MemoryPool::new(&self.context, bytes, PageSize::Base)?;
        let mr = pool.register(&self.pd, 0..bytes, access)?;
        let (lkey, rkey, addr) = (mr.lkey(), mr.rkey(), mr.addr());
        Ok(json!({ "mr": self.keep(Object::Mr(mr)), "lkey": lkey, "rkey": rkey, "addr": addr }))
    }

    fn bind(&mut self, qp: u32, mr: u32, access: AccessFlags) -> anyhow::Result<Value> {
        let region = self.mr(mr)?;
        let window = self.pd.alloc_mw(MwType::Type2)?;
        let rkey = window.next_rkey();
        let bind = window.bind_info(region, 0, region.length(), access)?;
        let (queue, _) = self.qp(qp)?;
        queue.post_send(&SendWr::bind_mw(0, &window, rkey, &bind).signaled())?;
        let bound = self.poll(qp, 1, Duration::from_secs(5))?;
        ensure!(bound["completions"][0]["status"] == 0, "binding a window ended with {bound}");
        Ok(json!({ "mr": self.keep(Object::Window(window)), "rkey": rkey }))
    }

    fn create_ah(&mut self, sgid_index: u8, gid: Ipv6Addr) -> anyhow::Result<Value> {
        let attr = AhAttr { dgid: Gid(gid.octets()), sgid_index, hop_limit: 64, port_num: 1, ..AhAttr::default() };
        let ah = self.pd.create_ah(&attr)?;
        Ok(json!({ "ah": self.keep(Object::Ah(ah)) }))
    }

    fn create_qp(&mut self, qp_type: u8, srq: Option<u32>) -> anyhow::Result<Value> {
        let qp_type = QpType::from_code(qp_type).context("there is no such type of queue pair")?;
        let srq = match srq.map(|number| self.objects.get(&number).context("there is no such SRQ")).transpose()? {
            Some(Object::Srq(srq)) => Some(srq),
            Some(_) => return Err(anyhow!("that is no SRQ")),
            None => None,
        };
        let channel = self.context.create_channel()?;
        let cq =
            self.context.create_cq(&CqInit { cqe: 2 * QUEUE_DEPTH, channel: Some(&channel), ..CqInit::default() })?;
        let cap = QpCap {
            max_send_wr: QUEUE_DEPTH,
            max_recv_wr: if srq.is_some() { 0 } else { QUEUE_DEPTH },
            max_send_sge: SGES_MAX,
            max_recv_sge: SGES_MAX,
            max_inline_data: 0,
        };
        let qp = self.pd.create_qp(&QpInit { qp_type, srq, cap, ..QpInit::rc(&cq) })?;
        let qpn = qp.qpn().value();
        Ok(json!({ "qp": self.keep(Object::Qp(qp, channel)), "qpn": qpn }))
    }

    fn connect(&self, connect: &Connect) -> anyhow::Result<()> {
        let (qp, _) = self.qp(connect.qp)?;
        let attr = ConnectAttr {
            sgid_index: connect.gid_index,
            access: AccessFlags(connect.access),
            max_rd_atomic: connect.rd_atomic,
            max_dest_rd_atomic: connect.rd_atomic,
            timeout: connect.timeout,
            retry_cnt: connect.retry_cnt,
            rnr_retry: connect.rnr_retry,
            min_rnr_timer: connect.min_rnr_timer,
            ..ConnectAttr::default()
        };
        let remote = RemoteQp {
            qpn: Qpn::new(connect.qpn),
            psn: Psn::new(connect.rq_psn),
            gid: Gid(connect.gid.octets()),
            path_mtu: PathMtu::from_bytes(connect.mtu).context("the MTU is not 256, 512, 1024, 2048 or 4096")?,
        };
        qp.to_init(attr.port_num, attr.access)?;
        qp.to_rtr(&remote, &attr)?;
        Ok(qp.to_rts(Psn::new(connect.sq_psn), &attr)?)
    }

    fn sge(&self, spec: &SgeSpec) -> anyhow::Result<Sge> {
        let sge = self.mr(spec.mr)?.sge(spec.offset, spec.bytes)?;
        Ok(Sge { lkey: spec.lkey.unwrap_or(sge.lkey), ..sge })
    }

    fn post_recvs(&self, queue: u32, count: u32, wr_id: u64, mut spec: SgeSpec) -> anyhow::Result<()> {
        for i in 0..u64::from(count) {
            let sges = [self.sge(&spec)?];
            let wr = RecvWr::new(wr_id + i, &sges);
            match self.objects.get(&queue) {
                Some(Object::Qp(qp, _)) => qp.post_recv(&wr)?,
                Some(Object::Srq(srq)) => srq.post_recv(&wr)?,
                _ => return Err(anyhow!("no receive queue {queue}")),
            }
            spec.offset += u64::from(spec.bytes);
        }
        Ok(())
    }

    fn post_send(&self, qp: u32, spec: &SendSpec) -> anyhow::Result<()> {
        let sges = spec.sges.iter().map(|sge| self.sge(sge)).collect::<anyhow::Result<Vec<_>>>()?;
        let SendSpec { wr_id, remote_addr, rkey, .. } = *spec;
        let opcode = WrOpcode::from_code(spec.opcode).context("there is no such opcode")?;
        let mut wr = match opcode {
            WrOpcode::Send => SendWr::send(wr_id, &sges),
            WrOpcode::SendWithImm => SendWr::send(wr_id, &sges).with_imm(spec.imm),
            WrOpcode::SendWithInv => SendWr::send(wr_id, &sges).with_invalidate(spec.invalidate),
            WrOpcode::RdmaWrite => SendWr::write(wr_id, &sges, remote_addr, rkey),
            WrOpcode::RdmaWriteWithImm => SendWr::write(wr_id, &sges, remote_addr, rkey).with_imm(spec.imm),
            WrOpcode::RdmaRead => SendWr::read(wr_id, &sges, remote_addr, rkey),
            WrOpcode::AtomicCmpAndSwp => {
                SendWr::atomic_cas(wr_id, &sges, remote_addr, rkey, spec.compare_add, spec.swap)
            }
            WrOpcode::AtomicFetchAndAdd => SendWr::atomic_faa(wr_id, &sges, remote_addr, rkey, spec.compare_add),
            _ => return Err(anyhow!("{opcode} is not for the send queue of this program")),
        };
        if let Some(to) = &spec.to {
            let Some(Object::Ah(ah)) = self.objects.get(&to.ah) else {
                return Err(anyhow!("no address handle {}", to.ah));
            };
            wr = wr.to(ah, Qpn::new(to.qpn), to.qkey);
        }
        Ok(self.qp(qp)?.0.post_send(&wr.with_flags(SendFlags(spec.flags)))?)
    }

    fn poll(&self, qp: u32, count: usize, timeout: Duration) -> anyhow::Result<Value> {
        let (qp, channel) = self.qp(qp)?;
        let deadline = Instant::now() + timeout;
        let mut found = Vec::new();
        let mut completions = vec![WorkCompletion::default(); count];
        loop {
            // What comes after this raises an event, what came before is polled.
            qp.send_cq().req_notify(false);
            let polled = qp.send_cq().poll(&mut completions[found.len()..]);
            found.extend(completions[found.len()..][..polled].iter().map(describe));
            let left = deadline.saturating_duration_since(Instant::now());
            if found.len() == count || (polled == 0 && left.is_zero()) {
                return Ok(json!({ "completions": found }));
            }
            if polled == 0 {
                channel.wait(Some(left))?;
            }
        }
    }
}

fn describe(completion: &WorkCompletion) -> Value {
    json!({
        "wr_id": completion.wr_id,
        "status": completion.status.code(),
        "opcode": completion.opcode.code(),
        "byte_len": completion.byte_len,
        "imm": completion.imm(),
        "invalidated": completion.invalidated_rkey(),
        "qpn": completion.qpn.value(),
        "src_qpn": completion.src_qpn.value(),
        "grh": completion.flags.contains(WcFlags::GRH),
    })
}

fn to_hex(data: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = data.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    digits.map(char::from).collect()
}

fn from_hex(text: &str) -> anyhow::Result<Vec<u8>> {
    ensure!(text.len().is_multiple_of(2), "{} hex digits are not whole bytes", text.len());
    let digit = |digit: u8| char::from(digit).to_digit(16).with_context(|| format!("{digit:#x} is no hex digit"));
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map(|pair| Ok((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

fn main() -> anyhow::Result<()> {
    let mut agent = Agent::new(&Options::parse())?;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        writeln!(out, "{}", agent.answer(&line?))?;
        out.flush()?;
    }
    Ok(())
}
