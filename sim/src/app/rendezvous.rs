//! An application that connects by address, again and again, and one that listens. Over a link that loses and repeats their
//! messages both must come to agree: each attempt is a connection on both sides, over which data go both ways, or on neither.
//! In the end nothing is left of any.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use engine::Time;
use ferroce::cm::{CmEvent, CmEventType, CmId, ConnParam, EventChannel, PortSpace};
use ferroce::{
    CompletionQueue, Context, CqInit, ProtectionDomain, QpCap, QpInit, QueuePair, RecvWr, SendWr, WorkCompletion,
};
use rand::Rng;

use super::guest::{Guest, GuestCounts};
use crate::host::Host;
use crate::random::{Stream, chance};
use crate::trace::TraceHash;
use crate::violation::{Checked, OrSay, require};

/// How often a side looks for events: they are of the control side, which wakes nobody here.
const LOOK_NS: u64 = 500_000;
/// An id that was destroyed without a word has its engine tell the peer, so long at most: 16 times, 4.3 s apart.
const FAREWELL_NS: u64 = 80_000_000_000;
const BACKLOG: u32 = 64;
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const CAP: QpCap = QpCap { max_send_wr: 2, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
/// REJ reason: the application's own.
const REJECTED_BY_CONSUMER: i32 = 28;

/// Who ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Who has connected.
    Client,
    /// Who has listened.
    Server,
    /// Both at about the same time.
    Both,
    /// The client's id is destroyed without a word.
    Abrupt,
}

/// Connections to be made, one after the other on some lines at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RendezvousSettings {
    /// Where client and server run.
    pub hosts: [u8; 2],
    /// Connections.
    pub connections: u32,
    /// At a time.
    pub outstanding: u32,
    /// Of a million requests the server refuses so many.
    pub refuse_ppm: u32,
    /// The server answers so long after a request, at most, ns.
    pub answer_delay_ns: u64,
    /// How each connection ends, by turns.
    pub ends: Vec<End>,
    /// A side looks so long after something happened, at most, ns.
    pub step_delay_ns: u64,
}

/// An attempt to connect: the number of the connection, and which attempt it is.
type Attempt = [u32; 2];

fn said(attempt: Attempt) -> Vec<u8> {
    attempt.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn heard(bytes: &[u8]) -> Checked<Attempt> {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
    match (word(0), word(4)) {
        (Some(number), Some(attempt)) => Ok([number, attempt]),
        _ => Err(format!("private data of {} bytes came", bytes.len())),
    }
}

/// What both sides have.
struct Side {
    channel: EventChannel,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    context: Context,
}

/// A connection as one side knows it.
struct Line {
    attempt: Attempt,
    id: CmId,
    qp: Option<QueuePair>,
    /// The peer's message has come, or what was sent was acknowledged.
    has_heard: bool,
    is_up: bool,
    /// This side has ended it.
    is_ended: bool,
}

/// A request that the server has not answered.
struct Asked {
    at: Time,
    event: CmEvent,
}

/// The two applications.
pub(crate) struct Rendezvous {
    settings: RendezvousSettings,
    sides: [Side; 2],
    listener: CmId,
    address: SocketAddr,
    /// Both sides' connections, by handle.
    lines: [BTreeMap<u32, Line>; 2],
    /// Requests that wait for an answer.
    asked: Vec<Asked>,
    /// What the server has accepted, and what it has refused.
    accepted: BTreeSet<Attempt>,
    refused: BTreeSet<Attempt>,
    /// Connections to be made: number and attempt, and when.
    due: Vec<(Time, Attempt)>,
    next: u32,
    open: u32,
    /// Connections that are over.
    closed: u32,
    /// The engine may still be saying farewell for the client.
    farewell_until: Option<Time>,
    stream: Stream,
    trace: TraceHash,
    counts: GuestCounts,
}

impl Side {
    fn new(host: &Host, outstanding: u32) -> Checked<Self> {
        let context = Context::from_endpoint(host.connect()?).or_say("opening a session")?;
        let channel = EventChannel::new(&context).or_say("making an event channel")?;
        let pd = context.alloc_pd().or_say("making a domain")?;
        // Connections that linger have completions in it as well.
        let cqe = 256 * outstanding.max(1);
        let cq = context.create_cq(&CqInit { cqe, ..CqInit::default() }).or_say("making a CQ")?;
        Ok(Self { channel, cq, pd, context })
    }

    /// A QP with one receive for an empty message.
    fn create_qp(&self, id: &CmId) -> Checked<QueuePair> {
        let init = QpInit { cap: CAP, ..QpInit::rc(&self.cq) };
        let qp = id.create_qp(&self.pd, &init).or_say("making a QP for an id")?;
        qp.post_recv(&RecvWr::new(0, &[])).or_say("posting a receive")?;
        Ok(qp)
    }
}

impl Rendezvous {
    /// A server that listens and a client with all connections before it.
    pub(crate) fn new(settings: RendezvousSettings, hosts: [&Host; 2], port: u16, mut stream: Stream) -> Checked<Self> {
        let sides = [Side::new(hosts[0], settings.outstanding)?, Side::new(hosts[1], settings.outstanding)?];
        let ip = if stream.random() { hosts[1].ipv4() } else { hosts[1].ipv6() };
        let address = SocketAddr::new(ip, port);
        let listener = sides[1].channel.create_id(PortSpace::Tcp).or_say("making a listener")?;
        listener.bind_addr(address).or_say("binding")?;
        listener.listen(BACKLOG).or_say("listening")?;
        Ok(Self {
            settings,
            sides,
            listener,
            address,
            lines: [BTreeMap::new(), BTreeMap::new()],
            asked: Vec::new(),
            accepted: BTreeSet::new(),
            refused: BTreeSet::new(),
            due: Vec::new(),
            next: 0,
            open: 0,
            closed: 0,
            farewell_until: None,
            stream,
            trace: TraceHash::default(),
            counts: GuestCounts::default(),
        })
    }

    /// True if no application has anything to do.
    fn is_over(&self) -> bool {
        self.closed == self.settings.connections && self.lines.iter().all(BTreeMap::is_empty) && self.asked.is_empty()
    }

    fn end_of(&self, attempt: Attempt) -> End {
        self.settings.ends.get(attempt[0] as usize % self.settings.ends.len().max(1)).copied().unwrap_or(End::Client)
    }

    /// Begins what is due.
    fn begin(&mut self, now: Time) -> Checked {
        while self.open < self.settings.outstanding && self.next < self.settings.connections {
            self.due.push((now, [self.next, 0]));
            self.next += 1;
            self.open += 1;
        }
        let due: Vec<Attempt> = self.due.extract_if(.., |(at, _)| *at <= now).map(|(_, attempt)| attempt).collect();
        for attempt in due {
            let id = self.sides[0].channel.create_id(PortSpace::Tcp).or_say("making an id")?;
            id.resolve_addr(None, self.address, RESOLVE_TIMEOUT).or_say("resolving an address")?;
            self.add(0, attempt, id, None);
        }
        Ok(())
    }

    fn add(&mut self, side: usize, attempt: Attempt, id: CmId, qp: Option<QueuePair>) {
        let line = Line { attempt, qp, has_heard: false, is_up: false, is_ended: false, id };
        self.lines[side].insert(line.id.handle(), line);
    }

    fn note(&mut self, side: usize, event: &CmEvent, now: Time) {
        self.trace.add(now.as_ns());
        self.trace.add((side as u64) << 32 | u64::from(event.event_type().code()));
        self.trace.add(event.status() as u64);
    }

    /// An event of the client.
    fn take_client(&mut self, event: &CmEvent, now: Time) -> Checked {
        let handle = event.id().handle();
        let Some(line) = self.lines[0].get_mut(&handle) else {
            return Err(format!("{:?} of an id that is gone", event.event_type()));
        };
        let attempt = line.attempt;
        match event.event_type() {
            CmEventType::AddrResolved => line.id.resolve_route(RESOLVE_TIMEOUT).or_say("resolving a route"),
            CmEventType::RouteResolved => {
                line.qp = Some(self.sides[0].create_qp(&line.id)?);
                let param = ConnParam {
                    private_data: said(attempt),
                    retry_count: 7,
                    rnr_retry_count: 7,
                    ..ConnParam::default()
                };
                line.id.connect(&param).or_say("connecting")
            }
            CmEventType::Established => {
                require!(!line.is_up, "{attempt:?} was established twice");
                line.is_up = true;
                require!(heard(event.private_data())? == attempt, "the answer to {attempt:?} is another one's");
                require!(self.accepted.contains(&attempt), "{attempt:?} was established, but not accepted");
                self.counts.connected += 1;
                self.say(0, handle)
            }
            CmEventType::Rejected if event.status() == REJECTED_BY_CONSUMER => {
                require!(self.refused.contains(&attempt), "{attempt:?} was refused, which the server has not done");
                require!(heard(event.private_data())? == attempt, "the refusal of {attempt:?} is another one's");
                self.counts.refused += 1;
                self.close_client(handle, None);
                Ok(())
            }
            CmEventType::Disconnected => self.disconnect(0, handle),
            CmEventType::TimewaitExit => {
                let again = self.lines[0].get(&handle).filter(|line| !line.has_heard).map(|_| now);
                self.close_client(handle, again);
                Ok(())
            }
            other if event.error().is_some() => {
                self.trace.add(u64::from(other.code()));
                self.close_client(handle, Some(now));
                Ok(())
            }
            other => Err(format!("the client got {other:?}")),
        }
    }

    /// Nothing is left of a client's attempt. `again`: the next one.
    fn close_client(&mut self, handle: u32, again: Option<Time>) {
        let Some(line) = self.lines[0].remove(&handle) else { return };
        let [number, attempt] = line.attempt;
        match again {
            Some(now) => {
                self.counts.failed_attempts += 1;
                let wait = self.stream.random_range(1..=10_000_000);
                self.due.push((now.add_ns(wait), [number, attempt + 1]));
            }
            None => {
                self.open -= 1;
                self.closed += 1;
            }
        }
    }

    /// An event of the server. True if the event is to be kept: it is answered later.
    fn take_server(&mut self, event: &CmEvent) -> Checked<bool> {
        let handle = event.id().handle();
        match event.event_type() {
            CmEventType::ConnectRequest => {
                let attempt = heard(event.private_data())?;
                require!(
                    !self.accepted.contains(&attempt),
                    "the request of {attempt:?} came again after it was accepted"
                );
                require!(event.listener() == Some(&self.listener), "a request came to another listener");
                return Ok(true);
            }
            CmEventType::Established => {
                if let Some(line) = self.lines[1].get_mut(&handle) {
                    line.is_up = true;
                }
            }
            CmEventType::Disconnected => self.disconnect(1, handle)?,
            CmEventType::TimewaitExit => drop(self.lines[1].remove(&handle)),
            _ if event.error().is_some() => {
                // The client went away, or its last message never came: the other one will see to it that both know.
                self.lines[1].remove(&handle);
            }
            other => return Err(format!("the server got {other:?}")),
        }
        Ok(false)
    }

    fn answer(&mut self, event: &CmEvent) -> Checked {
        let attempt = heard(event.private_data())?;
        let id = event.id();
        if !self.accepted.contains(&attempt)
            && (self.refused.contains(&attempt) || chance(&mut self.stream, self.settings.refuse_ppm))
        {
            self.refused.insert(attempt);
            // The client may have given up meanwhile.
            let _gone = id.reject(&said(attempt));
            return Ok(());
        }
        let qp = self.sides[1].create_qp(id)?;
        let param = ConnParam { private_data: said(attempt), ..event.answer() };
        if id.accept(&param).is_ok() {
            self.accepted.insert(attempt);
            self.add(1, attempt, id.clone(), Some(qp));
        }
        Ok(())
    }

    /// Sends this side's only message.
    fn say(&mut self, side: usize, handle: u32) -> Checked {
        let Some(line) = self.lines[side].get(&handle) else { return Ok(()) };
        let Some(qp) = &line.qp else { return Ok(()) };
        let wr = SendWr::send(u64::from(handle), &[]).with_imm(line.attempt[0]).signaled();
        qp.post_send(&wr).or_say("posting")
    }

    /// Ends a connection from this side, once.
    fn disconnect(&mut self, side: usize, handle: u32) -> Checked {
        let Some(line) = self.lines[side].get_mut(&handle) else { return Ok(()) };
        if !std::mem::replace(&mut line.is_ended, true) {
            // The peer may have ended it a moment ago: then there is nothing to end.
            let _ended = line.id.disconnect();
        }
        Ok(())
    }

    /// A message, or the acknowledgement of one.
    fn complete(&mut self, side: usize, wc: &WorkCompletion, now: Time) -> Checked {
        self.trace.add(now.as_ns());
        self.trace.add(u64::from(wc.status.code()));
        self.counts.completions += 1;
        let found = self.lines[side].iter().find(|(_, line)| line.qp.as_ref().is_some_and(|qp| qp.qpn() == wc.qpn));
        let Some((&handle, line)) = found else { return Ok(()) };
        let attempt = line.attempt;
        if !wc.is_ok() {
            // Flushed, or the peer is gone.
            return self.disconnect(side, handle);
        }
        if !wc.is_recv() {
            return Ok(());
        }
        require!(wc.imm() == Some(attempt[0]), "{attempt:?} got {:?}, which was for another connection", wc.imm());
        let first = self.lines[side].get_mut(&handle).is_some_and(|line| !std::mem::replace(&mut line.has_heard, true));
        require!(first, "{attempt:?} got its message twice");
        let end = self.end_of(attempt);
        match (side, end) {
            (1, _) => {
                // Data can come before the last message of the handshake does. Else it is known already.
                let _known = self.lines[1].get(&handle).map(|line| line.id.notify());
                self.say(1, handle)
            }
            (_, End::Client) => self.disconnect(0, handle),
            (_, End::Both | End::Server) => {
                if end == End::Both {
                    self.disconnect(0, handle)?;
                }
                let other = self.lines[1].iter().find(|(_, line)| line.attempt == attempt).map(|(&handle, _)| handle);
                other.map_or(Ok(()), |other| self.disconnect(1, other))
            }
            (_, End::Abrupt) => {
                self.farewell_until = Some(now.add_ns(FAREWELL_NS));
                self.close_client(handle, None);
                Ok(())
            }
        }
    }
}

impl Guest for Rendezvous {
    fn host(&self, side: usize) -> usize {
        usize::from(self.settings.hosts[side])
    }

    fn draw_delay(&mut self) -> u64 {
        self.stream.random_range(0..=self.settings.step_delay_ns)
    }

    fn step(&mut self, side: usize, now: Time) -> Checked<Option<Time>> {
        let mut batch = [WorkCompletion::default(); 8];
        loop {
            let count = self.sides[side].cq.poll(&mut batch);
            if count == 0 {
                break;
            }
            for wc in &batch[..count] {
                self.complete(side, wc, now)?;
            }
        }
        while let Some(event) = self.sides[side].channel.try_get_event().or_say("asking for an event")? {
            self.note(side, &event, now);
            if side == 0 {
                self.take_client(&event, now)?;
            } else if self.take_server(&event)? {
                let delay = self.stream.random_range(0..=self.settings.answer_delay_ns);
                self.asked.push(Asked { at: now.add_ns(delay), event });
            }
        }
        if side == 0 {
            self.begin(now)?;
        } else {
            let due: Vec<Asked> = self.asked.extract_if(.., |asked| asked.at <= now).collect();
            for asked in due {
                self.answer(&asked.event)?;
            }
        }
        if !self.is_over() {
            return Ok(Some(now.add_ns(LOOK_NS)));
        }
        self.farewell_until = self.farewell_until.filter(|&until| until > now);
        Ok(self.farewell_until)
    }

    fn is_done(&self) -> bool {
        self.is_over() && self.farewell_until.is_none()
    }

    fn unfinished(&self) -> String {
        let attempts = |side: usize| self.lines[side].values().map(|line| line.attempt).collect::<Vec<_>>();
        format!(
            "{} of {} connections are over; the client has {:?}, the server {:?} and {} requests",
            self.closed,
            self.settings.connections,
            attempts(0),
            attempts(1),
            self.asked.len()
        )
    }

    fn check_at_rest(&mut self) -> Checked {
        for (side, name) in self.sides.iter().zip(["client", "server"]) {
            require!(!side.cq.is_overrun(), "the {name}'s CQ has overrun");
            let event = side.channel.try_get_event().or_say("asking for an event")?;
            require!(event.is_none(), "the {name} got an event though nothing was to happen");
            require!(side.context.is_alive(), "the {name}'s session is dead");
        }
        let total = self.counts.connected + self.counts.refused;
        let all = u64::from(self.settings.connections);
        require!(total >= all, "{total} attempts were answered, of {all} connections");
        Ok(())
    }

    fn trace(&self) -> TraceHash {
        self.trace
    }

    fn counts(&self) -> GuestCounts {
        self.counts
    }
}
