//! The keys of a port and of the switch: what they mean, what they may be, and how they are shown.

use std::collections::BTreeMap;

use pmd::Vdev;
use sim::link::{Faults, LinkSettings};
use sim::network::classify::{Classes, Trust};
use sim::network::switch::{Dequeue, Marking, PauseSettings, RATE_MBPS, SwitchSettings, Threshold};

use super::value::{RATE, SIZE, TIME, Value, parts_per_million, quantity, shown};
use super::{ConfigError, Faulty, PortSettings, Settings, illegal};
use crate::flaps::Flaps;

type Table = BTreeMap<String, Value>;
type Checked<T> = Result<T, ConfigError>;

/// Keys of a port's link; what else a flag has is the device's.
const PORT_KEYS: [&str; 20] = [
    "rate",
    "delay",
    "jitter",
    "mtu",
    "loss",
    "burst_loss",
    "burst_frames",
    "duplicate",
    "reorder",
    "reorder_delay",
    "corrupt",
    "truncate",
    "spike",
    "spike_delay",
    "faults",
    "spare",
    "flap_every",
    "flap_for",
    "down",
    "group",
];
const SWITCH_KEYS: [&str; 17] = [
    "buffer",
    "alpha",
    "queue_limit",
    "kmin",
    "kmax",
    "pmax",
    "mark",
    "pfc",
    "headroom",
    "xon_offset",
    "quanta",
    "trust",
    "dscp_to_priority",
    "weights",
    "frames",
    "stations",
    "station_age",
];
/// Longest delay of any kind.
const DELAY_NS_MAX: u64 = 1_000_000_000;
/// What a set of priorities may be.
const PRIORITIES: &str = "priorities from 0 to 7, such as 3 or 3+4";
/// Priorities of a port.
const PRIORITY_COUNT: usize = 8;
/// A sender in software takes so long to obey a pause, or longer: what its link carries meanwhile goes to the headroom.
const OBEYS_WITHIN_NS: u64 = 1_000_000;

/// A table, and what it is called in sentences.
struct Keys<'a> {
    place: &'a str,
    table: &'a Table,
}

impl Keys<'_> {
    fn check(&self, known: &[&str]) -> Checked<()> {
        match self.table.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                Err(ConfigError::Key { place: self.place.to_owned(), key: key.clone(), known: known.join(", ") })
            }
        }
    }

    fn text(&self, key: &str) -> Option<String> {
        self.table.get(key).map(Value::text)
    }

    /// The value as `parse` reads it, or the default.
    fn get<T>(&self, key: &'static str, default: T, legal: &str, parse: impl Fn(&str) -> Option<T>) -> Checked<T> {
        match self.text(key) {
            None => Ok(default),
            Some(text) => parse(&text).ok_or_else(|| illegal(self.place, key, &text, legal)),
        }
    }

    fn time(&self, key: &'static str, default: u64) -> Checked<u64> {
        self.get(key, default, "a time from 0 to 1s", |text| quantity(text, TIME).filter(|&ns| ns <= DELAY_NS_MAX))
    }

    fn bytes(&self, key: &'static str, default: u64) -> Checked<u64> {
        const MOST: u64 = 1 << 32;
        self.get(key, default, "a size from 0 to 4096MiB", |text| quantity(text, SIZE).filter(|&bytes| bytes <= MOST))
    }

    fn chance(&self, key: &'static str) -> Checked<u32> {
        self.get(key, 0, "0, or a chance from 1e-6 to 1 (0.0001% to 100%)", parts_per_million)
    }

    fn number(&self, key: &'static str, default: u64, least: u64, most: u64) -> Checked<u64> {
        let parse = |text: &str| text.parse().ok().filter(|number| (least..=most).contains(number));
        self.get(key, default, &format!("a number from {least} to {most}"), parse)
    }
}

fn assignment(place: &str, text: &str) -> Checked<(String, Value)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), Value::Text(value.to_owned())))
        }
        _ => Err(ConfigError::Combination(format!("{place}: `{text}` is not KEY=VALUE"))),
    }
}

/// A port's table from a flag: words with our keys are ours, the others are the device's.
pub(super) fn port_from_flag(text: &str) -> Checked<Table> {
    let mut device = Vec::new();
    let mut table = Table::new();
    for word in text.split(',') {
        let is_ours = word.split_once('=').is_some_and(|(key, _)| PORT_KEYS.contains(&key));
        if is_ours {
            table.extend([assignment("--port", word)?]);
        } else {
            device.push(word);
        }
    }
    table.insert("device".to_owned(), Value::Text(device.join(",")));
    Ok(table)
}

/// The switch's table from a flag.
pub(super) fn switch_from_flag(text: &str) -> Checked<Table> {
    text.split(',').map(|word| assignment("--switch", word)).collect()
}

/// Looks at a port's table.
pub(super) fn port(number: usize, table: &Table) -> Checked<PortSettings> {
    let device = table.get("device").map(Value::text);
    let place = format!("port {number}");
    let Some(device) = device else {
        return Err(ConfigError::Combination(format!(
            "{place} needs `device`, such as device = \"net_af_packet0,iface=veth0\""
        )));
    };
    let vdev: Vdev = device.parse().map_err(|error| ConfigError::Combination(format!("{place}: {error}")))?;
    let place = vdev.name().to_owned();
    let keys = Keys { place: &place, table };
    let mut known = vec!["device"];
    known.extend(PORT_KEYS);
    keys.check(&known)?;
    let mbps = |text: &str| {
        let bps = quantity(text, RATE)?;
        let mbps = u32::try_from(bps / 1_000_000).ok()?;
        (bps.is_multiple_of(1_000_000) && RATE_MBPS.contains(&mbps)).then_some(mbps)
    };
    let link = LinkSettings {
        rate_mbps: keys.get("rate", 1_000, "a rate from 1Mbps to 1600Gbps, in whole Mbps", mbps)?,
        delay_ns: keys.time("delay", 0)?,
        jitter_ns: keys.time("jitter", 0)?,
        mtu: keys.number("mtu", 4_200, 576, 9_000)? as u16,
    };
    let faults = faults(&keys)?;
    let faulty = keys.get("faults", Faulty::Both, "both, in or out", |text| match text {
        "both" => Some(Faulty::Both),
        "in" => Some(Faulty::In),
        "out" => Some(Faulty::Out),
        _ => None,
    })?;
    Ok(PortSettings { link, faults, faulty, flaps: flaps(&keys)?, group: keys.text("group"), vdev })
}

fn flaps(keys: &Keys<'_>) -> Checked<Flaps> {
    const LEGAL: &str = "a time from 1ms to 1000000s";
    let time = |text: &str| quantity(text, TIME).filter(|ns| (1_000_000..=1_000_000_000_000_000).contains(ns));
    let times =
        keys.get("down", Vec::new(), "times from start to end in rising order, such as 2s-2.5s+7s-8s", intervals)?;
    match ["flap_every", "flap_for", "down"].map(|key| keys.table.contains_key(key)) {
        [false, false, false] => Ok(Flaps::Never),
        [false, false, true] => Ok(Flaps::Times(times)),
        [true, true, false] => {
            let every_ns = keys.get("flap_every", 0, LEGAL, time)?;
            let for_ns = keys.get("flap_for", 0, "a time from 1ms to less than flap_every", |text| {
                time(text).filter(|&ns| ns < every_ns)
            })?;
            Ok(Flaps::Periodic { every_ns, for_ns })
        }
        _ => Err(ConfigError::Combination(format!(
            "{}: a link goes down by flap_every and flap_for, which need each other, or at the times of `down`",
            keys.place
        ))),
    }
}

/// Times of `down`, without one that begins before the last has ended.
fn intervals(text: &str) -> Option<Vec<(u64, u64)>> {
    let interval = |word: &str| {
        let (from, to) = word.split_once('-')?;
        Some((quantity(from.trim(), TIME)?, quantity(to.trim(), TIME)?))
    };
    let times = text.split('+').map(interval).collect::<Option<Vec<_>>>()?;
    let bounds: Vec<u64> = times.iter().flat_map(|&(from, to)| [from, to]).collect();
    bounds.is_sorted_by(|one, next| one < next).then_some(times)
}

fn faults(keys: &Keys<'_>) -> Checked<Faults> {
    let faults = Faults {
        loss_ppm: keys.chance("loss")?,
        burst_start_ppm: keys.chance("burst_loss")?,
        burst_frames: keys.number("burst_frames", 8, 1, 100_000)? as u32,
        duplicate_ppm: keys.chance("duplicate")?,
        reorder_ppm: keys.chance("reorder")?,
        reorder_ns: keys.time("reorder_delay", 100_000)?,
        corrupt_ppm: keys.chance("corrupt")?,
        truncate_ppm: keys.chance("truncate")?,
        spike_ppm: keys.chance("spike")?,
        spike_ns: keys.time("spike_delay", 1_000_000)?,
        spares_arp: keys.get("spare", true, "roce (all but RoCE packets are spared) or none", |text| match text {
            "roce" => Some(true),
            "none" => Some(false),
            _ => None,
        })?,
        ..Faults::NONE
    };
    let is_any = [
        faults.loss_ppm,
        faults.burst_start_ppm,
        faults.duplicate_ppm,
        faults.reorder_ppm,
        faults.corrupt_ppm,
        faults.truncate_ppm,
        faults.spike_ppm,
    ];
    Ok(if is_any == [0; 7] { Faults::NONE } else { faults })
}

/// Limits that are not the switch model's.
pub(super) struct Limits {
    pub(super) frames: usize,
    pub(super) stations: usize,
    pub(super) station_age_ns: u64,
}

/// Looks at the switch's table.
pub(super) fn switch(table: &Table, ports: &[PortSettings]) -> Checked<(SwitchSettings, Limits)> {
    let keys = Keys { place: "the switch", table };
    keys.check(&SWITCH_KEYS)?;
    let priorities = keys.get("pfc", [false; PRIORITY_COUNT], PRIORITIES, priorities)?;
    let alpha = keys.get("alpha", 1.0, "a number above 0", |text| text.parse::<f64>().ok())?;
    let threshold = match keys.text("queue_limit") {
        None => Threshold::Dynamic(alpha),
        Some(_) if table.contains_key("alpha") => {
            return Err(ConfigError::Combination(
                "the switch: alpha and queue_limit say the same, so one is enough".to_owned(),
            ));
        }
        Some(_) => Threshold::Static(keys.bytes("queue_limit", 0)?),
    };
    let needed =
        |port: &PortSettings| port.link.headroom_bytes() + u64::from(port.link.rate_mbps) * OBEYS_WITHIN_NS / 8_000;
    let switch = SwitchSettings {
        buffer_bytes: keys.bytes("buffer", 16 << 20)?,
        threshold,
        marking: marking(&keys)?,
        pause: PauseSettings {
            priorities,
            headroom_bytes: keys.bytes("headroom", ports.iter().map(needed).max().unwrap_or(0))?,
            xon_offset_bytes: keys.bytes("xon_offset", 20_000)?,
            quanta: keys.number("quanta", u64::from(u16::MAX), 2, u64::from(u16::MAX))? as u16,
        },
        dequeue: keys.get(
            "weights",
            [Dequeue::Strict; PRIORITY_COUNT],
            "eight weights, 0 = strict, such as 1+1+1+1+1+1+0+0",
            weights,
        )?,
        classes: Classes {
            trust: keys.get("trust", Trust::Dscp, "dscp or pcp", |text| match text {
                "dscp" => Some(Trust::Dscp),
                "pcp" => Some(Trust::Pcp),
                _ => None,
            })?,
            dscp_priorities: keys.get(
                "dscp_to_priority",
                Classes::default().dscp_priorities,
                "DSCPs from 0 to 63 with priorities from 0 to 7, such as 26:3+48:6, in a file { 26 = 3, 48 = 6 }",
                dscp_priorities,
            )?,
        },
    };
    let limits = Limits {
        frames: keys.number("frames", 8_192, 256, 1 << 20)? as usize,
        stations: keys.number("stations", 4_096, 2, 1 << 20)? as usize,
        station_age_ns: keys.get("station_age", 300_000_000_000, "a time from 1s to 1000000s", |text| {
            quantity(text, TIME).filter(|ns| (1_000_000_000..=1_000_000_000_000_000).contains(ns))
        })?,
    };
    Ok((switch, limits))
}

fn marking(keys: &Keys<'_>) -> Checked<[Option<Marking>; PRIORITY_COUNT]> {
    let marked = keys.get("mark", [true; PRIORITY_COUNT], PRIORITIES, priorities)?;
    let given = ["kmin", "kmax", "pmax"].map(|key| keys.table.contains_key(key));
    match given {
        [false, false, false] if keys.table.contains_key("mark") => {
            Err(ConfigError::Combination("the switch: mark needs kmin, kmax and pmax".to_owned()))
        }
        [false, false, false] => Ok([None; PRIORITY_COUNT]),
        [true, true, true] => {
            let marking = Marking {
                kmin_bytes: keys.bytes("kmin", 0)?,
                kmax_bytes: keys.bytes("kmax", 0)?,
                pmax: keys.get("pmax", 1.0, "a chance from 0 to 1", |text| text.parse::<f64>().ok())?,
            };
            Ok(marked.map(|is| is.then_some(marking)))
        }
        _ => Err(ConfigError::Combination("the switch: kmin, kmax and pmax need each other".to_owned())),
    }
}

fn priorities(text: &str) -> Option<[bool; PRIORITY_COUNT]> {
    let mut priorities = [false; PRIORITY_COUNT];
    for word in text.split('+').filter(|word| !word.is_empty()) {
        *priorities.get_mut(word.parse::<usize>().ok()?)? = true;
    }
    Some(priorities)
}

/// The usual table with these changes.
fn dscp_priorities(text: &str) -> Option<[u8; 64]> {
    let mut table = Classes::default().dscp_priorities;
    for word in text.split('+').filter(|word| !word.is_empty()) {
        let (dscp, priority) = word.split_once(':')?;
        let priority = priority.trim().parse().ok().filter(|&priority: &u8| usize::from(priority) < PRIORITY_COUNT)?;
        *table.get_mut(dscp.trim().parse::<usize>().ok()?)? = priority;
    }
    Some(table)
}

fn weights(text: &str) -> Option<[Dequeue; PRIORITY_COUNT]> {
    let weight = |word: &str| match word.parse::<u16>().ok()? {
        0 => Some(Dequeue::Strict),
        weight => Some(Dequeue::Weighted(weight)),
    };
    text.split('+').map(weight).collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// A port's keys, with what holds.
pub(super) fn port_toml(port: &PortSettings) -> String {
    let PortSettings { vdev, link, faults, faulty, flaps, group } = port;
    let chance = |ppm: u32| f64::from(ppm) / 1e6;
    let mut text = format!(
        "device = \"{vdev}\"\nrate = \"{}\"\ndelay = \"{}\"\njitter = \"{}\"\nmtu = {}\n",
        shown(u64::from(link.rate_mbps) * 1_000_000, RATE),
        shown(link.delay_ns, TIME),
        shown(link.jitter_ns, TIME),
        link.mtu
    );
    for (key, ppm) in [
        ("loss", faults.loss_ppm),
        ("burst_loss", faults.burst_start_ppm),
        ("duplicate", faults.duplicate_ppm),
        ("reorder", faults.reorder_ppm),
        ("corrupt", faults.corrupt_ppm),
        ("truncate", faults.truncate_ppm),
        ("spike", faults.spike_ppm),
    ] {
        text.push_str(&format!("{key} = {}\n", chance(ppm)));
    }
    if *faults != Faults::NONE {
        let spare = if faults.spares_arp { "roce" } else { "none" };
        let [reorder, spike] = [faults.reorder_ns, faults.spike_ns].map(|ns| shown(ns, TIME));
        text.push_str(&format!(
            "burst_frames = {}\nreorder_delay = \"{reorder}\"\nspike_delay = \"{spike}\"\nspare = \"{spare}\"\n",
            faults.burst_frames
        ));
    }
    let way = match faulty {
        Faulty::Both => "both",
        Faulty::In => "in",
        Faulty::Out => "out",
    };
    text.push_str(&format!("faults = \"{way}\"\n"));
    match flaps {
        Flaps::Never => {}
        Flaps::Periodic { every_ns, for_ns } => {
            let [every, length] = [every_ns, for_ns].map(|&ns| shown(ns, TIME));
            text.push_str(&format!("flap_every = \"{every}\"\nflap_for = \"{length}\"\n"));
        }
        Flaps::Times(times) => {
            let interval = |&(from, to): &(u64, u64)| format!("{}-{}", shown(from, TIME), shown(to, TIME));
            text.push_str(&format!("down = {:?}\n", times.iter().map(interval).collect::<Vec<_>>()));
        }
    }
    if let Some(group) = group {
        text.push_str(&format!("group = {group:?}\n"));
    }
    text
}

/// The switch's keys, with what holds.
pub(super) fn switch_toml(settings: &Settings) -> String {
    let switch = &settings.switch;
    let mut text = format!("buffer = \"{}\"\n", shown(switch.buffer_bytes, SIZE));
    text.push_str(&match switch.threshold {
        Threshold::Static(bytes) => format!("queue_limit = \"{}\"\n", shown(bytes, SIZE)),
        Threshold::Dynamic(alpha) => format!("alpha = {alpha:?}\n"),
    });
    // One curve for all that have it.
    if let Some(Marking { kmin_bytes, kmax_bytes, pmax }) = switch.marking.iter().flatten().next() {
        let (kmin, kmax) = (shown(*kmin_bytes, SIZE), shown(*kmax_bytes, SIZE));
        let marked: Vec<usize> = (0..PRIORITY_COUNT).filter(|&priority| switch.marking[priority].is_some()).collect();
        text.push_str(&format!("kmin = \"{kmin}\"\nkmax = \"{kmax}\"\npmax = {pmax:?}\nmark = {marked:?}\n"));
    }
    let pause = &switch.pause;
    let lossless = (0..PRIORITY_COUNT).filter(|&priority| pause.priorities[priority]);
    let weight = |dequeue| match dequeue {
        Dequeue::Strict => 0,
        Dequeue::Weighted(weight) => weight,
    };
    let trust = if switch.classes.trust == Trust::Dscp { "dscp" } else { "pcp" };
    text.push_str(&format!(
        "pfc = {:?}\nheadroom = \"{}\"\nxon_offset = \"{}\"\nquanta = {}\ntrust = \"{trust}\"\nweights = {:?}\n",
        lossless.collect::<Vec<_>>(),
        shown(pause.headroom_bytes, SIZE),
        shown(pause.xon_offset_bytes, SIZE),
        pause.quanta,
        switch.dequeue.map(weight),
    ));
    let usual = Classes::default().dscp_priorities;
    let changed =
        (0..).zip(switch.classes.dscp_priorities).filter(|&(dscp, priority): &(usize, u8)| usual[dscp] != priority);
    let changed: Vec<String> = changed.map(|(dscp, priority)| format!("{dscp} = {priority}")).collect();
    text.push_str(&format!("dscp_to_priority = {{ {} }}\n", changed.join(", ")));
    let age = shown(settings.station_age_ns, TIME);
    text.push_str(&format!(
        "frames = {}\nstations = {}\nstation_age = \"{age}\"\n",
        settings.frames, settings.stations
    ));
    text
}
