//! What a QP's own figures must show whatever happens, asked for as an operator would.

use ferroce::control::{Reply, Request};
use ferroce::{Context, Psn, QueuePair};

use crate::violation::{Checked, OrSay, require};

/// What a QP may have outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// PSNs between the oldest that is not acknowledged and the newest that was sent.
    pub(crate) in_flight: u32,
    /// READs and atomics.
    pub(crate) rd_atomic: u32,
}

impl Bounds {
    /// Bounds of a QP whose READs take at most `read_packets` packets each. A READ is one request, yet it takes a PSN for each packet
    /// of its answer.
    pub(crate) fn new(window_packets: u32, rd_atomic: u8, read_packets: u32) -> Self {
        let rd_atomic = u32::from(rd_atomic);
        Self { in_flight: window_packets + read_packets * rd_atomic, rd_atomic }
    }
}

/// How far a QP was when it was last looked at, since it was connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress(Option<Figures>);

/// Figures of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Figures {
    /// The oldest PSN that is not acknowledged.
    pub(crate) una_psn: Psn,
    /// The next new PSN.
    pub(crate) max_psn: Psn,
    /// The PSN that is expected of the peer.
    pub(crate) expected_psn: Psn,
    /// Requests of the peer that were executed, modulo 2^24.
    pub(crate) msn: u32,
    rd_atomic: u32,
}

impl Figures {
    /// Asks the engine.
    ///
    /// # Errors
    /// It does not know the QP.
    pub(crate) fn of(context: &Context, qp: &QueuePair) -> Checked<Self> {
        let reply = context.call(&Request::QpDetail { qpn: qp.qpn().value() }).or_say("asking for a QP")?;
        let Reply::QpDetail(detail) = reply else { return Err(format!("asked for a QP, got {reply:?}")) };
        let figure = |name: &str| {
            let found = detail.figures.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| *value as u32).ok_or_else(|| format!("QP {} has no figure {name}", qp.qpn()))
        };
        Ok(Self {
            una_psn: Psn::new(figure("una_psn")?),
            max_psn: Psn::new(figure("max_psn")?),
            expected_psn: Psn::new(figure("expected_psn")?),
            msn: figure("msn")?,
            rd_atomic: figure("rd_atomic_outstanding")?,
        })
    }
}

impl Progress {
    /// Looks at a QP that is connected: nothing is beyond its bounds, and nothing has gone back since the last look.
    ///
    /// # Errors
    /// What is or has.
    pub(crate) fn look(&mut self, context: &Context, qp: &QueuePair, bounds: Bounds) -> Checked {
        let now = Figures::of(context, qp)?;
        let (qpn, in_flight) = (qp.qpn(), now.max_psn.distance_from(now.una_psn));
        require!(
            (0..=bounds.in_flight as i32).contains(&in_flight),
            "QP {qpn}: {in_flight} PSNs are in flight, {} may be",
            bounds.in_flight
        );
        let most = bounds.rd_atomic;
        require!(now.rd_atomic <= most, "QP {qpn}: {} READs and atomics are outstanding, {most} may be", now.rd_atomic);
        if let Some(then) = self.0.replace(now) {
            let counts = |figures: Figures| {
                let Figures { una_psn, max_psn, expected_psn, msn, .. } = figures;
                [("una_psn", una_psn), ("max_psn", max_psn), ("expected_psn", expected_psn), ("msn", Psn::new(msn))]
            };
            for ((name, now), (_, then)) in counts(now).into_iter().zip(counts(then)) {
                require!(now.distance_from(then) >= 0, "QP {qpn}: {name} went back from {then} to {now}");
            }
        }
        Ok(())
    }
}

/// How many requests some messages were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Requests {
    /// One for each message.
    pub(crate) least: u32,
    /// READs may have been asked for in parts, of a packet each at the least.
    pub(crate) most: u32,
}

impl Requests {
    /// Adds a message. `read_packets`: of its answer if it is a READ, else 0.
    pub(crate) fn add(&mut self, read_packets: u32) {
        self.least = self.least.wrapping_add(1);
        self.most = self.most.wrapping_add(read_packets.max(1));
    }
}

/// What a QP has done for its peer, at rest: it has executed each of the peer's requests once, and both are of one mind about PSNs.
///
/// # Errors
/// What differs.
pub(crate) fn check_pair_at_rest(requester: &Figures, responder: &Figures, sent: Requests) -> Checked {
    let Figures { una_psn, max_psn, .. } = *requester;
    require!(
        una_psn == max_psn,
        "PSNs up to {max_psn} were sent, and at rest only those before {una_psn} are acknowledged"
    );
    let expected = responder.expected_psn;
    require!(expected == max_psn, "PSNs up to {max_psn} were sent, and at rest the peer expects {expected}");
    let (msn, Requests { least, most }) = (responder.msn, sent);
    require!(
        msn.wrapping_sub(least) & Psn::MASK <= most.wrapping_sub(least),
        "{least} to {most} requests were sent, and the peer's MSN is {msn}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(una: u32, max: u32, expected: u32, msn: u32) -> Figures {
        let [una_psn, max_psn, expected_psn] = [una, max, expected].map(Psn::new);
        Figures { una_psn, max_psn, expected_psn, msn, rd_atomic: 0 }
    }

    #[test]
    fn at_rest_nothing_is_left_behind_and_nothing_was_done_twice() {
        let requester = figures(3, 3, 0, 0);
        let check = |requester, expected, msn, most| {
            let sent = Requests { least: 1 << 24 | 2, most: (1u32 << 24) + most };
            check_pair_at_rest(&requester, &figures(0, 0, expected, msn), sent)
        };
        assert_eq!(check(requester, 3, 2, 2), Ok(()));
        assert_eq!(check(requester, 3, 5, 5), Ok(()));
        for (requester, expected, msn, most) in [
            (figures(2, 3, 0, 0), 3, 2, 2),
            (requester, 2, 2, 2),
            (requester, 3, 1, 5),
            (requester, 3, 3, 2),
            (requester, 3, 6, 5),
        ] {
            assert!(check(requester, expected, msn, most).is_err());
        }
    }
}
