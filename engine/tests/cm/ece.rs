//! Enhanced connection establishment: by the applications' own exchange, and as they want it said by the connection manager.

use RecoveryPolicy::{GoBackN, Hybrid, SelectiveRepeat};
use shm::attr::{EceAttr, QpAttr, QpAttrMask, QpState, RecoveryPolicy};
use shm::control::cm::{CmEventType, CmRequest, ConnParam};
use shm::control::{Reply, Request};
use wire::cm::Ece;

use crate::support::{HostOptions, modify};
use crate::world::World;

const EINVAL: i32 = 22;
/// What a QP says that can do it, and one that can't.
const SELECTIVE: EceAttr = EceAttr { vendor_id: Ece::FERROCE, options: Ece::SELECTIVE_REPEAT };
const NOTHING: EceAttr = EceAttr { vendor_id: Ece::FERROCE, options: 0 };
/// A vendor that is not ours.
const STRANGER: EceAttr = EceAttr { vendor_id: 0x00_15b3, options: 7 };

fn world(policies: [RecoveryPolicy; 2], unasked: RecoveryPolicy) -> World {
    let [a, b] = [1, 2].map(|n| {
        let mut options = HostOptions::new(n);
        options.recovery.policy = policies[usize::from(n) - 1];
        options.recovery.unasked = unasked;
        options
    });
    World::with(a, b)
}

fn ask(world: &mut World, side: usize, request: Request) -> Reply {
    let session = world.pair.clients[side].session;
    world.pair.hosts[side].request(session, request, vec![]).0
}

fn query(world: &mut World, side: usize) -> EceAttr {
    let qpn = world.pair.qps[side].qpn;
    match ask(world, side, Request::QueryEce { qpn }) {
        Reply::Ece(ece) => ece,
        other => panic!("{other:?}"),
    }
}

fn set(world: &mut World, side: usize, ece: EceAttr) -> Result<EceAttr, (i32, String)> {
    let qpn = world.pair.qps[side].qpn;
    match ask(world, side, Request::SetEce { qpn, ece }) {
        Reply::Ece(ece) => Ok(ece),
        Reply::Refused { errno, message } => Err((errno, message)),
        other => panic!("{other:?}"),
    }
}

fn recovery(world: &mut World, side: usize) -> RecoveryPolicy {
    let qpn = world.pair.qps[side].qpn;
    let Reply::QpDetail(detail) = ask(world, side, Request::QpDetail { qpn }) else { panic!("no QP") };
    detail.recovery
}

fn reset(world: &mut World, side: usize) {
    let (qpn, session) = (world.pair.qps[side].qpn, world.pair.clients[side].session);
    let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
    modify(&mut world.pair.hosts[side], session, qpn, attr, QpAttrMask::STATE).unwrap();
}

#[test]
fn qps_that_are_connected_by_hand_agree_by_what_they_tell_each_other() {
    for (policies, unasked, agreed) in [
        ([Hybrid, SelectiveRepeat], GoBackN, [Hybrid, SelectiveRepeat]),
        ([GoBackN, Hybrid], GoBackN, [GoBackN, GoBackN]),
        ([Hybrid, GoBackN], SelectiveRepeat, [GoBackN, GoBackN]),
    ] {
        let mut world = world(policies, unasked);
        (0..2).for_each(|side| reset(&mut world, side));
        let told = [0, 1].map(|side| query(&mut world, side));
        let expected = policies.map(|policy| if policy.is_selective() { SELECTIVE } else { NOTHING });
        assert_eq!(told, expected, "{policies:?}");
        let does = if agreed[0].is_selective() { SELECTIVE } else { NOTHING };
        for side in 0..2 {
            assert_eq!(set(&mut world, side, told[1 - side]), Ok(does));
            assert_eq!((query(&mut world, side), recovery(&mut world, side)), (does, agreed[side]), "{policies:?}");
        }
        // What was agreed upon is forgotten with a reset.
        reset(&mut world, 0);
        assert_eq!((query(&mut world, 0), recovery(&mut world, 0)), (expected[0], unasked));
    }
}

#[test]
fn options_are_set_before_packets_come_and_are_ours() {
    let mut world = world([Hybrid, Hybrid], GoBackN);
    let (errno, message) = set(&mut world, 0, SELECTIVE).unwrap_err();
    assert_eq!(errno, EINVAL);
    assert!(message.contains("is in RTS: ECE options are set in RESET or INIT"), "{message}");
    reset(&mut world, 0);
    let (errno, message) = set(&mut world, 0, STRANGER).unwrap_err();
    assert_eq!(errno, EINVAL);
    assert!(message.contains("vendor 0x0015b3: this device is of 0x02fece"), "{message}");
    assert_eq!(recovery(&mut world, 0), GoBackN);
    // Options that nobody knows yet are left out, and a second word counts.
    assert_eq!(set(&mut world, 0, EceAttr { options: u32::MAX, ..SELECTIVE }), Ok(SELECTIVE));
    assert_eq!(recovery(&mut world, 0), Hybrid);
    assert_eq!(set(&mut world, 0, EceAttr { options: 2, ..SELECTIVE }), Ok(NOTHING));
    assert_eq!(recovery(&mut world, 0), GoBackN);
    let qpn = 0x00_fff0;
    assert!(matches!(ask(&mut world, 0, Request::QueryEce { qpn }), Reply::Refused { errno: EINVAL, .. }));
    assert!(matches!(
        ask(&mut world, 0, Request::SetEce { qpn, ece: SELECTIVE }),
        Reply::Refused { errno: EINVAL, .. }
    ));
}

/// Connects, both sides saying what they want said; returns what each heard.
fn connect(world: &mut World, says: [Option<EceAttr>; 2]) -> [Option<EceAttr>; 2] {
    (0..2).for_each(|side| reset(world, side));
    world.listener(1);
    let active = world.routed(0);
    world.ready(0, active, &[QpState::Init]);
    let param = ConnParam { ece: says[0], ..world.param(0) };
    world.done(0, CmRequest::Connect { id: active, param });
    world.pair.exchange();
    let request = world.expect(1, CmEventType::ConnectRequest);
    world.ready(1, request.id, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    let param = ConnParam { ece: says[1], ..world.param(1) };
    world.done(1, CmRequest::Accept { id: request.id, param });
    world.pair.exchange();
    let response = world.expect(0, CmEventType::ConnectResponse);
    world.ready(0, active, &[QpState::Rtr, QpState::Rts]);
    world.done(0, CmRequest::Accept { id: active, param: ConnParam::default() });
    world.pair.exchange();
    [response.param.ece, request.param.ece]
}

#[test]
fn a_connection_does_what_both_applications_said() {
    let silent = EceAttr::default();
    for (says, heard, agreed) in [
        // Who says nothing has it said.
        ([None, None], [SELECTIVE, SELECTIVE], Hybrid),
        ([Some(SELECTIVE), Some(SELECTIVE)], [SELECTIVE, SELECTIVE], Hybrid),
        ([Some(NOTHING), None], [silent, NOTHING], GoBackN),
        ([None, Some(NOTHING)], [NOTHING, SELECTIVE], GoBackN),
        // Another vendor's options pass, and mean nothing to us.
        ([Some(STRANGER), Some(STRANGER)], [STRANGER, STRANGER], GoBackN),
        // An answer can't claim what was not asked for.
        ([Some(NOTHING), Some(SELECTIVE)], [NOTHING, NOTHING], GoBackN),
    ] {
        let mut world = world([Hybrid, Hybrid], GoBackN);
        assert_eq!(connect(&mut world, says), heard.map(Some), "{says:?}");
        for side in 0..2 {
            assert_eq!(recovery(&mut world, side), agreed, "{says:?}");
            let does = if agreed.is_selective() { SELECTIVE } else { NOTHING };
            assert_eq!(query(&mut world, side), does, "{says:?}");
        }
    }
}

#[test]
fn nobody_offers_what_the_daemon_does_not_do() {
    let mut world = world([GoBackN, Hybrid], GoBackN);
    assert_eq!(connect(&mut world, [Some(SELECTIVE), Some(SELECTIVE)]), [Some(NOTHING), Some(NOTHING)]);
    assert_eq!([0, 1].map(|side| recovery(&mut world, side)), [GoBackN, GoBackN]);
}

#[test]
fn a_vendor_that_the_message_has_no_room_for_is_refused() {
    let mut world = world([Hybrid, Hybrid], GoBackN);
    (0..2).for_each(|side| reset(&mut world, side));
    let active = world.routed(0);
    let ece = Some(EceAttr { vendor_id: 1 << 24, options: 0 });
    let param = ConnParam { ece, ..world.param(0) };
    let (errno, message) = world.refused(0, CmRequest::Connect { id: active, param });
    assert_eq!((errno, message.as_str()), (EINVAL, "ECE vendor_id 0x1000000: the message has 24 bits for it"));
}

#[test]
fn a_qp_of_another_session_of_the_user_is_connected_and_settled() {
    let mut world = world([Hybrid, Hybrid], GoBackN);
    (0..2).for_each(|side| reset(&mut world, side));
    let (own, qpn) = (world.pair.clients[0].session, world.pair.qps[0].qpn);
    world.listener(1);
    // All that belongs to the connection manager is of this session, the QP is of the other.
    let manager = world.session_of(0, 1);
    let (Reply::Handle(channel), _) =
        world.pair.hosts[0].request(manager, Request::Cm(CmRequest::CreateChannel), vec![])
    else {
        panic!("no channel")
    };
    (world.pair.clients[0].session, world.channels[0]) = (manager, channel);
    let active = world.routed(0);
    let param = ConnParam { ece: None, ..world.param(0) };
    world.done(0, CmRequest::Connect { id: active, param });
    world.pair.exchange();
    let request = world.expect(1, CmEventType::ConnectRequest);
    let param = world.param(1);
    world.done(1, CmRequest::Accept { id: request.id, param });
    world.pair.exchange();
    world.expect(0, CmEventType::ConnectResponse);
    world.call(0, CmRequest::InitQpAttr { id: active, qp_state: QpState::Rtr });
    world.pair.clients[0].session = own;
    assert_eq!((query(&mut world, 0), recovery(&mut world, 0)), (SELECTIVE, Hybrid));
    // Another user can't so much as name it.
    let stranger = world.stranger(0);
    let param = ConnParam { qp_num: qpn, ..ConnParam::default() };
    let Reply::Refused { errno, message } = world.call_as(0, stranger, CmRequest::Accept { id: active, param }) else {
        panic!("a stranger named it")
    };
    assert_eq!((errno, message), (EINVAL, format!("QP {qpn:#08x} does not exist in a session of user 2")));
}
