//! The QP state machine: which transitions there are, which attributes each one needs and takes, and which values are legal.
//!
//! Pure: the caller has the QP, asks [`check_transition`], and applies all of the attributes or none. The states are those of
//! IBTA 10.3.1, the attributes those of `ibv_modify_qp(3)` as the Linux kernel checks them, with three differences: RESET goes
//! to ERR as any state does, which the kernel refuses; an RC QP never leaves SQE, where it never is; and a PSN beyond 24 bits is
//! refused, where the kernel cuts it off.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr};

use shm::attr::{AccessFlags, AhAttr, QpAttr, QpAttrMask, QpState, QpType, STATIC_RATE_MAX};
use wire::{Gid, PathMtu};

use QpAttrMask as Mask;

/// What the values of attributes are checked against: the QP's port and the configured limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AttrLimits {
    /// Ports of the device; they count from 1.
    pub(crate) port_count: u8,
    /// Entries of the port's P_Key table.
    pub(crate) pkey_count: u8,
    /// Entries of the port's GID table.
    pub(crate) gid_count: u8,
    /// Largest path MTU whose packets fit the port.
    pub(crate) active_mtu: PathMtu,
    /// READs and atomics outstanding as requester, at most.
    pub(crate) max_rd_atomic: u8,
    /// READs and atomics outstanding as responder, at most.
    pub(crate) max_dest_rd_atomic: u8,
}

/// Why a `modify_qp` is refused, with nothing changed. EINVAL in each case but [`Self::NeighbourTableFull`], which is ENOMEM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModifyError {
    /// The mask has bits that name no attribute.
    UnknownMaskBits {
        /// Those bits.
        bits: u32,
    },
    /// `cur_qp_state` is not the state that the QP is in.
    WrongCurrentState {
        /// The value of `cur_qp_state`.
        claimed: QpState,
        /// The QP's state.
        actual: QpState,
    },
    /// The state machine has no such transition.
    NoTransition(Transition),
    /// The transition needs attributes that the mask lacks.
    Missing {
        /// The transition.
        transition: Transition,
        /// What the mask lacks.
        attrs: QpAttrMask,
    },
    /// The mask has attributes that the transition does not take.
    NotAllowed {
        /// The transition.
        transition: Transition,
        /// What is too much.
        attrs: QpAttrMask,
    },
    /// A value is out of its range.
    OutOfRange {
        /// The attribute, as `ibv_qp_attr` names it.
        attr: &'static str,
        /// Its value.
        value: u32,
        /// Smallest legal value.
        min: u32,
        /// Largest legal value.
        max: u32,
    },
    /// `qp_access_flags` has bits that name no right.
    UnknownAccessFlags {
        /// Those bits.
        bits: u32,
    },
    /// `ah_attr.grh.dgid` is not an address that a connected QP can have as its peer.
    BadDgid {
        /// Its value.
        dgid: Gid,
    },
    /// `ah_attr.grh.dgid` is an address that no datagram can go to.
    NoDatagramDgid {
        /// Its value.
        dgid: Gid,
    },
    /// `ah_attr.port_num` names no port.
    NoSuchPort {
        /// Its value.
        port_num: u8,
    },
    /// `ah_attr.grh.sgid_index` names no GID of the path's port.
    NoSuchGid {
        /// Its value.
        index: u8,
    },
    /// Our GID and the peer's are of different address families.
    AddressFamily {
        /// `ah_attr.grh.sgid_index`.
        index: u8,
    },
    /// The port has no room for another neighbour.
    NeighbourTableFull,
    /// The mask has an alternate path, which is not offered.
    AlternatePath,
    /// `path_mig_state` is not "migrated", the only one without an alternate path.
    PathMigration {
        /// Its value.
        path_mig_state: u8,
    },
}

/// A transition of the state machine, possibly to the same state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// The QP's type.
    pub qp_type: QpType,
    /// The state it is in.
    pub from: QpState,
    /// The state asked for.
    pub to: QpState,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} of a {} QP", self.from, self.to, self.qp_type)
    }
}

/// The attributes of a mask, with commas.
struct Names(QpAttrMask);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.0.names();
        f.write_str(names.next().unwrap_or("nothing"))?;
        names.try_for_each(|name| write!(f, ", {name}"))
    }
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownMaskBits { bits } => write!(f, "the attribute mask has unknown bits {bits:#x}"),
            Self::WrongCurrentState { claimed, actual } => {
                write!(f, "cur_qp_state is {claimed}, but the QP is in {actual}")
            }
            Self::NoTransition(transition) => write!(f, "there is no transition from {transition}"),
            Self::Missing { transition, attrs } => {
                write!(f, "the transition from {transition} needs {} as well", Names(attrs))
            }
            Self::NotAllowed { transition, attrs } => {
                write!(f, "the transition from {transition} does not take {}", Names(attrs))
            }
            Self::OutOfRange { attr, value, min, max } if min > max => {
                write!(f, "{attr} is {value}, but the table it points into is empty")
            }
            Self::OutOfRange { attr, value, min, max } => {
                write!(f, "{attr} is {value}, which is not in {min}..={max}")
            }
            Self::UnknownAccessFlags { bits } => write!(f, "qp_access_flags has unknown bits {bits:#x}"),
            Self::BadDgid { dgid } => {
                write!(f, "ah_attr.grh.dgid is {dgid}, but a connected QP needs its peer's unicast address")
            }
            Self::NoDatagramDgid { dgid } => {
                write!(f, "ah_attr.grh.dgid is {dgid}, but a datagram needs a host's address or a multicast group")
            }
            Self::NoSuchPort { port_num } => write!(f, "ah_attr.port_num is {port_num}, and there is no such port"),
            Self::NoSuchGid { index } => {
                write!(f, "ah_attr.grh.sgid_index is {index}, and the port has no such GID")
            }
            Self::AddressFamily { index } => {
                write!(f, "ah_attr.grh.sgid_index is {index}, a GID of another address family than ah_attr.grh.dgid")
            }
            Self::NeighbourTableFull => {
                f.write_str("the port's neighbour table is full of neighbours in use: see max_neighbour")
            }
            Self::AlternatePath => f.write_str("ALT_PATH sets an alternate path, which is not offered"),
            Self::PathMigration { path_mig_state } => {
                write!(
                    f,
                    "path_mig_state is {path_mig_state}, but a QP without an alternate path is always migrated, 0"
                )
            }
        }
    }
}

impl core::error::Error for ModifyError {}

/// Attributes of one transition, `STATE` aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TransitionAttrs {
    required: QpAttrMask,
    optional: QpAttrMask,
}

/// The union of masks, in constants.
const fn all_of(masks: &[QpAttrMask]) -> QpAttrMask {
    let mut union = Mask::NONE;
    let mut rest = masks;
    while let [first, others @ ..] = rest {
        union = union.union(*first);
        rest = others;
    }
    union
}

/// What makes an RC or UC QP belong to a port, and lets its peer in.
const CONNECTED_INIT: QpAttrMask = all_of(&[Mask::PKEY_INDEX, Mask::PORT, Mask::ACCESS_FLAGS]);
const DATAGRAM_INIT: QpAttrMask = all_of(&[Mask::PKEY_INDEX, Mask::PORT, Mask::QKEY]);
/// Where the peer is and what it sends first.
const CONNECTED_RTR: QpAttrMask = all_of(&[Mask::AV, Mask::PATH_MTU, Mask::DEST_QPN, Mask::RQ_PSN]);
const RC_RESPONDER: QpAttrMask = all_of(&[Mask::MAX_DEST_RD_ATOMIC, Mask::MIN_RNR_TIMER]);
const RC_REQUESTER: QpAttrMask = all_of(&[Mask::TIMEOUT, Mask::RETRY_CNT, Mask::RNR_RETRY, Mask::MAX_QP_RD_ATOMIC]);
/// What may change at any time in RTS, and on the way there.
const UC_RUNNING: QpAttrMask = all_of(&[Mask::ACCESS_FLAGS, Mask::ALT_PATH, Mask::PATH_MIG_STATE]);
const RC_RUNNING: QpAttrMask = all_of(&[UC_RUNNING, Mask::MIN_RNR_TIMER]);
/// The timeout is the requester's, but Linux wants (and ignores) it of an XRC QP that receives as well.
const XRC_RECV_DRAINED: QpAttrMask = all_of(&[UC_DRAINED, Mask::PORT, Mask::TIMEOUT, RC_RESPONDER]);
const XRC_SEND_DRAINED: QpAttrMask = all_of(&[UC_DRAINED, Mask::PORT, RC_REQUESTER]);
/// What may change while nothing is sent.
const UC_DRAINED: QpAttrMask = all_of(&[UC_RUNNING, Mask::AV, Mask::PKEY_INDEX]);
const RC_DRAINED: QpAttrMask = all_of(&[UC_DRAINED, Mask::PORT, RC_REQUESTER, RC_RESPONDER]);

/// The attributes that a transition needs and takes; `None` if there is no such transition.
const fn transition_attrs(transition: Transition) -> Option<TransitionAttrs> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Rc, Uc, Ud, XrcRecv, XrcSend};
    let Transition { qp_type, from, to } = transition;
    let (required, optional) = match (from, to) {
        (_, Reset | Err) => (Mask::NONE, Mask::NONE),
        (Reset, Init) => match qp_type {
            Rc | Uc | XrcSend | XrcRecv => (CONNECTED_INIT, Mask::NONE),
            Ud => (DATAGRAM_INIT, Mask::NONE),
        },
        (Init, Init) => match qp_type {
            Rc | Uc | XrcSend | XrcRecv => (Mask::NONE, CONNECTED_INIT),
            Ud => (Mask::NONE, DATAGRAM_INIT),
        },
        (Init, Rtr) => {
            let optional = all_of(&[Mask::ALT_PATH, Mask::ACCESS_FLAGS, Mask::PKEY_INDEX]);
            match qp_type {
                Rc | XrcRecv => (all_of(&[CONNECTED_RTR, RC_RESPONDER]), optional),
                Uc | XrcSend => (CONNECTED_RTR, optional),
                Ud => (Mask::NONE, all_of(&[Mask::PKEY_INDEX, Mask::QKEY])),
            }
        }
        (Rtr | Rts | Sqd, Rts) => {
            let required = match (from, qp_type) {
                (Rtr, Rc | XrcSend) => all_of(&[RC_REQUESTER, Mask::SQ_PSN]),
                (Rtr, XrcRecv) => all_of(&[Mask::TIMEOUT, Mask::SQ_PSN]),
                (Rtr, Uc | Ud) => Mask::SQ_PSN,
                _ => Mask::NONE,
            };
            let optional = match qp_type {
                Rc | XrcRecv => RC_RUNNING,
                Uc | XrcSend => UC_RUNNING,
                Ud => Mask::QKEY,
            };
            (required, optional.union(Mask::CUR_STATE))
        }
        (Rts, Sqd) => (Mask::NONE, Mask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => match qp_type {
            Rc => (Mask::NONE, RC_DRAINED),
            Uc => (Mask::NONE, UC_DRAINED),
            XrcSend => (Mask::NONE, XRC_SEND_DRAINED),
            XrcRecv => (Mask::NONE, XRC_RECV_DRAINED),
            Ud => (Mask::NONE, all_of(&[Mask::PKEY_INDEX, Mask::QKEY])),
        },
        (Sqe, Rts) => match qp_type {
            Rc | XrcSend | XrcRecv => return None,
            Uc => (Mask::NONE, all_of(&[Mask::CUR_STATE, Mask::ACCESS_FLAGS])),
            Ud => (Mask::NONE, all_of(&[Mask::CUR_STATE, Mask::QKEY])),
        },
        _ => return None,
    };
    Some(TransitionAttrs { required, optional })
}

/// Checks a `modify_qp` of a QP that is in `current`, and returns the state it goes to: `attr.qp_state` if the mask has
/// `STATE`, else the one it is in. Attributes that the mask leaves out are not looked at.
///
/// # Errors
/// The first thing that is wrong, in the order mask, `cur_qp_state`, transition, attributes needed, attributes taken, values.
/// The caller must then change nothing.
pub(crate) fn check_transition(
    qp_type: QpType,
    current: QpState,
    attr: &QpAttr,
    mask: QpAttrMask,
    limits: &AttrLimits,
) -> Result<QpState, ModifyError> {
    let unknown = mask.without(Mask::ALL);
    if unknown != Mask::NONE {
        return Err(ModifyError::UnknownMaskBits { bits: unknown.0 });
    }
    if mask.contains(Mask::CUR_STATE) && attr.cur_qp_state != current {
        return Err(ModifyError::WrongCurrentState { claimed: attr.cur_qp_state, actual: current });
    }
    let to = if mask.contains(Mask::STATE) { attr.qp_state } else { current };
    let transition = Transition { qp_type, from: current, to };
    let attrs = transition_attrs(transition).ok_or(ModifyError::NoTransition(transition))?;
    let missing = attrs.required.without(mask);
    if missing != Mask::NONE {
        return Err(ModifyError::Missing { transition, attrs: missing });
    }
    let surplus = mask.without(attrs.required | attrs.optional | Mask::STATE);
    if surplus != Mask::NONE {
        return Err(ModifyError::NotAllowed { transition, attrs: surplus });
    }
    check_numbers(attr, mask, limits)?;
    if mask.contains(Mask::ACCESS_FLAGS) {
        let unknown = attr.qp_access_flags.without(AccessFlags::ALL);
        if unknown != AccessFlags::NONE {
            return Err(ModifyError::UnknownAccessFlags { bits: unknown.0 });
        }
    }
    if mask.contains(Mask::AV) {
        check_path(&attr.ah_attr, limits)?;
    }
    check_migration(attr, mask)?;
    Ok(to)
}

const fn in_range(attr: &'static str, value: u32, min: u32, max: u32) -> Result<(), ModifyError> {
    if min <= value && value <= max { Ok(()) } else { Err(ModifyError::OutOfRange { attr, value, min, max }) }
}

/// An index into a table of `count` entries.
fn in_table(attr: &'static str, index: u32, count: u8) -> Result<(), ModifyError> {
    match u32::from(count).checked_sub(1) {
        Some(last) => in_range(attr, index, 0, last),
        // An empty range says that there is no legal value.
        None => Err(ModifyError::OutOfRange { attr, value: index, min: 1, max: 0 }),
    }
}

/// The attributes that are plain numbers.
fn check_numbers(attr: &QpAttr, mask: QpAttrMask, limits: &AttrLimits) -> Result<(), ModifyError> {
    const MAX_24_BITS: u32 = (1 << 24) - 1;
    let checks = [
        (Mask::PORT, "port_num", u32::from(attr.port_num), 1, u32::from(limits.port_count)),
        (Mask::PATH_MTU, "path_mtu", u32::from(attr.path_mtu), 1, u32::from(limits.active_mtu.code())),
        (Mask::RQ_PSN, "rq_psn", attr.rq_psn, 0, MAX_24_BITS),
        (Mask::SQ_PSN, "sq_psn", attr.sq_psn, 0, MAX_24_BITS),
        (Mask::DEST_QPN, "dest_qp_num", attr.dest_qp_num, 0, MAX_24_BITS),
        (Mask::TIMEOUT, "timeout", u32::from(attr.timeout), 0, 31),
        (Mask::RETRY_CNT, "retry_cnt", u32::from(attr.retry_cnt), 0, 7),
        (Mask::RNR_RETRY, "rnr_retry", u32::from(attr.rnr_retry), 0, 7),
        (Mask::MIN_RNR_TIMER, "min_rnr_timer", u32::from(attr.min_rnr_timer), 0, 31),
        (Mask::MAX_QP_RD_ATOMIC, "max_rd_atomic", u32::from(attr.max_rd_atomic), 0, u32::from(limits.max_rd_atomic)),
        (
            Mask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            u32::from(attr.max_dest_rd_atomic),
            0,
            u32::from(limits.max_dest_rd_atomic),
        ),
    ];
    for (bit, name, value, min, max) in checks {
        if mask.contains(bit) {
            in_range(name, value, min, max)?;
        }
    }
    if mask.contains(Mask::PKEY_INDEX) {
        in_table("pkey_index", u32::from(attr.pkey_index), limits.pkey_count)?;
    }
    Ok(())
}

/// The numbers of an address vector. Any hop limit is legal: 0 stands for the default.
fn check_address_vector(path: &AhAttr, limits: &AttrLimits) -> Result<(), ModifyError> {
    in_range("ah_attr.port_num", u32::from(path.port_num), 1, u32::from(limits.port_count))?;
    in_table("ah_attr.grh.sgid_index", u32::from(path.sgid_index), limits.gid_count)?;
    in_range("ah_attr.grh.flow_label", path.flow_label, 0, (1 << 20) - 1)?;
    // On Ethernet the service level is the 802.1p priority, which has three bits.
    in_range("ah_attr.sl", u32::from(path.sl), 0, 7)?;
    in_range("ah_attr.static_rate", u32::from(path.static_rate), 0, u32::from(STATIC_RATE_MAX))
}

/// The address vector of an address handle: one host or a multicast group.
pub(crate) fn check_ah(path: &AhAttr, limits: &AttrLimits) -> Result<(), ModifyError> {
    check_address_vector(path, limits)?;
    let peer = path.dgid.ip();
    if peer.is_unspecified() || peer == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Err(ModifyError::NoDatagramDgid { dgid: path.dgid });
    }
    Ok(())
}

/// The primary path of a connected QP: its peer is one host.
fn check_path(path: &AhAttr, limits: &AttrLimits) -> Result<(), ModifyError> {
    check_address_vector(path, limits)?;
    let peer = path.dgid.ip();
    if peer.is_unspecified() || peer.is_multicast() || peer == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Err(ModifyError::BadDgid { dgid: path.dgid });
    }
    Ok(())
}

/// A QP has one path and is always migrated: saying so is legal, anything else is not.
fn check_migration(attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyError> {
    const MIGRATED: u8 = 0;
    if mask.contains(Mask::ALT_PATH) {
        return Err(ModifyError::AlternatePath);
    }
    if mask.contains(Mask::PATH_MIG_STATE) && attr.path_mig_state != MIGRATED {
        return Err(ModifyError::PathMigration { path_mig_state: attr.path_mig_state });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
