//! The `[qos]` table: quality of service that every port starts with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shm::qos::{PRIORITY_COUNT, QosChange, QosNumber, QosSettings, Trust, Tsa};

use super::{ConfigError, illegal};

/// The table as it is written.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawQos {
    trust: Option<String>,
    /// Only those that are not as usual.
    dscp_to_priority: Option<BTreeMap<String, i64>>,
    priority_to_class: Option<Vec<i64>>,
    tsa: Option<Vec<String>>,
    weights: Option<Vec<i64>>,
    pfc_priorities: Option<Vec<i64>>,
    pfc_xoff_frames: Option<i64>,
    pfc_xon_frames: Option<i64>,
    pfc_headroom_frames: Option<i64>,
    pfc_pause_quanta: Option<i64>,
    pfc_watchdog_ms: Option<i64>,
    pfc_watchdog_ignore_ms: Option<i64>,
}

impl RawQos {
    /// The typed table: defaults where a key is absent.
    pub(super) fn validate(&self) -> Result<QosSettings, ConfigError> {
        let change = QosChange {
            trust: self.trust.as_deref().map(trust).transpose()?,
            reset_dscp: false,
            dscp_to_priority: self.dscps()?,
            priority_to_class: self
                .priority_to_class
                .as_deref()
                .map(|l| eight_of("priority_to_class", l))
                .transpose()?,
            tsa: self.tsa.as_deref().map(tsas).transpose()?,
            weights: self.weights.as_deref().map(|list| eight_of("weights", list)).transpose()?,
            pfc: self.pfc_priorities.as_deref().map(priorities).transpose()?,
            numbers: self.numbers()?,
        };
        QosSettings::default().changed(&change).map_err(|error| ConfigError::Combination(format!("[qos]: {error}")))
    }

    fn dscps(&self) -> Result<Vec<(u8, u8)>, ConfigError> {
        let pairs = self.dscp_to_priority.iter().flatten().map(|(dscp, &priority)| {
            let pair = dscp.parse().ok().zip(u8::try_from(priority).ok());
            let legal = "DSCPs from 0 to 63 and priorities from 0 to 7 are possible";
            pair.ok_or_else(|| illegal("qos.dscp_to_priority", format!("{{ {dscp} = {priority} }}"), legal))
        });
        pairs.collect()
    }

    fn numbers(&self) -> Result<Vec<(QosNumber, u32)>, ConfigError> {
        let set = QosNumber::ALL.iter().filter_map(|&number| Some((number, self.number(number)?)));
        let checked = set.map(|(number, value)| {
            let range = number.range();
            let legal = || format!("{} to {} are possible", range.start(), range.end());
            let typed = u32::try_from(value).ok().filter(|value| range.contains(value));
            let typed = typed.ok_or_else(|| illegal(&format!("qos.{}", number.key()), value, legal()))?;
            Ok((number, typed))
        });
        checked.collect()
    }

    fn number(&self, number: QosNumber) -> Option<i64> {
        match number {
            QosNumber::XoffFrames => self.pfc_xoff_frames,
            QosNumber::XonFrames => self.pfc_xon_frames,
            QosNumber::HeadroomFrames => self.pfc_headroom_frames,
            QosNumber::PauseQuanta => self.pfc_pause_quanta,
            QosNumber::WatchdogMs => self.pfc_watchdog_ms,
            QosNumber::IgnoreMs => self.pfc_watchdog_ignore_ms,
        }
    }

    /// Every key with the value that counts.
    pub(super) fn resolved(settings: &QosSettings) -> Self {
        let numbers = &settings.numbers;
        let number = |number: QosNumber| Some(i64::from(numbers.get(number)));
        let list = |list: [u8; PRIORITY_COUNT]| Some(list.into_iter().map(i64::from).collect());
        let usual = QosSettings::default().dscp_to_priority;
        let dscps = (0..).zip(settings.dscp_to_priority.iter());
        let set = dscps.filter(|&(dscp, priority)| usual.priority(dscp) != priority);
        Self {
            trust: Some(settings.trust.word().to_owned()),
            dscp_to_priority: Some(set.map(|(dscp, priority)| (dscp.to_string(), priority.into())).collect()),
            priority_to_class: list(settings.priority_to_class),
            tsa: Some(settings.tsa.iter().map(|tsa| tsa.word().to_owned()).collect()),
            weights: list(settings.weights),
            pfc_priorities: Some((0..).zip(settings.pfc).filter(|&(_, on)| on).map(|(priority, _)| priority).collect()),
            pfc_xoff_frames: number(QosNumber::XoffFrames),
            pfc_xon_frames: number(QosNumber::XonFrames),
            pfc_headroom_frames: number(QosNumber::HeadroomFrames),
            pfc_pause_quanta: number(QosNumber::PauseQuanta),
            pfc_watchdog_ms: number(QosNumber::WatchdogMs),
            pfc_watchdog_ignore_ms: number(QosNumber::IgnoreMs),
        }
    }
}

fn trust(word: &str) -> Result<Trust, ConfigError> {
    let found = Trust::ALL.into_iter().find(|trust| trust.word() == word);
    found.ok_or_else(|| illegal("qos.trust", format!("{word:?}"), "\"dscp\" and \"pcp\" are possible"))
}

fn tsas(words: &[String]) -> Result<[Tsa; PRIORITY_COUNT], ConfigError> {
    let found = words.iter().map(|word| Tsa::ALL.into_iter().find(|tsa| tsa.word() == word));
    let found = found.collect::<Option<Vec<_>>>().and_then(|list| list.try_into().ok());
    found.ok_or_else(|| illegal("qos.tsa", format!("{words:?}"), "eight words \"strict\" or \"ets\" are possible"))
}

/// A value for each of the eight; whether it is in range is checked with all others.
fn eight_of(key: &str, values: &[i64]) -> Result<[u8; PRIORITY_COUNT], ConfigError> {
    let narrow = values.iter().map(|&value| u8::try_from(value).ok()).collect::<Option<Vec<_>>>();
    let eight = narrow.and_then(|list| list.try_into().ok());
    eight.ok_or_else(|| illegal(&format!("qos.{key}"), format!("{values:?}"), "eight numbers from 0 on are possible"))
}

fn priorities(values: &[i64]) -> Result<[bool; PRIORITY_COUNT], ConfigError> {
    let mut set = [false; PRIORITY_COUNT];
    for value in values {
        let place = usize::try_from(*value).ok().and_then(|priority| set.get_mut(priority));
        *place.ok_or_else(|| illegal("qos.pfc_priorities", value, "priorities from 0 to 7 are possible"))? = true;
    }
    Ok(set)
}
