"""A bad network, both ways: 1 % of the packets lost, duplicated or overtaken. The data are right, and nothing takes for ever."""

from rows import row
from rows_rc import content
from verbs import (
    FETCH_ADD, IMPATIENT_TIMEOUT, READ, SEND, SEND_WITH_IMM, WRITE, WRITE_WITH_IMM, Link, expect, expect_data,
)

# Who is delayed by 3 ms is overtaken by all that come meanwhile.
NETWORKS = {
    "loss": ("loss 1%", ("out_of_seq_request", "rcvd_seq_err", "retransmitted_packets", "completer_retry_err", "local_ack_timeout_err")),
    "duplication": ("duplicate 1%", ("duplicate_request", "duplicate_ack")),
    "reordering": ("delay 3ms reorder 99%", ("out_of_seq_request", "rcvd_seq_err", "implied_nak_seq_err", "completer_retry_err")),
    "all_three": ("delay 3ms reorder 99% loss 1% duplicate 1%", ("out_of_seq_request", "rcvd_seq_err", "retransmitted_packets", "completer_retry_err")),
}
MESSAGE_BYTES = 50_000
MESSAGES = 16
SECONDS_MAX = 60


def exchange(requester, responder, opcode):
    """Messages of 49 packets, all posted at once. All differ, so that none can stand for another."""
    size = MESSAGE_BYTES * MESSAGES
    link = Link(requester, responder, size=size, timeout=IMPATIENT_TIMEOUT)
    source, target = (link.remote, link.local) if opcode == READ else (link.local, link.remote)
    data = content(size, opcode)
    source.write(data)
    receives = {SEND: MESSAGE_BYTES, SEND_WITH_IMM: MESSAGE_BYTES, WRITE_WITH_IMM: 0}.get(opcode)
    if receives is not None:
        link.b.post_recv(link.remote, receives, count=MESSAGES)
    link.a.post(
        *(link.one(opcode, MESSAGE_BYTES, MESSAGE_BYTES * i, MESSAGE_BYTES * i, imm=i, wr_id=i) for i in range(MESSAGES))
    )
    completions = link.a.poll_ok(MESSAGES, seconds=SECONDS_MAX)
    expect("order of the completions", [completion["wr_id"] for completion in completions], list(range(MESSAGES)))
    if receives is not None:
        received = link.b.poll_ok(MESSAGES)
        expect("lengths received", [completion["byte_len"] for completion in received], [MESSAGE_BYTES] * MESSAGES)
        if opcode != SEND:
            expect("immediates received", [completion["imm"] for completion in received], list(range(MESSAGES)))
    expect_data("what came", target.read(size), data)


def count_up(requester, responder):
    """Atomics, each of which must happen once."""
    link = Link(requester, responder, timeout=IMPATIENT_TIMEOUT)
    count, batch = 600, 100
    for start in range(0, count, batch):
        link.a.post(*(link.one(FETCH_ADD, 8, 8 * (start + i), 8192, compare_add=1, wr_id=i) for i in range(batch)))
        link.a.poll_ok(batch, seconds=SECONDS_MAX)
    expect("the sum", link.remote.word(8192), count)
    expect("what the atomics returned", [link.local.word(8 * i) for i in range(count)], list(range(count)))


def read_often(requester, responder):
    """Many small READs: rxe counts no duplicate of an answer, but ferroce each of a request, and so there must be many."""
    link = Link(requester, responder, timeout=IMPATIENT_TIMEOUT)
    count, batch, size = 800, 100, 64
    link.remote.write(content(count * size))
    for start in range(0, count, batch):
        link.a.post(*(link.one(READ, size, size * (start + i), size * (start + i), wr_id=i) for i in range(batch)))
        link.a.poll_ok(batch, seconds=SECONDS_MAX)
    expect_data("what came", link.local.read(count * size), content(count * size))


OPERATIONS = {"send": SEND, "write_imm": WRITE_WITH_IMM, "write": WRITE, "read": READ}
FAULT_COUNTERS = (
    "duplicate_request", "out_of_seq_request", "rcvd_seq_err", "rcvd_rnr_err", "send_rnr_err", "completer_retry_err", "ack_deferred",
)


def register():
    for network, (netem, shows) in NETWORKS.items():
        def bad_network(_lab, requester, responder, _network, operation):
            if operation == "atomics":
                count_up(requester, responder)
            elif operation == "read_often":
                read_often(requester, responder)
            else:
                exchange(requester, responder, OPERATIONS[operation])

        reads = "read_often" if network == "duplication" else "read"
        variants = [(network, operation) for operation in ("send", "write_imm", "write", reads, "atomics")]
        row(may_count=FAULT_COUNTERS, netem=netem, shows=shows, variants=variants)(bad_network)


register()
