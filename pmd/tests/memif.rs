//! Two memif ports in one process, joined by shared memory over a UNIX socket.

mod support;

use pmd::{MemifRole, Port, PortConfig, Vdev};
use support::{Side, Traits};

#[test]
fn memif_conforms() {
    let eal = support::eal();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("memif.sock");
    let socket = socket.to_str().unwrap();
    let config = PortConfig { max_frame_bytes: 9216, ..PortConfig::default() };
    // The server is up before the client starts.
    let [mut server, mut client] = [(0, MemifRole::Server), (1, MemifRole::Client)].map(|(index, role)| {
        let vdev = Vdev::memif(index, role, socket, 0, 9216);
        eal.add_vdev(&vdev).unwrap();
        Side::start(Port::by_name(eal, vdev.name()).unwrap(), &config)
    });
    assert_eq!(server.port.max_frame_bytes(), 9216);
    let traits = Traits { window: 256, size_step: 1 };
    support::conformance(&mut server, &mut client, &traits);
    support::a_full_path_pushes_back_and_loses_nothing(&mut client, &mut server);
    assert!(server.port.link().up);
}
