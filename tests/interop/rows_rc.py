"""RC against pyverbs: every operation in every size class, and every way to fail. Each row runs with ferroce as requester and rxe
as responder, and the other way round."""

import random

from rows import row
from verbs import (
    ALL_RIGHTS, COMPARE_SWAP, FENCE, FETCH_ADD, IMPATIENT_TIMEOUT, LOC_LEN_ERR, LOC_PROT_ERR, LOC_QP_OP_ERR, MW_BIND, READ, RECV,
    RECV_RDMA_WITH_IMM, REM_ACCESS_ERR, REM_INV_REQ_ERR, REM_OP_ERR, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, RETRY_EXC_ERR,
    RNR_RETRY_EXC_ERR, SEND, SEND_WITH_IMM, SEND_WITH_INV, SIGNALED, SOLICITED, STATE_ERR, STATE_RTS, WR_FLUSH_ERR, WRITE, WRITE_WITH_IMM,
    Link, QueuePair, RowFailed, expect, expect_data, work_request,
)

MIB = 1 << 20
# Around every edge: nothing, padding to 4 bytes, one packet and two at the path MTU, one and two windows of packets.
SIZES = [0, 1, 2, 3, 4, 5, 64, 1023, 1024, 1025, 2047, 2048, 2049, 4096, 65535, 65536, 300_001, MIB]
MTUS = (256, 512, 1024, 2048, 4096)
GUARD = 64


def content(size, seed=1):
    return random.Random(seed).randbytes(size)


def expect_guard(region, offset):
    """What lies behind a message is as it was: zero."""
    expect_data("what lies behind the message", region.read(GUARD, offset), bytes(GUARD))


def send_and_check(link, size, seed, opcode=SEND, imm=0, **fields):
    """A SEND: the data, the length and the immediate come, and nothing is written behind."""
    link.remote.write(bytes(size + GUARD))
    link.local.write(content(size, seed))
    link.b.post_recv(link.remote, link.remote.size, wr_id=500 + seed)
    link.a.post(link.one(opcode, size, imm=imm, wr_id=seed, **fields))
    link.a.poll_ok()
    (received,) = link.b.poll_ok()
    wanted_imm = imm if opcode == SEND_WITH_IMM else None
    expect("the receive's completion", [received[key] for key in ("wr_id", "opcode", "byte_len", "imm")], [500 + seed, RECV, size, wanted_imm])
    expect_data(f"a SEND of {size} bytes", link.remote.read(size), content(size, seed))
    expect_guard(link.remote, size)


def write_and_check(link, size, seed, opcode=WRITE, imm=0):
    link.remote.write(bytes(size + GUARD))
    link.local.write(content(size, seed))
    if opcode == WRITE_WITH_IMM:
        link.b.post_recv(link.remote, 0, wr_id=500 + seed)
    link.a.post(link.one(opcode, size, imm=imm, wr_id=seed))
    link.a.poll_ok()
    if opcode == WRITE_WITH_IMM:
        (received,) = link.b.poll_ok()
        expect("the receive's completion", [received[key] for key in ("wr_id", "opcode", "byte_len", "imm")], [500 + seed, RECV_RDMA_WITH_IMM, size, imm])
    expect_data(f"a WRITE of {size} bytes", link.remote.read(size), content(size, seed))
    expect_guard(link.remote, size)


def read_and_check(link, size, seed):
    link.local.write(bytes(size + GUARD))
    link.remote.write(content(size, seed))
    link.a.post(link.one(READ, size, wr_id=seed))
    (completion,) = link.a.poll_ok()
    expect("bytes READ as the completion has them", completion["byte_len"], size)
    expect_data(f"a READ of {size} bytes", link.local.read(size), content(size, seed))
    expect_guard(link.local, size)


CHECKS = {
    "send": send_and_check,
    "send_imm": lambda link, size, seed: send_and_check(link, size, seed, SEND_WITH_IMM, 0x01020304 * (seed % 50) + size),
    "write": write_and_check,
    "write_imm": lambda link, size, seed: write_and_check(link, size, seed, WRITE_WITH_IMM, 0xF0E0D0C0 - seed),
    "read": read_and_check,
}


@row(fast=True, variants=[(kind,) for kind in CHECKS])
def sizes(_lab, requester, responder, kind):
    link = Link(requester, responder, size=MIB + GUARD)
    for seed, size in enumerate(SIZES):
        CHECKS[kind](link, size, seed)
    link.a.expect_state(STATE_RTS)
    link.b.expect_state(STATE_RTS)


@row(variants=[(mtu,) for mtu in MTUS])
def path_mtu(_lab, requester, responder, mtu):
    link = Link(requester, responder, size=MIB + GUARD, mtu=mtu)
    for seed, size in enumerate([1, mtu - 1, mtu, mtu + 1, 7 * mtu, 40 * mtu + 3]):
        for check in CHECKS.values():
            check(link, size, seed)


@row(fast=True)
def atomics(_lab, requester, responder):
    """The value before comes back, the value after is in memory: both kinds, success and failure of the comparison, wrap at 2^64."""
    link = Link(requester, responder)
    cases = [
        (FETCH_ADD, 5, 7, 0, 12), (FETCH_ADD, 2**64 - 1, 2, 0, 1), (FETCH_ADD, 2**63, 2**63, 0, 0),
        (COMPARE_SWAP, 42, 42, 2**64 - 2, 2**64 - 2), (COMPARE_SWAP, 42, 43, 99, 42), (COMPARE_SWAP, 0, 0, 0x0123456789ABCDEF, 0x0123456789ABCDEF),
    ]
    for number, (opcode, before, compare_add, swap, after) in enumerate(cases):
        target = 8 * number
        link.remote.write(before.to_bytes(8, "little"), target)
        link.a.post(link.one(opcode, 8, offset=1024, remote_offset=target, compare_add=compare_add, swap=swap))
        link.a.poll_ok()
        expect(f"what atomic {number} returned", link.local.word(1024), before)
        expect(f"what atomic {number} left", link.remote.word(target), after)
    count = 64
    link.remote.write(bytes(8), 4096)
    link.a.post(*(link.one(FETCH_ADD, 8, offset=8 * i, remote_offset=4096, compare_add=3, wr_id=i) for i in range(count)))
    completions = link.a.poll_ok(count)
    expect("order of the completions", [completion["wr_id"] for completion in completions], list(range(count)))
    expect("what the atomics returned", [link.local.word(8 * i) for i in range(count)], [3 * i for i in range(count)])
    expect("the sum", link.remote.word(4096), 3 * count)


def invalidate(requester, responder, by_window):
    """A SEND takes away the key by which a WRITE was allowed."""
    for size in (16, 3000):
        link = Link(requester, responder, region_access=ALL_RIGHTS | MW_BIND, responder_access=ALL_RIGHTS | MW_BIND)
        rkey = link.remote.rkey
        if by_window:
            rkey = responder.call("window", qp=link.b.qp, mr=link.remote.mr, access=REMOTE_WRITE)["rkey"]
        receive = responder.region(4096)
        link.local.write(content(size))
        link.a.post(link.one(WRITE, size, rkey=rkey))
        link.a.poll_ok()
        expect_data("what came through the key", link.remote.read(size), content(size))
        link.b.post_recv(receive, 4096)
        link.a.post(link.one(SEND_WITH_INV, size, invalidate=rkey))
        link.a.poll_ok()
        (received,) = link.b.poll_ok()
        # rxe tells the users of its kernel only.
        expect("the invalidated key as the completion has it", received["invalidated"], None if responder.name == "rxe" else rkey)
        link.a.post(link.one(WRITE, size, rkey=rkey))
        link.a.expect_status(REM_ACCESS_ERR)


@row(fast=True)
def invalidate_window(_lab, requester, responder):
    """That of a memory window of type 2."""
    invalidate(requester, responder, by_window=True)


@row(directions=[("rxe", "ferroce")])
def invalidate_region(_lab, requester, responder):
    """That of an ordinary region, which rxe does not let go."""
    invalidate(requester, responder, by_window=False)


@row(variants=[(1,), (16,)])
def pipeline(_lab, requester, responder, rd_atomic):
    """Operations of all kinds in one queue: completions in order, each effect there; READs behind a fence see what atomics left."""
    link = Link(requester, responder, size=MIB, rd_atomic=rd_atomic)
    link.local.write(content(MIB // 2))
    link.remote.write(content(MIB // 2, 2), MIB // 2)
    count, step = 20, 5000
    link.b.post_recv(link.remote, step, offset=count * step, count=count)
    for i in range(count):
        link.a.post(
            link.one(WRITE, step, offset=i * step, remote_offset=i * step, wr_id=5 * i, flags=0),
            link.one(READ, step, offset=MIB // 2 + i * step, remote_offset=MIB // 2 + i * step, wr_id=5 * i + 1),
            link.one(FETCH_ADD, 8, offset=MIB - 512, remote_offset=MIB - 8, compare_add=1, wr_id=5 * i + 2),
            link.one(READ, 8, offset=MIB - 256, remote_offset=MIB - 8, wr_id=5 * i + 3, flags=SIGNALED | FENCE),
            link.one(SEND, step, offset=i * step, wr_id=5 * i + 4, flags=SIGNALED | SOLICITED),
        )
        completions = link.a.poll_ok(4)
        expect("order of the completions", [completion["wr_id"] for completion in completions], [5 * i + k for k in (1, 2, 3, 4)])
    start = int.from_bytes(content(MIB // 2, 2)[-8:], "little")
    expect("the counter", link.remote.word(MIB - 8), (start + count) % 2**64)
    expect("what the fenced READ saw", link.local.word(MIB - 256), (start + count) % 2**64)
    link.b.poll_ok(count)
    expect_data("what was WRITTEN and SENT", link.remote.read(2 * count * step), 2 * content(MIB // 2)[: count * step])
    expect_data("what was READ", link.local.read(count * step, MIB // 2), content(MIB // 2, 2)[: count * step])


@row(fast=True)
def both_ways(_lab, requester, responder):
    """Both sides request at the same time on one connection."""
    link = Link(requester, responder, size=MIB)
    back = link.reversed()
    size, count = 10_000, 16
    for one in (link, back):
        one.local.write(content(size, 7))
        one.b.post_recv(one.remote, size, offset=size, count=count)
    for one in (link, back):
        one.a.post(*(one.one(SEND, size, wr_id=i) for i in range(count)))
    for one in (link, back):
        completions = one.a.poll_ok(2 * count)
        sends = [completion["wr_id"] for completion in completions if completion["opcode"] != RECV]
        expect("sends completed", sends, list(range(count)))
    for one in (link, back):
        expect_data("what came", one.remote.read(size * count, size), content(size, 7) * count)


@row(variants=[(0xFFFFF0,), (0xFFFFFF,), (0x7FFFF8,)])
def psn_wrap(_lab, requester, responder, psn):
    """First PSNs just before 2^24 and before 2^23, with messages across."""
    link = Link(requester, responder, size=MIB, psns=(psn, psn))
    for seed, (size, check) in enumerate((size, check) for size in (100, 5000, 100_000) for check in CHECKS.values()):
        check(link, size, seed)
    back = link.reversed()
    for seed, check in enumerate(CHECKS.values()):
        check(back, 30_000, seed)


@row(fast=True)
def shared_receive_queue(_lab, requester, responder):
    """Three QPs take receives from one queue, in the order of their messages."""
    srq = responder.shared_queue()
    links = [Link(requester, responder, srq=srq) for _ in range(3)]
    size, rounds = 3000, 8
    pool = responder.region(size * 3 * rounds)
    links[0].b.post_recv(pool, size, count=3 * rounds)
    for number in range(3 * rounds):
        link = links[number % 3]
        link.local.write(content(size, number))
        link.a.post(link.one(SEND_WITH_IMM, size, imm=number))
        link.a.poll_ok()
        (received,) = link.b.poll_ok()
        expect("what the completion says", [received[key] for key in ("wr_id", "imm", "qpn")], [1000 + number, number, link.b.qpn])
        expect_data(f"message {number}", pool.read(size, size * number), content(size, number))


RNR_COUNTERS = ("rcvd_rnr_err", "send_rnr_err", "completer_retry_err", "out_of_seq_request", "rcvd_seq_err", "duplicate_request")


@row(fast=True, may_count=RNR_COUNTERS)
def receiver_not_ready(_lab, requester, responder):
    """A SEND and a WRITE with immediate wait for a receive."""
    link = Link(requester, responder)
    for opcode in (SEND, WRITE_WITH_IMM):
        for size in (100, 5000):
            link.local.write(content(size, size))
            link.a.post(link.one(opcode, size))
            link.a.expect_nothing(0.2)
            link.b.post_recv(link.remote, link.remote.size)
            link.a.poll_ok()
            link.b.poll_ok()
            expect_data("what came late", link.remote.read(size), content(size, size))


@row(may_count=(*RNR_COUNTERS, "retry_rnr_exceeded_err"))
def receiver_never_ready(_lab, requester, responder):
    link = Link(requester, responder, rnr_retry=2)
    link.a.post(link.one(SEND, 100, wr_id=7), link.one(WRITE, 100, wr_id=8))
    expect("which failed", link.a.expect_status(RNR_RETRY_EXC_ERR)["wr_id"], 7)
    expect("which was flushed", link.a.expect_status(WR_FLUSH_ERR)["wr_id"], 8)
    link.a.expect_state(STATE_ERR)


ACCESS_FAULTS = ("wrong_index", "wrong_key", "before", "behind", "across_the_end", "no_right", "deregistered")
ONE_SIDED = {"write": (WRITE, REMOTE_WRITE, 64), "write_long": (WRITE, REMOTE_WRITE, 5000), "read": (READ, REMOTE_READ, 64), "atomic": (FETCH_ADD, REMOTE_ATOMIC, 8)}


@row(fast=True, variants=[(kind,) for kind in ONE_SIDED])
def remote_access_error(_lab, requester, responder, kind):
    """Every reason to refuse a key: the requester is told, its QP breaks, what is posted behind is flushed, no byte changes."""
    opcode, right, size = ONE_SIDED[kind]
    for fault in ACCESS_FAULTS:
        link = Link(requester, responder, size=8192, region_access=(ALL_RIGHTS & ~right) if fault == "no_right" else ALL_RIGHTS)
        rkey, addr = link.remote.rkey, link.remote.addr
        if fault == "wrong_index":
            rkey ^= 0x00555500
        elif fault == "wrong_key":
            rkey ^= 1
        elif fault == "before":
            addr -= 8
        elif fault == "behind":
            addr += 8192
        elif fault == "across_the_end":
            addr += 8192 - size + (8 if kind == "atomic" else 1)
        elif fault == "deregistered":
            spare = responder.region(8192)
            rkey, addr = spare.rkey, spare.addr
            spare.deregister()
        link.local.write(content(8192, 3))
        link.a.post(link.one(opcode, size, rkey=rkey, remote_addr=addr, wr_id=1), link.one(WRITE, 8, wr_id=2))
        try:
            expect("which failed", link.a.expect_status(REM_ACCESS_ERR)["wr_id"], 1)
            expect("which was flushed", link.a.expect_status(WR_FLUSH_ERR)["wr_id"], 2)
            link.a.expect_state(STATE_ERR)
            if fault != "across_the_end":
                expect_data("the region", link.remote.read(8192), bytes(8192))
        except RowFailed as error:
            raise RowFailed(f"{fault}: {error}") from None


@row(variants=[(kind,) for kind in ONE_SIDED])
def not_enabled_on_qp(_lab, requester, responder, kind):
    """The region allows it, the QP does not: an invalid request. IBTA 9.7.4.1.3, table 58."""
    opcode, right, size = ONE_SIDED[kind]
    link = Link(requester, responder, responder_access=ALL_RIGHTS & ~right)
    link.a.post(link.one(opcode, size))
    link.a.expect_status(REM_INV_REQ_ERR)
    expect_data("the region", link.remote.read(8192), bytes(8192))


@row(fast=True, directions=[("ferroce", "rxe")])
def misaligned_atomic(_lab, requester, responder):
    """An atomic on an address that is not a multiple of 8. rxe does not even post such a one."""
    for opcode in (FETCH_ADD, COMPARE_SWAP):
        link = Link(requester, responder)
        link.a.post(link.one(opcode, 8, remote_offset=4, compare_add=1))
        link.a.expect_status(REM_INV_REQ_ERR)
        expect_data("the region", link.remote.read(64), bytes(64))


@row(fast=True, variants=[(size,) for size in (200, 5000)])
def receive_too_short(_lab, requester, responder, size):
    """IBTA 9.7.5.2.8: the requester is told of an invalid request, the receiver has a length error. rxe as responder calls both
    operational errors."""
    link = Link(requester, responder)
    link.b.post_recv(link.remote, size - 1)
    link.local.write(content(size))
    link.a.post(link.one(SEND, size))
    link.a.expect_status(REM_OP_ERR if responder.name == "rxe" else REM_INV_REQ_ERR)
    link.b.expect_status(LOC_QP_OP_ERR if responder.name == "rxe" else LOC_LEN_ERR)
    expect_data("what lies behind the receive", link.remote.read(GUARD, size - 1), bytes(GUARD))


@row(fast=True)
def receive_of_a_bad_key(_lab, requester, responder):
    """The responder can't execute it, through no fault of the requester. rxe has one local error for all."""
    link = Link(requester, responder)
    link.b.post_recv(link.remote, 4096, lkey=link.remote.lkey ^ 1)
    link.a.post(link.one(SEND, 100))
    link.a.expect_status(REM_OP_ERR)
    link.b.expect_status(LOC_QP_OP_ERR if responder.name == "rxe" else LOC_PROT_ERR)
    link.b.expect_state(STATE_ERR)


@row(fast=True, may_count=("retry_exceeded_err", "completer_retry_err"), answered=False)
def retries_exhausted(_lab, requester, responder):
    """Nobody answers at that QPN: 4 transmissions, then an error in bounded time, and the rest is flushed."""
    local = requester.region(4096)
    for opcode in (SEND, WRITE, READ):
        qp = QueuePair(requester)
        qp.connect(responder, 0x0BAD01, 1, 1, timeout=IMPATIENT_TIMEOUT, retry_cnt=3)
        qp.post(work_request(opcode, local.sge(0, 4096), wr_id=1), work_request(WRITE, local.sge(0, 8), wr_id=2))
        expect("which failed", qp.expect_status(RETRY_EXC_ERR, seconds=5)["wr_id"], 1)
        expect("which was flushed", qp.expect_status(WR_FLUSH_ERR)["wr_id"], 2)
        qp.expect_state(STATE_ERR)


@row()
def gather(_lab, requester, responder):
    """One message from pieces that end and begin anywhere."""
    link = Link(requester, responder)
    pieces = [(0, 1), (100, 1023), (2000, 7), (3001, 4096)]
    data = content(16_384, 9)
    link.local.write(data)
    whole = b"".join(data[offset : offset + size] for offset, size in pieces)
    sges = [link.local.sge(offset, size) for offset, size in pieces]
    link.b.post_recv(link.remote, 16_384)
    link.a.post(work_request(SEND, *sges))
    link.a.poll_ok()
    link.b.poll_ok()
    expect_data("a gathered SEND", link.remote.read(len(whole)), whole)
    link.a.post(work_request(WRITE, *sges, remote_addr=link.remote.addr + 16_384, rkey=link.remote.rkey))
    link.a.poll_ok()
    expect_data("a gathered WRITE", link.remote.read(len(whole), 16_384), whole)
    scattered = [link.local.sge(20_000 + 5000 * i, size) for i, (_, size) in enumerate(pieces)]
    link.a.post(work_request(READ, *scattered, remote_addr=link.remote.addr, rkey=link.remote.rkey))
    link.a.poll_ok()
    back = b"".join(link.local.read(size, 20_000 + 5000 * i) for i, (_, size) in enumerate(pieces))
    expect_data("a scattered READ", back, whole)


@row()
def local_right_only(_lab, requester, responder):
    """A READ into memory that the requester may not write fails at the requester, and the responder goes on."""
    link = Link(requester, responder)
    read_only = requester.region(4096, 0)
    link.a.post(work_request(READ, read_only.sge(0, 64), remote_addr=link.remote.addr, rkey=link.remote.rkey))
    link.a.expect_status(LOC_PROT_ERR)
    again = Link(requester, responder)
    write_and_check(again, 64, 1)

