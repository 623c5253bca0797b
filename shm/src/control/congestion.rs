//! Congestion control as an operator sees and sets it. Names and values of algorithms and parameters are text here: the engine's table
//! says what is legal (`docs/congestion.md`).

use serde::{Deserialize, Serialize};

/// What congestion control is asked for or set of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CongestionTarget {
    /// A port, from 1: of all its QPs that have no settings of their own.
    Port(u8),
    /// One QP.
    Qp(u32),
}

/// What is to be changed: all of it, or nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CongestionChange {
    /// Another algorithm, which starts with its defaults.
    pub algorithm: Option<String>,
    /// Parameters by name, values with their unit: `("rai", "40Mbps")`.
    pub values: Vec<(String, String)>,
}

/// A parameter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CongestionParam {
    /// Its name.
    pub name: String,
    /// Its value, with its unit.
    pub value: String,
    /// The algorithm's default.
    pub default: String,
    /// The legal values.
    pub range: String,
    /// What it does.
    pub meaning: String,
}

/// The congestion control of a port or a QP.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CongestionReport {
    /// The port, from 1.
    pub port_num: u8,
    /// The QP; `None` for a port.
    pub qpn: Option<u32>,
    /// Of a QP: the settings are its own, not its port's.
    pub is_own: bool,
    /// Name of the algorithm.
    pub algorithm: String,
    /// Its parameters.
    pub params: Vec<CongestionParam>,
    /// Of a QP: rate, window and the like.
    pub figures: Vec<(String, u64)>,
}
