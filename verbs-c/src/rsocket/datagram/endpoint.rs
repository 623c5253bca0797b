//! The QP of one of our addresses, and its memory: slots of one message each.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use ferroce::{
    AccessFlags, AddressHandle, AhAttr, CompletionChannel, CompletionQueue, CqInit, Gid, GidType, MemoryPool,
    MemoryRegion, PageSize, ProtectionDomain, Psn, QpCap, QpInit, Qpn, QueuePair, RecvWr, SendWr, WorkCompletion,
    start_datagrams,
};
use nix::errno::Errno;

use super::super::options::Options;
use super::super::vectors::Vectors;
use super::wire::{self, MESSAGE_BYTES};
use crate::cm::devices;
use crate::entry::Failure;

/// Q_Key of RDMA CM's datagrams (`RDMA_UDP_QKEY`).
const QKEY: u32 = 0x0123_4567;
/// Bytes that each receive of UD begins with: the network header.
const NETWORK_HEADER: usize = 40;
/// Bytes of a receive.
const RECEIVE_BYTES: usize = NETWORK_HEADER + MESSAGE_BYTES;
/// Hops that a datagram may take.
const HOP_LIMIT: u8 = 64;
/// Completions taken at a time.
const BATCH: usize = 32;
/// Mark of a receive in a work request's id, above the number of its slot.
const WORK_RECEIVE: u64 = 1 << 32;

/// A message that has come, in its slot until it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) from: SocketAddr,
    slot: u32,
    /// Where the data begins in the slot, and how much it is.
    at: usize,
    pub(super) bytes: usize,
}

/// See the module.
pub(super) struct Endpoint {
    qp: QueuePair,
    cq: CompletionQueue,
    channel: CompletionChannel,
    armed: bool,
    /// Who we are: address, and the socket's UDP port.
    local: SocketAddr,
    sgid_index: u8,
    header: Vec<u8>,
    /// Bytes of a packet at most.
    mtu: usize,
    inline_max: usize,
    send: MemoryRegion,
    receive: MemoryRegion,
    free: Vec<u32>,
    slots: usize,
    arrived: VecDeque<Arrived>,
    // Last: the domain goes when nothing is in it.
    pd: ProtectionDomain,
}

impl Endpoint {
    /// Makes one for an address of ours.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if no device has the address.
    pub(super) fn new(local: SocketAddr, options: &Options) -> Result<Self, Failure> {
        let gid = Gid::from_ip(local.ip());
        let found = devices::all()?.into_iter().find_map(|device| {
            let gids = device.context().query_gids(1).ok()?;
            let entry = gids.iter().find(|entry| entry.gid == gid && entry.gid_type == GidType::RoceV2)?;
            Some((device.context().clone(), u8::try_from(entry.index).ok()?))
        });
        let (context, sgid_index) = found.ok_or(Failure::from(Errno::EADDRNOTAVAIL))?;
        let mtu = 128_usize << context.query_port(1)?.active_mtu;
        // As rdma-core: as many messages as the buffers have room for.
        let slots = |queue: u32, bytes: u32| queue.min(bytes / MESSAGE_BYTES as u32).max(1);
        let receives = slots(options.receive_queue.into(), options.receive_bytes);
        let sends = slots(options.send_queue, options.send_bytes);
        let pd = context.alloc_pd()?;
        let channel = context.create_channel()?;
        let cq = CqInit { cqe: sends + receives, channel: Some(&channel), comp_vector: None };
        let cq = context.create_cq(&cq)?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: options.inline_bytes,
        };
        let qp = pd.create_qp(&QpInit { cap, sq_sig_all: true, ..QpInit::ud(&cq) })?;
        let sent = u64::from(sends) * MESSAGE_BYTES as u64;
        let end = sent + u64::from(receives) * RECEIVE_BYTES as u64;
        let pool = MemoryPool::new(&context, end, PageSize::Base)?;
        let end = Self {
            send: pool.register(&pd, 0..sent, AccessFlags::NONE)?,
            receive: pool.register(&pd, sent..end, AccessFlags::LOCAL_WRITE)?,
            free: (0..sends).collect(),
            slots: sends as usize,
            inline_max: qp.cap().max_inline_data.min(options.inline_bytes) as usize,
            header: wire::source_header(local),
            arrived: VecDeque::new(),
            armed: false,
            qp,
            cq,
            channel,
            local,
            sgid_index,
            mtu,
            pd,
        };
        start_datagrams(&end.qp, 1, QKEY, Psn::new(0))?;
        for slot in 0..receives {
            end.post_receive(slot)?;
        }
        Ok(end)
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Readable when something has completed.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// The way to an address.
    pub(super) fn path_to(&self, ip: IpAddr) -> Result<AddressHandle, Failure> {
        let attr = AhAttr {
            dgid: Gid::from_ip(ip),
            sgid_index: self.sgid_index,
            hop_limit: HOP_LIMIT,
            port_num: 1,
            ..AhAttr::default()
        };
        Ok(self.pd.create_ah(&attr)?)
    }

    fn post_receive(&self, slot: u32) -> Result<(), Failure> {
        let at = u64::from(slot) * RECEIVE_BYTES as u64;
        let sges = [self.receive.sge(at, RECEIVE_BYTES as u32)?];
        Ok(self.qp.post_recv(&RecvWr::new(WORK_RECEIVE | u64::from(slot), &sges))?)
    }

    /// True if a packet has room for so much data.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.header.len() + bytes <= self.mtu
    }

    pub(super) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn is_all_sent(&self) -> bool {
        self.free.len() == self.slots || !self.is_alive()
    }

    /// False if its daemon is gone: nothing comes or goes any more.
    pub(super) fn is_alive(&self) -> bool {
        self.qp.context().is_alive()
    }

    /// Sends a message. False: not now, all slots are on their way.
    pub(super) fn send(&mut self, from: &mut Vectors<'_>, ah: &AddressHandle, to: Qpn) -> Result<bool, Failure> {
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let bytes = self.header.len() + from.left();
        let head = from.head();
        let posted = if head.len() == from.left() && bytes <= self.inline_max {
            let pieces = [self.header.as_slice(), head];
            let wr = SendWr::send(slot.into(), &[]).inline_pieces(&pieces).to(ah, to, QKEY);
            self.qp.post_send(&wr).map_err(Failure::from)
        } else {
            self.fill(slot, from).and_then(|()| {
                // A slot is smaller than 4 GiB.
                let sges = [self.send.sge(u64::from(slot) * MESSAGE_BYTES as u64, bytes as u32)?];
                Ok(self.qp.post_send(&SendWr::send(slot.into(), &sges).to(ah, to, QKEY))?)
            })
        };
        if posted.is_err() {
            self.free.push(slot);
        }
        posted.map(|()| true)
    }

    fn fill(&self, slot: u32, from: &mut Vectors<'_>) -> Result<(), Failure> {
        let mut at = u64::from(slot) * MESSAGE_BYTES as u64;
        self.send.write(at, &self.header)?;
        at += self.header.len() as u64;
        while from.left() > 0 {
            let bytes = from.head().len();
            self.send.write(at, from.head())?;
            at += bytes as u64;
            from.advance(bytes);
        }
        Ok(())
    }

    /// Asks for a notification of the next completion, if none is asked for.
    pub(super) fn arm(&mut self) {
        if !std::mem::replace(&mut self.armed, true) {
            self.cq.req_notify(false);
        }
    }

    /// Takes the notifications that have come.
    pub(super) fn take_notifications(&mut self) {
        self.armed = false;
        while let Ok(Some(_)) = self.channel.try_get() {}
    }

    /// Takes what has completed; of what came, what `wanted` is for.
    pub(super) fn process(&mut self, wanted: impl Fn(SocketAddr) -> bool) {
        let mut completions = [WorkCompletion::default(); BATCH];
        loop {
            let count = self.cq.poll(&mut completions);
            for completion in &completions[..count] {
                // The slot is the low half.
                let slot = (completion.wr_id & u64::from(u32::MAX)) as u32;
                if completion.wr_id & WORK_RECEIVE == 0 {
                    // Arrived or lost: nobody can tell.
                    self.free.push(slot);
                } else if completion.is_ok() {
                    match self.look_at(slot, completion.byte_len as usize).filter(|arrived| wanted(arrived.from)) {
                        Some(arrived) => self.arrived.push_back(arrived),
                        None => self.forget(slot),
                    }
                }
            }
            if count < BATCH {
                return;
            }
        }
    }

    /// What is in a slot, if it is a message of these sockets.
    fn look_at(&self, slot: u32, bytes: usize) -> Option<Arrived> {
        let mut header = [0; 24];
        let length = bytes.checked_sub(NETWORK_HEADER)?.min(header.len());
        let at = u64::from(slot) * RECEIVE_BYTES as u64 + NETWORK_HEADER as u64;
        self.receive.read(at, &mut header[..length]).ok()?;
        let (from, length) = wire::parse_source(&header[..length])?;
        Some(Arrived { from, slot, at: NETWORK_HEADER + length, bytes: bytes - NETWORK_HEADER - length })
    }

    /// The slot may be used again. (It fails only if the QP is broken, or the daemon gone: then nothing comes any more.)
    fn forget(&self, slot: u32) {
        let _ = self.post_receive(slot);
    }

    pub(super) fn first(&self) -> Option<Arrived> {
        self.arrived.front().copied()
    }

    /// Copies the first message, as far as there is room; unless it is only a look, it is gone then.
    pub(super) fn receive(&mut self, into: &mut Vectors<'_>, peek: bool) -> Result<(), Failure> {
        let Some(first) = self.first() else { return Ok(()) };
        let mut at = u64::from(first.slot) * RECEIVE_BYTES as u64 + first.at as u64;
        let mut left = first.bytes;
        while left > 0 && into.left() > 0 {
            let part = into.head_mut(left);
            self.receive.read(at, part)?;
            let bytes = part.len();
            at += bytes as u64;
            left -= bytes;
            into.advance(bytes);
        }
        if !peek {
            self.arrived.pop_front();
            self.forget(first.slot);
        }
        Ok(())
    }
}
