//! Two tap ports whose kernel sides a bridge joins, in a network namespace of the test's own.

mod support;

use pmd::{Port, PortConfig, Vdev};
use support::{Side, Traits};

#[test]
fn tap_conforms_up_to_1514_bytes() {
    if !support::enter_network_namespace() {
        return;
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: there is no /dev/net/tun");
        return;
    }
    support::ip("link add fbr type bridge");
    support::ip("link set fbr up");
    let eal = support::eal();
    let [mut a, mut b] = [(0, "fdtp0"), (1, "fdtp1")].map(|(index, interface)| {
        let vdev = Vdev::tap(index, interface);
        eal.add_vdev(&vdev).unwrap();
        let side = Side::start(
            Port::by_name(eal, vdev.name()).unwrap(),
            &PortConfig { promiscuous: true, ..PortConfig::default() },
        );
        support::ip(&format!("link set {interface} master fbr"));
        support::ip(&format!("link set {interface} up"));
        side
    });
    assert_eq!((a.port.max_frame_bytes(), a.port.mtu_bytes(), a.port.kernel_interface()), (1514, 1500, None));
    support::conformance(&mut a, &mut b, &Traits { window: 64, size_step: 7 });
}
