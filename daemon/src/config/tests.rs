use clap::{CommandFactory, Parser};

use shm::qos::{Trust, Tsa};

use super::*;

fn machine() -> Machine {
    Machine { available_cores: vec![0, 1, 2], isolated_cores: vec![2], best_memory: MemoryMode::NoHuge { mib: 1024 } }
}

/// A file with one good port, and `more` in front of it.
fn file(more: &str) -> String {
    format!("{more}\n[[port]]\nvdev = \"net_tap0,iface=t0\"\naddresses = [\"10.0.0.1\"]\n")
}

fn parse(text: &str) -> Result<Config, String> {
    let raw: RawConfig = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    validate(&raw, &machine()).map_err(|error| error.to_string())
}

fn with_flags(text: &str, flags: &[&str]) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ferroced.toml");
    fs::write(&path, text).unwrap();
    let words = ["ferroced", "--config", path.to_str().unwrap()];
    let args = Args::try_parse_from(words.iter().chain(flags)).map_err(|error| error.to_string())?;
    Config::load(&args, &machine()).map_err(|error| error.to_string())
}

#[test]
fn one_port_is_enough() {
    let config = parse(&file("")).unwrap();
    assert_eq!((config.device.as_str(), config.socket.to_str().unwrap()), ("ferroce0", SOCKET_PATH));
    assert_eq!((config.socket_mode, config.log.as_str()), (0o666, "info"));
    assert_eq!((config.lcores, config.memory), (LcoreSetup::default(), MemoryMode::NoHuge { mib: 1024 }));
    assert_eq!((config.limits, config.transport), (Limits::default(), TransportConfig::default()));
    let [port] = config.ports.as_slice() else { panic!("one port") };
    assert_eq!((port.mtu_bytes, port.queue_pairs, port.mac), (4200, 1, None));
}

#[test]
fn what_is_printed_reads_back_as_the_same() {
    let everything = r#"
        device = "rocky1"
        socket = "/tmp/x.sock"
        socket_mode = "0600"
        log = "warn,daemon=debug"
        lcores = [1, 2]
        idle = "spin"
        process_memory = "none"
        memory = "no-huge"
        memory_mib = 300
        [limits]
        max_qp = 10
        memory_bytes = 1099511627776
        [transport]
        window_packets = 64
        [qos]
        trust = "pcp"
        dscp_to_priority = { 26 = 3, 48 = 6, 0 = 1 }
        priority_to_class = [0, 0, 1, 2, 3, 4, 5, 6]
        tsa = ["ets", "ets", "ets", "ets", "ets", "ets", "strict", "strict"]
        weights = [10, 20, 30, 40, 1, 1, 0, 0]
        pfc_priorities = [3, 4]
        pfc_xoff_frames = 500
        pfc_watchdog_ignore_ms = 100
        [congestion]
        algorithm = "swift"
        mdf = 0.7
        base_target = "40us"
        ect = false
        cnp_dscp = 26
        [[port]]
        vdev = "net_af_packet0,iface=x"
        mtu_bytes = 1500
        capture_file = "/tmp/x.pcap"
        [port.fault]
        drop = 0.01
        seed = 7
        [[port]]
        pci = "0000:3b:00.0"
        addresses = ["10.0.0.1", "10.0.1.1"]
        mac = "02:00:00:00:00:07"
        rx_descriptors = 512
        tx_descriptors = 256
        spare_mbufs = 4096
    "#;
    for text in [everything.to_owned(), file("")] {
        let config = parse(&text).unwrap();
        assert_eq!(parse(&config.to_toml()).unwrap(), config, "{}", config.to_toml());
    }
    let config = parse(everything).unwrap();
    assert_eq!(config.lcores, LcoreSetup { cores: vec![Some(1), Some(2)], idle: IdlePolicy::Spin });
    let qos = config.qos;
    assert_eq!((qos.trust, qos.pfc_mask(), qos.priority_to_class[7]), (Trust::Pcp, 0b1_1000, 6));
    assert_eq!([0, 1, 26, 48].map(|dscp| qos.dscp_to_priority.priority(dscp)), [1, 0, 3, 6]);
    assert_eq!(
        (qos.tsa[6], qos.weights, qos.numbers.pfc_xoff_frames),
        (Tsa::Strict, [10, 20, 30, 40, 1, 1, 0, 0], 500)
    );
    assert_eq!((config.limits.max_qp, config.limits.memory_bytes), (10, 1 << 40));
    let congestion = engine::cc::Settings::default()
        .change(Some("swift"), [("mdf", "0.7"), ("base_target", "40us"), ("ect", "off"), ("cnp_dscp", "26")]);
    assert_eq!(Ok(config.congestion), congestion);
    assert_eq!(config.ports[0].faults.unwrap().rates.drop, 0.01);
    assert_eq!((config.ports[0].queue_pairs, config.ports[1].addresses.len()), (2, 2));
}

#[test]
fn every_key_is_on_the_operators_page() {
    let page = include_str!("../../../docs/config.md");
    let [mut config] = [parse(&file("memory = \"no-huge\"")).unwrap()];
    config.ports[0].mac = Some(wire::MacAddr([2, 0, 0, 0, 0, 1]));
    config.ports[0].capture_file = Some("/tmp/x".into());
    config.ports[0].faults = Some(FaultSetup { rates: FaultRates::default(), seed: 1 });
    let printed = config.to_toml();
    let keys = printed.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key);
    assert!(keys.clone().count() > 30);
    for key in keys.chain(["pci"]) {
        assert!(page.contains(&format!("`{key}`")), "docs/config.md does not explain {key}");
    }
}

#[test]
fn bad_values_are_refused_by_a_sentence_with_key_value_and_range() {
    for (text, sentence) in [
        ("limits.max_qp = 0", "limits.max_qp = 0: 1 to 1048560 are possible"),
        ("limits.max_sge = -1", "limits.max_sge = -1: 1 to 32 are possible"),
        (
            "limits.ring_bytes = 9223372036854775807",
            "limits.ring_bytes = 9223372036854775807: 1048576 to 1099511627776 are possible",
        ),
        (
            "transport.window_packets = 100",
            "transport.window_packets = 100: 1 to 65536 are possible, powers of two only",
        ),
        (
            "congestion.algorithm = \"cubic\"",
            "[congestion]: there is no congestion control \"cubic\": it is one of none, dcqcn-nvidia, dcqcn-paper, timely, \
             timely-original, swift",
        ),
        ("congestion.rai = 40", "[congestion]: rai = 40bps is out of range: 1Mbps to 100Gbps"),
        ("lcores = [0, 9]", "lcores = 9: the cores of this process are [0, 1, 2]"),
        ("lcores = [1, 1]", "lcores = 1: each core can be named once"),
        ("lcores = [-1]", "lcores = -1: the cores of this process are [0, 1, 2]"),
        ("lcore_count = 17", "lcore_count = 17: 1 to 16 are possible"),
        ("lcores = [1]\nlcore_count = 2", "lcore_count = 2, but lcores names 1 cores: leave one of them out"),
        ("idle = \"lazy\"", "idle = \"lazy\": \"spin\" and \"adaptive\" are possible"),
        ("memory = \"lots\"", "memory = \"lots\": \"hugepages\", \"in-memory\" and \"no-huge\" are possible"),
        ("process_memory = \"me\"", "process_memory = \"me\": \"same-user\", \"all\" and \"none\" are possible"),
        ("memory_mib = 8", "memory_mib = 8: 64 to 1048576 are possible"),
        (
            "memory = \"in-memory\"\nmemory_mib = 64",
            "memory_mib = 64: it limits memory without hugepages only: leave it out, or set memory = \"no-huge\"",
        ),
        ("qos.trust = \"mac\"", "qos.trust = \"mac\": \"dscp\" and \"pcp\" are possible"),
        (
            "qos.dscp_to_priority = { x = 3 }",
            "qos.dscp_to_priority = { x = 3 }: DSCPs from 0 to 63 and priorities from 0 to 7 are possible",
        ),
        ("qos.dscp_to_priority = { 64 = 3 }", "[qos]: DSCP 64 does not exist: 0 to 63 do"),
        ("qos.priority_to_class = [1]", "qos.priority_to_class = [1]: eight numbers from 0 on are possible"),
        ("qos.tsa = [\"ets\"]", "qos.tsa = [\"ets\"]: eight words \"strict\" or \"ets\" are possible"),
        ("qos.pfc_priorities = [8]", "qos.pfc_priorities = 8: priorities from 0 to 7 are possible"),
        ("qos.pfc_pause_quanta = 65536", "qos.pfc_pause_quanta = 65536: 1 to 65535 are possible"),
        (
            "qos.pfc_xoff_frames = 64",
            "[qos]: pfc_xon_frames = 64: fewer than pfc_xoff_frames, which is 64, are possible",
        ),
        ("device = \"a b\"", "device = \"a b\": 1 to 63 letters, digits, `_`, `-` and `.` are possible"),
        ("socket_mode = \"888\"", "socket_mode = \"888\": octal digits from \"0000\" to \"0777\" are possible"),
    ] {
        assert_eq!(parse(&file(text)).unwrap_err(), sentence);
    }
    let unknown = parse(&file("congestion.speed = 40")).unwrap_err();
    assert!(
        unknown.starts_with("[congestion]: dcqcn-nvidia has no parameter \"speed\": it has rate_limit, burst, "),
        "{unknown}"
    );
    let long = format!("socket = \"/{}\"", "x".repeat(107));
    assert!(parse(&file(&long)).unwrap_err().ends_with("a path of 1 to 107 bytes is possible, this one has 108"));
}

#[test]
fn bad_ports_are_refused_by_a_sentence_that_names_the_port() {
    let tap = "vdev = \"net_tap0,iface=t\"\naddresses = [\"10.0.0.1\"]";
    for (port, sentence) in [
        ("", "port 1: needs either `vdev` or `pci`"),
        ("vdev = \"net_tap0\"\npci = \"0000:00:01.0\"", "port 1: needs either `vdev` or `pci`"),
        ("vdev = \"eth0\"\naddresses = [\"10.0.0.1\"]", "port 1: vdev = eth0: `eth0` names no known driver"),
        ("vdev = \"net_tap0,iface=t\"", "port 1: needs `addresses`, such as [\"10.0.0.1\"]"),
        ("vdev = \"net_tap0\"\naddresses = [\"300.0.0.1\"]", "port 1: addresses = 300.0.0.1: addresses of hosts"),
        ("vdev = \"net_tap0\"\naddresses = [\"ff02::1\"]", "port 1: addresses = ff02::1: addresses of hosts"),
        ("vdev = \"net_tap0\"\naddresses = [\"255.255.255.255\"]", "port 1: addresses = 255.255.255.255: addres"),
        (
            "vdev = \"net_tap0\"\naddresses = [\"10.0.0.1@4095\"]",
            "port 1: addresses = 10.0.0.1@4095: VLANs from 1 to 4094",
        ),
        (&format!("{tap}\nmac = \"01:00:00:00:00:00\""), "port 1: mac = 01:00:00:00:00:00: a unicast address such as"),
        (&format!("{tap}\nmtu_bytes = 100"), "port 1: mtu_bytes = 100: 576 to 9216 are possible"),
        (&format!("{tap}\nrx_descriptors = 1"), "port 1: rx_descriptors = 1: 64 to 32768 are possible"),
        (&format!("{tap}\nfault.drop = 1.5"), "port 1: fault.drop = 1.5: 0.0 to 1.0 are possible"),
        (&format!("{tap}\nfault.corrupt = nan"), "port 1: fault.corrupt = NaN: 0.0 to 1.0 are possible"),
    ] {
        let error = parse(&format!("[[port]]\n{port}\n")).unwrap_err();
        assert!(error.starts_with(sentence), "{error}");
    }
    assert!(parse("").unwrap_err().starts_with("a daemon has 1 to 8 ports, and is configured with 0: name one by"));
    assert!(parse(&format!("[[port]]\n{tap}\n").repeat(9)).unwrap_err().contains("configured with 9"));
}

#[test]
fn unknown_keys_and_wrong_types_are_refused() {
    assert!(parse(&file("devise = \"x\"")).unwrap_err().contains("unknown field `devise`"));
    assert!(parse(&file("limits.max_cats = 1")).unwrap_err().contains("unknown field `max_cats`"));
    assert!(parse(&file("device = 1")).unwrap_err().contains("invalid type: integer `1`, expected a string"));
    let in_file = with_flags("x = ", &[]).unwrap_err();
    assert!(in_file.contains("ferroced.toml"), "{in_file}");
    let absent = Args { config: Some("/no/such/file".into()), ..Args::default() };
    assert!(Config::load(&absent, &machine()).unwrap_err().to_string().contains("/no/such/file"));
}

#[test]
fn flags_win_over_the_file() {
    let text = file("device = \"a\"\nlcore_count = 2\nmemory = \"in-memory\"\nidle = \"spin\"");
    let flags = [
        "--device",
        "b",
        "--lcores",
        "0,2,1",
        "--no-huge",
        "--idle",
        "adaptive",
        "--socket",
        "/tmp/s",
        "--log",
        "warn",
    ];
    let config = with_flags(&text, &flags).unwrap();
    assert_eq!((config.device.as_str(), config.socket.to_str(), config.log.as_str()), ("b", Some("/tmp/s"), "warn"));
    assert_eq!(config.lcores, LcoreSetup { cores: vec![Some(0), Some(2), Some(1)], idle: IdlePolicy::Adaptive });
    assert_eq!(config.memory, MemoryMode::NoHuge { mib: 1024 });
    assert_eq!(config.ports.len(), 1);

    let config = with_flags(&text, &["--address", "10.9.9.9,10.9.9.8"]).unwrap();
    assert_eq!(config.ports[0].addresses, ["10.9.9.9", "10.9.9.8"].map(|ip| ip.parse::<IpAddr>().unwrap().into()));
    let config = with_flags(&text, &["--address", "10.9.9.9,fd00::1,fe80::2@4094"]).unwrap();
    assert_eq!(
        config.ports[0].addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.9.9.9", "fd00::1", "fe80::2@4094"]
    );

    let flags = ["--vdev", "net_tap1", "--vdev", "net_af_packet0,iface=x", "--pci", "0000:00:01.0"];
    let addresses = ["--address", "1.1.1.1", "--address", "2.2.2.2", "--address", "3.3.3.3"];
    let config = with_flags(&text, &[flags.as_slice(), &addresses].concat()).unwrap();
    let ports: Vec<String> = config.ports.iter().map(|port| port.addresses[0].to_string()).collect();
    assert_eq!(ports, ["1.1.1.1", "2.2.2.2", "3.3.3.3"]);
    assert_eq!(config.ports[2].device, Device::Pci("0000:00:01.0".to_owned()));

    let error = with_flags(&text, &["--address", "1.1.1.1", "--address", "2.2.2.2"]).unwrap_err();
    assert_eq!(error, "--address is given 2 times for 1 ports");
    assert!(with_flags(&text, &["--memory", "in-memory", "--no-huge"]).is_err());
    let config = with_flags(&file("memory_mib = 100"), &["--memory", "in-memory"]).unwrap();
    assert_eq!(config.memory, MemoryMode::InMemory);
}

#[test]
fn isolated_cores_are_spun_on_and_others_are_not() {
    assert_eq!(parse(&file("lcores = [2]")).unwrap().lcores.idle, IdlePolicy::Spin);
    assert_eq!(parse(&file("lcores = [1, 2]")).unwrap().lcores.idle, IdlePolicy::Adaptive);
    assert_eq!(parse(&file("lcores = []\nlcore_count = 3")).unwrap().lcores.cores, [None; 3]);
    assert_eq!(parse_core_list("1-3,7\n"), [1, 2, 3, 7]);
    assert_eq!(parse_core_list("\n"), [0_usize; 0]);
}

#[test]
fn the_command_line_is_well_formed() {
    Args::command().debug_assert();
}
