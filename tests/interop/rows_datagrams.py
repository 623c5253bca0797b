"""UC and UD against pyverbs, and multicast groups against librdmacm's mckey."""

import ipaddress

from lab import FERROCE_ADDRESSES, RXE_ADDRESSES
from programs import SECONDS_MAX
from rows import row
from rows_paths import at_version
from rows_rc import CHECKS, GUARD, MIB, SIZES, content, expect_guard
from verbs import (
    RECV, SEND, SEND_WITH_IMM, STATE_RTS, UC, UD, WRITE, Link, QueuePair, RowFailed, expect, expect_data, work_request,
)

GRH_BYTES = 40
QKEY = 0x11111111


def acquaint(lab):
    """Has the peer's kernel know ferroced's MAC address: nobody repeats a datagram that was lost while it asked."""
    for address in FERROCE_ADDRESSES.values():
        lab.peer.run(f"ping -c 1 -w 10 {address}")


def unacknowledged_write_and_check(link, size, seed):
    """Nothing tells of a WRITE's arrival but what comes after it."""
    link.remote.write(bytes(size + GUARD))
    link.local.write(content(size, seed))
    link.b.post_recv(link.remote, 0)
    link.a.post(link.one(WRITE, size), link.one(SEND, 0))
    link.a.poll_ok(2)
    link.b.poll_ok()
    expect_data(f"a WRITE of {size} bytes", link.remote.read(size), content(size, seed))
    expect_guard(link.remote, size)


UC_CHECKS = {**{kind: CHECKS[kind] for kind in ("send", "send_imm", "write_imm")}, "write": unacknowledged_write_and_check}


def first_contact(link):
    """Sends until something comes: rxe was seen to complete the first message of its first UC QP without sending a packet."""
    link.b.post_recv(link.remote, 1)
    for _ in range(5):
        link.a.post(link.one(SEND, 1))
        link.a.poll_ok()
        if link.b.side.call("poll", qp=link.b.qp, count=1, timeout=2)["completions"]:
            return
    raise RowFailed("none of 5 messages came")


@row(answered=False, variants=[(kind,) for kind in UC_CHECKS])
def uc_sizes(lab, requester, responder, kind):
    """The longest message in packets of 4096 bytes: what a busy host has no room for is lost, and comes never."""
    acquaint(lab)
    for mtu, sizes in ((1024, SIZES[:-1]), (4096, SIZES[-1:])):
        link = Link(requester, responder, size=MIB + GUARD, service=UC, mtu=mtu)
        first_contact(link)
        for seed, size in enumerate(sizes):
            UC_CHECKS[kind](link, size, seed)
        link.a.expect_state(STATE_RTS)
        link.b.expect_state(STATE_RTS)


@row(fast=True, answered=False)
def uc_no_receive(lab, requester, responder):
    """A message without a receive is lost, one after it comes."""
    acquaint(lab)
    link = Link(requester, responder, service=UC)
    link.local.write(content(3000))
    link.a.post(link.one(SEND, 3000))
    link.a.poll_ok()
    link.b.expect_nothing(0.3)
    for seed in (1, 2):
        CHECKS["send"](link, 3000, seed)


class Datagrams:
    """A UD QP on either side, and an address handle for the responder's."""

    def __init__(self, requester, responder):
        self.a, self.b = QueuePair(requester, service=UD), QueuePair(responder, service=UD)
        self.local, self.remote = requester.region(8192), responder.region(8192)
        self.a.start(QKEY)
        self.b.start(QKEY)
        self.requester, self.responder = requester, responder
        self.ah = handle(requester, responder.gid)

    def one(self, opcode, size, qkey=QKEY, **fields):
        return datagram(self.local, size, self.ah, self.b.qpn, qkey, opcode=opcode, **fields)

    def send_and_check(self, size, seed, imm=None):
        self.remote.write(bytes(GRH_BYTES + size + GUARD))
        self.local.write(content(size, seed))
        self.b.post_recv(self.remote, self.remote.size, wr_id=500 + seed)
        self.a.post(self.one(SEND if imm is None else SEND_WITH_IMM, size, imm=imm or 0))
        self.a.poll_ok()
        (received,) = self.b.poll_ok()
        said = [received[key] for key in ("wr_id", "opcode", "byte_len", "imm", "src_qpn", "grh")]
        expect("the receive's completion", said, [500 + seed, RECV, size + GRH_BYTES, imm, self.a.qpn, True])
        self.expect_header()
        expect_data(f"a datagram of {size} bytes", self.remote.read(size, GRH_BYTES), content(size, seed))
        expect_guard(self.remote, GRH_BYTES + size)

    def expect_header(self):
        """The header of IP, of IPv4 in the second half of the room for a GRH, tells of both hosts."""
        header = self.remote.read(GRH_BYTES)
        source, destination = (ipaddress.IPv6Address(side.gid) for side in (self.requester, self.responder))
        if source.ipv4_mapped:
            got = [header[20] >> 4, header[29], header[32:36], header[36:40]]
            wanted = [4, 17, source.ipv4_mapped.packed, destination.ipv4_mapped.packed]
        else:
            got = [header[0] >> 4, header[6], header[8:24], header[24:40]]
            wanted = [6, 17, source.packed, destination.packed]
        expect("the header before the datagram", got, wanted)


def handle(side, gid):
    return side.call("ah", gid_index=side.gid_index, gid=gid)["ah"]


def datagram(region, size, ah, qpn, qkey, opcode=SEND, **fields):
    return work_request(opcode, region.sge(0, size), to={"ah": ah, "qpn": qpn, "qkey": qkey}, **fields)


@row(fast=True, answered=False, variants=[("ipv4",), ("ipv6",)])
def ud_sizes(lab, requester, responder, version):
    """A datagram is one packet of at most the ports' MTU."""
    acquaint(lab)
    link = Datagrams(at_version(requester, version), at_version(responder, version))
    largest = min(requester.mtu, responder.mtu)
    for seed, size in enumerate([0, 1, 2, 3, 4, 5, 64, 255, 1023, 1024, 1025, largest - 1, largest]):
        link.send_and_check(size, seed)
        link.send_and_check(size, seed, imm=0xF0E0D0C0 + seed)


def lost(lab, link, counter, work):
    """Sends a datagram that does not come, though nobody tells the sender; ferroce counts it, and goes on."""
    before = lab.daemon.counters()[counter]
    link.a.post(work)
    link.a.poll_ok()
    link.b.expect_nothing(0.3)
    if link.responder.name == "ferroce":
        expect(f"the daemon's {counter}", lab.daemon.counters()[counter], before + 1)
    link.b.expect_state(STATE_RTS)


@row(answered=False)
def ud_wrong_qkey(lab, requester, responder):
    acquaint(lab)
    link = Datagrams(requester, responder)
    link.b.post_recv(link.remote, link.remote.size)
    lost(lab, link, "rx_bad_qkey", link.one(SEND, 100, qkey=QKEY + 1))
    link.a.post(link.one(SEND, 100))
    link.b.poll_ok()


@row(answered=False)
def ud_no_receive(lab, requester, responder):
    acquaint(lab)
    link = Datagrams(requester, responder)
    lost(lab, link, "ud_no_receive", link.one(SEND, 100))
    link.send_and_check(100, 1)


GROUP = ipaddress.IPv4Address("239.77.0.1")
GROUP_GID = f"::ffff:{GROUP}"
GROUP_QPN = 0xFFFFFF
# Of librdmacm's groups.
RDMA_UDP_QKEY = 0x01234567
MCKEY_MESSAGES, MCKEY_BYTES = 10, 100
# rxe has its interface take the frames of a group that a QP is attached to: here by the last four bytes of its GID.
RXE_ATTACHED = "33:33:ef:4d:00:01"


@row(fast=True, answered=False)
def multicast(lab, requester, responder):
    """Datagrams to a group: to mckey, and from it to two QPs of ours."""
    mckey = f"mckey -m {GROUP} -b {RXE_ADDRESSES[4]} -C {MCKEY_MESSAGES} -S {MCKEY_BYTES}"
    if requester.name == "ferroce":
        rxe = lab.peer.start(mckey, SECONDS_MAX)
        lab.peer.run(f"for i in $(seq 400); do ip maddress show dev eth0 | grep -q {RXE_ATTACHED} && exit; sleep 0.05; done; exit 1")
        send_to_group(requester)
    else:
        qps = [member(responder) for _ in range(2)]
        rxe = lab.peer.start(f"{mckey} -s", SECONDS_MAX)
        for qp, region in qps:
            expect_from_group(qp, region)
    status, output = rxe()
    if status != 0 or "return status 0" not in output:
        raise RowFailed(f"mckey ended with {status}: {output[-400:]!r}")


def send_to_group(side):
    qp, region = QueuePair(side, service=UD), side.region(MCKEY_BYTES)
    qp.start(RDMA_UDP_QKEY)
    ah = handle(side, GROUP_GID)
    for number in range(MCKEY_MESSAGES):
        qp.post(datagram(region, MCKEY_BYTES, ah, GROUP_QPN, RDMA_UDP_QKEY, opcode=SEND_WITH_IMM, imm=qp.qpn, wr_id=number))
    qp.poll_ok(MCKEY_MESSAGES)


def member(side):
    qp, region = QueuePair(side, service=UD), side.region(4096)
    qp.start(RDMA_UDP_QKEY)
    qp.post_recv(region, GRH_BYTES + MCKEY_BYTES, count=MCKEY_MESSAGES)
    side.call("attach", qp=qp.qp, gid=GROUP_GID)
    return qp, region


def expect_from_group(qp, region):
    """What mckey has to say is in the header and in the immediate: its QPN."""
    completions = qp.poll_ok(MCKEY_MESSAGES)
    expect("lengths", {completion["byte_len"] for completion in completions}, {GRH_BYTES + MCKEY_BYTES})
    expect("the sender as it says itself", {completion["imm"] for completion in completions}, {completions[0]["src_qpn"]})
    addresses = ipaddress.IPv4Address(RXE_ADDRESSES[4]).packed + GROUP.packed
    expect("addresses in the header", region.read(8, 32), addresses)
