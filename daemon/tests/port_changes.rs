//! Ports follow the kernel's interface: link, addresses, MTU and MAC address change under a daemon, and its clients learn of it.

mod process;
mod support;

use std::net::IpAddr;
use std::process::Command;

use ferroce::{
    AccessFlags, AhAttr, AsyncEvent, Context, CqInit, Gid, PortAttr, QpAttr, QpAttrMask, QpInit, QpState, QueuePair,
};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use process::Ferroced;
use support::PATIENCE;

const PORT: &str = "[[port]]\nvdev = \"net_af_packet0,iface=eth0\"\n";

/// Gives this thread, and the processes that it starts, a network of their own with eth0 (10.1.0.1) and its peer. False, and a word, if
/// that needs more privilege.
fn enter_network() -> bool {
    match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => {}
        Err(Errno::EPERM) => {
            println!("skipped: a network namespace needs CAP_SYS_ADMIN");
            return false;
        }
        Err(errno) => panic!("a network namespace: {errno}"),
    }
    ip("link add eth0 mtu 9000 type veth peer name peer0 mtu 9000");
    // Only the addresses that the test gives.
    ip("link set eth0 addrgenmode none");
    ip("link set peer0 addrgenmode none");
    ip("addr add 10.1.0.1/32 dev eth0");
    ip("link set peer0 up");
    ip("link set eth0 up");
    true
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// The next event that a port's change makes.
fn event(context: &Context) -> AsyncEvent {
    context.get_async_event(Some(PATIENCE)).unwrap().expect("an event comes")
}

const GID_CHANGE: AsyncEvent = AsyncEvent::GidChange { port_num: 1 };

fn port(context: &Context) -> PortAttr {
    context.query_port(1).unwrap()
}

/// Index and address of each GID.
fn gids(context: &Context) -> Vec<(u32, String)> {
    context.query_gids(1).unwrap().iter().map(|gid| (gid.index, gid.gid.ip().to_string())).collect()
}

fn table(entries: &[(u32, &str)]) -> Vec<(u32, String)> {
    entries.iter().map(|&(index, ip)| (index, ip.to_owned())).collect()
}

/// Takes a new QP to RTR with an address as its source.
fn to_rtr(qp: &QueuePair, sgid_index: u8) -> Result<(), String> {
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        path_mtu: 1,
        ah_attr: AhAttr {
            dgid: Gid::from_ip(IpAddr::from([10, 1, 0, 9])),
            sgid_index,
            port_num: 1,
            ..AhAttr::default()
        },
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    qp.modify(&attr, mask).map(drop).map_err(|error| error.to_string())
}

fn init(context: &Context) -> QueuePair {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit { cqe: 16, ..CqInit::default() }).unwrap();
    let qp = pd.create_qp(&QpInit::rc(&cq)).unwrap();
    qp.to_init(1, AccessFlags::NONE).unwrap();
    qp
}

#[test]
fn a_link_that_goes_down_and_up_is_told_to_every_client() {
    if !enter_network() {
        return;
    }
    let daemon = Ferroced::start_on(PORT, "");
    let clients = [daemon.connect(), daemon.connect()];
    assert!(clients.iter().all(|client| port(client).active));
    for (command, told, active) in [
        ("link set peer0 down", AsyncEvent::PortErr { port_num: 1 }, false),
        ("link set peer0 up", AsyncEvent::PortActive { port_num: 1 }, true),
        ("link set eth0 down", AsyncEvent::PortErr { port_num: 1 }, false),
        ("link set eth0 up", AsyncEvent::PortActive { port_num: 1 }, true),
    ] {
        ip(command);
        for client in &clients {
            assert_eq!(event(client), told, "{command}");
            assert_eq!(port(client).active, active, "{command}");
        }
    }
    // The interface itself goes: the daemon stays, with a port that is down and has no address.
    ip("link del eth0");
    let client = &clients[0];
    let told = [event(client), event(client)];
    assert_eq!(told, [AsyncEvent::PortErr { port_num: 1 }, GID_CHANGE]);
    assert_eq!((port(client).active, gids(client)), (false, Vec::new()));
}

#[test]
fn addresses_come_and_go_and_gids_keep_their_index() {
    if !enter_network() {
        return;
    }
    let daemon = Ferroced::start_on(PORT, "");
    let client = daemon.connect();
    assert_eq!(gids(&client), table(&[(0, "10.1.0.1")]));
    let after = |command: &str| {
        ip(command);
        assert_eq!(event(&client), GID_CHANGE, "{command}");
        gids(&client)
    };
    assert_eq!(after("addr add 10.1.0.2/32 dev eth0"), table(&[(0, "10.1.0.1"), (1, "10.1.0.2")]));
    let (old, new) = (init(&client), init(&client));
    to_rtr(&old, 0).unwrap();
    assert_eq!(after("addr del 10.1.0.1/32 dev eth0"), table(&[(1, "10.1.0.2")]));
    assert_eq!(old.query().unwrap().qp_state, QpState::Rtr, "it keeps its path");
    let refused = to_rtr(&new, 0).unwrap_err();
    assert!(refused.contains("sgid_index is 0, and the port has no such GID"), "{refused}");
    to_rtr(&new, 1).unwrap();
    assert_eq!(after("addr add 10.1.0.3/32 dev eth0"), table(&[(0, "10.1.0.3"), (1, "10.1.0.2")]));
    assert_eq!(
        after("-6 addr add fd00::1/64 dev eth0 nodad"),
        table(&[(0, "10.1.0.3"), (1, "10.1.0.2"), (2, "fd00::1")])
    );
}

#[test]
fn an_ipv6_address_is_used_once_duplicate_address_detection_has_let_it_pass() {
    if !enter_network() {
        return;
    }
    let daemon = Ferroced::start_on(PORT, "");
    let client = daemon.connect();
    // Without a link the detection does not end.
    ip("link set peer0 down");
    assert_eq!(event(&client), AsyncEvent::PortErr { port_num: 1 });
    ip("-6 addr add fd00::2/64 dev eth0");
    ip("addr add 10.1.0.2/32 dev eth0");
    assert_eq!(event(&client), GID_CHANGE);
    assert_eq!(gids(&client), table(&[(0, "10.1.0.1"), (1, "10.1.0.2")]));
    ip("link set peer0 up");
    assert_eq!(event(&client), AsyncEvent::PortActive { port_num: 1 });
    assert_eq!(event(&client), GID_CHANGE);
    assert_eq!(gids(&client), table(&[(0, "10.1.0.1"), (1, "10.1.0.2"), (2, "fd00::2")]));
}

#[test]
fn mtu_and_mac_address_follow_the_interface() {
    if !enter_network() {
        return;
    }
    let daemon = Ferroced::start_on(PORT, "");
    let client = daemon.connect();
    let before = port(&client);
    assert_eq!((before.interface_mtu, before.active_mtu), (4_200, 5), "as much as the port was set up for");
    ip("link set eth0 mtu 1500");
    ip("link set eth0 address 02:00:00:00:00:77");
    // These make no event; an address that comes after them does.
    ip("addr add 10.1.0.2/32 dev eth0");
    assert_eq!(event(&client), GID_CHANGE);
    let after = port(&client);
    assert_eq!((after.interface_mtu, after.active_mtu), (1_500, 3));
    assert_eq!(after.mac.to_string(), "02:00:00:00:00:77");
    ip("link set eth0 mtu 9000");
    ip("addr add 10.1.0.3/32 dev eth0");
    assert_eq!(event(&client), GID_CHANGE);
    assert_eq!(port(&client).interface_mtu, 4_200);
}

#[test]
fn only_addresses_that_the_operator_allows_are_used() {
    if !enter_network() {
        return;
    }
    ip("addr add 10.1.0.2/32 dev eth0");
    let daemon = Ferroced::start_on(&format!("{PORT}addresses = [\"10.1.0.2\"]\n"), "");
    let client = daemon.connect();
    assert_eq!(gids(&client), table(&[(0, "10.1.0.2")]));
    ip("addr add 10.1.0.3/32 dev eth0");
    ip("addr del 10.1.0.2/32 dev eth0");
    assert_eq!(event(&client), GID_CHANGE);
    assert_eq!(gids(&client), Vec::new());
    ip("addr add 10.1.0.2/32 dev eth0");
    assert_eq!(event(&client), GID_CHANGE);
    assert_eq!(gids(&client), table(&[(0, "10.1.0.2")]));
}
