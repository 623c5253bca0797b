//! Congestion control: what an operator, or a QP's owner, sees and sets.

use shm::control::Reply;
use shm::control::congestion::{CongestionChange, CongestionParam, CongestionReport, CongestionTarget};
use wire::Qpn;

use super::session::Session;
use super::{Control, Refusal, errno, refuse};
use crate::cc::Settings;
use crate::command::{self, Answer, Command, Shards};
use crate::{QPN_INDEX_MASK, shard_of};

/// What becomes of the settings of a port or a QP.
pub(super) enum Change<'a> {
    /// Some of them change.
    Set(&'a CongestionChange),
    /// A port's become the daemon's again, a QP's its port's.
    Reset,
}

impl Control {
    pub(super) fn show_congestion<S: Shards>(
        &self,
        shards: &mut S,
        session: &Session,
        target: CongestionTarget,
    ) -> Result<Reply, Refusal> {
        let report = match target {
            CongestionTarget::Port(port_num) => {
                self.port(port_num)?;
                report(port_num, &self.congestion[usize::from(port_num - 1)])
            }
            CongestionTarget::Qp(qpn) => {
                self.owner_of(session, qpn)?;
                let found = qp_report(shards, qpn)?;
                CongestionReport {
                    qpn: Some(qpn),
                    is_own: found.is_own,
                    figures: found.figures,
                    ..report(found.port + 1, &found.settings)
                }
            }
        };
        Ok(Reply::Congestion(Box::new(report)))
    }

    /// A port is the operator's to set, a QP its owner's as well.
    pub(super) fn change_congestion<S: Shards>(
        &mut self,
        shards: &mut S,
        session: &Session,
        target: CongestionTarget,
        change: &Change<'_>,
    ) -> Result<Reply, Refusal> {
        let (asker, operator) = (session.peer.uid, self.config.operator_uid);
        let is_operator = asker == 0 || asker == operator;
        match target {
            CongestionTarget::Port(port_num) => {
                self.port(port_num)?;
                if !is_operator {
                    let message = format!("user {asker} may not: root and the daemon's user, {operator}, may");
                    return refuse(errno::EPERM, message);
                }
                self.change_port_congestion(shards, port_num - 1, change)?;
            }
            CongestionTarget::Qp(qpn) => {
                let owner = self.owner_of(session, qpn)?;
                if !is_operator && asker != owner {
                    let message = format!("QP {qpn:#08x} is another user's: its user, the daemon's and root may");
                    return refuse(errno::EPERM, message);
                }
                change_qp_congestion(shards, qpn, change)?;
            }
        }
        self.show_congestion(shards, session, target)
    }

    fn change_port_congestion<S: Shards>(
        &mut self,
        shards: &mut S,
        port: u8,
        change: &Change<'_>,
    ) -> Result<(), Refusal> {
        let index = usize::from(port);
        let settings = match change {
            Change::Set(change) => changed(&self.congestion[index], change)?,
            Change::Reset => self.config.congestion,
        };
        self.congestion[index] = settings;
        self.command_all(shards, || Command::SetPortCongestion { port, settings: Box::new(settings) });
        Ok(())
    }

    /// The user whose QP this is. The books of `session` are outside `self` at this time.
    fn owner_of(&self, session: &Session, qpn: u32) -> Result<u32, Refusal> {
        let mut all = self.sessions.values().chain(std::iter::once(session));
        match all.find(|session| session.qps.contains_key(&qpn)) {
            Some(owner) => Ok(owner.peer.uid),
            None => missing(qpn),
        }
    }
}

fn missing<T>(qpn: u32) -> Result<T, Refusal> {
    refuse(errno::ENOENT, format!("QP {qpn:#08x} does not exist"))
}

fn changed(settings: &Settings, change: &CongestionChange) -> Result<Settings, Refusal> {
    let values = change.values.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    settings
        .change(change.algorithm.as_deref(), values)
        .map_err(|error| Refusal { errno: errno::EINVAL, message: error.to_string() })
}

fn change_qp_congestion<S: Shards>(shards: &mut S, qpn: u32, change: &Change<'_>) -> Result<(), Refusal> {
    let settings = match change {
        Change::Set(change) => Some(Box::new(changed(&qp_report(shards, qpn)?.settings, change)?)),
        Change::Reset => None,
    };
    let command = Command::SetQpCongestion { index: qpn & QPN_INDEX_MASK, settings };
    match shards.command(shard_of(Qpn::new(qpn)), command) {
        Answer::Done => Ok(()),
        _ => missing(qpn),
    }
}

fn qp_report<S: Shards>(shards: &mut S, qpn: u32) -> Result<command::CongestionReport, Refusal> {
    match shards.command(shard_of(Qpn::new(qpn)), Command::QpCongestion { index: qpn & QPN_INDEX_MASK }) {
        Answer::QpCongestion(report) => Ok(*report),
        _ => missing(qpn),
    }
}

fn report(port_num: u8, settings: &Settings) -> CongestionReport {
    let algorithm = settings.algorithm();
    let params = settings.entries().map(|(param, value)| CongestionParam {
        name: param.name.to_owned(),
        value: param.unit.format(value),
        default: param.unit.format(param.default_of(algorithm)),
        range: param.range(),
        meaning: param.meaning.to_owned(),
    });
    CongestionReport {
        port_num,
        qpn: None,
        is_own: false,
        algorithm: algorithm.name().to_owned(),
        params: params.collect(),
        figures: Vec::new(),
    }
}
