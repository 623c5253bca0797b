//! The command line.

use std::path::PathBuf;

use clap::Parser;

use super::ConfigError;
use super::raw::{RawConfig, RawPort};

/// RoCEv2 in user space: serves verbs applications over DPDK ports.
///
/// Without a configuration file one port is enough:
///
///   ferroced --vdev net_af_packet0,iface=eth0
///
///   ferroced --vdev net_tap0,iface=dtap0 --address 10.0.0.1
#[derive(Clone, PartialEq, Debug, Default, Parser)]
#[command(name = "ferroced", version, verbatim_doc_comment)]
pub struct Args {
    /// Configuration file [default: /etc/ferroce/ferroced.toml, if it exists]. Flags win over it.
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the configuration that counts, with every default, and exit.
    #[arg(long)]
    pub check_config: bool,

    /// A port over a virtual device, in DPDK's form; may be repeated. Ports named by flags replace the file's.
    #[arg(long, value_name = "DEVICE")]
    pub vdev: Vec<String>,

    /// A port over the PCI device at this address, bound to VFIO; may be repeated. Counted behind those of --vdev.
    #[arg(long, value_name = "ADDRESS")]
    pub pci: Vec<String>,

    /// Addresses of a port, IPv4 or IPv6, with @VLAN behind those in a VLAN, separated by commas; the first --address is the first port's, and so on. [default: those of
    /// the kernel's interface, where the device shares one]
    #[arg(long, value_name = "IP[,IP]")]
    pub address: Vec<String>,

    /// Cores to bind an lcore to each, such as 2,3. [default: one lcore, bound to none]
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub lcores: Option<Vec<i64>>,

    /// What an lcore does when idle: spin (a core of its own) or adaptive (yields, then sleeps). [default: adaptive; spin on
    /// isolated cores]
    #[arg(long, value_name = "POLICY")]
    pub idle: Option<String>,

    /// Memory of packet buffers: hugepages (a mounted hugetlbfs), in-memory (hugepages without a mount) or no-huge. [default:
    /// in-memory if 256 MiB of hugepages are free, else no-huge]
    #[arg(long, value_name = "MODE", conflicts_with = "no_huge")]
    pub memory: Option<String>,

    /// The same as --memory no-huge.
    #[arg(long)]
    pub no_huge: bool,

    /// Path of the control socket. [default: /run/ferroce/ferroced.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Device name that applications see. [default: ferroce0]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// What is logged to standard error: error, warn, info, debug, trace, or directives such as warn,daemon=debug. [default:
    /// info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
}

impl Args {
    /// Puts what the flags say in place of what the file says.
    pub(super) fn override_file(&self, raw: &mut RawConfig) -> Result<(), ConfigError> {
        let Self { config: _, check_config: _, vdev, pci, address, lcores, idle, memory, no_huge, socket, device, log } =
            self;
        if !vdev.is_empty() || !pci.is_empty() {
            let vdevs = vdev.iter().map(|vdev| RawPort { vdev: Some(vdev.clone()), ..RawPort::default() });
            let pcis = pci.iter().map(|pci| RawPort { pci: Some(pci.clone()), ..RawPort::default() });
            raw.port = vdevs.chain(pcis).collect();
        }
        if address.len() > raw.port.len() {
            let message = format!("--address is given {} times for {} ports", address.len(), raw.port.len());
            return Err(ConfigError::Combination(message));
        }
        for (port, addresses) in raw.port.iter_mut().zip(address) {
            port.addresses = Some(addresses.split(',').map(|ip| ip.trim().to_owned()).collect());
        }
        if lcores.is_some() {
            raw.lcores.clone_from(lcores);
            raw.lcore_count = None;
        }
        if *no_huge {
            raw.memory = Some("no-huge".to_owned());
        }
        if memory.as_deref().is_some_and(|memory| memory != "no-huge") {
            raw.memory_mib = None;
        }
        replace(&mut raw.memory, memory);
        replace(&mut raw.idle, idle);
        replace(&mut raw.socket, socket);
        replace(&mut raw.device, device);
        replace(&mut raw.log, log);
        Ok(())
    }
}

fn replace<T: Clone>(file: &mut Option<T>, flag: &Option<T>) {
    if flag.is_some() {
        file.clone_from(flag);
    }
}
