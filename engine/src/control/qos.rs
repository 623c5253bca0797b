//! Quality of service: what an operator sees and sets.

use shm::control::Reply;
use shm::qos::{PfcBy, PortQos, QosChange, QosSettings};

use super::{Control, Peer, Refusal, errno, refuse};
use crate::command::{Answer, Command, Shards};
use crate::qos::QosState;

/// A port's quality of service, as all shards have it.
#[derive(Clone, Debug)]
pub(super) struct QosBook {
    settings: QosSettings,
    /// The device does flow control by itself.
    by_device: bool,
}

impl QosBook {
    pub(super) fn new(settings: &QosSettings) -> Self {
        Self { settings: *settings, by_device: false }
    }
}

impl Control {
    /// Settings are the operator's.
    pub(super) fn check_operator(&self, peer: Peer) -> Result<(), Refusal> {
        let operator = self.config.operator_uid;
        if peer.uid == 0 || peer.uid == operator {
            return Ok(());
        }
        let message = format!("user {} may not change settings: root and the daemon's user, {operator}, may", peer.uid);
        refuse(errno::EPERM, message)
    }

    pub(super) fn show_qos<S: Shards>(&self, shards: &mut S, port_num: Option<u8>) -> Result<Reply, Refusal> {
        let ports = self.ports_named(port_num)?;
        Ok(Reply::Qos(ports.into_iter().map(|port| self.port_qos(shards, port)).collect()))
    }

    pub(super) fn set_qos<S: Shards>(
        &mut self,
        shards: &mut S,
        peer: Peer,
        port_num: Option<u8>,
        change: &QosChange,
    ) -> Result<Reply, Refusal> {
        self.check_operator(peer)?;
        let ports = self.ports_named(port_num)?;
        // All of them, or none.
        let changed = ports.iter().map(|&port| self.qos[usize::from(port)].settings.changed(change));
        let changed = changed.collect::<Result<Vec<_>, _>>();
        let changed = changed.or_else(|error| refuse(errno::EINVAL, error.to_string()))?;
        for (&port, settings) in ports.iter().zip(changed) {
            self.qos[usize::from(port)].settings = settings;
            self.send_qos(shards, port);
        }
        self.show_qos(shards, port_num)
    }

    /// The device of a port does priority flow control by itself, or does not any more.
    pub fn set_pfc_device<S: Shards>(&mut self, shards: &mut S, port_index: u8, by_device: bool) {
        let Some(book) = self.qos.get_mut(usize::from(port_index)) else { return };
        if std::mem::replace(&mut book.by_device, by_device) != by_device {
            self.send_qos(shards, port_index);
        }
    }

    /// Settings of a port.
    pub fn qos_settings(&self, port_index: u8) -> Option<&QosSettings> {
        self.qos.get(usize::from(port_index)).map(|book| &book.settings)
    }

    fn send_qos<S: Shards>(&self, shards: &mut S, port: u8) {
        let QosBook { settings, by_device } = &self.qos[usize::from(port)];
        self.command_all(shards, || Command::SetQos {
            port,
            settings: Box::new(*settings),
            pauses_by_device: *by_device,
        });
    }

    /// What all shards together know of a port's priorities.
    pub(super) fn qos_state<S: Shards>(&self, shards: &mut S, port: u8) -> QosState {
        let mut sum = QosState::default();
        for shard in 0..self.config.shard_count {
            if let Answer::Qos(state) = shards.command(shard, Command::QueryQos { port }) {
                sum.add(&state);
            }
        }
        sum
    }

    /// Who obeys and sends the PFC frames of a port.
    pub fn pfc_by(&self, port_index: u8) -> PfcBy {
        match self.qos.get(usize::from(port_index)) {
            Some(book) if book.settings.pfc_mask() != 0 && book.by_device => PfcBy::Device,
            Some(book) if book.settings.pfc_mask() != 0 => PfcBy::Engine,
            _ => PfcBy::Nobody,
        }
    }

    fn port_qos<S: Shards>(&self, shards: &mut S, port: u8) -> PortQos {
        let settings = self.qos[usize::from(port)].settings;
        let priorities = self.qos_state(shards, port).priorities();
        PortQos { port_num: port + 1, settings, pfc_by: self.pfc_by(port), priorities }
    }

    /// Indexes of the port named, or of all.
    fn ports_named(&self, port_num: Option<u8>) -> Result<Vec<u8>, Refusal> {
        match port_num {
            None => Ok((0..self.ports.len() as u8).collect()),
            Some(port_num) => self.port(port_num).map(|_| vec![port_num - 1]),
        }
    }
}
