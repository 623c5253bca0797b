//! The words of `ferroce qos set`.

use shm::qos::{DscpMap, PRIORITY_COUNT, QosChange, QosNumber, Trust, Tsa};

/// What to change; at least one thing.
#[derive(clap::Args)]
#[group(required = true, multiple = true)]
pub(super) struct Args {
    /// Where a packet's priority is read from: dscp or pcp.
    #[arg(long, value_name = "SOURCE", value_parser = parse_trust)]
    trust: Option<Trust>,
    /// Priority of a DSCP: set,DSCP,PRIORITY; del,DSCP (its usual one again); flush (all of them). May be repeated; in order.
    #[arg(long, value_name = "ACTION", value_parser = parse_dscp)]
    dscp2prio: Vec<Dscp>,
    /// Traffic class of each priority, 0 to 7.
    #[arg(long = "prio_tc", short = 'p', value_name = "LIST", value_parser = parse_classes)]
    prio_tc: Option<[u8; PRIORITY_COUNT]>,
    /// How each traffic class takes its turn: strict or ets.
    #[arg(long, short = 's', value_name = "LIST", value_parser = parse_tsas)]
    tsa: Option<[Tsa; PRIORITY_COUNT]>,
    /// Weight of each traffic class, 1 to 100, and 0 only of strict ones; per cent, if they add up to 100.
    #[arg(long, short = 't', value_name = "LIST", value_parser = parse_weights)]
    tcbw: Option<[u8; PRIORITY_COUNT]>,
    /// Flow control of each priority: 0 or 1.
    #[arg(long, short = 'f', value_name = "LIST", value_parser = parse_bits)]
    pfc: Option<[bool; PRIORITY_COUNT]>,
    /// A number, such as pfc_xoff_frames=128.
    #[arg(value_name = "KEY=VALUE", value_parser = parse_number)]
    numbers: Vec<(QosNumber, u32)>,
}

/// A word of `--dscp2prio`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dscp {
    Set(u8, u8),
    Delete(u8),
    Flush,
}

impl Args {
    pub(super) fn to_change(&self) -> QosChange {
        let mut change = QosChange {
            trust: self.trust,
            priority_to_class: self.prio_tc,
            tsa: self.tsa,
            weights: self.tcbw,
            pfc: self.pfc,
            numbers: self.numbers.clone(),
            ..QosChange::default()
        };
        for action in &self.dscp2prio {
            match *action {
                Dscp::Set(dscp, priority) => change.dscp_to_priority.push((dscp, priority)),
                Dscp::Delete(dscp) => change.dscp_to_priority.push((dscp, DscpMap::default().priority(dscp))),
                Dscp::Flush => {
                    change.reset_dscp = true;
                    change.dscp_to_priority.clear();
                }
            }
        }
        change
    }
}

fn parse_trust(text: &str) -> Result<Trust, String> {
    let found = Trust::ALL.into_iter().find(|trust| trust.word() == text);
    found.ok_or_else(|| "`dscp` and `pcp` are possible".to_owned())
}

fn parse_dscp(text: &str) -> Result<Dscp, String> {
    let words: Vec<&str> = text.split(',').collect();
    let number = |text: &str, end: usize| text.parse().ok().filter(|&number: &u8| usize::from(number) < end);
    let action = match words.as_slice() {
        ["flush"] => Some(Dscp::Flush),
        ["del", dscp] => number(dscp, 64).map(Dscp::Delete),
        ["set", dscp, priority] => number(dscp, 64).zip(number(priority, 8)).map(|(dscp, prio)| Dscp::Set(dscp, prio)),
        _ => None,
    };
    let legal = "set,DSCP,PRIORITY, del,DSCP and flush are possible, with DSCPs of 0 to 63 and priorities of 0 to 7";
    action.ok_or_else(|| legal.to_owned())
}

/// Eight items with commas between them.
fn parse_list<T>(text: &str, legal: &str, item: impl Fn(&str) -> Option<T>) -> Result<[T; PRIORITY_COUNT], String> {
    let items = text.split(',').map(|word| item(word.trim())).collect::<Option<Vec<_>>>();
    items
        .and_then(|list| list.try_into().ok())
        .ok_or_else(|| format!("eight {legal} with commas between them are possible"))
}

fn parse_classes(text: &str) -> Result<[u8; PRIORITY_COUNT], String> {
    parse_list(text, "traffic classes from 0 to 7", |word| word.parse().ok().filter(|&class| class < 8))
}

fn parse_weights(text: &str) -> Result<[u8; PRIORITY_COUNT], String> {
    parse_list(text, "weights from 0 to 100", |word| word.parse().ok().filter(|&weight| weight <= 100))
}

fn parse_tsas(text: &str) -> Result<[Tsa; PRIORITY_COUNT], String> {
    parse_list(text, "words `strict` or `ets`", |word| Tsa::ALL.into_iter().find(|tsa| tsa.word() == word))
}

fn parse_bits(text: &str) -> Result<[bool; PRIORITY_COUNT], String> {
    parse_list(text, "times 0 or 1", |word| match word {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    })
}

fn parse_number(text: &str) -> Result<(QosNumber, u32), String> {
    let keys = || QosNumber::ALL.iter().map(|number| number.key()).collect::<Vec<_>>().join(", ");
    let (key, value) = text.split_once('=').ok_or("a key, `=` and a number are possible")?;
    let number = QosNumber::ALL.iter().copied().find(|number| number.key() == key);
    let number = number.ok_or_else(|| format!("there is no such key; keys are {}", keys()))?;
    let range = number.range();
    let value = value.parse().ok().filter(|value| range.contains(value));
    value.map(|value| (number, value)).ok_or_else(|| format!("{} to {} are possible", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn change(words: &[&str]) -> Result<QosChange, String> {
        let line = Line::try_parse_from(["set"].iter().chain(words));
        line.map(|line| line.args.to_change()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_words_of_mlnx_qos_are_understood() {
        let found =
            change(&["--trust", "pcp", "-f", "0,0,0,1,0,0,0,0", "--dscp2prio", "set,26,3", "-p", "0,1,2,3,4,5,6,7"]);
        let expected = QosChange {
            trust: Some(Trust::Pcp),
            pfc: Some([false, false, false, true, false, false, false, false]),
            dscp_to_priority: vec![(26, 3)],
            priority_to_class: Some([0, 1, 2, 3, 4, 5, 6, 7]),
            ..QosChange::default()
        };
        assert_eq!(found, Ok(expected));
        let found = change(&["--prio_tc", "0,0,0,0,0,0,0,1", "--tcbw", "90,10,1,1,1,1,1,1"]).unwrap();
        assert_eq!((found.priority_to_class.unwrap()[7], found.weights.unwrap()[..2].to_vec()), (1, vec![90, 10]));
    }

    #[test]
    fn dscps_are_set_in_the_order_of_the_words() {
        let found = change(&[
            "--dscp2prio",
            "set,1,2",
            "--dscp2prio",
            "flush",
            "--dscp2prio",
            "set,3,4",
            "--dscp2prio",
            "del,26",
        ]);
        let expected = QosChange { reset_dscp: true, dscp_to_priority: vec![(3, 4), (26, 3)], ..QosChange::default() };
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn what_is_not_legal_is_refused_with_what_is() {
        for (words, legal) in [
            (&["--dscp2prio", "set,64,1"][..], "DSCPs of 0 to 63"),
            (&["--dscp2prio", "set,1"], "set,DSCP,PRIORITY"),
            (&["--pfc", "0,0,0,2,0,0,0,0"], "eight times 0 or 1"),
            (&["--pfc", "1"], "eight times 0 or 1"),
            (&["--tsa", "ets"], "`strict` or `ets`"),
            (&["--prio_tc", "0,0,0,0,0,0,0,8"], "eight traffic classes from 0 to 7"),
            (&["--tcbw", "101,0,0,0,0,0,0,0"], "eight weights from 0 to 100"),
            (&["--trust", "mac"], "`dscp` and `pcp`"),
            (&["pfc_xoff_frames=0"], "1 to 65535 are possible"),
            (&["xoff=1"], "keys are pfc_xoff_frames, pfc_xon_frames"),
            (&[], "required"),
        ] {
            let error = change(words).unwrap_err();
            assert!(error.contains(legal), "{words:?}: {error}");
        }
    }
}
