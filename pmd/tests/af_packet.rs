//! Two af_packet ports at the ends of a veth pair, in a network namespace of the test's own.

mod support;

use pmd::{EalError, Port, PortConfig, PortError, Vdev};
use support::{Side, Traits};
use wire::MacAddr;

#[test]
fn af_packet_conforms_within_the_interface_mtu() {
    if !support::enter_network_namespace() {
        return;
    }
    support::ip("link add fa0 mtu 9000 type veth peer name fa1 mtu 9000");
    support::ip("link set fa0 up");
    support::ip("link set fa1 up");
    let eal = support::eal();
    let config = PortConfig { max_frame_bytes: 9600, ..PortConfig::default() };
    let [mut a, mut b] = [(0, "fa0"), (1, "fa1")].map(|(index, interface)| {
        let vdev = Vdev::af_packet(index, interface, 1, 9600);
        eal.add_vdev(&vdev).unwrap();
        assert!(matches!(eal.add_vdev(&vdev), Err(EalError::VdevExists(_))));
        let port = Port::by_name(eal, vdev.name()).unwrap();
        assert_eq!(port.kernel_interface(), Some(interface));
        // The kernel's address is not ours to change; the port can be tried again afterwards.
        let foreign = PortConfig { mac: Some(MacAddr([2, 0, 0, 0, 0, 1])), ..config.clone() };
        assert!(matches!(port.configure(&foreign), Err(PortError::MacIsTheKernels { .. })));
        Side::start(Port::by_name(eal, vdev.name()).unwrap(), &config)
    });
    assert_eq!(a.port.max_frame_bytes(), 9014, "the veth's MTU and an Ethernet header");
    support::conformance(&mut a, &mut b, &Traits { window: 128, size_step: 7 });
    let before = b.port.stats().ipackets;
    assert!(a.push(b.port.mac().0, 1, 9014));
    a.flush();
    while b.receive().is_empty() {}
    assert!(b.port.stats().ipackets > before);
}
