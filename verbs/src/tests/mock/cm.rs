//! A connection manager whose network is one table: ids of the same mock find each other by port, at once.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use nix::libc;
use shm::control::Reply;
use shm::control::cm::{CmEvent, CmEventType, CmIdInfo, CmReply, CmRequest, ConnParam, PortSpace};
use shm::wake::Notifier;

use super::copy;
use crate::{AhAttr, Gid, QpAttr, QpAttrMask};

/// A destination that has no route.
pub(crate) const UNROUTED_PORT: u16 = 1;

#[derive(Default)]
pub(crate) struct MockCm {
    channels: BTreeMap<u32, (Notifier, VecDeque<CmEvent>)>,
    pub(crate) ids: BTreeMap<u32, MockId>,
    handles: u32,
    /// Joined last.
    group: Gid,
}

pub(crate) struct MockId {
    channel: u32,
    port_space: PortSpace,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    listens: bool,
    listener: Option<u32>,
    peer: Option<u32>,
    /// What its side said when it connected or accepted.
    pub(crate) param: Option<ConnParam>,
    pub(crate) notified: bool,
}

impl MockCm {
    pub(crate) fn push(&mut self, id: u32, event: CmEventType, status: i32, param: ConnParam) {
        let Some(known) = self.ids.get(&id) else { return };
        let info = CmIdInfo { local: known.local, peer: known.remote, port_num: 1, ..CmIdInfo::default() };
        let message = if status == 0 { String::new() } else { format!("{}, says the mock", event.name()) };
        let multicast = event == CmEventType::MulticastJoin;
        let ah = multicast.then(|| AhAttr { dgid: self.group, port_num: 1, ..AhAttr::default() });
        let listen_id = known.listener.filter(|_| event == CmEventType::ConnectRequest);
        let (notifier, queue) = self.channels.get_mut(&known.channel).unwrap();
        queue.push_back(CmEvent { event, id, listen_id, status, param, ah, info, message });
        notifier.notify();
    }

    fn new_id(&mut self, channel: u32, port_space: PortSpace, listener: Option<u32>, peer: Option<u32>) -> u32 {
        self.handles += 1;
        let (local, remote, param) = (None, None, None);
        let (listens, notified) = (false, false);
        let id = MockId { channel, port_space, local, remote, listens, listener, peer, param, notified };
        self.ids.insert(self.handles, id);
        self.handles
    }

    pub(super) fn answer(&mut self, request: &CmRequest) -> (Reply, Vec<OwnedFd>) {
        if matches!(request, CmRequest::CreateChannel) {
            self.handles += 1;
            let (notifier, notifications) = shm::wake::channel().unwrap();
            let fds = vec![copy(&notifications), copy(&notifier)];
            self.channels.insert(self.handles, (notifier, VecDeque::new()));
            return (Reply::Handle(self.handles), fds);
        }
        (self.reply(request), Vec::new())
    }

    fn reply(&mut self, request: &CmRequest) -> Reply {
        match *request {
            CmRequest::GetEvent { channel } => {
                let event = self.channels.get_mut(&channel).unwrap().1.pop_front();
                return Reply::Cm(CmReply::Event(event.map(Box::new)));
            }
            CmRequest::DestroyChannel { channel } => {
                assert!(self.ids.values().all(|id| id.channel != channel), "the channel has ids");
                self.channels.remove(&channel).unwrap();
            }
            CmRequest::CreateId { channel, port_space } => {
                return Reply::Handle(self.new_id(channel, port_space, None, None));
            }
            CmRequest::BindAddr { id, addr } => {
                self.id(id).local = Some(addr);
                return self.info(id);
            }
            CmRequest::QueryId { id } => return self.info(id),
            CmRequest::InitQpAttr { qp_state, .. } => {
                let (attr, mask) = (Box::new(QpAttr { qp_state, ..QpAttr::default() }), QpAttrMask::STATE);
                return Reply::Cm(CmReply::QpAttr { attr, mask });
            }
            CmRequest::MigrateId { id, channel } => self.migrate(id, channel),
            CmRequest::DestroyId { id } => self.destroy(id),
            ref call => return self.call(call),
        }
        Reply::Done
    }

    fn call(&mut self, request: &CmRequest) -> Reply {
        let none = ConnParam::default;
        match request {
            CmRequest::ResolveAddr { id, dst, .. } if dst.port() == UNROUTED_PORT => {
                self.push(*id, CmEventType::AddrError, -libc::ENETUNREACH, none());
            }
            CmRequest::ResolveAddr { id, dst, .. } => {
                self.id(*id).remote = Some(*dst);
                self.push(*id, CmEventType::AddrResolved, 0, none());
            }
            CmRequest::ResolveRoute { id, .. } => self.push(*id, CmEventType::RouteResolved, 0, none()),
            CmRequest::Listen { id, .. } => self.id(*id).listens = true,
            CmRequest::Connect { id, param } => self.connect(*id, param),
            CmRequest::Accept { id, param } => {
                let (active, peer) = (self.id(*id).listener.is_none(), self.id(*id).peer.unwrap());
                if active {
                    self.push(peer, CmEventType::Established, 0, none());
                } else {
                    self.id(*id).param = Some(param.clone());
                    self.push(peer, CmEventType::ConnectResponse, 0, param.clone());
                }
            }
            CmRequest::Reject { id, private_data, reason } => {
                let peer = self.id(*id).peer.take().unwrap();
                let param = ConnParam { private_data: private_data.clone(), ..none() };
                self.push(peer, CmEventType::Rejected, i32::from(*reason), param);
            }
            CmRequest::Disconnect { id } => {
                let Some(peer) = self.id(*id).peer.take() else { return Reply::Done };
                if let Some(peer) = self.ids.get_mut(&peer) {
                    peer.peer = None;
                }
                for end in [*id, peer] {
                    self.push(end, CmEventType::Disconnected, 0, none());
                }
                self.push(*id, CmEventType::TimewaitExit, 0, none());
            }
            CmRequest::Notify { id } => {
                self.id(*id).notified = true;
                self.push(*id, CmEventType::Established, 0, none());
            }
            CmRequest::JoinMulticast { id, group } => {
                self.group = Gid::from_ip(*group);
                let param = ConnParam { qp_num: 0xff_ffff, qkey: 0x0123_4567, ..none() };
                self.push(*id, CmEventType::MulticastJoin, 0, param);
            }
            _ => {}
        }
        Reply::Done
    }

    fn id(&mut self, id: u32) -> &mut MockId {
        self.ids.get_mut(&id).expect("an id that the client has")
    }

    fn info(&mut self, id: u32) -> Reply {
        let known = self.id(id);
        let info = CmIdInfo { local: known.local, peer: known.remote, port_num: 1, ..CmIdInfo::default() };
        Reply::Cm(CmReply::Id(Box::new(info)))
    }

    fn connect(&mut self, id: u32, param: &ConnParam) {
        let (space, port) = (self.id(id).port_space, self.id(id).remote.unwrap().port());
        self.id(id).param = Some(param.clone());
        let serves = |known: &MockId| {
            known.listens && known.port_space == space && known.local.is_some_and(|local| local.port() == port)
        };
        let Some((&listener, known)) = self.ids.iter().find(|(_, known)| serves(known)) else {
            return self.push(id, CmEventType::Rejected, 8, ConnParam::default());
        };
        let channel = known.channel;
        let incoming = self.new_id(channel, space, Some(listener), Some(id));
        self.id(id).peer = Some(incoming);
        self.push(incoming, CmEventType::ConnectRequest, 0, param.clone());
    }

    fn migrate(&mut self, id: u32, channel: u32) {
        let before = std::mem::replace(&mut self.id(id).channel, channel);
        let waiting = std::mem::take(&mut self.channels.get_mut(&before).unwrap().1);
        for event in waiting {
            let request = event.event == CmEventType::ConnectRequest && event.listen_id == Some(id);
            if request {
                self.id(event.id).channel = channel;
            }
            let to = if request || event.id == id { channel } else { before };
            let (notifier, queue) = self.channels.get_mut(&to).unwrap();
            queue.push_back(event);
            notifier.notify();
        }
    }

    fn destroy(&mut self, id: u32) {
        let gone = self.ids.remove(&id).expect("an id is destroyed once");
        let mut requests = Vec::new();
        for (_, queue) in self.channels.values_mut() {
            let untaken = queue.iter().filter(|event| event.listen_id == Some(id));
            requests.extend(untaken.map(|event| event.id));
            queue.retain(|event| event.id != id && event.listen_id != Some(id));
        }
        for request in requests {
            self.destroy(request);
        }
        if let Some(peer) = gone.peer {
            let refused = gone.listener.is_some() && gone.param.is_none();
            let (event, status) = if refused { (CmEventType::Rejected, 28) } else { (CmEventType::Disconnected, 0) };
            self.push(peer, event, status, ConnParam::default());
        }
    }
}
