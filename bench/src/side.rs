//! One side of a run: its QPs, its memory, and whether the right bytes are in it.

use ferroce::exchange::{self, ConnectionInfo};
use ferroce::{
    AccessFlags, AddressHandle, AhAttr, CompletionQueue, ConnectAttr, Context, CqInit, ProtectionDomain, QpCap, QpInit,
    Qpn, QueuePair, Sge,
};
use wire::PathMtu;

use crate::error::{PerfError, Result};
use crate::memory::Memory;
use crate::params::{Connection, Metric, Params, Verb};
use crate::patience::Patience;

/// Q_Key of all datagrams: perftest's.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// Which of the two programs; they fill their memory differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Waits for the other; holds the memory of a one-sided test.
    Server,
    /// Begins; measures.
    Client,
}

impl Role {
    const fn peer(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }
}

/// A QP and its part of the memory: an area to send from, and behind it one to receive to.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) qp: QueuePair,
    local: ConnectionInfo,
    remote: Option<ConnectionInfo>,
    /// The way to the peer's host, of a UD QP.
    ah: Option<AddressHandle>,
    /// Offset of the area to send from.
    tx_offset: u64,
    /// Offset of the area to receive to.
    rx_offset: u64,
}

/// One side's verbs objects, destroyed with it.
pub(crate) struct Side {
    // Before their CQ and memory.
    pub(crate) lanes: Vec<Lane>,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: Memory,
    pd: ProtectionDomain,
    pub(crate) context: Context,
    pub(crate) params: Params,
    role: Role,
    attr: ConnectAttr,
}

impl Side {
    /// Makes everything that `params` asks for on this side, memory filled.
    ///
    /// # Errors
    /// What the engine refuses.
    pub(crate) fn new(context: &Context, params: &Params, gid_index: u8, role: Role) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cqe = params.qps.saturating_mul(params.tx_depth + params.rx_depth).min(context.device().max_cqe);
        let cq = context.create_cq(&CqInit { cqe, ..CqInit::default() })?;
        let footprint = u64::from(params.footprint());
        let bytes = u64::from(params.qps) * 2 * footprint;
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let region = Memory::new(context, &pd, params.memory, bytes, rights | AccessFlags::REMOTE_ATOMIC)?;
        let cap = QpCap {
            max_send_wr: params.tx_depth,
            max_recv_wr: params.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: params.inline,
        };
        let attr = ConnectAttr {
            sgid_index: gid_index,
            max_rd_atomic: params.outstanding,
            max_dest_rd_atomic: params.outstanding,
            ..ConnectAttr::default()
        };
        let mut lanes = Vec::new();
        for number in 0..u64::from(params.qps) {
            let init = match params.connection {
                Connection::Rc => QpInit::rc(&cq),
                Connection::Uc => QpInit::uc(&cq),
                Connection::Ud => QpInit::ud(&cq),
            };
            let qp = pd.create_qp(&QpInit { cap, ..init })?;
            if params.cc.is_some() || params.rate.is_some() {
                let limit: Vec<_> = params.rate.iter().map(|rate| ("rate_limit", rate.as_str())).collect();
                qp.set_congestion(params.cc.as_deref(), &limit)?;
            }
            params.recovery.map_or(Ok(()), |policy| qp.set_recovery(policy))?;
            let mut local = ConnectionInfo::new(&qp, exchange::random_psn(), &attr)?;
            (local.rkey, local.addr, local.length) = (region.rkey(), region.addr(), region.length());
            if let Some(mtu) = params.mtu.and_then(PathMtu::from_bytes) {
                local.path_mtu = local.path_mtu.min(mtu);
            }
            let tx_offset = number * 2 * footprint;
            lanes.push(Lane { qp, local, remote: None, ah: None, tx_offset, rx_offset: tx_offset + footprint });
        }
        let side = Self { lanes, cq, region, pd, context: context.clone(), params: params.clone(), role, attr };
        for lane in 0..side.lanes.len() {
            side.region.write(side.lanes[lane].tx_offset, &side.pattern(role, lane))?;
        }
        Ok(side)
    }

    /// What the peer must know of each QP.
    pub(crate) fn infos(&self) -> Vec<ConnectionInfo> {
        self.lanes.iter().map(|lane| lane.local).collect()
    }

    /// Connects each QP with the peer's of the same place.
    ///
    /// # Errors
    /// What the engine refuses; [`PerfError::Protocol`] if the peer's memory is not laid out as ours.
    pub(crate) fn connect(&mut self, remotes: &[ConnectionInfo]) -> Result<()> {
        let (bytes, count) = (self.region.length(), self.lanes.len());
        if remotes.len() != count || remotes.iter().any(|remote| remote.length != bytes) {
            let sentence = format!("it must have {count} QPs and {bytes} bytes of memory");
            return Err(PerfError::Protocol(sentence));
        }
        for (lane, remote) in self.lanes.iter_mut().zip(remotes) {
            if self.params.connection == Connection::Ud {
                lane.ah = Some(start_datagrams(&self.pd, lane, remote, &self.attr)?);
            } else {
                ferroce::connect(&lane.qp, &lane.local, remote, &self.attr)?;
            }
            lane.remote = Some(*remote);
        }
        let (size, most) = (self.params.size, self.mtu_bytes());
        if self.params.connection == Connection::Ud && size > most {
            let legal = format!("a datagram has at most the {most} bytes of the ports' path MTU");
            return Err(PerfError::Setting { name: "-s (--size)", value: size.to_string(), legal });
        }
        Ok(())
    }

    /// Where the datagrams of a lane go; `None` if its QPs are connected.
    ///
    /// # Errors
    /// [`PerfError::Protocol`] before [`Side::connect`].
    pub(crate) fn datagrams_to(&self, lane: usize) -> Result<Option<(AddressHandle, Qpn)>> {
        let lane = &self.lanes[lane];
        let remote = lane.remote.ok_or_else(untold)?;
        Ok(lane.ah.clone().map(|ah| (ah, remote.qpn)))
    }

    /// Which of the two sides this is.
    pub(crate) const fn role(&self) -> Role {
        self.role
    }

    /// Bytes that a QP's packets carry at most: what the two ports and the operator agree on.
    pub(crate) fn mtu_bytes(&self) -> u32 {
        let of_lane = |lane: &Lane| lane.remote.map_or(lane.local.path_mtu, |r| r.path_mtu.min(lane.local.path_mtu));
        self.lanes.first().map_or(0, |lane| of_lane(lane).bytes())
    }

    /// Where each message of a lane lies that is sent (or that a READ or atomic brings in).
    pub(crate) fn local_sges(&self, lane: usize) -> Result<Vec<[Sge; 1]>> {
        let Lane { tx_offset, rx_offset, .. } = self.lanes[lane];
        let base = match self.params.test.verb {
            Verb::Write | Verb::Send => tx_offset,
            Verb::Read | Verb::Atomic => rx_offset,
        };
        self.sges_from(base, self.params.size)
    }

    /// Where each message of a lane lies that is received, and what comes before it.
    pub(crate) fn receive_sges(&self, lane: usize) -> Result<Vec<[Sge; 1]>> {
        self.sges_from(self.lanes[lane].rx_offset, self.params.grh_bytes() + self.params.size)
    }

    fn sges_from(&self, base: u64, size: u32) -> Result<Vec<[Sge; 1]>> {
        let offsets = (0..self.params.slots()).map(|slot| base + u64::from(slot) * u64::from(self.params.stride()));
        offsets.map(|offset| Ok([self.region.sge(offset, size)?])).collect()
    }

    /// Address of a lane's area at the peer, and its key.
    pub(crate) fn remote_base(&self, lane: usize) -> Result<(u64, u32)> {
        let lane = &self.lanes[lane];
        let remote = lane.remote.ok_or_else(untold)?;
        // The peer's memory is laid out as ours. A sum that wraps is an address that the peer refuses.
        let offset = match self.params.test.verb {
            Verb::Read => lane.tx_offset,
            Verb::Write | Verb::Send | Verb::Atomic => lane.rx_offset,
        };
        Ok((remote.addr.wrapping_add(offset), remote.rkey))
    }

    /// Offset in our region of the last byte of the first message that is sent.
    pub(crate) fn tx_marker_offset(&self) -> u64 {
        self.lanes[0].tx_offset + u64::from(self.params.size) - 1
    }

    /// Offset in our region of the last byte of the first message that is received.
    pub(crate) fn rx_marker_offset(&self) -> u64 {
        self.lanes[0].rx_offset + u64::from(self.params.size) - 1
    }

    /// The bytes that a side sends from a lane's area.
    pub(crate) fn pattern(&self, role: Role, lane: usize) -> Vec<u8> {
        let seed = (lane as u64) << 1 | u64::from(role == Role::Client);
        pattern(seed, self.params.footprint() as usize)
    }

    /// Checks what `messages` of each lane have left in our memory: all of them, or of an unreliable service those that have
    /// arrived. Who measures is `self` for READs (their data came
    /// here), the peer for everything else.
    ///
    /// # Errors
    /// [`PerfError::Data`].
    pub(crate) fn verify(&self, messages: &[u64]) -> Result<()> {
        for (lane, &messages) in messages.iter().enumerate() {
            if self.params.test.verb == Verb::Atomic {
                self.verify_sum(lane, messages)?;
            } else {
                self.verify_bytes(lane, messages)?;
            }
        }
        Ok(())
    }

    /// Each fetch and add of the peer has added 1.
    fn verify_sum(&self, lane: usize, messages: u64) -> Result<()> {
        let mut word = [0; 8];
        self.region.read(self.lanes[lane].rx_offset, &mut word)?;
        let sum = u64::from_ne_bytes(word);
        if sum == messages {
            return Ok(());
        }
        Err(PerfError::Data(format!("{messages} fetch-and-adds of 1 on QP {lane} have made {sum}")))
    }

    fn verify_bytes(&self, lane: usize, messages: u64) -> Result<()> {
        let params = &self.params;
        let expected = self.pattern(self.role.peer(), lane);
        let (stride, grh) = (params.stride() as usize, params.grh_bytes() as usize);
        // A latency test uses one place, and numbers its messages in the last byte.
        let is_ping_pong = params.test.metric == Metric::Latency;
        let is_numbered = is_ping_pong && params.test.verb != Verb::Read;
        let slots = if is_ping_pong { 1 } else { params.slots() };
        let slots = messages.min(u64::from(slots)) as usize;
        let bytes = params.size as usize - usize::from(is_numbered);
        let mut found = vec![0; expected.len()];
        let mut patience = Patience::new();
        loop {
            self.region.read(self.lanes[lane].rx_offset, &mut found)?;
            let sent = |slot: usize| &expected[slot * stride..][..bytes];
            let came = |slot: usize| &found[slot * stride + grh..][..bytes];
            match (params.is_reliable(), params.test.verb) {
                (true, _) => return verify_all(lane, slots, sent, came),
                (false, Verb::Send) => {
                    // A message of several packets that broke off lies where the next one goes.
                    let broken = usize::from(params.size > self.mtu_bytes());
                    return verify_each(lane, [slots, params.slots() as usize], broken, sent, came);
                }
                (false, _) if slots == 0 || verify_parts(lane, slots, sent, came)? => return Ok(()),
                // No completion says that a WRITE has arrived: the peer's word that it has sent all may come before the packets.
                (false, _) => patience
                    .empty_turn()
                    .map_err(|_| PerfError::Data(format!("no message of QP {lane} has arrived whole")))?,
            }
        }
    }
}

/// Each message has arrived in its place.
fn verify_all<'b>(
    lane: usize,
    slots: usize,
    sent: impl Fn(usize) -> &'b [u8],
    came: impl Fn(usize) -> &'b [u8],
) -> Result<()> {
    for slot in 0..slots {
        if let Some(at) = sent(slot).iter().zip(came(slot)).position(|(sent, came)| sent != came) {
            return Err(PerfError::Data(format!("message {slot} of QP {lane} differs at byte {at}")));
        }
    }
    Ok(())
}

/// What arrived is one of the messages each, though some were lost between them. All but `broken` at most are whole.
fn verify_each<'b>(
    lane: usize,
    [received, slots]: [usize; 2],
    broken: usize,
    sent: impl Fn(usize) -> &'b [u8],
    came: impl Fn(usize) -> &'b [u8],
) -> Result<()> {
    let mut wrong = (0..received).filter(|&slot| !(0..slots).any(|other| sent(other) == came(slot)));
    match wrong.nth(broken) {
        Some(slot) => Err(PerfError::Data(format!("receive {slot} of QP {lane} is none of the messages"))),
        None => Ok(()),
    }
}

/// Messages that were lost have left the zeros that were there, wholly or from where they broke off. True if one is whole.
fn verify_parts<'b>(
    lane: usize,
    slots: usize,
    sent: impl Fn(usize) -> &'b [u8],
    came: impl Fn(usize) -> &'b [u8],
) -> Result<bool> {
    for slot in 0..slots {
        let mut bytes = sent(slot).iter().zip(came(slot));
        if let Some(at) = bytes.position(|(sent, came)| sent != came && *came != 0) {
            return Err(PerfError::Data(format!("message {slot} of QP {lane} differs at byte {at}")));
        }
    }
    Ok((0..slots).any(|slot| sent(slot) == came(slot)))
}

fn untold() -> PerfError {
    PerfError::Protocol("it has not told its QPs yet".to_owned())
}

/// Readies a UD QP, and finds the way to the peer's.
fn start_datagrams(
    pd: &ProtectionDomain,
    lane: &Lane,
    remote: &ConnectionInfo,
    attr: &ConnectAttr,
) -> Result<AddressHandle> {
    ferroce::start_datagrams(&lane.qp, attr.port_num, QKEY, lane.local.psn)?;
    let ah = AhAttr {
        dgid: remote.gid,
        sgid_index: attr.sgid_index,
        hop_limit: attr.hop_limit,
        port_num: attr.port_num,
        ..AhAttr::default()
    };
    Ok(pd.create_ah(&ah)?)
}

/// Bytes that differ from each other, from zero, and between seeds (splitmix64).
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let words = (1..=bytes.div_ceil(8) as u64).map(|number| {
        let mut word = (seed << 40 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    });
    let mut out: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    out.truncate(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Test;
    use crate::params::tests::params;

    /// Two connected sides between which nothing has moved, and the nodes that they live on.
    fn sides(params: &Params) -> ([daemon::embedded::PolledNode; 2], [Side; 2]) {
        let nodes = daemon::embedded::polled_pair(&daemon::embedded::engine_config("ferroce0")).unwrap();
        let roles = [Role::Server, Role::Client];
        let side = |place: usize| {
            let context = Context::from_endpoint(nodes[place].connect().unwrap()).unwrap();
            Side::new(&context, params, 0, roles[place]).unwrap()
        };
        let [mut server, mut client] = [side(0), side(1)];
        server.connect(&client.infos()).unwrap();
        client.connect(&server.infos()).unwrap();
        (nodes, [server, client])
    }

    #[test]
    fn bytes_that_did_not_come_are_seen_and_so_is_one_that_is_wrong() {
        let params = Params { size: 100, qps: 2, ..params(Test::bandwidth(Verb::Write)) };
        let (_nodes, [server, client]) = sides(&params);
        assert!(server.verify(&[0, 0]).is_ok(), "nothing was sent, nothing is checked");
        assert!(matches!(server.verify(&[1, 0]), Err(PerfError::Data(_))));
        for lane in 0..2 {
            server.region.write(server.lanes[lane].rx_offset, &client.pattern(Role::Client, lane)).unwrap();
        }
        server.verify(&[u64::MAX, 1]).unwrap();
        let at = server.lanes[1].rx_offset + 128 + 99;
        server.region.write(at, &[!client.pattern(Role::Client, 1)[227]]).unwrap();
        server.verify(&[u64::MAX, 1]).unwrap();
        let error = server.verify(&[u64::MAX, 2]).unwrap_err().to_string();
        assert_eq!(error, "wrong data: message 1 of QP 1 differs at byte 99");
    }

    #[test]
    fn losses_are_no_faults_but_wrong_bytes_are() {
        let sent: [&[u8]; 3] = [b"one", b"two", b"six"];
        let sent = |slot: usize| sent[slot];
        let parts =
            |came: [&'static [u8]; 3]| verify_parts(0, 3, sent, move |slot| came[slot]).is_ok_and(|whole| whole);
        assert!(parts([b"one", b"two", b"six"]) && parts([b"\0\0\0", b"two", b"s\0\0"]));
        assert!(!parts([b"one", b"two", b"s\0y"]), "a byte that nobody sent");
        assert!(!parts([b"\0\0\0", b"t\0\0", b"\0\0\0"]), "nothing came whole");
        let each =
            |came: [&'static [u8]; 3], broken| verify_each(0, [3, 3], broken, sent, move |slot| came[slot]).is_ok();
        assert!(each([b"two", b"six", b"two"], 0) && each([b"two", b"siy", b"two"], 1));
        assert!(!each([b"two", b"siy", b"two"], 0) && !each([b"twx", b"siy", b"two"], 1));
    }

    #[test]
    fn an_atomic_that_was_not_done_or_done_twice_is_seen() {
        let (_nodes, [server, _client]) = sides(&params(Test::bandwidth(Verb::Atomic)));
        server.region.write(server.lanes[0].rx_offset, &5_u64.to_ne_bytes()).unwrap();
        server.verify(&[5]).unwrap();
        assert!(server.verify(&[4]).unwrap_err().to_string().contains("4 fetch-and-adds of 1 on QP 0 have made 5"));
        assert!(server.verify(&[6]).is_err());
    }

    #[test]
    fn a_peer_with_other_memory_is_refused() {
        let (_nodes, [server, mut client]) = sides(&params(Test::bandwidth(Verb::Write)));
        let mut infos = server.infos();
        infos[0].length += 1;
        assert!(matches!(client.connect(&infos), Err(PerfError::Protocol(_))));
        assert!(matches!(client.connect(&[]), Err(PerfError::Protocol(_))));
    }

    #[test]
    fn patterns_differ_between_seeds_and_have_their_length() {
        assert_eq!((pattern(1, 13).len(), pattern(1, 0).len()), (13, 0));
        assert_eq!(pattern(7, 4096), pattern(7, 4096));
        assert_ne!(pattern(0, 64), pattern(1, 64));
        assert_ne!(pattern(0, 64)[..32], pattern(0, 64)[32..]);
    }
}
