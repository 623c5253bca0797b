//! One side of a pingpong: its QPs, and the game. The client sends, the server sends every message back.

use std::path::Path;
use std::time::{Duration, Instant};

use ferroce::{
    AccessFlags, AddressHandle, AhAttr, CompletionChannel, CompletionQueue, ConnectAttr, Context, CqInit, MemoryPool,
    MemoryRegion, PageSize, PathMtu, ProtectionDomain, QpCap, QpInit, QpType, Qpn, QueuePair, RecvWr, RemoteQp, SendWr,
    SharedReceiveQueue, SrqAttr, VerbsError, WorkCompletion,
};
use serde::Serialize;

use super::address::{self, Address};
use super::{Args, Kind, PingpongError, Status};

/// A peer that is silent for so long is gone.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of all buffers together, unless fewer are too few to play.
const BUFFER_BYTES_MAX: u64 = 64 << 20;
/// Code of 0.54 s: a peer that is slow, as an emulated machine is, is not gone.
const ACK_TIMEOUT: u8 = 17;
/// Buffers of receives that every QP needs: one that is being sent back, one for the next message.
const RECEIVES_PER_QP: u32 = 2;
/// Bytes that a datagram's receive has before the data: the Global Route Header, or the IPv4 header at its end.
const GRH_BYTES: u32 = 40;
/// The Q_Key of the ibv programs.
const QKEY: u32 = 0x1111_1111;
/// The number of every send; those of receives are buffers.
const SEND: u64 = u64::MAX;
/// `ibv_rc_pingpong -c` looks at the first byte of each page, and wants zero there.
const CHECKED_PAGE_BYTES: usize = 4096;

/// Who begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Sends messages, and checks that they come back.
    Client,
    /// Sends back what comes.
    Server,
}

/// One side.
pub(crate) struct Side {
    role: Role,
    kind: Kind,
    size: u32,
    iters: u32,
    check: bool,
    attr: ConnectAttr,
    mtu: PathMtu,
    lanes: Vec<Lane>,
    addresses: Vec<Address>,
    buffers: Buffers,
    pd: ProtectionDomain,
    srq: Option<SharedReceiveQueue>,
    cq: CompletionQueue,
    /// Given if we sleep for completions.
    channel: Option<CompletionChannel>,
}

/// A QP, and where its message is.
struct Lane {
    qp: QueuePair,
    /// Where datagrams go.
    to: Option<(AddressHandle, Qpn)>,
    sending: bool,
    receiving: bool,
    /// The buffer of a message that came and was not sent back yet.
    arrived: Option<u64>,
    /// The buffer that is being sent back.
    returning: Option<u64>,
    sent_count: u32,
    received_count: u32,
    /// What a peer of another make sends, every time, once it is known.
    habit: Option<Vec<u8>>,
}

/// One region: a buffer to send from for each lane, then those of the receives. In each, a message has room for headers before it.
struct Buffers {
    region: MemoryRegion,
    size: u32,
    header_bytes: u32,
    lane_count: u64,
}

impl Buffers {
    fn new(
        context: &Context,
        pd: &ProtectionDomain,
        args: &Args,
        lane_count: u32,
        receive_count: u32,
    ) -> Result<Self, VerbsError> {
        let size = args.size();
        let header_bytes = if args.kind == Kind::Ud { GRH_BYTES } else { 0 };
        let bytes = u64::from(lane_count + receive_count) * u64::from(header_bytes + size);
        // A pool of nothing is none, but messages of nothing there are.
        let pool = MemoryPool::new(context, bytes.max(1), PageSize::Base)?;
        let region = pool.register_all(pd, AccessFlags::LOCAL_WRITE)?;
        Ok(Self { region, size, header_bytes, lane_count: u64::from(lane_count) })
    }

    /// Where a message is.
    fn offset(&self, index: u64) -> u64 {
        index * u64::from(self.header_bytes + self.size) + u64::from(self.header_bytes)
    }

    fn outgoing(&self, lane: usize) -> u64 {
        self.offset(lane as u64)
    }

    fn incoming(&self, buffer: u64) -> u64 {
        self.offset(self.lane_count + buffer)
    }

    fn read(&self, offset: u64) -> Result<Vec<u8>, VerbsError> {
        let mut data = vec![0; self.size as usize];
        self.region.read(offset, &mut data)?;
        Ok(data)
    }
}

/// Time between two receives, ns.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Gaps {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) mean: f64,
}

/// What the client's message `number` is made of: no two bytes in a row, and no two messages, are shifted copies of each other.
fn content(number: u32, size: u32) -> Vec<u8> {
    let mut state = u64::from(number) << 32 | 0x9E37_79B9;
    let mut data: Vec<u8> = (0..size)
        .map(|_| {
            // Knuth's MMIX generator; its upper bits are the good ones.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    data.iter_mut().step_by(CHECKED_PAGE_BYTES).for_each(|byte| *byte = 0);
    data
}

impl Side {
    /// Makes everything, and posts the receives.
    pub(crate) fn new(socket: &Path, args: &Args, role: Role) -> Result<Self, PingpongError> {
        let context = Context::connect(socket)?;
        let gid = check_device(&context, args)?;
        let lane_count = if args.kind == Kind::Srq { args.num_qp } else { 1 };
        let receive_count = receive_count(args, lane_count)?;
        let pd = context.alloc_pd()?;
        let channel = if args.events { Some(context.create_channel()?) } else { None };
        let cq = context.create_cq(&CqInit {
            cqe: receive_count + lane_count,
            channel: channel.as_ref(),
            comp_vector: None,
        })?;
        let srq = match args.kind {
            Kind::Srq => Some(pd.create_srq(Some(&cq), SrqAttr { max_wr: receive_count, max_sge: 1, srq_limit: 0 })?),
            Kind::Rc | Kind::Uc | Kind::Ud => None,
        };
        let buffers = Buffers::new(&context, &pd, args, lane_count, receive_count)?;
        let attr = connect_attr(args);
        let mut lanes = Vec::new();
        let mut addresses = Vec::new();
        for _ in 0..lane_count {
            let psn = ferroce::exchange::random_psn();
            let lane = Lane::new(&pd, &cq, srq.as_ref(), args.kind, receive_count)?;
            // Receives can be posted from here on.
            match args.kind {
                Kind::Ud => ferroce::start_datagrams(&lane.qp, attr.port_num, QKEY, psn)?,
                Kind::Rc | Kind::Uc | Kind::Srq => lane.qp.to_init(attr.port_num, attr.access)?,
            }
            addresses.push(Address { lid: 0, qpn: lane.qp.qpn(), psn, gid });
            lanes.push(lane);
        }
        let side = Self {
            role,
            kind: args.kind,
            size: args.size(),
            iters: args.iters,
            check: args.chk,
            attr,
            mtu: args.mtu,
            lanes,
            addresses,
            buffers,
            pd,
            srq,
            cq,
            channel,
        };
        (0..u64::from(receive_count)).try_for_each(|buffer| side.post_recv(0, buffer))?;
        Ok(side)
    }

    /// Where our QPs are.
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Addresses that each side tells.
    pub(crate) fn traded_count(&self) -> usize {
        if self.kind == Kind::Srq { address::SRQ_ADDRESSES } else { 1 }
    }

    /// Takes the QPs to RTS with the peer's; datagrams need only know where to go.
    pub(crate) fn connect(&mut self, remote: &[Address]) -> Result<(), PingpongError> {
        address::check_reachable(remote, self.lanes.len())?;
        for (lane, (local, remote)) in self.lanes.iter_mut().zip(self.addresses.iter().zip(remote)) {
            if self.kind == Kind::Ud {
                let ConnectAttr { sgid_index, sl, port_num, .. } = self.attr;
                let ah =
                    self.pd.create_ah(&AhAttr { dgid: remote.gid, sgid_index, sl, port_num, ..AhAttr::default() })?;
                lane.to = Some((ah, remote.qpn));
                continue;
            }
            let peer = RemoteQp { qpn: remote.qpn, psn: remote.psn, gid: remote.gid, path_mtu: self.mtu };
            lane.qp.to_rtr(&peer, &self.attr)?;
            lane.qp.to_rts(local.psn, &self.attr)?;
        }
        Ok(())
    }

    /// Plays to the end. Returns how long it took, and how far apart the receives were.
    pub(crate) fn play(&mut self) -> Result<(Duration, Option<Gaps>), PingpongError> {
        let started = Instant::now();
        if self.role == Role::Client {
            (0..self.lanes.len()).try_for_each(|lane| self.send_next(lane))?;
        }
        let (mut sent, mut received) = (0, 0);
        let mut stamps: Option<Stamps> = None;
        let mut completions = [WorkCompletion::default(); 32];
        while sent < self.iters || received < self.iters {
            let count = self.wait(&mut completions)?;
            if count == 0 {
                return Err(PingpongError::Silence { received, iters: self.iters });
            }
            for completion in &completions[..count] {
                let index = self.lane_of(completion)?;
                if completion.is_recv() {
                    received += 1;
                    let stamp = completion.timestamp_ns;
                    stamps = Some(stamps.map_or_else(|| Stamps::new(stamp), |stamps| stamps.then(stamp)));
                    self.received(index, completion)?;
                } else {
                    sent += 1;
                    self.sent(index)?;
                }
                let lane = &self.lanes[index];
                if sent < self.iters && !lane.sending && !lane.receiving {
                    self.send_next(index)?;
                }
            }
        }
        Ok((started.elapsed(), stamps.and_then(Stamps::gaps)))
    }

    /// Completions, at least one unless none comes for too long.
    fn wait(&self, completions: &mut [WorkCompletion]) -> Result<usize, PingpongError> {
        let started = Instant::now();
        loop {
            if self.channel.is_some() {
                // What comes after this raises an event, what came before is polled.
                self.cq.req_notify(false);
            }
            let count = self.cq.poll(completions);
            let left = PATIENCE.saturating_sub(started.elapsed());
            if count > 0 || left.is_zero() {
                return Ok(count);
            }
            if let Some(channel) = &self.channel {
                channel.wait(Some(left))?;
            }
        }
    }

    /// Whose completion it is.
    fn lane_of(&self, completion: &WorkCompletion) -> Result<usize, PingpongError> {
        if !completion.is_ok() {
            let what = if completion.is_recv() { "receive" } else { "SEND" };
            let (qpn, status) = (completion.qpn.value(), Status(completion.status));
            return Err(PingpongError::Completion { what, qpn, status });
        }
        let lane = self.lanes.iter().position(|lane| lane.qp.qpn() == completion.qpn);
        Ok(lane.expect("a CQ completes the work of its own QPs"))
    }

    /// A message came: it is checked, and to be sent back by a server.
    fn received(&mut self, index: usize, completion: &WorkCompletion) -> Result<(), PingpongError> {
        let buffer = completion.wr_id;
        let length = completion.byte_len.saturating_sub(self.buffers.header_bytes);
        if length != self.size {
            return Err(PingpongError::Length { got: length, wanted: self.size });
        }
        if self.check {
            self.check(index, buffer)?;
        }
        let lane = &mut self.lanes[index];
        lane.receiving = false;
        lane.received_count += 1;
        match self.role {
            Role::Client => self.post_recv(index, buffer),
            Role::Server => {
                lane.arrived = Some(buffer);
                Ok(())
            }
        }
    }

    /// A message has gone.
    fn sent(&mut self, index: usize) -> Result<(), PingpongError> {
        let lane = &mut self.lanes[index];
        lane.sending = false;
        match lane.returning.take() {
            Some(buffer) => self.post_recv(index, buffer),
            None => Ok(()),
        }
    }

    /// Sends a lane's next message: a new one, or the one that came.
    fn send_next(&mut self, index: usize) -> Result<(), PingpongError> {
        let lane = &mut self.lanes[index];
        let offset = match self.role {
            Role::Client => {
                let offset = self.buffers.outgoing(index);
                // Without a check of each, one is as good as another.
                if self.check || lane.sent_count == 0 {
                    self.buffers.region.write(offset, &content(number_of(self.kind, lane.sent_count), self.size))?;
                }
                offset
            }
            Role::Server => {
                lane.returning = lane.arrived.take();
                self.buffers.incoming(lane.returning.expect("a server sends when a message has come"))
            }
        };
        let sges = [self.buffers.region.sge(offset, self.size)?];
        let wr = SendWr::send(SEND, &sges).signaled();
        let wr = match &lane.to {
            Some((ah, qpn)) => wr.to(ah, *qpn, QKEY),
            None => wr,
        };
        lane.qp.post_send(&wr).map_err(VerbsError::from)?;
        (lane.sending, lane.receiving) = (true, true);
        lane.sent_count += 1;
        Ok(())
    }

    fn post_recv(&self, index: usize, buffer: u64) -> Result<(), PingpongError> {
        let Buffers { region, header_bytes, .. } = &self.buffers;
        let offset = self.buffers.incoming(buffer) - u64::from(*header_bytes);
        let sges = [region.sge(offset, header_bytes + self.size)?];
        let wr = RecvWr::new(buffer, &sges);
        let posted = match &self.srq {
            Some(srq) => srq.post_recv(&wr),
            None => self.lanes[index].qp.post_recv(&wr),
        };
        Ok(posted.map_err(VerbsError::from)?)
    }

    /// A client knows what comes back. A server knows what this program sends; an ibv program sends the same every time, so that the
    /// first message says what the others are.
    fn check(&mut self, index: usize, buffer: u64) -> Result<(), PingpongError> {
        let got = self.buffers.read(self.buffers.incoming(buffer))?;
        let lane = &mut self.lanes[index];
        let number = lane.received_count;
        let ours = content(number_of(self.kind, number), self.size);
        if self.role == Role::Server && number == 0 && got != ours {
            lane.habit = Some(got.clone());
        }
        let wanted = lane.habit.as_ref().unwrap_or(&ours);
        match got.iter().zip(wanted).position(|(got, wanted)| got != wanted) {
            None => Ok(()),
            Some(offset) => {
                Err(PingpongError::Data { number, offset, size: self.size, got: got[offset], wanted: wanted[offset] })
            }
        }
    }
}

/// The number that decides a message's content. ibv_srq_pingpong has one buffer for all its QPs: there, all messages must be alike.
fn number_of(kind: Kind, count: u32) -> u32 {
    if kind == Kind::Srq { 0 } else { count }
}

impl Lane {
    /// A QP in RESET.
    fn new(
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        kind: Kind,
        receive_count: u32,
    ) -> Result<Self, VerbsError> {
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: if srq.is_some() { 0 } else { receive_count },
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp_type = match kind {
            Kind::Rc | Kind::Srq => QpType::Rc,
            Kind::Uc => QpType::Uc,
            Kind::Ud => QpType::Ud,
        };
        let qp = pd.create_qp(&QpInit { qp_type, srq, cap, ..QpInit::rc(cq) })?;
        Ok(Self {
            qp,
            to: None,
            sending: false,
            receiving: true,
            arrived: None,
            returning: None,
            sent_count: 0,
            received_count: 0,
            habit: None,
        })
    }
}

/// What all QPs are connected with.
fn connect_attr(args: &Args) -> ConnectAttr {
    ConnectAttr {
        port_num: args.ib_port,
        sgid_index: args.gid_idx,
        access: AccessFlags::NONE,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        timeout: ACK_TIMEOUT,
        sl: args.sl,
        ..ConnectAttr::default()
    }
}

/// What the operator asks for is what the daemon has. Returns our GID.
fn check_device(context: &Context, args: &Args) -> Result<ferroce::Gid, PingpongError> {
    let found = context.device().name.clone();
    if let Some(wanted) = args.ib_dev.clone().filter(|wanted| *wanted != found) {
        return Err(PingpongError::OtherDevice { wanted, found });
    }
    let port = context.query_port(args.ib_port)?;
    let most = PathMtu::from_code(port.active_mtu).ok_or(VerbsError::UnexpectedReply { request: "QueryPort" })?;
    if args.kind == Kind::Ud {
        // A datagram is one packet, and may fill the port's MTU.
        if args.size() > most.bytes() {
            return Err(PingpongError::DatagramSize { size: args.size(), most });
        }
    } else if args.mtu > most {
        return Err(PingpongError::Mtu { wanted: args.mtu, most });
    }
    let gids = context.query_gids(args.ib_port)?;
    let entry = gids.iter().find(|entry| entry.index == u32::from(args.gid_idx));
    Ok(entry.ok_or(PingpongError::NoGid { port: args.ib_port, index: args.gid_idx })?.gid)
}

/// Receives to post: as many as asked for, or as fit into the buffers' limit.
fn receive_count(args: &Args, lane_count: u32) -> Result<u32, PingpongError> {
    let fewest = RECEIVES_PER_QP * lane_count;
    if args.rx_depth < fewest {
        return Err(PingpongError::FewReceives { rx_depth: args.rx_depth, num_qp: lane_count });
    }
    let fit = BUFFER_BYTES_MAX / u64::from(args.size().max(1));
    Ok(args.rx_depth.min(u32::try_from(fit).unwrap_or(u32::MAX)).max(fewest))
}

/// Time stamps of receives, as far as they are seen.
#[derive(Clone, Copy)]
struct Stamps {
    first: u64,
    last: u64,
    count: u64,
    min: u64,
    max: u64,
}

impl Stamps {
    fn new(stamp: u64) -> Self {
        Self { first: stamp, last: stamp, count: 0, min: u64::MAX, max: 0 }
    }

    fn then(self, stamp: u64) -> Self {
        let gap = stamp.saturating_sub(self.last);
        Self { last: stamp, count: self.count + 1, min: self.min.min(gap), max: self.max.max(gap), ..self }
    }

    fn gaps(self) -> Option<Gaps> {
        let Self { first, last, count, min, max } = self;
        (count > 0).then(|| Gaps { min, max, mean: (last - first) as f64 / count as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_differ_and_suit_the_check_of_the_ibv_programs() {
        let (first, second) = (content(0, 10_000), content(1, 10_000));
        assert_eq!(first.len(), 10_000);
        for data in [&first, &second] {
            assert_eq!([data[0], data[4096], data[8192]], [0; 3]);
            assert!(data.iter().filter(|&&byte| byte == 0).count() < 100);
        }
        let equal = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!(equal < 200, "{equal} of 10000 bytes are equal");
        assert!(content(7, 0).is_empty());
    }

    #[test]
    fn gaps_are_told_from_the_second_receive_on() {
        assert!(Stamps::new(5).gaps().is_none());
        let gaps = Stamps::new(100).then(110).then(150).gaps().unwrap();
        assert_eq!((gaps.min, gaps.max, gaps.mean), (10, 40, 25.0));
    }
}
