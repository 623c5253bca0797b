//! Completion channels: sleeping until completions come.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use shm::control::{CallError, Reply, Request};
use shm::wake::{Notifications, Notifier};

use crate::context::RemoteObject;
use crate::cq::{CqInner, CqRing};
use crate::error::lock;
use crate::events::Deadline;
use crate::{CompletionQueue, Context, VerbsError};

/// A completion channel (`ibv_comp_channel`). A cheap handle; several threads may wait on it, each event goes to one of them.
#[derive(Clone)]
pub struct CompletionChannel(pub(crate) Arc<ChannelInner>);

pub(crate) struct ChannelInner {
    remote: RemoteObject,
    pub(crate) channel: u32,
    notifications: Notifications,
    /// The engine has it too; with this copy we notify ourselves.
    notifier: Arc<Notifier>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: Vec<Member>,
    /// CQs whose notification was seen and not yet handed out; each is there once.
    ready: VecDeque<u32>,
    /// Every CQ was handed out once more because the daemon is gone.
    death_told: bool,
}

struct Member {
    cq: u32,
    ring: Arc<CqRing>,
    owner: Weak<CqInner>,
}

impl Context {
    /// Makes a completion channel.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] at the client's limit.
    pub fn create_channel(&self) -> Result<CompletionChannel, VerbsError> {
        let (reply, fds) = self.0.call_with(&Request::CreateChannel, &[])?;
        let unexpected = VerbsError::UnexpectedReply { request: "CreateChannel" };
        let Reply::Handle(channel) = reply else { return Err(unexpected) };
        let remote = RemoteObject::new(&self.0, Request::DestroyChannel { channel });
        let mut fds = fds.into_iter();
        let (Some(reader), Some(writer)) = (fds.next(), fds.next()) else { return Err(unexpected) };
        let (notifications, notifier) = (Notifications::from_fd(reader), Arc::new(Notifier::from_fd(writer)));
        self.0.events.register_channel(&notifier);
        let state = Mutex::default();
        Ok(CompletionChannel(Arc::new(ChannelInner { remote, channel, notifications, notifier, state })))
    }
}

impl CompletionChannel {
    /// Waits until a CQ that asked for it ([`CompletionQueue::req_notify`]) has a notification, and returns that CQ; `None`
    /// when `timeout` is over first (`None` = no timeout). Ask again and then poll the CQ until it is empty, in this order.
    ///
    /// When the daemon is gone, every CQ of the channel is returned once, so that its last completions are polled.
    ///
    /// # Errors
    /// [`CallError::Disconnected`] after that.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CompletionQueue>, VerbsError> {
        let deadline = Deadline::after(timeout);
        let context = &self.0.remote.context;
        loop {
            if let Some(cq) = self.try_get()? {
                return Ok(Some(cq));
            }
            if context.make_progress() {
                if deadline.is_over() {
                    return self.try_get();
                }
            } else if !deadline.wait_readable(self.as_fd())? {
                return self.try_get();
            }
        }
    }

    /// As [`CompletionChannel::wait`], without waiting.
    ///
    /// # Errors
    /// As there.
    pub fn try_get(&self) -> Result<Option<CompletionQueue>, VerbsError> {
        let inner = &*self.0;
        if inner.remote.context.is_inherited() {
            return Err(VerbsError::Inherited);
        }
        let mut state = lock(&inner.state);
        // First of all: what comes after the looks below makes the channel readable again.
        inner.notifications.drain();
        let dead = inner.remote.context.events.is_dead();
        let state = &mut *state;
        let tell_death = dead && !std::mem::replace(&mut state.death_told, dead);
        for member in &state.members {
            if (member.ring.take_notified() || tell_death) && !state.ready.contains(&member.cq) {
                state.ready.push_back(member.cq);
            }
        }
        let mut found = None;
        while found.is_none()
            && let Some(cq) = state.ready.pop_front()
        {
            found = state.members.iter().find(|member| member.cq == cq).and_then(|member| member.owner.upgrade());
        }
        if !state.ready.is_empty() {
            // For the other threads that wait, and for those who poll the descriptor.
            inner.notifier.notify();
        }
        match found {
            None if dead => Err(CallError::Disconnected.into()),
            found => Ok(found.map(CompletionQueue)),
        }
    }

    /// Readable when [`CompletionChannel::try_get`] has something: for `poll`, `epoll` and their like. Do not read it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.notifications.as_fd()
    }

    /// Destroys it. Dropping the last handle does so too, without telling of a failure.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while CQs or other handles refer to it.
    pub fn destroy(self) -> Result<(), VerbsError> {
        let mut inner = Arc::into_inner(self.0).ok_or(VerbsError::Busy { object: "completion channel" })?;
        inner.remote.release()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("channel", &self.0.channel).finish_non_exhaustive()
    }
}

impl ChannelInner {
    pub(crate) fn join(&self, cq: u32, ring: &Arc<CqRing>, owner: &Weak<CqInner>) {
        lock(&self.state).members.push(Member { cq, ring: Arc::clone(ring), owner: Weak::clone(owner) });
    }

    pub(crate) fn leave(&self, cq: u32) {
        lock(&self.state).members.retain(|member| member.cq != cq);
    }
}
