//! What an operator sets of congestion control: an algorithm and values of its parameters, all of them legal.

use std::fmt;

use super::params::{Algorithm, PARAM_COUNT, PARAMS, Param, ParamId, Users};

/// An algorithm and the values of all parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    algorithm: Algorithm,
    values: [u64; PARAM_COUNT],
}

/// Why settings are refused. The text names the value and what is legal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingError {
    /// There is no such algorithm.
    UnknownAlgorithm(String),
    /// The algorithm has no such parameter, nor has another.
    UnknownParam(String, Algorithm),
    /// The algorithm does not have the parameter.
    NotOfAlgorithm(&'static Param, Algorithm),
    /// The text is no value of the parameter's unit.
    NoValue(&'static Param, String),
    /// The value is out of range.
    OutOfRange(&'static Param, u64),
    /// The first must not be larger than the second.
    Order(&'static Param, u64, &'static Param, u64),
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownAlgorithm(name) => {
                if let Some(param) = Param::from_name(name) {
                    return write!(f, "{name} is a parameter: {name}=VALUE sets it, {}", param.range());
                }
                let names: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
                write!(f, "there is no congestion control {name:?}: it is one of {}", names.join(", "))
            }
            Self::UnknownParam(name, algorithm) => {
                let known = PARAMS.iter().filter(|param| param.users.include(*algorithm)).map(|param| param.name);
                let names: Vec<&str> = known.collect();
                write!(f, "{} has no parameter {name:?}: it has {}", algorithm.name(), names.join(", "))
            }
            Self::NotOfAlgorithm(param, algorithm) => {
                write!(f, "{} is a parameter of {}, not of {}", param.name, param.users.name(), algorithm.name())
            }
            Self::NoValue(param, text) => {
                write!(f, "{} = {text:?} is no value in {}: {}", param.name, param.unit.name(), param.range())
            }
            Self::OutOfRange(param, value) => {
                write!(f, "{} = {} is out of range: {}", param.name, param.unit.format(*value), param.range())
            }
            Self::Order(low, low_value, high, high_value) => write!(
                f,
                "{} = {} is more than {} = {}",
                low.name,
                low.unit.format(*low_value),
                high.name,
                high.unit.format(*high_value)
            ),
        }
    }
}

impl std::error::Error for SettingError {}

/// Pairs of which the first must not be larger than the second.
const ORDERED: [(ParamId, ParamId); 4] = [
    (ParamId::TLow, ParamId::THigh),
    (ParamId::FsMinCwnd, ParamId::FsMaxCwnd),
    (ParamId::MinCwnd, ParamId::StartCwnd),
    (ParamId::StartCwnd, ParamId::MaxCwnd),
];

impl Settings {
    /// The defaults of an algorithm.
    pub fn new(algorithm: Algorithm) -> Self {
        let mut values = [0; PARAM_COUNT];
        for (value, param) in values.iter_mut().zip(PARAMS) {
            *value = param.default_of(algorithm);
        }
        Self { algorithm, values }
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The value of a parameter.
    pub fn get(&self, id: ParamId) -> u64 {
        self.values[id as usize]
    }

    /// The parameters that matter with this algorithm, and their values.
    pub fn entries(&self) -> impl Iterator<Item = (&'static Param, u64)> + '_ {
        PARAMS.iter().zip(self.values).filter(|(param, _)| param.users.include(self.algorithm))
    }

    /// These settings with another algorithm (`None` = the same) and with values for parameters by name.
    ///
    /// Another algorithm starts with its defaults, except for the parameters that all have and that were not at their default. Parameters
    /// of other algorithms than the one that it comes to are refused.
    ///
    /// # Errors
    /// The first thing that is wrong: then nothing is changed.
    pub fn change<'a>(
        &self,
        algorithm: Option<&str>,
        assignments: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, SettingError> {
        let mut new = match algorithm {
            None => *self,
            Some(name) => {
                let unknown = || SettingError::UnknownAlgorithm(name.to_owned());
                self.with_algorithm(Algorithm::from_name(name).ok_or_else(unknown)?)
            }
        };
        for (name, text) in assignments {
            let unknown = || SettingError::UnknownParam(name.to_owned(), new.algorithm);
            let param = Param::from_name(name).ok_or_else(unknown)?;
            if !param.users.include(new.algorithm) {
                return Err(SettingError::NotOfAlgorithm(param, new.algorithm));
            }
            let value = param.unit.parse(text).ok_or_else(|| SettingError::NoValue(param, text.to_owned()))?;
            if !param.allows(value) {
                return Err(SettingError::OutOfRange(param, value));
            }
            new.values[param.id as usize] = value;
        }
        new.check_order()?;
        Ok(new)
    }

    fn with_algorithm(&self, algorithm: Algorithm) -> Self {
        if algorithm == self.algorithm {
            return *self;
        }
        let mut new = Self::new(algorithm);
        for param in PARAMS.iter().filter(|param| param.users == Users::Everyone) {
            let value = self.get(param.id);
            if value != param.default_of(self.algorithm) {
                new.values[param.id as usize] = value;
            }
        }
        new
    }

    fn check_order(&self) -> Result<(), SettingError> {
        for (low, high) in ORDERED {
            let (low_value, high_value) = (self.get(low), self.get(high));
            if low_value > high_value {
                let [low, high] = [low, high].map(|id| &PARAMS[id as usize]);
                return Err(SettingError::Order(low, low_value, high, high_value));
            }
        }
        Ok(())
    }
}

/// The default algorithm with its defaults.
impl Default for Settings {
    fn default() -> Self {
        Self::new(Algorithm::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_all_or_nothing_and_says_what_is_wrong() {
        let settings = Settings::default();
        let changed = settings.change(Some("dcqcn"), [("rai", "40Mbps"), ("cnp_dscp", "26")]).unwrap();
        assert_eq!((changed.get(ParamId::Rai), changed.get(ParamId::CnpDscp)), (40_000_000, 26));
        let refused = [
            (Some("cubic"), vec![], "there is no congestion control \"cubic\": it is one of none, dcqcn-nvidia"),
            (Some("rai"), vec![], "rai is a parameter: rai=VALUE sets it, 1Mbps to 100Gbps"),
            (Some("swift"), vec![("speed", "1")], "swift has no parameter \"speed\": it has rate_limit, burst"),
            (None, vec![("rai", "40Mbps"), ("speed", "1")], "dcqcn-nvidia has no parameter \"speed\""),
            (None, vec![("t_low", "1us")], "t_low is a parameter of timely, not of dcqcn-nvidia"),
            (None, vec![("rai", "quick")], "rai = \"quick\" is no value in bits/s: 1Mbps to 100Gbps"),
            (None, vec![("cnp_dscp", "64")], "cnp_dscp = 64 is out of range: 0 to 63"),
            (None, vec![("rate_limit", "1kbps")], "1Mbps to 400Gbps, or 0 = the port's speed"),
            (Some("timely"), vec![("t_low", "2ms")], "t_low = 2ms is more than t_high = 500us"),
        ];
        for (algorithm, assignments, sentence) in refused {
            let error = settings.change(algorithm, assignments).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}");
        }
    }

    #[test]
    fn another_algorithm_has_its_own_defaults_but_keeps_what_all_have() {
        let settings = Settings::default().change(None, [("rate_limit", "5Gbps"), ("rai", "40Mbps")]).unwrap();
        let changed = settings.change(Some("dcqcn-paper"), []).unwrap();
        assert_eq!(changed.get(ParamId::RateLimit), 5_000_000_000);
        assert_eq!(changed.get(ParamId::CnpInterval), 50_000);
        let back = changed.change(Some("dcqcn-nvidia"), []).unwrap();
        assert_eq!(back.get(ParamId::Rai), 5_000_000);
        assert_eq!(back.change(Some("dcqcn-nvidia"), [("rai", "1Mbps")]).unwrap().get(ParamId::Rai), 1_000_000);
    }

    #[test]
    fn only_what_an_algorithm_uses_is_shown() {
        let names = |algorithm| Settings::new(algorithm).entries().map(|(param, _)| param.name).collect::<Vec<_>>();
        assert!(names(Algorithm::None).iter().all(|name| Param::from_name(name).unwrap().users == Users::Everyone));
        assert!(names(Algorithm::Swift).contains(&"max_mdf") && !names(Algorithm::Swift).contains(&"min_rate"));
        assert!(
            names(Algorithm::TimelyOriginal).contains(&"hai_after") && !names(Algorithm::Timely).contains(&"hai_after")
        );
    }
}
