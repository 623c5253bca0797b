//! Events as programs hold them.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ferroce::cm::{CmEvent, CmEventType, PortSpace};

use super::abi::*;
use super::devices::Device;
use super::id::IdObject;
use crate::abi::ibv_ah_attr;
use crate::entry::Failure;
use crate::qp::path_as_c;

/// An event, with what it points to.
#[repr(C)]
pub(crate) struct EventObject {
    abi: rdma_cm_event,
    /// The id that waits for the acknowledgement: with a request to connect, the listener.
    counted: NonNull<IdObject>,
    private_data: Vec<u8>,
}

impl EventObject {
    /// Makes it of the daemon's event; with a request to connect makes the new id. `None` if the id is destroyed meanwhile.
    pub(super) fn create(device: &Arc<Device>, event: CmEvent) -> Result<Option<NonNull<Self>>, Failure> {
        let counted = event.listener().unwrap_or_else(|| event.id()).handle();
        let Some(counted) = device.ids.find(counted, |object| object.events.add()) else { return Ok(None) };
        // SAFETY: it can't be destroyed before what was just counted is acknowledged.
        let known = unsafe { counted.as_ref() };
        match Self::of(device, event, known) {
            Ok(object) => Ok(Some(NonNull::from(Box::leak(Box::new(object))))),
            Err(failure) => {
                known.events.acknowledge(1);
                Err(failure)
            }
        }
    }

    fn of(device: &Arc<Device>, event: CmEvent, known: &IdObject) -> Result<Self, Failure> {
        let (id, listen_id) = match event.listener() {
            Some(_) => {
                let param = event.param();
                let answer = (param.responder_resources, param.initiator_depth);
                let new = IdObject::of_request(device, event.id(), known, event.info(), answer)?;
                // SAFETY: the program gets it only with this event.
                (unsafe { new.as_ref() }, known.as_ptr())
            }
            None => (known, ptr::null_mut()),
        };
        id.note(&event);
        let private_data = event.private_data().to_vec();
        let abi = rdma_cm_event {
            id: id.as_ptr(),
            listen_id,
            event: c_uint::from(event.event_type().code()),
            status: event.status(),
            param: param_of(&event, id, &private_data),
        };
        Ok(Self { abi, counted: NonNull::from(known), private_data })
    }

    /// What happened.
    pub(super) const fn event(&self) -> c_uint {
        self.abi.event
    }

    /// As in the header.
    pub(super) const fn status(&self) -> c_int {
        self.abi.status
    }

    /// The id that it happened to.
    pub(super) const fn id(&self) -> *mut rdma_cm_id {
        self.abi.id
    }

    /// Frees it, and counts it off.
    ///
    /// # Safety
    /// `event` is from [`EventObject::create`] and not acknowledged yet.
    pub(super) unsafe fn acknowledge(event: NonNull<Self>) {
        // SAFETY: it was made by `Box::leak`, and is given back.
        let event = unsafe { Box::from_raw(event.as_ptr()) };
        // SAFETY: the id lives until this is counted off; it is the last use of it here.
        unsafe { event.counted.as_ref() }.events.acknowledge(1);
    }
}

/// What the peer says. For a group, `private_data` is what the program gave when it joined.
fn param_of(event: &CmEvent, id: &IdObject, private_data: &[u8]) -> rdma_cm_event_param {
    let param = event.param();
    let data: *const c_void = if private_data.is_empty() { ptr::null() } else { private_data.as_ptr().cast() };
    // No message has more.
    let length = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    let is_group = matches!(event.event_type(), CmEventType::MulticastJoin | CmEventType::MulticastError);
    if is_group || event.id().port_space() == PortSpace::Udp {
        let group = event.ah_attr().filter(|_| is_group).map(|ah| ah.dgid.ip());
        return rdma_cm_event_param {
            ud: rdma_ud_param {
                private_data: if is_group { id.context_of_group(group) } else { data },
                private_data_len: length,
                ah_attr: event.ah_attr().map_or_else(ibv_ah_attr::default, path_as_c),
                qp_num: param.qp_num,
                qkey: param.qkey,
            },
        };
    }
    // Every byte of the union is written: programs may compare whole events.
    let mut whole = rdma_cm_event_param {
        ud: rdma_ud_param {
            private_data: ptr::null(),
            private_data_len: 0,
            ah_attr: ibv_ah_attr::default(),
            qp_num: 0,
            qkey: 0,
        },
    };
    whole.conn = rdma_conn_param {
        private_data: data,
        private_data_len: length,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: u8::from(param.flow_control),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: u8::from(param.srq),
        qp_num: param.qp_num,
    };
    whole
}
