"""Other paths than that from one IPv4 address to another: IPv6, global and link-local."""

from lab import FERROCE_ADDRESSES, RXE_ADDRESSES
from rows import row
from rows_rc import CHECKS, GUARD, MIB, atomics
from verbs import STATE_RTS, Link

PATH_SIZES = [0, 1, 1023, 1024, 1025, 65536]


def at_version(side, version):
    """A side with another GID of its: its address of IPv4 or IPv6, or its link-local one."""
    addresses = FERROCE_ADDRESSES if side.name == "ferroce" else RXE_ADDRESSES
    return {"ipv4": lambda: side, "ipv6": lambda: side.at(addresses[6]), "link_local": lambda: side.at(None)}[version]()


def check_all(requester, responder):
    """All kinds of operations."""
    link = Link(requester, responder, size=MIB + GUARD)
    for seed, size in enumerate(PATH_SIZES):
        for check in CHECKS.values():
            check(link, size, seed)
    link.a.expect_state(STATE_RTS)
    link.b.expect_state(STATE_RTS)
    atomics(None, requester, responder)


@row(fast=True, variants=[("ipv6",), ("link_local",)])
def path(_lab, requester, responder, version):
    check_all(at_version(requester, version), at_version(responder, version))
