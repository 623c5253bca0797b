use std::string::ToString;

use proptest::prelude::*;

use super::*;
use crate::{Gid, Pkey, Qkey, Qpn};

/// A MAD of the given attribute, everything else as it must be.
fn mad(attribute: u16, message: &[u8; MESSAGE_BYTES]) -> [u8; MAD_BYTES] {
    let header = MadHeader::cm(AttributeId(attribute), TransactionId(0x2_0000_0007)).to_bytes();
    let mut mad = [0; MAD_BYTES];
    mad[..24].copy_from_slice(&header);
    mad[24..].copy_from_slice(message);
    mad
}

/// A message whose byte at `i` is `i`, so that a field shows where it was read from.
fn numbered() -> [u8; MESSAGE_BYTES] {
    std::array::from_fn(|at| u8::try_from(at).unwrap())
}

/// The bytes from `at` on, as [`numbered`] has them.
fn run<const N: usize>(at: u8) -> [u8; N] {
    std::array::from_fn(|i| at + u8::try_from(i).unwrap())
}

#[test]
fn lap_fields_lie_where_table_115_says() {
    let message = numbered();
    let lap = LapRepr::from_bytes(&message);
    assert_eq!((lap.local_comm_id, lap.remote_comm_id), (CommId(0x0001_0203), CommId(0x0405_0607)));
    assert_eq!((lap.remote_qpn, lap.remote_timeout.exponent()), (Qpn::new(0x0c_0d0e), 15 >> 3));
    let path = lap.alternate;
    assert_eq!((path.local_lid, path.remote_lid), (0x1415, 0x1617));
    assert_eq!((path.local_gid, path.remote_gid), (Gid(run(24)), Gid(run(40))));
    assert_eq!((path.flow_label, path.traffic_class, path.hop_limit), (0x3_8393, 59, 60));
    assert_eq!((path.packet_rate, path.sl, path.subnet_local, path.ack_timeout), (61, 62 >> 4, true, 63 >> 3));
    assert_eq!(lap.private_data, run(64));
    // What is reserved comes back as zeros.
    let mut expected = message;
    expected[8..12].fill(0);
    expected[15] &= 0xf8;
    expected[16..20].fill(0);
    expected[58] &= 0xf0;
    expected[62] &= 0xf8;
    expected[63] &= 0xf8;
    assert_eq!(lap.to_bytes(), expected);
}

#[test]
fn apr_fields_lie_where_table_116_says() {
    let message = numbered();
    let apr = AprRepr::from_bytes(&message);
    assert_eq!((apr.local_comm_id, apr.remote_comm_id), (CommId(0x0001_0203), CommId(0x0405_0607)));
    assert_eq!((apr.info_length, apr.status), (8, ApStatus(9)));
    assert_eq!((apr.info, apr.private_data), (run(12), run(84)));
    let mut expected = message;
    expected[10..12].fill(0);
    assert_eq!(apr.to_bytes(), expected);
}

#[test]
fn req_fields_lie_where_the_specification_says() {
    let message = numbered();
    let req = ReqRepr::from_bytes(&message);
    assert_eq!(req.local_comm_id, CommId(0x0001_0203));
    assert_eq!(
        (req.service_id, req.ca_guid),
        (ServiceId(u64::from_be_bytes(run(8))), CaGuid(u64::from_be_bytes(run(16))))
    );
    assert_eq!((req.qkey, req.qpn), (Qkey(0x1c1d_1e1f), Qpn::new(0x20_2122)));
    assert_eq!((req.responder_resources, req.initiator_depth), (35, 39));
    assert_eq!((req.eecn, req.remote_eecn), (0x24_2526, 0x28_292a));
    // 43 = 00101 01 1, 47 = 00101 111, 50 = 0011 0 010, 51 = 0011 0 011.
    assert_eq!((req.remote_timeout.exponent(), req.transport, req.flow_control), (5, CmTransport::Uc, true));
    assert_eq!((req.local_timeout.exponent(), req.retry_count), (5, 7));
    assert_eq!((req.mtu_code, req.rdc_exists, req.rnr_retry_count), (3, false, 2));
    assert_eq!((req.max_cm_retries, req.srq), (3, false));
    assert_eq!(req.pkey, Pkey(0x3031));
    // 91 = 01 011011, 94 = 0101 1 110, 95 = 01011 111.
    let path = req.primary;
    assert_eq!((path.local_lid, path.remote_lid), (0x3435, 0x3637));
    assert_eq!((path.local_gid, path.remote_gid), (Gid(run(56)), Gid(run(72))));
    assert_eq!((path.flow_label, path.packet_rate), (0x5_8595, 27));
    assert_eq!((path.traffic_class, path.hop_limit), (92, 93));
    assert_eq!((path.sl, path.subnet_local, path.ack_timeout), (5, true, 11));
    assert_eq!((req.alternate.local_lid, req.alternate.ack_timeout), (0x6061, 139 >> 3));
    assert_eq!(req.private_data, run(140));
}

#[test]
fn every_transport_has_its_bits() {
    for (service, extended, transport) in [
        (0, 0, CmTransport::Rc),
        (1, 0, CmTransport::Uc),
        (2, 0, CmTransport::Rd),
        (3, 1, CmTransport::Xrc),
        (3, 0, CmTransport::Reserved(0)),
        (3, 7, CmTransport::Reserved(7)),
    ] {
        let mut message = [0; MESSAGE_BYTES];
        message[43] = service << 1;
        message[51] = extended;
        let req = ReqRepr::from_bytes(&message);
        assert_eq!(req.transport, transport);
        assert_eq!(req.to_bytes(), message);
    }
}

#[test]
fn rej_reasons_have_the_numbers_and_names_of_the_specification() {
    let codes: std::vec::Vec<u16> = RejReason::ALL.iter().map(|reason| reason.0).collect();
    let expected: std::vec::Vec<u16> = (1..=33).chain([35]).collect();
    assert_eq!(codes, expected);
    for (reason, text) in [
        (RejReason::NO_RESOURCES, "3 (no resources available)"),
        (RejReason::INVALID_SERVICE_ID, "8 (invalid service id)"),
        (RejReason::STALE_CONNECTION, "10 (stale connection)"),
        (RejReason::INVALID_MTU, "26 (invalid path MTU)"),
        (RejReason::CONSUMER, "28 (rejected by the application)"),
        (RejReason(34), "34 (unknown reason)"),
    ] {
        assert_eq!(reason.to_string(), text);
    }
}

#[test]
fn ari_longer_than_its_field_ends_with_it() {
    assert_eq!(Ari::new(&[3]).value(), [3]);
    assert_eq!(Ari::new(&[7; 80]).value(), [7; 72]);
    assert_eq!(Ari { length: 127, ..Ari::NONE }.value(), [0; 72]);
}

#[test]
fn service_ids_of_ports() {
    let id = ServiceId::from_port(PortSpace::Tcp, 7174);
    assert_eq!((id, id.port()), (ServiceId(0x0106_1c06), Some((PortSpace::Tcp, 7174))));
    assert_eq!(ServiceId(0x013f_ffff).port(), Some((PortSpace::Ib, 65_535)));
    assert_eq!(ServiceId(0x0107_1c06).port(), None);
    assert_eq!(ServiceId(0x1_0106_1c06).port(), None);
    assert_eq!(id.to_string(), "TCP port 7174");
    assert_eq!(ServiceId(0x1000_0000_0000_0001).to_string(), "0x1000000000000001");
}

#[test]
fn ip_cm_header_of_another_version_is_refused() {
    let header =
        IpCmHeader { src_port: 44_903, src: "10.77.0.11".parse().unwrap(), dst: "10.77.0.10".parse().unwrap() };
    let bytes = header.to_bytes();
    assert_eq!(bytes[..4], [0, 0x40, 0xaf, 0x67]);
    assert_eq!(bytes[16..20], [10, 77, 0, 11]);
    assert_eq!(IpCmHeader::parse(&bytes), Ok(header));
    assert_eq!(IpCmHeader::parse(&bytes[..35]), Err(IpCmHeaderError::Truncated));
    let changed = |at: usize, value| {
        let mut bytes = bytes;
        bytes[at] = value;
        IpCmHeader::parse(&bytes)
    };
    assert_eq!(changed(0, 0x10), Err(IpCmHeaderError::Version(1)));
    assert_eq!(changed(0, 0x01), Ok(header), "a minor version adds, it does not change");
    assert_eq!(changed(1, 0x50), Err(IpCmHeaderError::IpVersion(5)));
}

#[test]
fn mads_of_other_kinds_are_refused_by_reason() {
    let good = mad(0x10, &[0; MESSAGE_BYTES]);
    assert!(CmMessage::parse(&good).is_ok());
    for (at, value, error) in [
        (0, 2, MadError::BaseVersion(2)),
        (1, 3, MadError::Class(3)),
        (2, 1, MadError::ClassVersion(1)),
        (3, 1, MadError::Method(1)),
        (17, 0x0f, MadError::Attribute(0x0f)),
        (17, 0x1b, MadError::Attribute(0x1b)),
    ] {
        let mut bytes = good;
        bytes[at] = value;
        assert_eq!(CmMessage::parse(&bytes), Err(error));
        assert!(error.to_string().contains(&value.to_string()) || at == 17, "{error}");
    }
    assert_eq!(CmMessage::parse(&good[..255]), Err(MadError::Length(255)));
    assert_eq!(CmMessage::parse(&[&good[..], &[0]].concat()), Err(MadError::Length(257)));
}

#[test]
fn cm_timeouts_are_powers_of_two() {
    assert_eq!(CmTimeout::new(0).duration_ns(), 4_096);
    // What Linux sends in a REQ: 4.3 s.
    assert_eq!(CmTimeout::new(20).duration_ns(), 4_294_967_296);
    assert_eq!(CmTimeout::new(31).duration_ns(), 8_796_093_022_208);
}

proptest! {
    /// A second decoding sees what the first did, whatever the peer sent; and nothing panics, the summary neither.
    #[test]
    fn hostile_mads_decode_and_encode_to_the_same_message(
        attribute in 0x0f..0x1c_u16,
        message in prop::array::uniform32(prop::array::uniform8(any::<u8>())),
    ) {
        let bytes: [u8; MESSAGE_BYTES] = *message.as_flattened().first_chunk().unwrap();
        let Ok((header, message)) = CmMessage::parse(&mad(attribute, &bytes)) else {
            prop_assert!(!(0x10..=0x1a).contains(&attribute));
            return Ok(());
        };
        let encoded = message.to_mad(header.transaction_id);
        prop_assert_eq!(CmMessage::parse(&encoded), Ok((header, message)));
        prop_assert!(!message.to_string().contains('\n'));
    }

    #[test]
    fn hostile_bytes_are_no_mad(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = CmMessage::parse(&bytes);
        if let Ok(header) = IpCmHeader::parse(&bytes) {
            prop_assert_eq!(IpCmHeader::parse(&header.to_bytes()), Ok(header));
        }
    }
}
