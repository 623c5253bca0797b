//! `ferroce devinfo`: the device, its ports and GIDs, in the words of `ibv_devinfo`.

use std::io::{self, Write};

use serde::Serialize;
use shm::attr::{DeviceAttr, GidEntry, PortAttr};
use wire::PathMtu;

use crate::client::Client;
use crate::outcome::{CommandError, Outcome};
use crate::report::{Fields, table, write_json, write_table};

/// Arguments of `ferroce devinfo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// All limits as well (JSON always has them).
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Serialize)]
struct Device {
    #[serde(flatten)]
    facts: Fields,
    limits: Fields,
    ports: Vec<Port>,
}

#[derive(Serialize)]
struct Port {
    #[serde(flatten)]
    facts: Fields,
    limits: Fields,
    gids: Vec<GidLine>,
}

#[derive(Serialize)]
struct GidLine {
    index: u32,
    gid: String,
    ip: String,
    #[serde(rename = "type")]
    gid_type: &'static str,
    vlan: Option<u16>,
}

/// Asks for the device and each of its ports, and prints them.
pub(crate) fn run(client: &Client, args: &Args, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let attr = client.device()?;
    let mut ports = Vec::new();
    for number in 1..=attr.phys_port_cnt {
        ports.push(port(number, &client.port(number)?, &client.gids(number)?));
    }
    let device = Device { facts: device_facts(&attr), limits: device_limits(&attr), ports };
    if json {
        write_json(out, &device)?;
    } else {
        write_text(&device, args.verbose, out)?;
    }
    Ok(Outcome::Good)
}

fn write_text(device: &Device, verbose: bool, out: &mut impl Write) -> io::Result<()> {
    device.facts.write_text(out, "")?;
    if verbose {
        device.limits.write_text(out, "  ")?;
    }
    for port in &device.ports {
        port.facts.write_text(out, "  ")?;
        if verbose {
            port.limits.write_text(out, "    ")?;
        }
        let gids = port.gids.iter().map(|gid| {
            let vlan = gid.vlan.map_or_else(String::new, |vlan| format!("vlan {vlan}"));
            vec![format!("GID[{}]", gid.index), gid.gid.clone(), gid.gid_type.to_owned(), format!("({})", gid.ip), vlan]
        });
        write_table(out, &table(&[], &[], gids), "    ")?;
    }
    Ok(())
}

fn device_facts(attr: &DeviceAttr) -> Fields {
    let [a, b, c, d, e, f, g, h] = attr.node_guid.to_be_bytes();
    let mut facts = Fields::default();
    facts
        .add("hca_id", attr.name.as_str())
        .add_noted("transport", "InfiniBand", 0)
        .add("fw_ver", attr.fw_ver.as_str())
        .add("node_guid", format!("{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{f:02x}:{g:02x}{h:02x}"))
        .add("phys_port_cnt", attr.phys_port_cnt);
    facts
}

fn device_limits(attr: &DeviceAttr) -> Fields {
    let mut limits = Fields::default();
    limits
        .add("max_mr_size", attr.max_mr_size)
        .add("max_memory_bytes", attr.max_memory_bytes)
        .add("max_qp", attr.max_qp)
        .add("max_qp_wr", attr.max_qp_wr)
        .add("max_sge", attr.max_sge)
        .add("max_inline_data", attr.max_inline_data)
        .add("max_cq", attr.max_cq)
        .add("max_cqe", attr.max_cqe)
        .add("max_mr", attr.max_mr)
        .add("max_pd", attr.max_pd)
        .add("max_qp_rd_atom", attr.max_qp_rd_atom)
        .add("max_qp_init_rd_atom", attr.max_qp_init_rd_atom)
        .add("max_srq", attr.max_srq)
        .add("max_srq_wr", attr.max_srq_wr)
        .add("max_srq_sge", attr.max_srq_sge)
        .add("num_comp_vectors", attr.num_comp_vectors)
        .add("max_ah", attr.max_ah)
        .add("max_mcast_attach", attr.max_mcast_attach);
    limits
}

fn port(number: u8, attr: &PortAttr, gids: &[GidEntry]) -> Port {
    let mut facts = Fields::default();
    // Names and numbers of `ibv_port_state`.
    let (state, state_code) = if attr.active { ("PORT_ACTIVE", 4) } else { ("PORT_DOWN", 1) };
    facts.add("port", number).add_noted("state", state, state_code);
    add_mtu(&mut facts, "max_mtu", attr.max_mtu);
    add_mtu(&mut facts, "active_mtu", attr.active_mtu);
    facts
        .add("link_layer", "Ethernet")
        .add("mac", attr.mac.to_string())
        .add("interface", attr.kernel_interface.as_deref())
        .add("driver", attr.driver.as_str());
    let mut limits = Fields::default();
    let speed = (attr.speed_mbps != 0).then_some(attr.speed_mbps);
    limits
        .add("interface_mtu", attr.interface_mtu)
        .add("speed_mbps", speed)
        .add("max_msg_sz", attr.max_msg_sz)
        .add("gid_tbl_len", attr.gid_tbl_len)
        .add("pkey_tbl_len", attr.pkey_tbl_len);
    Port { facts, limits, gids: gids.iter().map(gid).collect() }
}

fn gid(entry: &GidEntry) -> GidLine {
    GidLine {
        index: entry.index,
        gid: entry.gid.to_string(),
        ip: entry.gid.ip().to_string(),
        gid_type: entry.gid_type.name(),
        vlan: entry.vlan,
    }
}

/// An MTU in bytes, its code beside it.
fn add_mtu(fields: &mut Fields, name: &'static str, code: u8) {
    fields.add_noted(name, PathMtu::from_code(code).map(PathMtu::bytes), code);
}
