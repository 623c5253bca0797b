//! The whole table as a snapshot, and every way to get a call wrong by one attribute.

use core::fmt::Write as _;

use super::*;

const LIMITS: AttrLimits = AttrLimits {
    port_count: 2,
    pkey_count: 1,
    gid_count: 3,
    active_mtu: PathMtu::M1024,
    max_rd_atomic: 16,
    max_dest_rd_atomic: 8,
};

/// A peer at 10.0.0.2.
const PEER: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);

/// Attributes that are all legal, at their upper limit where they have one.
fn legal(from: QpState, to: QpState) -> QpAttr {
    QpAttr {
        qp_state: to,
        cur_qp_state: from,
        path_mtu: 3,
        qkey: u32::MAX,
        rq_psn: 0xff_ffff,
        sq_psn: 0xff_ffff,
        dest_qp_num: 0xff_ffff,
        qp_access_flags: AccessFlags::ALL,
        ah_attr: AhAttr { dgid: PEER, sgid_index: 2, flow_label: 0xf_ffff, sl: 7, port_num: 2, ..AhAttr::default() },
        pkey_index: 0,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 8,
        min_rnr_timer: 31,
        port_num: 2,
        timeout: 31,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    }
}

fn transitions() -> impl Iterator<Item = Transition> {
    QpType::ALL.iter().flat_map(|&qp_type| {
        QpState::ALL.iter().flat_map(move |&from| QpState::ALL.iter().map(move |&to| Transition { qp_type, from, to }))
    })
}

fn check(transition: Transition, mask: QpAttrMask) -> Result<QpState, ModifyError> {
    let Transition { qp_type, from, to } = transition;
    check_transition(qp_type, from, &legal(from, to), mask, &LIMITS)
}

fn single_bits() -> impl Iterator<Item = QpAttrMask> {
    (0..32).map(|bit| QpAttrMask(1 << bit)).filter(|&bit| QpAttrMask::ALL.contains(bit))
}

#[test]
fn table_is_as_reviewed() {
    let mut table = String::new();
    for transition in transitions() {
        let Transition { qp_type, from, to } = transition;
        match transition_attrs(transition) {
            None => writeln!(table, "{qp_type} {from:5} -> {to:5}  no").unwrap(),
            Some(TransitionAttrs { required, optional }) => {
                let (required, optional) = (Names(required), Names(optional));
                writeln!(table, "{qp_type} {from:5} -> {to:5}  needs {required}; takes {optional}").unwrap();
            }
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn no_attribute_can_be_left_out() {
    for transition in transitions() {
        let Some(attrs) = transition_attrs(transition) else { continue };
        let mask = attrs.required | Mask::STATE;
        assert_eq!(check(transition, mask), Ok(transition.to), "{transition}");
        for bit in single_bits().filter(|&bit| attrs.required.contains(bit)) {
            let error = ModifyError::Missing { transition, attrs: bit };
            assert_eq!(check(transition, mask.without(bit)), Err(error), "{transition}");
        }
    }
}

#[test]
fn no_attribute_can_be_added_but_the_optional_ones() {
    for transition in transitions() {
        let Some(TransitionAttrs { required, optional }) = transition_attrs(transition) else { continue };
        assert!(!required.intersects(optional), "{transition}");
        let mask = required | Mask::STATE;
        for bit in single_bits().filter(|&bit| !mask.contains(bit)) {
            let expected = if !optional.contains(bit) {
                Err(ModifyError::NotAllowed { transition, attrs: bit })
            } else if bit == Mask::ALT_PATH {
                Err(ModifyError::AlternatePath)
            } else {
                Ok(transition.to)
            };
            assert_eq!(check(transition, mask | bit), expected, "{transition} with {}", Names(bit));
        }
    }
}

#[test]
fn absent_transitions_are_refused_whatever_the_mask() {
    for transition in transitions().filter(|&t| transition_attrs(t).is_none()) {
        for mask in single_bits().map(|bit| bit | Mask::STATE).chain([Mask::STATE, Mask::ALL]) {
            assert_eq!(check(transition, mask), Err(ModifyError::NoTransition(transition)), "{transition}");
        }
    }
}

/// Without `STATE` the QP stays where it is, and `qp_state` is not looked at.
#[test]
fn mask_without_state_stays() {
    let attr = QpAttr { qp_state: QpState::Reset, ..legal(QpState::Rts, QpState::Rts) };
    let stay = |state, mask| check_transition(QpType::Rc, state, &attr, mask, &LIMITS);
    assert_eq!(stay(QpState::Rts, Mask::ACCESS_FLAGS), Ok(QpState::Rts));
    assert_eq!(stay(QpState::Sqd, Mask::AV), Ok(QpState::Sqd));
    assert!(matches!(stay(QpState::Rtr, Mask::ACCESS_FLAGS), Err(ModifyError::NoTransition(_))));
    assert!(matches!(stay(QpState::Err, Mask::ACCESS_FLAGS), Err(ModifyError::NotAllowed { .. })));
}

#[test]
fn wrong_current_state_is_refused() {
    for &actual in QpState::ALL {
        for &claimed in QpState::ALL.iter().filter(|&&claimed| claimed != actual) {
            let attr = legal(claimed, QpState::Rts);
            let result = check_transition(QpType::Ud, actual, &attr, Mask::STATE | Mask::CUR_STATE, &LIMITS);
            assert_eq!(result, Err(ModifyError::WrongCurrentState { claimed, actual }));
        }
    }
}

#[test]
fn unknown_mask_bits_are_refused() {
    for bit in (0..32).map(|bit| QpAttrMask(1 << bit)).filter(|&bit| !QpAttrMask::ALL.contains(bit)) {
        let result = check(Transition { qp_type: QpType::Rc, from: QpState::Rts, to: QpState::Err }, Mask::STATE | bit);
        assert_eq!(result, Err(ModifyError::UnknownMaskBits { bits: bit.0 }));
    }
}

/// One value of an RC QP's attributes made wrong.
type Spoil = fn(&mut QpAttr);

/// Each value just beyond its limit, in a transition that takes it.
const SPOILED: &[(QpState, QpState, Spoil)] = {
    use QpState::{Init, Reset, Rtr, Rts};
    &[
        (Reset, Init, |a| a.port_num = 0),
        (Reset, Init, |a| a.port_num = 3),
        (Reset, Init, |a| a.pkey_index = 1),
        (Reset, Init, |a| a.qp_access_flags = AccessFlags(1 << 31)),
        (Init, Rtr, |a| a.path_mtu = 0),
        (Init, Rtr, |a| a.path_mtu = 4),
        (Init, Rtr, |a| a.path_mtu = 6),
        (Init, Rtr, |a| a.rq_psn = 1 << 24),
        (Init, Rtr, |a| a.dest_qp_num = 1 << 24),
        (Init, Rtr, |a| a.max_dest_rd_atomic = 9),
        (Init, Rtr, |a| a.min_rnr_timer = 32),
        (Init, Rtr, |a| a.ah_attr.port_num = 0),
        (Init, Rtr, |a| a.ah_attr.port_num = 3),
        (Init, Rtr, |a| a.ah_attr.sgid_index = 3),
        (Init, Rtr, |a| a.ah_attr.flow_label = 1 << 20),
        (Init, Rtr, |a| a.ah_attr.sl = 8),
        (Init, Rtr, |a| a.ah_attr.dgid = Gid::ZERO),
        (Init, Rtr, |a| a.ah_attr.dgid = Gid::from_ip(Ipv4Addr::UNSPECIFIED.into())),
        (Init, Rtr, |a| a.ah_attr.dgid = Gid::from_ip(Ipv4Addr::BROADCAST.into())),
        (Init, Rtr, |a| a.ah_attr.dgid = Gid::from_ip(Ipv4Addr::new(239, 77, 0, 1).into())),
        (Init, Rtr, |a| a.ah_attr.dgid.0 = [0xff; 16]),
        (Rtr, Rts, |a| a.sq_psn = 1 << 24),
        (Rtr, Rts, |a| a.timeout = 32),
        (Rtr, Rts, |a| a.retry_cnt = 8),
        (Rtr, Rts, |a| a.rnr_retry = 8),
        (Rtr, Rts, |a| a.max_rd_atomic = 17),
        (Rts, Rts, |a| a.path_mig_state = 1),
        (Rts, Rts, |a| a.path_mig_state = 3),
    ]
};

/// The sentences are part of the interface: they are all a user sees.
#[test]
fn bad_values_are_refused_in_a_sentence() {
    let mut sentences = String::new();
    for &(from, to, spoil) in SPOILED {
        let transition = Transition { qp_type: QpType::Rc, from, to };
        let attrs = transition_attrs(transition).unwrap();
        let mask = (attrs.required | attrs.optional | Mask::STATE).without(Mask::ALT_PATH);
        assert_eq!(check(transition, mask), Ok(to), "{transition}");
        let mut attr = legal(from, to);
        spoil(&mut attr);
        let error = check_transition(QpType::Rc, from, &attr, mask, &LIMITS).unwrap_err();
        writeln!(sentences, "{error}").unwrap();
        // What the mask leaves out is not looked at.
        assert_eq!(
            check_transition(QpType::Rc, from, &attr, Mask::STATE, &LIMITS).err(),
            check(transition, Mask::STATE).err()
        );
    }
    insta::assert_snapshot!(sentences);
}

#[test]
fn other_errors_are_sentences_too() {
    let rtr = Transition { qp_type: QpType::Uc, from: QpState::Init, to: QpState::Rtr };
    let none = AttrLimits { pkey_count: 0, ..LIMITS };
    let init = CONNECTED_INIT | Mask::STATE;
    let empty = check_transition(QpType::Rc, QpState::Reset, &legal(QpState::Reset, QpState::Init), init, &none);
    let errors = [
        check(rtr, Mask::STATE).unwrap_err(),
        check(rtr, Mask::ALL).unwrap_err(),
        check(Transition { to: QpState::Rts, ..rtr }, Mask::STATE).unwrap_err(),
        check(rtr, QpAttrMask(1 << 30)).unwrap_err(),
        ModifyError::WrongCurrentState { claimed: QpState::Rtr, actual: QpState::Sqe },
        ModifyError::AlternatePath,
        ModifyError::NoSuchPort { port_num: 2 },
        ModifyError::NoSuchGid { index: 1 },
        ModifyError::AddressFamily { index: 1 },
        ModifyError::NeighbourTableFull,
        empty.unwrap_err(),
    ];
    insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"));
}

#[test]
fn every_legal_limit_is_taken() {
    let rtr = CONNECTED_RTR | RC_RESPONDER | Mask::STATE;
    for dgid in [PEER, Gid::from_ip("fe80::2".parse().unwrap()), Gid::from_ip(Ipv4Addr::LOCALHOST.into())] {
        for path_mtu in 1..=3 {
            let mut attr = QpAttr { path_mtu, ..legal(QpState::Init, QpState::Rtr) };
            attr.ah_attr.dgid = dgid;
            assert_eq!(check_transition(QpType::Rc, QpState::Init, &attr, rtr, &LIMITS), Ok(QpState::Rtr));
        }
    }
}
