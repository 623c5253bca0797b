//! Event channels: one descriptor for the events of all devices.

use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use ferroce::cm::EventChannel;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::abi::*;
use super::devices::{self, Device};
use super::event::EventObject;
use crate::context::wait_readable;
use crate::entry::{self, Failure};
use crate::events::lock;

/// A channel. Its descriptor is an epoll instance, which is readable while one of the devices' own channels is.
#[repr(C)]
pub(crate) struct ChannelObject {
    abi: rdma_event_channel,
    epoll: Epoll,
    ends: Mutex<Vec<(Arc<Device>, EventChannel)>>,
}

impl ChannelObject {
    /// Makes a channel that nothing comes to yet.
    pub(super) fn create() -> Result<NonNull<Self>, Failure> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let abi = rdma_event_channel { fd: epoll.0.as_raw_fd() };
        Ok(NonNull::from(Box::leak(Box::new(Self { abi, epoll, ends: Mutex::default() }))))
    }

    /// The object of a channel.
    ///
    /// # Safety
    /// `channel` is a channel of ours that lives as long as the reference is used, or NULL.
    pub(super) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> Result<&'a Self, Failure> {
        // SAFETY: the caller's promise; a channel is never changed from outside.
        unsafe { channel.cast::<Self>().as_ref() }.ok_or(entry::INVALID)
    }

    /// Frees a channel.
    ///
    /// # Safety
    /// `channel` is a channel of ours that nobody uses any more, or NULL.
    pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) {
        if !channel.is_null() {
            // SAFETY: it was made by `Box::leak`, and is given back.
            drop(unsafe { Box::from_raw(channel.cast::<Self>()) });
        }
    }

    /// Its part that a device's events come to.
    pub(super) fn on(&self, device: &Arc<Device>) -> Result<EventChannel, Failure> {
        let mut ends = lock(&self.ends);
        if let Some((_, end)) = ends.iter().find(|(known, _)| Arc::ptr_eq(known, device)) {
            return Ok(end.clone());
        }
        let end = EventChannel::new(device.context())?;
        self.epoll.add(end.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        ends.push((Arc::clone(device), end.clone()));
        Ok(end)
    }

    /// Waits for the next event, as the descriptor's flags say.
    pub(super) fn next(&self) -> Result<NonNull<EventObject>, Failure> {
        loop {
            let ends = lock(&self.ends).clone();
            for (device, end) in &ends {
                while let Some(event) = end.try_get_event()? {
                    if let Some(object) = EventObject::create(device, event)? {
                        return Ok(object);
                    }
                }
            }
            wait_readable(&self.epoll.0)?;
        }
    }
}

/// A channel with a descriptor to wait on (`channel->fd`): for `poll`, and to be made non-blocking.
///
/// # Errors
/// `ENODEV` if no daemon answers.
#[unsafe(export_name = "ferroce_rdma_create_event_channel")]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    entry::pointer(|| {
        devices::all()?;
        Ok(ChannelObject::create()?.as_ptr().cast())
    })
}

/// Destroys a channel whose ids are destroyed.
///
/// # Safety
/// `channel` is a channel of ours that nobody uses any more, or NULL.
#[unsafe(export_name = "ferroce_rdma_destroy_event_channel")]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    entry::status(|| {
        // SAFETY: the caller's promise.
        unsafe { ChannelObject::destroy(channel) };
        Ok(())
    });
}

/// Waits for the next event; `EAGAIN` if there is none and the descriptor is non-blocking.
///
/// # Safety
/// `channel` is a channel of ours, `event` may be written.
#[unsafe(export_name = "ferroce_rdma_get_cm_event")]
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { ChannelObject::of(channel) }?;
        // SAFETY: the caller's promise.
        let event = unsafe { event.as_mut() }.ok_or(entry::INVALID)?;
        *event = ptr::null_mut();
        *event = object.next()?.as_ptr().cast();
        Ok(0)
    })
}

/// Acknowledges an event, and frees it: its id can be destroyed once all of its events are.
///
/// # Safety
/// `event` is from [`rdma_get_cm_event`] and not acknowledged yet.
#[unsafe(export_name = "ferroce_rdma_ack_cm_event")]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    entry::number(|| {
        let event = NonNull::new(event).ok_or(entry::INVALID)?;
        // SAFETY: the caller's promise.
        unsafe { EventObject::acknowledge(event.cast()) };
        Ok(0)
    })
}

/// An event type's name.
#[unsafe(export_name = "ferroce_rdma_event_str")]
pub const extern "C" fn rdma_event_str(event: std::ffi::c_uint) -> *const c_char {
    let name = match event {
        0 => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        1 => c"RDMA_CM_EVENT_ADDR_ERROR",
        2 => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
        4 => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        5 => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        6 => c"RDMA_CM_EVENT_CONNECT_ERROR",
        7 => c"RDMA_CM_EVENT_UNREACHABLE",
        8 => c"RDMA_CM_EVENT_REJECTED",
        9 => c"RDMA_CM_EVENT_ESTABLISHED",
        10 => c"RDMA_CM_EVENT_DISCONNECTED",
        11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
        15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
