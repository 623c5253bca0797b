//! The configuration as it is written: every key optional, every number a number of any size.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engine::cc::Settings;
use serde::{Deserialize, Serialize};

/// Declares a table whose keys are numbers, each with its type and legal range, over a struct that holds their defaults; and words,
/// which have a `name`, and which the caller validates.
macro_rules! number_table {
    ($(#[$doc:meta])* $raw:ident($prefix:literal) => $typed:ty {
        $($key:ident: $range:expr,)*
    } $(words { $($word:ident,)* })?) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $raw {
            $(pub(super) $key: Option<i64>,)*
            $($(pub(super) $word: Option<String>,)*)?
        }

        impl $raw {
            /// The typed table: defaults where a key is absent.
            pub(super) fn validate(&self) -> Result<$typed, ConfigError> {
                let mut typed = <$typed>::default();
                $(if let Some(value) = in_range(concat!($prefix, stringify!($key)), self.$key, $range)? {
                    typed.$key = value;
                })*
                Ok(typed)
            }

            /// Every key with the value that counts.
            pub(super) fn resolved(typed: &$typed) -> Self {
                Self {
                    $($key: i64::try_from(typed.$key).ok(),)*
                    $($($word: Some(typed.$word.name().to_owned()),)*)?
                }
            }
        }
    };
}

use super::qos::RawQos;
use super::{ConfigError, in_range};

/// The whole file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) device: Option<String>,
    pub(super) socket: Option<PathBuf>,
    pub(super) socket_mode: Option<String>,
    pub(super) log: Option<String>,
    pub(super) lcores: Option<Vec<i64>>,
    pub(super) lcore_count: Option<i64>,
    pub(super) idle: Option<String>,
    pub(super) memory: Option<String>,
    pub(super) memory_mib: Option<i64>,
    pub(super) process_memory: Option<String>,
    #[serde(default)]
    pub(super) limits: RawLimits,
    #[serde(default)]
    pub(super) transport: RawTransport,
    #[serde(default)]
    pub(super) qos: RawQos,
    #[serde(default)]
    pub(super) congestion: RawCongestion,
    #[serde(default)]
    pub(super) recovery: RawRecovery,
    #[serde(default)]
    pub(super) port: Vec<RawPort>,
}

/// The `[congestion]` table: an algorithm, and parameters of the engine's own table, which says what is legal.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct RawCongestion {
    pub(super) algorithm: Option<String>,
    #[serde(flatten)]
    pub(super) values: BTreeMap<String, RawValue>,
}

/// A parameter's value: with its unit as text, or a bare number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum RawValue {
    Switch(bool),
    Whole(i64),
    Real(f64),
    Text(String),
}

impl RawValue {
    fn text(&self) -> String {
        match self {
            Self::Switch(on) => on.to_string(),
            Self::Whole(number) => number.to_string(),
            Self::Real(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

impl RawCongestion {
    /// The settings that the table makes.
    pub(super) fn validate(&self) -> Result<Settings, ConfigError> {
        let values: Vec<(&str, String)> =
            self.values.iter().map(|(name, value)| (name.as_str(), value.text())).collect();
        let assignments = values.iter().map(|(name, text)| (*name, text.as_str()));
        let settings = Settings::default().change(self.algorithm.as_deref(), assignments);
        settings.map_err(|error| ConfigError::Combination(format!("[congestion]: {error}")))
    }

    /// Every key that the algorithm has, with the value that counts.
    pub(super) fn resolved(settings: &Settings) -> Self {
        let value = |(param, value): (&engine::cc::Param, u64)| {
            (param.name.to_owned(), RawValue::Text(param.unit.format(value)))
        };
        Self {
            algorithm: Some(settings.algorithm().name().to_owned()),
            values: settings.entries().map(value).collect(),
        }
    }
}

/// A `[[port]]` table.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPort {
    pub(super) vdev: Option<String>,
    pub(super) pci: Option<String>,
    pub(super) addresses: Option<Vec<String>>,
    pub(super) roce_v1: Option<bool>,
    pub(super) mac: Option<String>,
    pub(super) mtu_bytes: Option<i64>,
    pub(super) rx_descriptors: Option<i64>,
    pub(super) tx_descriptors: Option<i64>,
    pub(super) spare_mbufs: Option<i64>,
    pub(super) capture_file: Option<PathBuf>,
    pub(super) fault: Option<RawFault>,
}

/// A `[port.fault]` table.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFault {
    pub(super) drop: Option<f64>,
    pub(super) duplicate: Option<f64>,
    pub(super) reorder: Option<f64>,
    pub(super) corrupt: Option<f64>,
    pub(super) seed: Option<i64>,
}

const MIB: i64 = 1 << 20;
const TIB: i64 = 1 << 40;

number_table! {
    /// The `[limits]` table.
    RawLimits("limits.") => engine::config::Limits {
        max_qp: 1..=(engine::QPN_INDEX_COUNT - engine::QPN_RESERVED_COUNT) as i64,
        max_qp_wr: 1..=32_768,
        max_sge: 1..=shm::layout::MAX_SGE as i64,
        max_inline_data: 0..=shm::layout::MAX_INLINE as i64,
        max_cq: 1..=1_048_576,
        max_cqe: 1..=4_194_304,
        max_srq: 1..=1_048_575,
        max_mr: 1..=8_388_608,
        max_pd: 1..=1_048_576,
        max_channel: 1..=65_536,
        max_memory: 1..=65_536,
        max_ah: 1..=1_048_576,
        max_xrcd: 1..=65_536,
        max_rd_atomic: 1..=128,
        ring_bytes: MIB..=TIB,
        ring_bytes_total: 4 * MIB..=TIB,
        memory_bytes: MIB..=1024 * TIB,
        max_session: 1..=4096,
        max_neighbour: 1..=65_536,
        max_post_mortem: 0..=65_536,
        user_share_percent: 1..=100,
        max_cm_id: 2..=1_048_576,
    }
}

number_table! {
    /// The `[transport]` table.
    RawTransport("transport.") => engine::config::TransportConfig {
        window_packets: 1..=65_536,
        quantum_packets: 1..=1024,
        ack_request_packets: 1..=65_536,
        flush_wqes: 1..=65_536,
        doorbell_words: 1..=256,
    }
}

number_table! {
    /// The `[recovery]` table.
    RawRecovery("recovery.") => engine::config::RecoveryConfig {
        rto_low_us: 100..=1_000_000,
        rto_high_us: 100..=1_000_000,
        few_packets: 0..=256,
        rto_min_us: 100..=10_000_000,
        rto_max_us: 100..=60_000_000,
        reorder_percent: 0..=1000,
        reorder_factor: 1..=1000,
        holes: 1..=256,
        kept_packets: 0..=65_535,
    } words {
        policy,
        unasked,
    }
}
