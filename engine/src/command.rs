//! What the control side asks of a shard. Objects are made by the control side and handed over in boxes, so that a lcore
//! neither allocates nor frees: what it removes goes back in the answer.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use shm::attr::{AhAttr, QpAttr, QpAttrMask, QpState, RecoveryPolicy};
use shm::control::QpDetail;
use shm::doorbell::DoorbellPage;
use shm::qos::QosSettings;
use shm::ring::CqWriter;
use wire::{MacAddr, Qpn};

use crate::cc::Settings;
use crate::config::PortConfig;
use crate::counters::{PortCounters, ShardCounters};
use crate::cq::Cq;
use crate::gsi::OutgoingMad;
use crate::mr::MrEntry;
use crate::mr::window::Window;
use crate::neigh::Neighbour;
use crate::post_mortem::BreakRecord;
use crate::qos::QosState;
use crate::qp::Qp;
use crate::qp::state::ModifyError;
use crate::srq::Srq;

/// A request to one shard.
#[derive(Debug)]
pub enum Command {
    /// A client came: serve its doorbells.
    AddSession {
        /// Its number.
        session: u32,
        /// Its doorbell page on this shard.
        doorbells: DoorbellPage,
    },
    /// A client went. Its QPs are gone already.
    RemoveSession {
        /// Its number.
        session: u32,
    },
    /// Takes a CQ at the index it names.
    AddCq {
        /// Index in the shard.
        index: u32,
        /// The CQ.
        cq: Box<Cq>,
    },
    /// Gives a CQ another ring.
    ReplaceCqRing {
        /// Index in the shard.
        index: u32,
        /// The ring's producer.
        writer: Box<CqWriter>,
    },
    /// Gives a CQ back.
    RemoveCq {
        /// Index in the shard.
        index: u32,
    },
    /// Takes an SRQ.
    AddSrq {
        /// Index in the shard.
        index: u32,
        /// The SRQ.
        srq: Box<Srq>,
    },
    /// Arms an SRQ's limit.
    SetSrqLimit {
        /// Index in the shard.
        index: u32,
        /// The limit, 0 = off.
        limit: u32,
    },
    /// Reads an SRQ's limit.
    QuerySrq {
        /// Index in the shard.
        index: u32,
    },
    /// Gives an SRQ back.
    RemoveSrq {
        /// Index in the shard.
        index: u32,
    },
    /// Takes a QP in RESET; its QPN says the index.
    AddQp {
        /// The QP.
        qp: Box<Qp>,
        /// Its bit in its session's doorbell page; `None` if it has no queues that a client could post to.
        doorbell_index: Option<u32>,
    },
    /// Changes a QP: all of the attributes or none.
    ModifyQp {
        /// Index in the shard.
        index: u32,
        /// Values.
        attr: Box<QpAttr>,
        /// Which.
        mask: QpAttrMask,
    },
    /// Changes how a QP makes up for lost packets.
    SetRecovery {
        /// Index in the shard.
        index: u32,
        /// The policy.
        policy: RecoveryPolicy,
    },
    /// Reads a QP's attributes.
    QueryQp {
        /// Index in the shard.
        index: u32,
    },
    /// Reads all about a QP.
    QpDetail {
        /// Index in the shard.
        index: u32,
    },
    /// Gives a QP back.
    RemoveQp {
        /// Index in the shard.
        index: u32,
    },
    /// Adds a region to the shard's copy of the table.
    AddMr(Box<MrEntry>),
    /// Removes a region: once answered, this shard touches its memory no more.
    RemoveMr {
        /// Its key.
        key: u32,
    },
    /// Asks for a neighbour's MAC, and has it asked for on the wire if it is not known. Neighbours stay known for 10 s without
    /// another use. One shard is enough to ask: 0.
    QueryNeighbour {
        /// Port, from 0.
        port: u8,
        /// Its address.
        ip: IpAddr,
        /// The VLAN of the address of ours that is to reach it.
        vlan: Option<u16>,
    },
    /// Fixes a neighbour's MAC: it is neither asked for nor changed by what comes in. Every shard has a table of its own.
    FixNeighbour {
        /// Port, from 0.
        port: u8,
        /// Its address.
        ip: IpAddr,
        /// The VLAN of the address of ours that is to reach it.
        vlan: Option<u16>,
        /// Its MAC.
        mac: MacAddr,
    },
    /// Takes an address handle: resolves the path of its address vector.
    AddAh {
        /// Its key.
        key: u32,
        /// Protection domain (unique in the engine).
        pd: u32,
        /// Where to.
        attr: Box<AhAttr>,
    },
    /// Forgets an address handle.
    RemoveAh {
        /// Its key.
        key: u32,
    },
    /// A QP of any shard joins a multicast group.
    AttachMcast {
        /// The group.
        group: IpAddr,
        /// The QP.
        qpn: Qpn,
    },
    /// A QP of any shard leaves a multicast group, or all of them.
    DetachMcast {
        /// The group; `None` = all.
        group: Option<IpAddr>,
        /// The QP.
        qpn: Qpn,
    },
    /// Sends a management datagram from QP1. Shard 0 only.
    SendMad(Box<OutgoingMad>),
    /// Keeps windows from being bound to a region, or allows it again.
    HoldMr {
        /// Its key.
        key: u32,
        /// Keeps.
        held: bool,
    },
    /// Adds a window, not bound.
    AddMw(Window),
    /// Removes a window, bound or not.
    RemoveMw {
        /// Any key of it.
        key: u32,
    },
    /// Takes what QPs that broke by themselves have left.
    TakeBreaks,
    /// A port is another now: what the shard knows of it is replaced, and goes back in the answer.
    ChangePort {
        /// Which, from 0.
        port: u8,
        /// What it is now.
        config: Box<PortConfig>,
    },
    /// Sets the congestion control of all QPs of a port that have no settings of their own, those to come too.
    SetPortCongestion {
        /// Which, from 0.
        port: u8,
        /// What holds from now on.
        settings: Box<Settings>,
    },
    /// Sets the congestion control of one QP.
    SetQpCongestion {
        /// Index in the shard.
        index: u32,
        /// What holds from now on; `None` = what its port has.
        settings: Option<Box<Settings>>,
    },
    /// Reads the congestion control of one QP.
    QpCongestion {
        /// Index in the shard.
        index: u32,
    },
    /// Reads the counters.
    Counters,
    /// Replaces the quality of service of a port; what it was goes back in the answer.
    SetQos {
        /// Which, from 0.
        port: u8,
        /// What it is now.
        settings: Box<QosSettings>,
        /// The device asks its peer for pauses, not the shard.
        pauses_by_device: bool,
    },
    /// Reads what a shard knows of a port's priorities.
    QueryQos {
        /// Which, from 0.
        port: u8,
    },
}

/// What a shard answers.
#[derive(Debug)]
pub enum Answer {
    /// Done.
    Done,
    /// There is no such object (or no room for it).
    Missing,
    /// The CQ that was removed.
    Cq(Box<Cq>),
    /// The ring that a CQ had.
    CqRing(Box<CqWriter>),
    /// The SRQ that was removed.
    Srq(Box<Srq>),
    /// An SRQ's limit and receives left.
    SrqLimit {
        /// The limit, 0 = off.
        limit: u32,
    },
    /// The QP that was removed.
    Qp(Box<Qp>),
    /// The state after a change.
    Modified(QpState),
    /// A change that was refused.
    Refused(ModifyError),
    /// A QP's attributes.
    QpAttr(Box<QpAttr>),
    /// A QP in full (`pid` and the like are the control side's).
    QpDetail(Box<QpDetail>),
    /// So many windows are bound to the region.
    Windows(u32),
    /// The region that was removed.
    Mr(Box<MrEntry>),
    /// What is known of a neighbour ([`Answer::Missing`] if there is no room for it).
    Neighbour(Neighbour),
    /// What QPs left that broke, oldest first.
    Breaks(Vec<BreakRecord>),
    /// What the shard knew of a port before.
    Port(Box<PortConfig>),
    /// A QP's congestion control.
    QpCongestion(Box<CongestionReport>),
    /// Counters of the shard, and of each port as this shard saw it.
    Counters(Box<(ShardCounters, Vec<PortCounters>)>),
    /// The quality of service of a port before.
    QosSettings(Box<QosSettings>),
    /// What a shard knows of a port's priorities.
    Qos(Box<QosState>),
}

/// A QP's congestion control: what was set, and what has come of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CongestionReport {
    /// The settings that hold for it.
    pub settings: Settings,
    /// They are its own, not its port's.
    pub is_own: bool,
    /// Its port, from 0.
    pub port: u8,
    /// Rate, window and the like, by name.
    pub figures: Vec<(String, u64)>,
}

/// How the control side reaches the shards: by mailboxes to other threads, or directly.
pub trait Shards {
    /// Has a shard execute a command, and waits for it.
    fn command(&mut self, shard: u8, command: Command) -> Answer;

    /// An eventfd by which a client wakes a shard from sleep. Where clients need not trust each other, each gets one of its own
    /// ([`shm::wake`]).
    ///
    /// # Errors
    /// What the operating system says: too many open files.
    fn client_wake(&self, shard: u8) -> std::io::Result<OwnedFd>;
}
