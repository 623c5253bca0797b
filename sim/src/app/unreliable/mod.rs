//! Two applications that talk over a UC or a UD QP each. What such a service loses is lost; but whatever arrives is one of the
//! messages that were sent, whole and no more often than the network has made copies of it, and every send completes.

mod end;

use std::fmt;

use engine::Time;
use ferroce::{
    AhAttr, ConnectAttr, PathMtu, Psn, QpType, RemoteQp, WcFlags, WcOpcode, WcStatus, WorkCompletion, start_datagrams,
};
use rand::Rng;

use super::guest::{Guest, GuestCounts};
use super::memory::compare;
use crate::host::Host;
use crate::random::{Stream, chance};
use crate::trace::TraceHash;
use crate::violation::{Checked, OrSay, require};
use end::{End, Fate, QKEY};

/// What a datagram's receive begins with.
const GRH_BYTES: u32 = 40;

/// Two applications over an unreliable service.
#[derive(Clone, PartialEq, Debug)]
pub struct UnreliableSettings {
    /// UC or UD.
    pub service: QpType,
    /// Where the two applications run.
    pub hosts: [u8; 2],
    /// Messages of each side.
    pub messages: [u32; 2],
    /// Longest message, bytes; at most the path MTU with UD.
    pub message_bytes_max: u32,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Sends under way at most.
    pub max_send_wr: u32,
    /// Receives posted at most.
    pub max_recv_wr: u32,
    /// A receive is posted so long after its predecessor completed, at most, ns.
    pub recv_delay_ns: u64,
    /// An application looks so long after something happened, at most, ns.
    pub step_delay_ns: u64,
    /// Of a million sends so many ask for a completion.
    pub signal_ppm: u32,
    /// Of a million messages so many are WRITEs (UC).
    pub write_ppm: u32,
    /// Of a million messages so many have a Q_Key that is not the peer's (UD).
    pub stray_ppm: u32,
    /// Of a million messages so many have a wrong L_Key: the QP goes to SQE, and is resumed.
    pub bad_lkey_ppm: u32,
    /// Short messages go inline.
    pub inline: bool,
    /// GID, hop limit and the like.
    pub attr: ConnectAttr,
}

impl UnreliableSettings {
    /// `messages` of up to `bytes` from host 0 to host 1, with a receive for each.
    pub fn new(service: QpType, messages: u32, bytes: u32) -> Self {
        Self {
            service,
            hosts: [0, 1],
            messages: [messages, 0],
            message_bytes_max: bytes,
            path_mtu: PathMtu::M1024,
            max_send_wr: 16,
            max_recv_wr: messages.max(1),
            recv_delay_ns: 0,
            step_delay_ns: 1_000,
            signal_ppm: 500_000,
            write_ppm: 0,
            stray_ppm: 0,
            bad_lkey_ppm: 0,
            inline: false,
            attr: ConnectAttr::default(),
        }
    }

    fn grh_bytes(&self) -> u32 {
        if self.service == QpType::Ud { GRH_BYTES } else { 0 }
    }
}

/// The two applications, seen from above.
pub(crate) struct Unreliable {
    settings: UnreliableSettings,
    ends: [End; 2],
    stream: Stream,
    trace: TraceHash,
    counts: GuestCounts,
    /// The network may make copies of frames.
    may_duplicate: bool,
    /// The network loses nothing.
    is_lossless: bool,
}

impl Unreliable {
    /// Makes both sides and readies their QPs. `is_lossless`, `may_duplicate`: what the link between their hosts does.
    pub(crate) fn new(
        settings: UnreliableSettings,
        hosts: [&Host; 2],
        [is_lossless, may_duplicate]: [bool; 2],
        mut stream: Stream,
    ) -> Checked<Self> {
        let ends = [End::new(hosts[0], &settings, 0, &mut stream)?, End::new(hosts[1], &settings, 1, &mut stream)?];
        let is_local = settings.hosts[0] == settings.hosts[1];
        let counts = GuestCounts::default();
        let mut made = Self {
            settings,
            ends,
            stream,
            trace: TraceHash::default(),
            counts,
            may_duplicate: may_duplicate && !is_local,
            is_lossless: is_lossless || is_local,
        };
        made.connect()?;
        for end in &mut made.ends {
            end.post_receives(Time::ZERO)?;
        }
        Ok(made)
    }

    fn connect(&mut self) -> Checked {
        let attr = self.settings.attr;
        let psns: [Psn; 2] = std::array::from_fn(|_| Psn::new(self.stream.random_range(0..=Psn::MASK)));
        for side in [0, 1] {
            let gids = self.ends[1 - side].context.query_gids(1).or_say("asking for the peer's GIDs")?;
            let entry = gids.iter().find(|entry| entry.index == u32::from(attr.sgid_index));
            let gid = entry.ok_or("the peer's port has no such GID")?.gid;
            let peer = self.ends[1 - side].qp.qpn();
            let end = &mut self.ends[side];
            if self.settings.service == QpType::Ud {
                start_datagrams(&end.qp, 1, QKEY, psns[side]).or_say("readying a UD QP")?;
                let ah = AhAttr {
                    dgid: gid,
                    sgid_index: attr.sgid_index,
                    hop_limit: attr.hop_limit,
                    flow_label: attr.flow_label,
                    traffic_class: attr.traffic_class,
                    sl: attr.sl,
                    static_rate: 0,
                    port_num: 1,
                };
                end.to = Some((end.pd.create_ah(&ah).or_say("making an address handle")?, peer));
            } else {
                let remote = RemoteQp { qpn: peer, psn: psns[1 - side], gid, path_mtu: self.settings.path_mtu };
                end.qp.to_rtr(&remote, &attr).or_say("to RTR")?;
                end.qp.to_rts(psns[side], &attr).or_say("to RTS")?;
            }
        }
        Ok(())
    }

    /// Posts what a side has to send and has room for.
    fn post_sends(&mut self, side: usize) -> Checked {
        let Self { settings, ends, stream, .. } = self;
        let [first, second] = ends;
        let (end, peer) = if side == 0 { (first, second) } else { (second, first) };
        while end.wants_to_send(settings, side) {
            let target = peer.target();
            end.post_send(settings, side, target, stream)?;
        }
        Ok(())
    }

    fn complete(&mut self, side: usize, wc: &WorkCompletion, now: Time) -> Checked {
        self.trace.add(now.as_ns());
        self.trace.add(wc.wr_id);
        self.trace.add(u64::from(wc.status.code()) << 32 | u64::from(wc.byte_len));
        self.counts.completions += 1;
        require!(wc.qpn == self.ends[side].qp.qpn(), "a completion of QP {}, which is not there", wc.qpn);
        if wc.is_recv() { self.complete_recv(side, wc, now) } else { self.ends[side].complete_send(wc) }
    }

    /// A message has arrived: it is one that was sent, whole, and not more often than it may.
    fn complete_recv(&mut self, side: usize, wc: &WorkCompletion, now: Time) -> Checked {
        require!(wc.status == WcStatus::Success, "a receive failed with {}", wc.status);
        let grh_bytes = self.settings.grh_bytes();
        let slot = self.ends[side].take_receive(wc.wr_id, &self.settings, now, &mut self.stream)?;
        let is_write = wc.opcode == WcOpcode::RecvRdmaWithImm;
        let is_datagram = self.settings.service == QpType::Ud;
        require!(
            wc.flags.contains(WcFlags::GRH) == is_datagram,
            "a GRH is said to be there, or is not: {:?}",
            wc.flags
        );
        require!(wc.byte_len >= grh_bytes, "a datagram of {} bytes has no GRH", wc.byte_len);
        let length = wc.byte_len - grh_bytes;
        let came = self.ends[side].received(slot, if is_write { 0 } else { wc.byte_len })?;
        let body = came.get(grh_bytes as usize..).unwrap_or_default();
        let peer = self.ends[1 - side].qp.qpn();
        require!(!is_datagram || wc.src_qpn == peer, "a datagram of QP {} says it is QP {}'s", peer, wc.src_qpn);
        let named = || Some(u32::from_le_bytes(*body.first_chunk()?));
        let number = wc.imm().or_else(named).ok_or("a message of less than 4 bytes came without an immediate")?;
        let may_come = 1 + u32::from(self.may_duplicate);
        let (content, target) = {
            let message = self.ends[1 - side].message(number)?;
            require!(message.fate == Fate::Sent, "message {number} arrived, which was {}", message.fate);
            require!(message.length == length, "message {number} has {} bytes, {length} came", message.length);
            require!(message.is_write == is_write, "message {number} came as {}", wc.opcode);
            message.came += 1;
            require!(message.came <= may_come, "message {number} arrived {} times", message.came);
            (message.content(), message.target)
        };
        self.counts.arrived += 1;
        if is_write {
            let real = self.ends[side].written(target, length)?;
            return compare(&format!("WRITE {number}"), &real, &content);
        }
        compare(&format!("message {number}"), body, &content)
    }

    /// Every WRITE lies at the peer as far as it came, and nothing else does.
    fn check_writes(&mut self, side: usize) -> Checked {
        let mtu = self.settings.path_mtu.bytes();
        for number in 0..self.ends[1 - side].message_count() {
            let message = self.ends[1 - side].message(number)?.clone();
            let real = self.ends[side].written(message.target, self.settings.message_bytes_max)?;
            let came = real.iter().take_while(|&&byte| byte != 0).count() as u32;
            let content = message.content();
            let is_cut_right = came == message.length || came.is_multiple_of(mtu);
            let may_be_there = message.is_write && message.fate == Fate::Sent;
            require!(came == 0 || may_be_there, "message {number} is no WRITE, yet {came} bytes of it were written");
            require!(is_cut_right && came <= message.length, "WRITE {number} was written up to byte {came}");
            compare(&format!("WRITE {number}"), &real[..came as usize], &content[..came as usize])?;
            require!(real[came as usize..].iter().all(|&byte| byte == 0), "WRITE {number} has a gap at byte {came}");
            // One that finds no receive is not executed.
            let is_certain = self.is_lossless && !message.takes_receive();
            let must_be_whole = may_be_there && (message.came > 0 || is_certain);
            require!(!must_be_whole || came == message.length, "WRITE {number} is not whole: {came} bytes came");
        }
        Ok(())
    }
}

impl Guest for Unreliable {
    fn host(&self, side: usize) -> usize {
        usize::from(self.settings.hosts[side])
    }

    fn draw_delay(&mut self) -> u64 {
        self.stream.random_range(0..=self.settings.step_delay_ns)
    }

    fn step(&mut self, side: usize, now: Time) -> Checked<Option<Time>> {
        for wc in self.ends[side].poll() {
            self.complete(side, &wc, now)?;
        }
        self.ends[side].resume()?;
        self.ends[side].post_receives(now)?;
        self.post_sends(side)?;
        Ok(self.ends[side].next_receive_at().map(|at| at.max(now.add_ns(1))))
    }

    fn is_done(&self) -> bool {
        self.ends.iter().zip(self.settings.messages).all(|(end, messages)| end.is_done(messages))
    }

    fn unfinished(&self) -> String {
        let side = |side: usize| self.ends[side].unfinished(self.settings.messages[side]);
        format!("{}: side 0 {}, side 1 {}", self.settings.service, side(0), side(1))
    }

    fn check_at_rest(&mut self) -> Checked {
        for side in [0, 1] {
            self.check_writes(side)?;
            let end = &mut self.ends[side];
            require!(!end.cq.is_overrun(), "side {side}: a CQ has overrun");
            end.memory.check().map_err(|what| format!("side {side}: {what}"))?;
            // Nothing was lost, and there was a receive for everything.
            if self.is_lossless && self.settings.max_recv_wr >= self.settings.messages[1 - side] {
                self.ends[1 - side].check_all_came()?;
            }
        }
        Ok(())
    }

    fn trace(&self) -> TraceHash {
        self.trace
    }

    fn counts(&self) -> GuestCounts {
        self.counts
    }
}

/// True in `ppm` of a million cases, and never for a service that has no such thing.
fn draw_if(stream: &mut Stream, has_it: bool, ppm: u32) -> bool {
    has_it && chance(stream, ppm)
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "sent",
            Self::Stray => "sent with another Q_Key",
            Self::Refused => "refused for its L_Key",
            Self::Flushed => "flushed",
        })
    }
}
