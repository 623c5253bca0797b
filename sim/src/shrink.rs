//! Which of all the things that a seed draws to go wrong it takes for a run to fail.

use std::fmt;
use std::str::FromStr;

/// A kind of fault that a run may have, and may go without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Frames are lost one by one.
    Loss,
    /// Frames are lost in bursts.
    BurstLoss,
    /// Frames arrive twice.
    Duplication,
    /// Frames are held back while others pass.
    Reordering,
    /// Bits are flipped.
    Corruption,
    /// Frames are cut short.
    Truncation,
    /// Frames, and all behind them, are delayed.
    Spikes,
    /// Links go down and up.
    Flaps,
    /// Frames are marked though no queue is full.
    Marks,
    /// The delay of links varies.
    Jitter,
    /// Hosts do nothing for a while.
    Stalls,
    /// Hosts are told to pause.
    Pauses,
    /// A client dies.
    Death,
    /// A client writes over its rings.
    Garbage,
    /// A client asks for something that is wrong, or takes away what its peer is using.
    Incident,
    /// Other applications use the hosts.
    Guests,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Loss,
        Self::BurstLoss,
        Self::Duplication,
        Self::Reordering,
        Self::Corruption,
        Self::Truncation,
        Self::Spikes,
        Self::Flaps,
        Self::Marks,
        Self::Jitter,
        Self::Stalls,
        Self::Pauses,
        Self::Death,
        Self::Garbage,
        Self::Incident,
        Self::Guests,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::BurstLoss => "burst-loss",
            Self::Duplication => "duplication",
            Self::Reordering => "reordering",
            Self::Corruption => "corruption",
            Self::Truncation => "truncation",
            Self::Spikes => "spikes",
            Self::Flaps => "flaps",
            Self::Marks => "marks",
            Self::Jitter => "jitter",
            Self::Stalls => "stalls",
            Self::Pauses => "pauses",
            Self::Death => "death",
            Self::Garbage => "garbage",
            Self::Incident => "incident",
            Self::Guests => "guests",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("there is no fault `{name}`: there are {}", known()))
    }
}

/// Settings of a run, as to what goes wrong in it.
pub trait Faulty: Clone {
    /// True if faults of a kind may happen.
    fn has(&self, kind: FaultKind) -> bool;

    /// Takes a kind out. What else was drawn stays as it is.
    fn remove(&mut self, kind: FaultKind);

    /// Takes all kinds out but these.
    fn keep_only(&mut self, kinds: &[FaultKind]) {
        FaultKind::ALL.into_iter().filter(|kind| !kinds.contains(kind)).for_each(|kind| self.remove(kind));
    }
}

/// The settings without the faults that a run fails without: none of those left can be taken out alone. `fails` runs settings and
/// says whether the run went wrong; it is asked once for each kind, and again for as long as that has helped.
pub fn shrink<S: Faulty>(settings: &S, mut fails: impl FnMut(&S) -> bool) -> Vec<FaultKind> {
    let mut least = settings.clone();
    loop {
        let mut has_helped = false;
        for kind in FaultKind::ALL {
            if !least.has(kind) {
                continue;
            }
            let mut fewer = least.clone();
            fewer.remove(kind);
            if fails(&fewer) {
                least = fewer;
                has_helped = true;
            }
        }
        if !has_helped {
            return FaultKind::ALL.into_iter().filter(|&kind| least.has(kind)).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Kinds(Vec<FaultKind>);

    impl Faulty for Kinds {
        fn has(&self, kind: FaultKind) -> bool {
            self.0.contains(&kind)
        }

        fn remove(&mut self, kind: FaultKind) {
            self.0.retain(|&other| other != kind);
        }
    }

    #[test]
    fn what_is_left_is_what_it_takes() {
        let all = Kinds(FaultKind::ALL.to_vec());
        let wanted = [FaultKind::Duplication, FaultKind::Truncation];
        assert_eq!(shrink(&all, |kinds| wanted.iter().all(|&kind| kinds.has(kind))), wanted);
        assert_eq!(shrink(&all, |_| true), []);
        // Loss can only go once stalls have gone, which come later.
        let needs = |kinds: &Kinds| kinds.has(FaultKind::Loss) || !kinds.has(FaultKind::Stalls);
        assert_eq!(shrink(&all, needs), []);
        let mut kept = all.clone();
        kept.keep_only(&wanted);
        assert_eq!(kept.0, wanted);
    }

    #[test]
    fn names_are_read_back() {
        for kind in FaultKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("lost".parse::<FaultKind>().unwrap_err().contains("loss, burst-loss"));
    }
}
