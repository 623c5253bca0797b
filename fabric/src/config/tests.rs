//! What files and flags may say, what they mean, and how they are refused.

use std::io::Write as _;

use clap::{CommandFactory, Parser};
use sim::network::switch::{Dequeue, Marking, Threshold};

use super::*;

fn load(words: &[&str]) -> Result<Settings, ConfigError> {
    Settings::load(&Args::try_parse_from([&["ferroce-fabric"], words].concat()).unwrap())
}

const TWO: [&str; 4] = ["--port", "net_ring0", "--port", "net_ring1"];

#[test]
fn the_command_line_is_consistent() {
    Args::command().debug_assert();
}

#[test]
fn a_flag_has_keys_of_the_link_among_those_of_the_device() {
    let port = "net_af_packet0,iface=veth0,rate=500Mbps,framecnt=64,delay=10us,loss=1e-3,faults=out,group=up";
    let settings = load(&["--port", port, "--port", "net_tap0,iface=t,mtu=1500"]).unwrap();
    let [port, other] = &settings.ports[..] else { panic!("two ports") };
    assert_eq!(port.vdev.to_string(), "net_af_packet0,iface=veth0,framecnt=64");
    assert_eq!((port.link.rate_mbps, port.link.delay_ns, port.faults.loss_ppm), (500, 10_000, 1_000));
    assert_eq!((port.faults()[0], port.faults()[1]), (Faults::NONE, port.faults));
    assert_eq!(
        (other.link.mtu, other.faults, other.vdev.to_string().as_str()),
        (1_500, Faults::NONE, "net_tap0,iface=t")
    );
    assert_eq!(settings.sides().iter().map(|side| side.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn ports_of_one_group_are_one_side() {
    let ports = ["net_ring0,group=a", "net_ring1", "net_ring2,group=a", "net_ring3,group=b"];
    let settings = load(&ports.map(|port| ["--port", port]).concat()).unwrap();
    let sides: Vec<Vec<u16>> = settings.sides().iter().map(|side| side.to_vec()).collect();
    assert_eq!(sides, [vec![0, 2], vec![1], vec![0, 2], vec![3]]);
}

#[test]
fn the_switch_is_set_by_several_flags() {
    let words = [
        "--switch",
        "buffer=1MiB,queue_limit=64KiB,pfc=3+4,headroom=8KiB",
        "--switch",
        "kmin=5kB,kmax=20kB,pmax=0.1,weights=1+1+1+5+1+1+0+0",
    ];
    let switch = load(&[&TWO[..], &words].concat()).unwrap().switch;
    assert_eq!((switch.buffer_bytes, switch.threshold), (1 << 20, Threshold::Static(65_536)));
    assert_eq!(switch.marking[7], Some(Marking { kmin_bytes: 5_000, kmax_bytes: 20_000, pmax: 0.1 }));
    assert_eq!(switch.pause.priorities, [false, false, false, true, true, false, false, false]);
    assert_eq!((switch.dequeue[3], switch.dequeue[6]), (Dequeue::Weighted(5), Dequeue::Strict));
}

#[test]
fn what_is_printed_is_read_again_as_the_same() {
    let ports = [
        "net_ring0,rate=40Mbps,loss=0.001,duplicate=1%,reorder=1e-6,reorder_delay=20us",
        "net_ring1,group=x,jitter=5us,down=0-2.5s+3s-4s",
        "net_ring2,group=x,flap_every=2s,flap_for=10ms,spike=1%,spike_delay=3ms",
    ];
    let flags = [
        "--switch",
        "kmin=5kB,kmax=20KiB,pmax=0.5,mark=3+4,pfc=3,alpha=2,weights=0+0+0+0+0+2+3+0,dscp_to_priority=26:5+63:0",
        "--seed",
        "9",
        "--idle",
        "spin",
    ];
    let rest = ["--stats-interval", "250ms", "--memory", "no-huge"];
    let settings = load(&[&ports.map(|port| ["--port", port]).concat(), &flags[..], &rest].concat()).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(settings.to_toml().as_bytes()).unwrap();
    assert_eq!(load(&["--config", file.path().to_str().unwrap()]).unwrap(), settings, "{}", settings.to_toml());
}

#[test]
fn flags_win_over_the_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = "seed = 5\nstats_interval = \"1s\"\n[switch]\nbuffer = 1000000\nalpha = 2.0\n[[port]]\ndevice = \"net_ring0\"\n[[port]]\ndevice = \"net_ring1\"\n";
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    let settings = load(&["--config", path, "--seed", "6", "--switch", "buffer=2MB"]).unwrap();
    assert_eq!(
        (settings.seed, settings.switch.buffer_bytes, settings.switch.threshold),
        (6, 2_000_000, Threshold::Dynamic(2.0))
    );
    assert_eq!(settings.stats_interval_ns, Some(1_000_000_000));
    let ports = load(&["--config", path, "--port", "net_ring7", "--port", "net_ring8"]).unwrap().ports;
    assert_eq!(ports.iter().map(|port| port.vdev.name()).collect::<Vec<_>>(), ["net_ring7", "net_ring8"]);
}

#[test]
fn refusals_name_the_key_the_value_and_what_it_may_be() {
    let refusal = |words: &[&str]| load(words).unwrap_err().to_string();
    let port = |text: &str| refusal(&["--port", text, "--port", "net_ring1"]);
    let switch = |text: &str| refusal(&[&TWO[..], &["--switch", text]].concat());
    for (sentence, parts) in [
        (port("net_ring0,rate=fast"), ["net_ring0", "rate = \"fast\"", "1Mbps to 1600Gbps"]),
        (port("net_ring0,rate=1.5Mbps"), ["net_ring0", "1.5Mbps", "whole Mbps"]),
        (port("net_ring0,loss=1e-9"), ["loss", "1e-9", "1e-6"]),
        (port("net_ring0,delay=2s"), ["delay", "2s", "0 to 1s"]),
        (port("net_ring0,faults=none"), ["faults", "none", "both, in or out"]),
        (port("net_ring1"), ["two ports", "net_ring1", ""]),
        (
            refusal(&["--port", "net_af_packet0,iface=veth0", "--port", "net_af_packet1,iface=veth0"]),
            ["two ports", "the interface veth0", ""],
        ),
        (port("eth0"), ["port 0", "eth0", "net_af_packet"]),
        (refusal(&["--port", "net_ring0"]), ["2 to 32 ports", "not 1", ""]),
        (switch("speed=3"), ["the switch has no key", "speed", "buffer"]),
        (switch("kmin=3"), ["kmin", "need each other", ""]),
        (switch("mark=3"), ["mark", "needs kmin", ""]),
        (switch("kmin=1,kmax=2,pmax=1,mark=9"), ["mark", "9", "0 to 7"]),
        (switch("dscp_to_priority=64:1"), ["dscp_to_priority", "64:1", "DSCPs from 0 to 63"]),
        (switch("dscp_to_priority=26:8"), ["dscp_to_priority", "26:8", "priorities from 0 to 7"]),
        (port("net_ring0,flap_every=1s"), ["net_ring0", "flap_for", "need each other"]),
        (port("net_ring0,flap_every=1s,flap_for=1s"), ["flap_for", "1s", "less than flap_every"]),
        (port("net_ring0,flap_every=1us,flap_for=1ns"), ["flap_every", "1us", "from 1ms"]),
        (port("net_ring0,flap_every=1s,flap_for=1ms,down=1s-2s"), ["flap_every", "down", ""]),
        (port("net_ring0,down=2s-1s"), ["down", "2s-1s", "rising order"]),
        (port("net_ring0,down=1s-2s+2s-3s"), ["down", "1s-2s+2s-3s", "rising order"]),
        (port("net_ring0,spike=2"), ["spike", "2", "1e-6"]),
        (switch("kmin=30,kmax=3,pmax=1"), ["kmin <= kmax", "30", ""]),
        (switch("pfc=8"), ["pfc", "8", "0 to 7"]),
        (switch("weights=1+2"), ["weights", "1+2", "eight"]),
        (switch("buffer=1kB,pfc=3"), ["headroom", "1000", ""]),
        (switch("alpha=1,queue_limit=1kB"), ["alpha", "queue_limit", ""]),
        (refusal(&[&TWO[..], &["--stats-interval", "1ms"]].concat()), ["stats_interval", "1ms", "10ms to 3600s"]),
        (refusal(&[&TWO[..], &["--idle", "lazy"]].concat()), ["idle", "lazy", "spin or adaptive"]),
    ] {
        assert!(parts.iter().all(|part| sentence.contains(part)), "{sentence}\n  lacks one of {parts:?}");
    }
}

#[test]
fn the_dscp_table_of_a_file_is_that_of_a_flag() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = "[switch]\ndscp_to_priority = { 26 = 5, 48 = 0 }\n[[port]]\ndevice = \"net_ring0\"\ndown = [\"1s-2s\", \"3s-4s\"]\n[[port]]\ndevice = \"net_ring1\"\n";
    file.write_all(text.as_bytes()).unwrap();
    let by_file = load(&["--config", file.path().to_str().unwrap()]).unwrap();
    let table = by_file.switch.classes.dscp_priorities;
    assert_eq!([25, 26, 27, 47, 48, 49].map(|dscp| table[dscp]), [3, 5, 3, 5, 0, 6]);
    assert_eq!(
        by_file.ports[0].flaps,
        Flaps::Times(vec![(1_000_000_000, 2_000_000_000), (3_000_000_000, 4_000_000_000)])
    );
    let ports = ["--port", "net_ring0,down=1s-2s+3s-4s", "--port", "net_ring1"];
    let by_flags = load(&[&ports[..], &["--switch", "dscp_to_priority=26:5+48:0"]].concat()).unwrap();
    assert_eq!(by_flags, by_file);
}

#[test]
fn a_command_needs_a_socket_and_no_ports() {
    let parse = |words: &[&str]| Args::try_parse_from([&["ferroce-fabric"], words].concat());
    let args = parse(&["--control", "here", "down", "veth0"]).unwrap();
    assert_eq!(args.command, ["down", "veth0"]);
    for words in [&["down", "veth0"][..], &["--control", "here", "--port", "net_ring0", "stats"]] {
        assert!(parse(words).is_err(), "{words:?}");
    }
}
