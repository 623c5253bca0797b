//! From the request to the end of a connection.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use ferroce::QpState;
use ferroce::cm::{CmEventType, ConnParam, PortSpace};

use super::abi::*;
use super::id::IdObject;
use crate::abi::*;
use crate::entry::{self, Failure};
use crate::events::lock;
use crate::qp::attr_as_c;

/// "As many as the device can" (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const MOST: u8 = u8::MAX;
/// `IBV_EVENT_COMM_EST`.
const COMM_EST: c_uint = 4;

/// Bytes of the program.
///
/// # Safety
/// `data` has `length` bytes, or is NULL.
pub(super) unsafe fn bytes(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(data.cast::<u8>(), usize::from(length)) }.to_vec()
}

/// What to say of a connection: the program's words, else those of `rdma_addrinfo` and the most that the device, and a peer who
/// asked, can do.
///
/// # Errors
/// `EINVAL` for more READs and atomics than the device can.
///
/// # Safety
/// `given` is NULL or may be read, with its private data.
unsafe fn param_of(object: &IdObject, given: *const rdma_conn_param) -> Result<ConnParam, Failure> {
    let (device, _) = object.end()?;
    let most = (device.context().device().max_qp_rd_atom, device.context().device().max_qp_init_rd_atom);
    let (asked, connect) = {
        let state = lock(&object.state);
        (state.answer, state.connect.clone())
    };
    let default = asked.map_or(most, |asked| (asked.0.min(most.0), asked.1.min(most.1)));
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { given.as_ref() }) else {
        let (responder_resources, initiator_depth) = default;
        let private_data = connect;
        return Ok(ConnParam {
            private_data,
            responder_resources,
            initiator_depth,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        });
    };
    let choose = |given: u8, default: u8, most: u8| match given {
        MOST => Ok(default),
        given if given <= most => Ok(given),
        _ => Err(entry::INVALID),
    };
    let own = (!given.private_data.is_null() && given.private_data_len > 0)
        // SAFETY: the caller's promise.
        .then(|| unsafe { bytes(given.private_data, given.private_data_len) });
    Ok(ConnParam {
        private_data: own.unwrap_or(connect),
        responder_resources: choose(given.responder_resources, default.0, most.0)?,
        initiator_depth: choose(given.initiator_depth, default.1, most.1)?,
        flow_control: given.flow_control != 0,
        // Three bits; more than they hold is as many as they hold, as with Linux.
        retry_count: given.retry_count.min(7),
        rnr_retry_count: given.rnr_retry_count.min(7),
        srq: given.srq != 0,
        qp_num: given.qp_num,
        ..ConnParam::default()
    })
}

/// Asks the peer for a connection, or for the QP of a datagram service: `ESTABLISHED`, or `CONNECT_RESPONSE` if the id has no
/// QP, or `REJECTED`, `UNREACHABLE`, `CONNECT_ERROR`.
///
/// # Safety
/// `id` is an id of ours; `param` is NULL or may be read, with its private data.
#[unsafe(export_name = "ferroce_rdma_connect")]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let param = unsafe { param_of(object, param) }?;
        let (_, end) = object.end()?;
        end.connect(&param)?;
        let is_ready = end.port_space() == PortSpace::Udp || end.qp().is_some();
        object.complete(if is_ready { CmEventType::Established } else { CmEventType::ConnectResponse })?;
        Ok(0)
    })
}

/// Accepts a request; the id's QP is in RTS then. `ESTABLISHED` comes when the peer has confirmed it, for datagrams nothing.
///
/// # Safety
/// As [`rdma_connect`].
#[unsafe(export_name = "ferroce_rdma_accept")]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let param = unsafe { param_of(object, param) }?;
        let (_, end) = object.end()?;
        let done = end.accept(&param);
        object.note_qp();
        done?;
        if end.port_space() != PortSpace::Udp {
            object.complete(CmEventType::Established)?;
        }
        Ok(0)
    })
}

/// Ends the handshake after `CONNECT_RESPONSE`.
///
/// # Errors
/// `EINVAL` if the id has a QP: then this library does so.
///
/// # Safety
/// `id` is an id of ours.
#[unsafe(export_name = "ferroce_rdma_establish")]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let (_, end) = unsafe { IdObject::of(id) }?.end()?;
        if end.qp().is_some() {
            return Err(entry::INVALID);
        }
        end.establish()?;
        Ok(0)
    })
}

/// Refuses a request, with at most 148 bytes of the program's own.
///
/// # Safety
/// `id` is an id of ours, `private_data` has as many bytes as it says, or is NULL.
#[unsafe(export_name = "ferroce_rdma_reject")]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let (_, end) = unsafe { IdObject::of(id) }?.end()?;
        // SAFETY: the caller's promise.
        end.reject(&unsafe { bytes(private_data, private_data_len) })?;
        Ok(0)
    })
}

/// Ends the connection, or answers the peer who did; what is posted to the id's QP is flushed. `DISCONNECTED` comes if the peer had
/// not ended it before.
///
/// # Safety
/// `id` is an id of ours.
#[unsafe(export_name = "ferroce_rdma_disconnect")]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        let (_, end) = object.end()?;
        let done = end.disconnect();
        object.note_qp();
        done?;
        if !object.is_disconnected() {
            object.complete(CmEventType::Disconnected)?;
        }
        Ok(0)
    })
}

/// Says that data has come on the id's QP (`IBV_EVENT_COMM_EST`), so that the peer must have confirmed.
///
/// # Safety
/// `id` is an id of ours.
#[unsafe(export_name = "ferroce_rdma_notify")]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    entry::number(|| {
        if event != COMM_EST {
            return Err(entry::INVALID);
        }
        // SAFETY: the caller's promise.
        unsafe { IdObject::of(id) }?.end()?.1.notify()?;
        Ok(0)
    })
}

/// Attributes that take the id's QP to the state in `attr`, for QPs that the program modifies itself.
///
/// # Safety
/// `id` is an id of ours, `attr` may be read and written, `mask` written.
#[unsafe(export_name = "ferroce_rdma_init_qp_attr")]
pub unsafe extern "C" fn rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let (_, end) = unsafe { IdObject::of(id) }?.end()?;
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_mut() }.ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        let mask = unsafe { mask.as_mut() }.ok_or(entry::INVALID)?;
        let state = u8::try_from(attr.qp_state).ok().and_then(QpState::from_code).ok_or(entry::INVALID)?;
        let (found, found_mask) = end.init_qp_attr(state)?;
        *attr = attr_as_c(&found, ibv_qp_cap::default());
        attr.qp_state = c_uint::from(state.code());
        *mask = found_mask.0.cast_signed();
        Ok(0)
    })
}
