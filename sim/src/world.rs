//! The world: two hosts, the link between them, the applications on them, and the order in which things happen.

use engine::Time;
use ferroce::ConnectAttr;
use wire::PfcRepr;

use crate::agenda::Agenda;
use crate::app::{
    Conversation, ConversationSettings, Guest, GuestCounts, Rendezvous, RendezvousSettings, Unreliable,
    UnreliableSettings,
};
use crate::capture::Capture;
use crate::host::{self, Host, HostSettings};
use crate::link::{Direction, Faults, LinkSettings, Rule};
use crate::random::{StreamOf, stream};
use crate::shrink::FaultKind;
use crate::trace::TraceHash;
use crate::violation::{Checked, OrSay, Violation, require};

/// Hosts of a world.
pub const HOST_COUNT: usize = 2;
/// Things that may happen in [`LIVELOCK_WINDOW_NS`] before somebody must be running in circles.
const LIVELOCK_EVENTS: u64 = 200_000;
const LIVELOCK_WINDOW_NS: u64 = 1_000_000;

/// Applications that are no conversation.
#[derive(Clone, PartialEq, Debug)]
pub enum GuestSettings {
    /// Two that talk over UC or UD.
    Unreliable(UnreliableSettings),
    /// Two that connect by address.
    Rendezvous(RendezvousSettings),
}

/// What holds a host up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoldKind {
    /// It and those on it do nothing for so long, ns.
    Stall {
        /// How long.
        ns: u64,
    },
    /// The link tells it to pause (IEEE 802.1Qbb).
    Pause {
        /// A bit for each priority.
        priorities: u8,
        /// For so long, in 512 bit times.
        quanta: u16,
    },
}

impl HoldKind {
    /// What kind of fault it is.
    pub const fn fault(self) -> FaultKind {
        match self {
            Self::Stall { .. } => FaultKind::Stalls,
            Self::Pause { .. } => FaultKind::Pauses,
        }
    }
}

/// A hold and its moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    /// What.
    pub kind: HoldKind,
    /// Who.
    pub host: usize,
    /// When.
    pub at: Time,
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct WorldSettings {
    /// The hosts.
    pub hosts: [HostSettings; HOST_COUNT],
    /// The link, both ways.
    pub link: LinkSettings,
    /// Faults of what each host sends.
    pub faults: [Faults; HOST_COUNT],
    /// Scripted faults of what each host sends.
    pub rules: [Vec<Rule>; HOST_COUNT],
    /// What holds hosts up.
    pub holds: Vec<Hold>,
    /// The applications.
    pub conversations: Vec<ConversationSettings>,
    /// Others.
    pub guests: Vec<GuestSettings>,
    /// How long a packet may live, ns.
    pub linger_ns: u64,
}

impl WorldSettings {
    /// True if a QP with these attributes may use its retries up: by a rule, a host that is held up, or faults that are more than mild.
    fn may_break(&self, attr: &ConnectAttr) -> bool {
        let is_bad = |faults: &Faults| !faults.is_mild() || (*faults != Faults::NONE && attr.retry_cnt < 7);
        let is_ruled = self.rules.iter().any(|rules| !rules.is_empty());
        self.faults.iter().any(is_bad) || is_ruled || !self.holds.is_empty()
    }
}

/// Something that happens.
#[derive(Debug)]
enum Event {
    /// A host's turn, if it is still planned for now.
    Turn { host: usize },
    /// A host's device has sent a frame.
    Sent { host: usize, frame: Vec<u8> },
    /// A frame has come to a host.
    Arrived { host: usize, frame: Vec<u8> },
    /// An application looks, if it still means to.
    Step { conversation: usize, side: usize },
    /// The same of a guest.
    Visit { guest: usize, side: usize },
    /// Something holds a host up.
    Held(Hold),
}

/// Two hosts and all that is on and between them.
pub struct World {
    agenda: Agenda<Event>,
    hosts: [Host; HOST_COUNT],
    directions: [Direction; HOST_COUNT],
    /// A frame of the host is being sent.
    is_sending: [bool; HOST_COUNT],
    turn_at: [Time; HOST_COUNT],
    /// Until when each host does nothing.
    stalled_until: [Time; HOST_COUNT],
    conversations: Vec<Conversation>,
    step_at: Vec<[Time; 2]>,
    guests: Vec<Box<dyn Guest>>,
    visit_at: Vec<[Time; 2]>,
    trace: TraceHash,
    capture: Option<Capture>,
    event_count: u64,
    window_start: Time,
    window_events: u64,
}

impl World {
    /// A world at time 0, with every session open and every QP connected. `captures`: frames are kept.
    ///
    /// # Errors
    /// What did not work in setting it up.
    pub fn new(seed: u64, settings: &WorldSettings, captures: bool) -> Result<Self, Violation> {
        Self::set_up(seed, settings, captures).map_err(|what| Violation { at: Time::ZERO, what })
    }

    fn set_up(seed: u64, settings: &WorldSettings, captures: bool) -> Checked<Self> {
        let host = |number: u8| {
            let stream = stream(seed, StreamOf::Host(number));
            Host::new(u16::from(number), settings.hosts[usize::from(number)], settings.link.mtu, stream)
                .or_say("making a host")
        };
        let direction = |number: u8| {
            let (rules, faults) = (settings.rules[usize::from(number)].clone(), settings.faults[usize::from(number)]);
            Direction::new(settings.link, faults, rules, stream(seed, StreamOf::Direction(number)))
        };
        let hosts = [host(0)?, host(1)?];
        let mut conversations = Vec::new();
        for (settings_of_one, number) in settings.conversations.iter().zip(0..) {
            let ours = settings_of_one.hosts.map(|host| &hosts[usize::from(host)]);
            let stream = stream(seed, StreamOf::Conversation(number));
            let made = Conversation::new(settings_of_one.clone(), ours, number, settings.linger_ns, stream);
            let mut made = made.map_err(|what| format!("conversation {number}: {what}"))?;
            made.set_may_break(settings.may_break(&settings_of_one.attr));
            conversations.push(made);
        }
        let guests = Self::invite(seed, settings, &hosts)?;
        let capture = captures.then(|| Capture::new(HOST_COUNT as u16)).transpose().or_say("making a capture")?;
        let mut world = Self {
            agenda: Agenda::default(),
            hosts,
            directions: [direction(0), direction(1)],
            is_sending: [false; HOST_COUNT],
            turn_at: [Time::NEVER; HOST_COUNT],
            stalled_until: [Time::ZERO; HOST_COUNT],
            step_at: vec![[Time::NEVER; 2]; conversations.len()],
            conversations,
            visit_at: vec![[Time::NEVER; 2]; guests.len()],
            guests,
            trace: TraceHash::default(),
            capture,
            event_count: 0,
            window_start: Time::ZERO,
            window_events: 0,
        };
        for host in 0..HOST_COUNT {
            world.plan_turn(host, Time::ZERO);
        }
        world.step_all();
        for &hold in &settings.holds {
            world.agenda.push(hold.at, Event::Held(hold));
        }
        Ok(world)
    }

    fn invite(seed: u64, settings: &WorldSettings, hosts: &[Host; HOST_COUNT]) -> Checked<Vec<Box<dyn Guest>>> {
        // Port numbers of listeners: one for each.
        const FIRST_PORT: u16 = 7_471;
        let both = |of: [u8; 2]| of.map(|host| &hosts[usize::from(host)]);
        let is_lossless =
            settings.faults.iter().all(|faults| *faults == Faults::NONE) && settings.rules.iter().all(Vec::is_empty);
        let may_duplicate = settings.faults.iter().any(|faults| faults.duplicate_ppm > 0)
            || settings.rules.iter().any(|rules| !rules.is_empty());
        let mut guests: Vec<Box<dyn Guest>> = Vec::new();
        for (guest, number) in settings.guests.iter().zip(0u8..) {
            let stream = stream(seed, StreamOf::Guest(number));
            let made: Checked<Box<dyn Guest>> = match guest.clone() {
                GuestSettings::Unreliable(s) => {
                    let hosts = both(s.hosts);
                    Unreliable::new(s, hosts, [is_lossless, may_duplicate], stream).map(|guest| Box::new(guest) as _)
                }
                GuestSettings::Rendezvous(s) => {
                    let hosts = both(s.hosts);
                    let port = FIRST_PORT + u16::from(number);
                    Rendezvous::new(s, hosts, port, stream).map(|guest| Box::new(guest) as _)
                }
            };
            guests.push(made.map_err(|what| format!("guest {number}: {what}"))?);
        }
        Ok(guests)
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.agenda.now()
    }

    /// Things that happened.
    pub fn event_count(&self) -> u64 {
        self.event_count
    }

    /// Hash of all that happened.
    pub fn trace(&self) -> u64 {
        let mut trace = self.trace;
        for conversation in &self.conversations {
            trace.add(conversation.trace().value());
        }
        for guest in &self.guests {
            trace.add(guest.trace().value());
        }
        trace.value()
    }

    /// The hosts.
    pub fn hosts(&self) -> &[Host; HOST_COUNT] {
        &self.hosts
    }

    /// The link: what each host sends.
    pub fn directions(&self) -> &[Direction; HOST_COUNT] {
        &self.directions
    }

    /// The applications.
    pub fn conversations(&self) -> &[Conversation] {
        &self.conversations
    }

    /// What was captured, if it was asked for.
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// Ends all faults of the link.
    pub fn heal(&mut self) {
        self.directions.iter_mut().for_each(Direction::heal);
    }

    /// From now on no QP may use its retries up.
    pub fn forbid_breaking(&mut self) {
        self.conversations.iter_mut().for_each(|conversation| conversation.set_may_break(false));
    }

    /// True if every conversation has come to its end.
    pub fn is_done(&self) -> bool {
        self.conversations.iter().all(Conversation::is_done) && self.guests.iter().all(|guest| guest.is_done())
    }

    /// What is not done, in words.
    pub fn unfinished(&self) -> String {
        let conversations = self.conversations.iter().zip(0..).filter(|(conversation, _)| !conversation.is_done());
        let guests = self.guests.iter().zip(0..).filter(|(guest, _)| !guest.is_done());
        let lines = conversations.map(|(c, number)| format!("conversation {number}: {}", c.unfinished()));
        let lines = lines.chain(guests.map(|(g, number)| format!("guest {number}: {}", g.unfinished())));
        lines.collect::<Vec<_>>().join("; ")
    }

    /// True if there are applications that are no conversation.
    pub fn has_guests(&self) -> bool {
        !self.guests.is_empty()
    }

    /// What they have seen.
    pub fn guest_counts(&self) -> GuestCounts {
        let mut sum = GuestCounts::default();
        self.guests.iter().for_each(|guest| sum.add(&guest.counts()));
        sum
    }

    /// Runs until every conversation is done (true) or the time is over.
    ///
    /// # Errors
    /// The first violation.
    pub fn run_until_done(&mut self, end: Time) -> Result<bool, Violation> {
        while !self.is_done() {
            if !self.happen_before(end)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs until nothing is planned before `end`.
    ///
    /// # Errors
    /// The first violation.
    pub fn run_until(&mut self, end: Time) -> Result<(), Violation> {
        while self.happen_before(end)? {}
        Ok(())
    }

    /// Runs until nothing at all is planned any more (true), or `end` comes first.
    ///
    /// # Errors
    /// The first violation.
    pub fn run_out(&mut self, end: Time) -> Result<bool, Violation> {
        self.run_until(end)?;
        Ok(self.agenda.next_at().is_none())
    }

    /// Looks at every conversation's memory.
    ///
    /// # Errors
    /// What is not as the model says.
    pub fn check_at_rest(&mut self) -> Result<(), Violation> {
        self.for_conversations(|conversation, _| conversation.check_at_rest())?;
        let now = self.now();
        for (guest, number) in self.guests.iter_mut().zip(0..) {
            guest.check_at_rest().map_err(|what| Violation { at: now, what: format!("guest {number}: {what}") })?;
        }
        Ok(())
    }

    /// Has every conversation begin its end.
    ///
    /// # Errors
    /// What did not work.
    pub fn begin_closing(&mut self) -> Result<(), Violation> {
        self.for_conversations(Conversation::begin_closing)?;
        self.step_all();
        Ok(())
    }

    /// Drops every conversation: its clients leave.
    pub fn leave(&mut self) {
        let now = self.now();
        self.hosts.iter().for_each(|host| host.set_now(now));
        self.conversations.clear();
        self.step_at.clear();
        self.guests.clear();
        self.visit_at.clear();
        (0..HOST_COUNT).for_each(|host| self.plan_turn(host, now));
    }

    fn for_conversations(&mut self, mut f: impl FnMut(&mut Conversation, Time) -> Checked) -> Result<(), Violation> {
        let now = self.now();
        self.hosts.iter().for_each(|host| host.set_now(now));
        for (conversation, number) in self.conversations.iter_mut().zip(0..) {
            f(conversation, now)
                .map_err(|what| Violation { at: now, what: format!("conversation {number}: {what}") })?;
        }
        Ok(())
    }

    fn step_all(&mut self) {
        for conversation in 0..self.conversations.len() {
            for side in [0, 1] {
                let at = self.now().add_ns(self.conversations[conversation].draw_delay());
                self.plan_step(conversation, side, at);
            }
        }
        for guest in 0..self.guests.len() {
            for side in [0, 1] {
                let at = self.now().add_ns(self.guests[guest].draw_delay());
                self.plan_visit(guest, side, at);
            }
        }
    }

    /// One event. False if none is planned before `end`.
    fn happen_before(&mut self, end: Time) -> Result<bool, Violation> {
        if self.agenda.next_at().is_none_or(|at| at >= end) {
            return Ok(false);
        }
        let Some(event) = self.agenda.pop() else { return Ok(false) };
        let now = self.now();
        self.happen(event).map_err(|what| Violation { at: now, what })?;
        Ok(true)
    }

    fn happen(&mut self, event: Event) -> Checked {
        if self.is_stale(&event) {
            return Ok(());
        }
        if let Some(until) = self.stall_of(&event) {
            self.agenda.push(until, event);
            return Ok(());
        }
        self.count_event()?;
        let now = self.now();
        match event {
            Event::Turn { host } => self.turn(host),
            Event::Sent { host, frame } => self.sent(host, frame),
            Event::Arrived { host, frame } => {
                self.hosts[host].receive(frame);
                // A loop that runs comes to it in its turn.
                if self.turn_at[host] > now.add_ns(self.hosts[host].settings().turn_ns) {
                    self.plan_turn(host, now);
                }
                Ok(())
            }
            Event::Step { conversation, side } => {
                let stepped = self.step(conversation, side);
                stepped.map_err(|what| format!("conversation {conversation}: {what}"))
            }
            Event::Held(hold) => {
                self.hold_up(hold);
                Ok(())
            }
            Event::Visit { guest, side } => self.visit(guest, side).map_err(|what| format!("guest {guest}: {what}")),
        }
    }

    /// True if something was planned for another time meanwhile: nothing is ever taken out of the agenda.
    fn is_stale(&self, event: &Event) -> bool {
        let now = self.now();
        match *event {
            Event::Turn { host } => self.turn_at[host] != now,
            Event::Step { conversation, side } => self.step_at.get(conversation).is_none_or(|at| at[side] != now),
            Event::Visit { guest, side } => self.visit_at.get(guest).is_none_or(|at| at[side] != now),
            Event::Sent { .. } | Event::Arrived { .. } | Event::Held(_) => false,
        }
    }

    /// How long something has to wait because its host does nothing. Its time is set to that, so that it isn't planned anew.
    fn stall_of(&mut self, event: &Event) -> Option<Time> {
        let now = self.now();
        let (host, at) = match *event {
            Event::Turn { host } => (host, &mut self.turn_at[host]),
            Event::Step { conversation, side } => {
                (self.conversations[conversation].host(side), &mut self.step_at[conversation][side])
            }
            Event::Visit { guest, side } => (self.guests[guest].host(side), &mut self.visit_at[guest][side]),
            Event::Sent { .. } | Event::Arrived { .. } | Event::Held(_) => return None,
        };
        let until = self.stalled_until[host];
        (until > now).then(|| {
            *at = until;
            until
        })
    }

    fn hold_up(&mut self, hold: Hold) {
        let now = self.now();
        let Hold { kind, host, .. } = hold;
        match kind {
            HoldKind::Stall { ns } => self.stalled_until[host] = self.stalled_until[host].max(now.add_ns(ns)),
            HoldKind::Pause { priorities, quanta } => {
                let pause = std::array::from_fn(|priority| (priorities >> priority & 1 == 1).then_some(quanta));
                let frame = PfcRepr::Priority(pause).to_bytes(host::mac(1 - host as u16));
                self.hosts[host].receive(frame.to_vec());
                self.plan_turn(host, now);
            }
        }
    }

    fn count_event(&mut self) -> Checked {
        self.event_count += 1;
        let now = self.now();
        if now.ns_since(self.window_start) >= LIVELOCK_WINDOW_NS {
            (self.window_start, self.window_events) = (now, 0);
        }
        self.window_events += 1;
        require!(
            self.window_events < LIVELOCK_EVENTS,
            "{LIVELOCK_EVENTS} things happened since {} ns: nothing gets anywhere",
            self.window_start.as_ns()
        );
        Ok(())
    }

    fn turn(&mut self, host: usize) -> Checked {
        let now = self.now();
        self.turn_at[host] = Time::NEVER;
        self.hosts[host].set_now(now);
        let turned = self.hosts[host].turn();
        if turned.next_at != Time::NEVER {
            self.plan_turn(host, turned.next_at);
        }
        self.send_next(host);
        if turned.is_busy { self.tell_applications(host) } else { Ok(()) }
    }

    /// Something may have changed for those who live on a host.
    fn tell_applications(&mut self, host: usize) -> Checked {
        let now = self.now();
        for number in 0..self.conversations.len() {
            for side in [0, 1] {
                let conversation = &mut self.conversations[number];
                if conversation.host(side) == host && conversation.wants_step(side)? {
                    let at = now.add_ns(conversation.draw_delay());
                    self.plan_step(number, side, at);
                }
            }
        }
        self.tell_guests(host);
        Ok(())
    }

    fn tell_guests(&mut self, host: usize) {
        let now = self.now();
        for number in 0..self.guests.len() {
            for side in [0, 1] {
                let guest = &mut self.guests[number];
                if guest.host(side) == host {
                    let at = now.add_ns(guest.draw_delay());
                    self.plan_visit(number, side, at);
                }
            }
        }
    }

    fn visit(&mut self, number: usize, side: usize) -> Checked {
        let now = self.now();
        self.visit_at[number][side] = Time::NEVER;
        self.hosts.iter().for_each(|host| host.set_now(now));
        if let Some(at) = self.guests[number].step(side, now)? {
            self.plan_visit(number, side, at);
        }
        self.look_after_hosts()
    }

    fn step(&mut self, number: usize, side: usize) -> Checked {
        let now = self.now();
        self.step_at[number][side] = Time::NEVER;
        self.hosts.iter().for_each(|host| host.set_now(now));
        let stepped = self.conversations[number].step(side, now)?;
        if let Some(at) = stepped.again {
            self.plan_step(number, side, at);
        }
        if stepped.peer_too {
            let at = now.add_ns(self.conversations[number].draw_delay());
            self.plan_step(number, 1 - side, at);
        }
        self.look_after_hosts()
    }

    /// An application has been at its rings: hosts may have a turn to take, or frames to send.
    fn look_after_hosts(&mut self) -> Checked {
        let now = self.now();
        for host in 0..HOST_COUNT {
            if self.hosts[host].take_woken() {
                self.plan_turn(host, now.add_ns(self.hosts[host].settings().turn_ns));
            }
            // A client that drives the engine by itself may have had it send, and may have woken others.
            self.send_next(host);
            if self.hosts[host].settings().is_polled {
                self.wake_sleepers(host)?;
            }
        }
        Ok(())
    }

    fn wake_sleepers(&mut self, host: usize) -> Checked {
        let now = self.now();
        for number in 0..self.conversations.len() {
            for side in [0, 1] {
                let conversation = &mut self.conversations[number];
                if conversation.host(side) == host && conversation.is_asleep(side) && conversation.wants_step(side)? {
                    let at = now.add_ns(conversation.draw_delay());
                    self.plan_step(number, side, at);
                }
            }
        }
        Ok(())
    }

    /// Has the device send its next frame, unless it is busy.
    fn send_next(&mut self, host: usize) {
        if self.is_sending[host] {
            return;
        }
        let Some(frame) = self.hosts[host].take_frame() else { return };
        self.is_sending[host] = true;
        let ns = self.directions[host].settings().serialization_ns(frame.len() as u64);
        self.agenda.push(self.now().add_ns(ns), Event::Sent { host, frame });
    }

    fn sent(&mut self, host: usize, frame: Vec<u8>) -> Checked {
        let now = self.now();
        self.is_sending[host] = false;
        let kept = self.capture.is_some().then(|| frame.clone());
        self.trace.add_frame(now, host as u8, &frame);
        let outcome = self.directions[host].carry(now, frame);
        self.trace.add(outcome.deliveries.iter().flatten().count() as u64);
        if let (Some(capture), Some(frame)) = (&mut self.capture, kept) {
            capture.add(now, host as u16, &frame, outcome.note).or_say("capturing")?;
        }
        for delivery in outcome.deliveries.into_iter().flatten() {
            self.agenda.push(delivery.at, Event::Arrived { host: 1 - host, frame: delivery.frame });
        }
        self.send_next(host);
        if self.hosts[host].wants_transmit() {
            self.plan_turn(host, now.add_ns(self.hosts[host].settings().turn_ns));
        }
        Ok(())
    }

    /// Has a host's turn come no later than `at`.
    fn plan_turn(&mut self, host: usize, at: Time) {
        if at < self.turn_at[host] {
            self.turn_at[host] = at;
            self.agenda.push(at, Event::Turn { host });
        }
    }

    /// Has a guest look no later than `at`.
    fn plan_visit(&mut self, guest: usize, side: usize, at: Time) {
        if at < self.visit_at[guest][side] {
            self.visit_at[guest][side] = at;
            self.agenda.push(at, Event::Visit { guest, side });
        }
    }

    /// Has an application look no later than `at`.
    fn plan_step(&mut self, conversation: usize, side: usize, at: Time) {
        if at < self.step_at[conversation][side] {
            self.step_at[conversation][side] = at;
            self.agenda.push(at, Event::Step { conversation, side });
        }
    }
}
