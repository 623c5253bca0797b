//! `Daemon`: the whole of `ferroced` from a checked configuration.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use engine::config::EngineConfig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pmd::{Clock, Eal, EalConfig, EalError, LogLevel};
use shm::wake::WakeFd;
use thiserror::Error;

use crate::config::Config;
use crate::control_socket::{ControlSocket, SocketError};
use crate::port::{Device, OpenError, PortIo};
use crate::server::Server;
use crate::threads::{EngineError, Lcores};

/// Why a daemon did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// DPDK.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// A port.
    #[error("port {number}: {source}")]
    Port {
        /// Its number, from 1.
        number: usize,
        /// Why.
        source: OpenError,
    },
    /// The lcores.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file descriptor.
    #[error("no resources for the daemon: {0}")]
    Os(#[from] std::io::Error),
}

/// A started daemon: its lcores run, its socket listens.
pub struct Daemon {
    server: Server,
}

impl Daemon {
    /// Starts everything. The control socket is claimed first: a second daemon is refused before it touches a device.
    ///
    /// # Errors
    /// [`StartError`]: sentences for the operator.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let socket = ControlSocket::claim(&config.socket, config.socket_mode)?;
        raise_file_limit();
        let pci = config.ports.iter().filter_map(|port| match &port.device {
            Device::Pci(address) => Some(address.clone()),
            Device::Vdev(_) => None,
        });
        let eal = Eal::init(&EalConfig {
            memory: config.memory,
            main_core: config.lcores.cores.iter().flatten().next().copied(),
            pci: pci.collect(),
            log_level: LogLevel::Warning,
            ..EalConfig::default()
        })?;
        tracing::info!(dpdk = eal.version(), memory = ?config.memory, "DPDK is up");
        let ports = config.ports.iter().zip(1..).map(|(setup, number)| {
            let port = PortIo::open(eal, setup).map_err(|source| StartError::Port { number, source })?;
            let info = &port.config;
            tracing::info!(
                port = number,
                driver = info.driver,
                interface = info.kernel_interface.as_deref().unwrap_or("-"),
                mac = %info.mac,
                addresses = info.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                mtu = info.interface_mtu,
                path_mtu = info.active_mtu().bytes(),
                "port is up"
            );
            Ok(port)
        });
        let ports = ports.collect::<Result<Vec<_>, StartError>>()?;
        let engine = EngineConfig {
            limits: config.limits.clone(),
            transport: config.transport,
            congestion: config.congestion,
            recovery: config.recovery,
            process_memory: config.process_memory,
            qos: config.qos,
            ..crate::embedded::engine_config(&config.device)
        };
        let (clock, wake) = (Clock::new(eal), Arc::new(WakeFd::new()?));
        let (lcores, engine, ports) = Lcores::start(eal, engine, ports, &config.lcores, clock, &wake)?;
        tracing::info!(
            device = config.device,
            lcores = config.lcores.cores.len(),
            idle = ?config.lcores.idle,
            socket = %config.socket.display(),
            "ready"
        );
        Ok(Self { server: Server::new(engine, lcores, ports, clock, wake, Some(socket)) })
    }

    /// Serves until `stop` is readable. Then it ends all sessions, stops the lcores and the ports, and removes the socket.
    ///
    /// # Errors
    /// What the operating system says of waiting.
    pub fn run(self, stop: BorrowedFd<'_>) -> std::io::Result<()> {
        self.server.run(stop)
    }
}

/// Each client's regions, rings and channels are file descriptors: as many as the system grants.
fn raise_file_limit() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(errno) = raised {
        tracing::warn!("the limit of open files stays as it is: {errno}");
    }
}
