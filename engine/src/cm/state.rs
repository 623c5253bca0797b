//! States of an id, and what each message or timeout means in each of them: one table (IBTA 12.9).

/// Where an id stands.
///
/// The names are the specification's. There is no `DREQ Rcvd`: a DREQ is answered at once, and the application hears of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmState {
    /// Fresh, or bound to an address and port.
    Idle,
    /// A source GID is chosen for the destination.
    AddrResolved,
    /// The path is known: a request may be sent.
    RouteResolved,
    /// Takes requests for its port.
    Listen,
    /// REQ sent.
    ReqSent,
    /// REQ sent, and the peer asked for time.
    MraReqRcvd,
    /// REQ received: the application is to answer.
    ReqRcvd,
    /// The same, and the peer was asked for time.
    MraReqSent,
    /// REP sent.
    RepSent,
    /// REP sent, and the peer asked for time.
    MraRepRcvd,
    /// REP received: the application is to make its QP ready.
    RepRcvd,
    /// The same, and the peer was asked for time.
    MraRepSent,
    /// Connected.
    Established,
    /// DREQ sent.
    DreqSent,
    /// Disconnected; packets of the connection may still be on their way.
    Timewait,
    /// SIDR_REQ sent.
    SidrReqSent,
    /// SIDR_REQ received: the application is to answer.
    SidrReqRcvd,
    /// SIDR_REP sent; kept for repeated requests.
    SidrRepSent,
}

impl CmState {
    /// Every state.
    #[cfg(test)]
    pub(super) const ALL: [Self; 18] = [
        Self::Idle,
        Self::AddrResolved,
        Self::RouteResolved,
        Self::Listen,
        Self::ReqSent,
        Self::MraReqRcvd,
        Self::ReqRcvd,
        Self::MraReqSent,
        Self::RepSent,
        Self::MraRepRcvd,
        Self::RepRcvd,
        Self::MraRepSent,
        Self::Established,
        Self::DreqSent,
        Self::Timewait,
        Self::SidrReqSent,
        Self::SidrReqRcvd,
        Self::SidrRepSent,
    ];

    /// True while a request of a peer waits for the application.
    pub(super) const fn is_half_open(self) -> bool {
        matches!(self, Self::ReqRcvd | Self::MraReqSent | Self::SidrReqRcvd)
    }
}

/// What can come for an id that has a connection, or is making one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Input {
    /// The REQ that made it, once more.
    RepeatedReq,
    /// The peer asks for time to answer a REQ.
    MraOfReq,
    /// The peer asks for time to answer a REP.
    MraOfRep,
    /// REP.
    Rep,
    /// RTU.
    Rtu,
    /// REJ.
    Rej,
    /// DREQ.
    Dreq,
    /// DREP.
    Drep,
    /// The SIDR_REQ that made it, once more.
    RepeatedSidrReq,
    /// SIDR_REP.
    SidrRep,
    /// No answer in time.
    Timeout,
    /// No answer in time to the last repetition.
    LastTimeout,
    /// Data has come on the QP.
    CommEstablished,
}

impl Input {
    /// Every input.
    #[cfg(test)]
    pub(super) const ALL: [Self; 13] = [
        Self::RepeatedReq,
        Self::MraOfReq,
        Self::MraOfRep,
        Self::Rep,
        Self::Rtu,
        Self::Rej,
        Self::Dreq,
        Self::Drep,
        Self::RepeatedSidrReq,
        Self::SidrRep,
        Self::Timeout,
        Self::LastTimeout,
        Self::CommEstablished,
    ];
}

/// What is then to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reaction {
    /// Nothing: late, repeated, or senseless. Counted.
    Ignore,
    /// The last message is sent again.
    Repeat,
    /// The peer is asked for time by an MRA; the state says so.
    AskForTime(CmState),
    /// The peer gets the time that it asked for.
    GiveTime(CmState),
    /// What the REP says is taken over, and the application told.
    TakeRep,
    /// The connection is there.
    Establish,
    /// The peer refuses: back to where a request can be sent.
    Refused,
    /// The peer does not answer: back to where a request can be sent.
    Unreachable,
    /// A DREQ is answered; time wait begins.
    AnswerDreq,
    /// A DREQ is answered; nothing else is new.
    AnswerDreqAgain,
    /// Time wait begins.
    BeginTimewait,
    /// The peer is told that the connection is gone, by a REJ (stale connection).
    RejectStale,
    /// What the SIDR_REP says is taken over, and the application told.
    TakeSidrRep,
    /// Time wait is over.
    EndTimewait,
    /// The reply need not be kept any longer.
    ForgetReply,
}

/// The table.
pub(super) const fn reaction(state: CmState, input: Input) -> Reaction {
    use CmState as S;
    use Input as I;
    use Reaction as R;
    match (state, input) {
        (S::ReqSent | S::MraReqRcvd, I::MraOfReq) => R::GiveTime(S::MraReqRcvd),
        (S::ReqSent | S::MraReqRcvd, I::Rep) => R::TakeRep,
        (S::ReqSent | S::MraReqRcvd, I::Rej) => R::Refused,
        (S::ReqSent | S::MraReqRcvd, I::Timeout) => R::Repeat,
        (S::ReqSent | S::MraReqRcvd, I::LastTimeout) => R::Unreachable,

        (S::ReqRcvd | S::MraReqSent, I::RepeatedReq) => R::AskForTime(S::MraReqSent),
        (S::ReqRcvd | S::MraReqSent, I::Rej) => R::Refused,

        (S::RepSent | S::MraRepRcvd, I::RepeatedReq | I::Timeout) => R::Repeat,
        (S::RepSent | S::MraRepRcvd, I::MraOfRep) => R::GiveTime(S::MraRepRcvd),
        (S::RepSent | S::MraRepRcvd, I::Rtu | I::CommEstablished) => R::Establish,
        (S::RepSent | S::MraRepRcvd, I::Rej) => R::Refused,
        // The RTU was lost: without one there is nothing that the peer could end.
        (S::RepSent | S::MraRepRcvd, I::Dreq) => R::AnswerDreq,
        (S::RepSent | S::MraRepRcvd, I::LastTimeout) => R::Unreachable,

        (S::RepRcvd | S::MraRepSent, I::Rep) => R::AskForTime(S::MraRepSent),
        (S::RepRcvd | S::MraRepSent, I::Rej) => R::Refused,
        (S::RepRcvd | S::MraRepSent, I::Dreq) => R::AnswerDreq,

        // The RTU was lost.
        (S::Established, I::Rep) => R::Repeat,
        (S::Established, I::Dreq) => R::AnswerDreq,
        // The peer has given up, or forgotten.
        (S::Established, I::Rej) => R::BeginTimewait,

        (S::DreqSent, I::Dreq) => R::AnswerDreq,
        (S::DreqSent, I::Drep | I::Rej | I::LastTimeout) => R::BeginTimewait,
        (S::DreqSent, I::Timeout) => R::Repeat,

        // The DREP was lost, or the two DREQs have crossed.
        (S::Timewait, I::Dreq) => R::AnswerDreqAgain,
        (S::Timewait, I::RepeatedReq) => R::RejectStale,
        (S::Timewait, I::Timeout | I::LastTimeout) => R::EndTimewait,

        (S::SidrReqSent, I::SidrRep) => R::TakeSidrRep,
        (S::SidrReqSent, I::Timeout) => R::Repeat,
        (S::SidrReqSent, I::LastTimeout) => R::Unreachable,
        (S::SidrRepSent, I::RepeatedSidrReq) => R::Repeat,
        (S::SidrRepSent, I::Timeout | I::LastTimeout) => R::ForgetReply,
        _ => R::Ignore,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn every_state_and_input_as_reviewed() {
        let mut table = String::new();
        for state in CmState::ALL {
            writeln!(table, "{state:?}").unwrap();
            for input in Input::ALL {
                match reaction(state, input) {
                    Reaction::Ignore => {}
                    reaction => writeln!(table, "    {input:?} -> {reaction:?}").unwrap(),
                }
            }
        }
        insta::assert_snapshot!(table);
    }
}
