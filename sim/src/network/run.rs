//! A run: a network, its applications, where their flows come from, who looks on, and what goes wrong on purpose.

use engine::Time;

use super::fabric::{Alarm, Fabric, FabricSettings, Happened};
use super::traffic::{FlowCounts, Outside, Traffic, TrafficSettings};
use crate::flow::{FlowSource, Observer};
use crate::shrink::FaultKind;
use crate::violation::{Checked, Violation};

/// Something that goes wrong on purpose with a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MishapKind {
    /// It does nothing for so long, ns.
    Stall {
        /// How long.
        ns: u64,
    },
    /// Its client dies.
    Death,
    /// Its client writes random bytes over its rings and doorbells.
    Garbage,
}

impl MishapKind {
    /// What kind of fault it is.
    pub const fn fault(self) -> FaultKind {
        match self {
            Self::Stall { .. } => FaultKind::Stalls,
            Self::Death => FaultKind::Death,
            Self::Garbage => FaultKind::Garbage,
        }
    }
}

/// A mishap and its moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mishap {
    /// What.
    pub kind: MishapKind,
    /// To whom.
    pub host: u16,
    /// When.
    pub at: Time,
}

/// All of a run but its flows.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    /// Hosts, links and switches.
    pub fabric: FabricSettings,
    /// What is on the hosts.
    pub traffic: TrafficSettings,
    /// From one look at queues and counters to the next, ns; 0 = none.
    pub sample_ns: u64,
    /// What goes wrong.
    pub mishaps: Vec<Mishap>,
}

/// A run that can go on.
pub struct Run {
    fabric: Fabric,
    traffic: Traffic,
    sample_ns: u64,
    mishaps: Vec<Mishap>,
}

impl Run {
    /// A run at time 0. `captures`: frames that hosts send and get are kept.
    ///
    /// # Errors
    /// What cannot be, or did not work.
    pub fn new(seed: u64, settings: &NetworkSettings, captures: bool) -> Result<Self, Violation> {
        Self::set_up(seed, settings, captures).map_err(|what| Violation { at: Time::ZERO, what })
    }

    fn set_up(seed: u64, settings: &NetworkSettings, captures: bool) -> Checked<Self> {
        let mut fabric = Fabric::new(seed, &settings.fabric, captures)?;
        let traffic = Traffic::new(seed, settings.traffic, &fabric)?;
        for (mishap, number) in settings.mishaps.iter().zip(0..) {
            if mishap.host >= fabric.host_count() {
                return Err(format!("mishap {number} is host {}'s, of {}", mishap.host, fabric.host_count()));
            }
            fabric.set_alarm(mishap.at, Alarm::Mishap(number));
        }
        if settings.sample_ns > 0 {
            fabric.set_alarm(Time::ZERO, Alarm::Sample);
        }
        Ok(Self { fabric, traffic, sample_ns: settings.sample_ns, mishaps: settings.mishaps.clone() })
    }

    /// The network.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Counts of flows.
    pub fn flow_counts(&self) -> FlowCounts {
        self.traffic.counts()
    }

    /// Flows that are under way, in words.
    pub fn unfinished(&self) -> String {
        self.traffic.unfinished()
    }

    /// Ends all faults of links.
    pub fn heal(&mut self) {
        self.fabric.heal();
    }

    /// From now on it is a violation if a connection breaks.
    pub fn forbid_breaking(&mut self) {
        self.traffic.forbid_breaking();
    }

    /// Goes on until every flow is done (true), or the time is over.
    ///
    /// # Errors
    /// The first violation.
    pub fn run_until_done(
        &mut self,
        end: Time,
        source: &mut dyn FlowSource,
        observer: &mut dyn Observer,
    ) -> Result<bool, Violation> {
        let mut outside = Outside { source, observer };
        self.traffic.plan_flows(&mut self.fabric, outside.source);
        while !(outside.source.is_exhausted() && self.traffic.is_idle()) {
            let Some(happened) = self.fabric.next(end) else { return Ok(false) };
            self.handle(happened, &mut outside).map_err(|what| Violation { at: self.fabric.now(), what })?;
        }
        // How it ended.
        if self.sample_ns > 0 {
            self.sample(outside.observer);
        }
        Ok(true)
    }

    /// Goes on though no flow is under way, so that what is in the air comes down.
    ///
    /// # Errors
    /// The first violation.
    pub fn run_out(
        &mut self,
        end: Time,
        source: &mut dyn FlowSource,
        observer: &mut dyn Observer,
    ) -> Result<(), Violation> {
        let mut outside = Outside { source, observer };
        self.sample_ns = 0;
        while let Some(happened) = self.fabric.next(end) {
            self.handle(happened, &mut outside).map_err(|what| Violation { at: self.fabric.now(), what })?;
        }
        Ok(())
    }

    /// Every client leaves. Nothing but [`Run::run_out`] makes sense after it.
    pub fn leave(&mut self) {
        (0..self.fabric.host_count()).for_each(|host| self.fabric.bring_up_to_date(host));
        self.traffic.leave();
        (0..self.fabric.host_count()).for_each(|host| self.fabric.look_after(host));
    }

    /// What must hold when nothing is under way.
    ///
    /// # Errors
    /// What does not.
    pub fn check_at_rest(&self) -> Result<(), Violation> {
        self.traffic.check_at_rest().map_err(|what| Violation { at: self.fabric.now(), what })
    }

    fn handle(&mut self, happened: Happened, outside: &mut Outside<'_>) -> Checked {
        match happened {
            Happened::Busy(host) => self.traffic.visit(&mut self.fabric, host, outside),
            Happened::Alarm(Alarm::Flows) => self.traffic.start_flows(&mut self.fabric, outside),
            Happened::Alarm(Alarm::Reconnect(connection)) => self.traffic.reconnect(&mut self.fabric, connection),
            Happened::Alarm(Alarm::Mishap(number)) => self.meet(number, outside),
            Happened::Alarm(Alarm::Sample) => {
                if self.sample_ns > 0 {
                    self.sample(outside.observer);
                    self.fabric.set_alarm(self.fabric.now().add_ns(self.sample_ns), Alarm::Sample);
                }
                Ok(())
            }
        }
    }

    fn sample(&self, observer: &mut dyn Observer) {
        observer.sampled(self.fabric.now(), &self.fabric.queues(), &self.fabric.totals());
    }

    fn meet(&mut self, number: u32, outside: &mut Outside<'_>) -> Checked {
        let Mishap { kind, host, .. } = self.mishaps[number as usize];
        match kind {
            MishapKind::Stall { ns } => {
                self.fabric.stall(host, self.fabric.now().add_ns(ns));
                Ok(())
            }
            MishapKind::Death => self.traffic.lose(&mut self.fabric, host, false, outside),
            MishapKind::Garbage => self.traffic.lose(&mut self.fabric, host, true, outside),
        }
    }
}
