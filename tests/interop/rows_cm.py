"""Connections that the connection manager makes, by ferroce::cm against librdmacm: private data, refusals, slow answers, either side's
end, and datagram services."""

import ipaddress
import time

import roce
from lab import FERROCE_ADDRESSES, FERROCE_MAC, RXE_ADDRESSES, RXE_MAC
from rows import row
from rows_datagrams import Datagrams, acquaint, datagram, handle
from rows_rc import content
from verbs import UD, QueuePair, RowFailed, expect, expect_data

PORT = 7471
TCP, UDP = 0x106, 0x111
CONNECT_REQUEST, UNREACHABLE, REJECTED, ESTABLISHED, DISCONNECTED = 4, 7, 8, 9, 10
# REJ reason and SIDR_REP status of an application that would not.
CONSUMER_DEFINED, SIDR_REJECTED = 28, 2
# Of both agents.
RESPONDER_RESOURCES, INITIATOR_DEPTH = 4, 3
# As much as there is room for.
REQUEST, ACCEPTANCE, REJECTION = (content(size, size) for size in (56, 196, 148))
SIDR_REQUEST, SIDR_REPLY = (content(size, size) for size in (180, 136))
RDMA_UDP_QKEY = 0x01234567
ATTRIBUTES = {"REQ": 0x10, "MRA": 0x11, "REJ": 0x12, "REP": 0x13}
EVENT_SECONDS = 20


def address(side, version=4):
    return (FERROCE_ADDRESSES if side.name == "ferroce" else RXE_ADDRESSES)[version]


def event(side, wanted, private=b"", **fields):
    """The next event of a side, which must be this."""
    found = side.call("cm_event", timeout=EVENT_SECONDS)["event"]
    if found is None:
        raise RowFailed(f"{side.name}: no event within {EVENT_SECONDS} s, {wanted} is due")
    expect(f"{side.name}'s event", found["event"], wanted)
    got = bytes.fromhex(found["private"])
    # How many bytes are meant is not said on the wire.
    expect_data(f"private data of {side.name}'s event {wanted}", got[: len(private)], private)
    expect("what follows the private data", got[len(private) :].strip(b"\0"), b"")
    for name, value in fields.items():
        expect(f"{name} of {side.name}'s event {wanted}", found[name], value)
    return found


def request(a, b, space, private, version=4):
    """Has `a` ask `b` for a connection. Returns a's id and the id of the request."""
    b.call("cm_listen", addr=address(b, version), port=PORT, space=space)
    asking = a.call("cm_connect", addr=address(b, version), port=PORT, space=space, private=private.hex())["id"]
    asked = event(b, CONNECT_REQUEST, private)
    if space == TCP:
        # As seen from the other side.
        depths = [asked["responder_resources"], asked["initiator_depth"]]
        expect("resources and depth", depths, [INITIATOR_DEPTH, RESPONDER_RESOURCES])
    return asking, asked["id"]


def accept(a, b, answering):
    b.call("cm_accept", id=answering, private=ACCEPTANCE.hex(), qp=None)
    event(a, ESTABLISHED, ACCEPTANCE)
    event(b, ESTABLISHED)


def disconnect(first, first_id, second, second_id):
    first.call("cm_disconnect", id=first_id)
    event(second, DISCONNECTED)
    second.call("cm_disconnect", id=second_id)
    event(first, DISCONNECTED)


@row(fast=True, variants=[("client_ends",), ("server_ends",)])
def connection(_lab, a, b, who):
    """Private data with all that has room for it."""
    asking, answering = request(a, b, TCP, REQUEST)
    accept(a, b, answering)
    client, server = (a, asking), (b, answering)
    disconnect(*(client + server if who == "client_ends" else server + client))


@row()
def connection_ipv6(_lab, a, b):
    asking, answering = request(a, b, TCP, REQUEST, version=6)
    accept(a, b, answering)
    disconnect(a, asking, b, answering)


@row()
def connection_rejected(_lab, a, b):
    """By the application, which says why."""
    _, answering = request(a, b, TCP, REQUEST)
    b.call("cm_reject", id=answering, private=REJECTION.hex())
    event(a, REJECTED, REJECTION, status=CONSUMER_DEFINED)


def asked_for_time(capture, requester, responder):
    """The request came again, and an MRA was the answer."""
    macs = {"ferroce": FERROCE_MAC, "rxe": RXE_MAC}
    sent = roce.management(capture)
    if sent.count((macs[requester], ATTRIBUTES["REQ"])) < 2 or (macs[responder], ATTRIBUTES["MRA"]) not in sent:
        raise RowFailed(f"{requester} did not ask twice, or {responder} did not ask for time: {sent}")


@row(look=asked_for_time)
def slow_accept(_lab, a, b):
    """Later than a peer waits without a sign of life."""
    asking, answering = request(a, b, TCP, REQUEST)
    time.sleep(9)
    accept(a, b, answering)
    disconnect(a, asking, b, answering)


@row(fast=True)
def datagram_service(lab, a, b):
    """SIDR finds a QP; a datagram goes there."""
    acquaint(lab)
    link = Datagrams(a, b)
    service = QueuePair(b, service=UD)
    service.start(RDMA_UDP_QKEY)
    service.post_recv(link.remote, link.remote.size)
    _, answering = request(a, b, UDP, SIDR_REQUEST)
    b.call("cm_accept", id=answering, private=SIDR_REPLY.hex(), qp=service.qp)
    found = event(a, ESTABLISHED, SIDR_REPLY, qpn=service.qpn, qkey=RDMA_UDP_QKEY)
    expect("the service's host", ipaddress.ip_address(found["gid"]), ipaddress.ip_address(b.gid))
    link.local.write(content(500))
    link.a.post(datagram(link.local, 500, handle(a, found["gid"]), found["qpn"], found["qkey"]))
    link.a.poll_ok()
    service.poll_ok()
    expect_data("the datagram", link.remote.read(500, 40), content(500))


@row()
def datagram_service_refused(_lab, a, b):
    _, answering = request(a, b, UDP, SIDR_REQUEST)
    b.call("cm_reject", id=answering, private=SIDR_REPLY.hex())
    event(a, UNREACHABLE, SIDR_REPLY, status=SIDR_REJECTED)
