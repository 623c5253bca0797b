//! Connections by the connection manager, for [`crate::Agent`].

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferroce::cm::{CmEvent, CmEventType, CmId, ConnParam, EventChannel, PortSpace};
use ferroce::{CompletionQueue, Context, CqInit, ProtectionDomain, QpInit, Qpn};
use serde_json::{Value, json};

use crate::to_hex;

/// How long an address or a route may take to be found.
const PATIENCE: Duration = Duration::from_secs(5);

/// READs and atomics that we answer at a time, and have outstanding.
const RESPONDER_RESOURCES: u8 = 4;
const INITIATOR_DEPTH: u8 = 3;

/// Ids by their numbers in the session.
pub(crate) struct Connections {
    ids: BTreeMap<u32, CmId>,
    channel: EventChannel,
    pd: ProtectionDomain,
    /// Of the ids' QPs: nobody asks for their completions.
    cq: CompletionQueue,
}

impl Connections {
    pub(crate) fn new(context: &Context, pd: &ProtectionDomain) -> anyhow::Result<Self> {
        let cq = context.create_cq(&CqInit { cqe: 1024, ..CqInit::default() })?;
        Ok(Self { ids: BTreeMap::new(), channel: EventChannel::new(context)?, pd: pd.clone(), cq })
    }

    pub(crate) fn id(&self, number: u32) -> anyhow::Result<&CmId> {
        self.ids.get(&number).with_context(|| format!("no id {number}"))
    }

    pub(crate) fn listen(&mut self, addr: SocketAddr, space: u16) -> anyhow::Result<u32> {
        let id = self.channel.create_id(port_space(space)?)?;
        id.bind_addr(addr)?;
        id.listen(8)?;
        Ok(self.keep(id))
    }

    pub(crate) fn connect(&mut self, peer: SocketAddr, space: u16, private_data: Vec<u8>) -> anyhow::Result<u32> {
        let id = self.channel.create_id(port_space(space)?)?;
        id.resolve_addr(None, peer, PATIENCE)?;
        self.expect(CmEventType::AddrResolved)?;
        id.resolve_route(PATIENCE)?;
        self.expect(CmEventType::RouteResolved)?;
        self.give_qp(&id)?;
        id.connect(&param(private_data, None))?;
        Ok(self.keep(id))
    }

    /// The next event, null if none came in time.
    pub(crate) fn event(&mut self, timeout: Duration) -> anyhow::Result<Value> {
        let Some(event) = self.channel.get_event(Some(timeout))? else { return Ok(Value::Null) };
        if event.event_type() == CmEventType::ConnectRequest {
            self.keep(event.id().clone());
        }
        Ok(describe(&event))
    }

    /// Accepts a request: with a QP of the id's own, or for datagrams with `qpn`.
    pub(crate) fn accept(&self, number: u32, private_data: Vec<u8>, qpn: Option<Qpn>) -> anyhow::Result<()> {
        let id = self.id(number)?;
        self.give_qp(id)?;
        Ok(id.accept(&param(private_data, qpn))?)
    }

    /// Destroys all ids.
    pub(crate) fn clear(&mut self) -> anyhow::Result<()> {
        self.ids.clear();
        while self.channel.try_get_event()?.is_some() {}
        Ok(())
    }

    fn keep(&mut self, id: CmId) -> u32 {
        let number = id.handle();
        self.ids.insert(number, id);
        number
    }

    fn give_qp(&self, id: &CmId) -> anyhow::Result<()> {
        if id.port_space() == PortSpace::Tcp {
            id.create_qp(&self.pd, &QpInit::rc(&self.cq))?;
        }
        Ok(())
    }

    fn expect(&self, wanted: CmEventType) -> anyhow::Result<()> {
        let event = self.channel.get_event(Some(2 * PATIENCE))?.context("no event came")?;
        ensure!(event.event_type() == wanted, "{event} in place of {}", wanted.name());
        Ok(())
    }
}

fn port_space(code: u16) -> anyhow::Result<PortSpace> {
    let spaces = [PortSpace::Tcp, PortSpace::Udp];
    spaces.into_iter().find(|space| space.code() == code).context("port spaces are TCP, 0x106, and UDP, 0x111")
}

fn param(private_data: Vec<u8>, qpn: Option<Qpn>) -> ConnParam {
    ConnParam {
        private_data,
        responder_resources: RESPONDER_RESOURCES,
        initiator_depth: INITIATOR_DEPTH,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: qpn.map_or(0, Qpn::value),
        ..ConnParam::default()
    }
}

fn describe(event: &CmEvent) -> Value {
    let param = event.param();
    json!({
        "event": event.event_type().code(),
        "id": event.id().handle(),
        "status": event.status(),
        "private": to_hex(event.private_data()),
        "responder_resources": param.responder_resources,
        "initiator_depth": param.initiator_depth,
        "qpn": param.qp_num,
        "qkey": param.qkey,
        "gid": event.ah_attr().map(|ah| Ipv6Addr::from(ah.dgid.0).to_string()),
    })
}
