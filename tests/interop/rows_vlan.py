"""A VLAN."""

import contextlib
import json
import time

import roce
from lab import INTERFACE_MTU, Capture, Daemon, ip
from rows import row
from rows_paths import check_all
from verbs import RowFailed, Side, expect

VLAN = 77
VLAN_ADDRESSES = {"ferroce": "10.78.0.50", "rxe": "10.78.0.10"}
TAP = "dtap0"


@row(fast=True, elsewhere=True)
def vlan(lab, requester, responder):
    """802.1Q, with a ferroced on a port of its own: it does all of the tagging, and ARP."""
    with vlan_sides(lab) as (sides, check):
        check_all(sides[requester.name], sides[responder.name])
        check()


@contextlib.contextmanager
def vlan_sides(lab):
    """Both sides in the VLAN, by name, and a function that judges what went over the wire."""
    with contextlib.ExitStack() as stack:
        directory = lab.directory / "vlan"
        directory.mkdir(exist_ok=True)
        daemon = Daemon(lab.daemon.programs, directory, f"net_tap0,iface={TAP}", "--address", f"{VLAN_ADDRESSES['ferroce']}@{VLAN}")
        stack.callback(end, daemon.process)
        # Not the kernel's: a bridge keeps frames to its ports' own addresses.
        output, _ = daemon.ferroce("--json", "devinfo").communicate(timeout=20)
        mac = json.loads(output)["ports"][0]["mac"]
        ip("link", "set", TAP, "mtu", str(INTERFACE_MTU), "addrgenmode", "none")
        ip("link", "set", TAP, "master", "br0", "up")
        capture = Capture(directory / "all.pcap", TAP, TAP)
        stack.callback(end, capture.process)
        lab.peer.run(f"ip link add link eth0 name eth0.{VLAN} type vlan id {VLAN} && ip link set eth0.{VLAN} up")
        stack.callback(lab.peer.run, f"ip link del eth0.{VLAN}")
        lab.peer.run(f"ip address add {VLAN_ADDRESSES['rxe']}/24 dev eth0.{VLAN}")
        sides = {"ferroce": side_of("ferroce", daemon.agent()), "rxe": side_of("rxe", lab.peer.verbs)}
        # Before the VLAN goes away.
        stack.callback(sides["rxe"].reset)

        def check():
            path = directory / "vlan.pcap"
            capture.cut(path)
            if roce.check(path, mac) == 0:
                raise RowFailed("ferroced sent nothing")
            expect("VLANs of what ferroced sent", roce.tags(path, mac), {VLAN})

        yield sides, check


def end(process):
    process.kill()
    process.wait()


def side_of(name, lines):
    """A side whose GID of its address in the VLAN may still be on its way."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return Side(name, lines, VLAN_ADDRESSES[name])
        except KeyError:
            if time.monotonic() > deadline:
                raise RowFailed(f"{name} has no GID of {VLAN_ADDRESSES[name]}") from None
            time.sleep(0.1)
