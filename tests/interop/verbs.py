"""Both sides of a connection as the rows see them: the same requests drive ferroce's agent and the peer's."""

import copy
import ipaddress

# Numbers of libibverbs.
WRITE, WRITE_WITH_IMM, SEND, SEND_WITH_IMM, READ, COMPARE_SWAP, FETCH_ADD = range(7)
SEND_WITH_INV = 9
SUCCESS, LOC_LEN_ERR, LOC_QP_OP_ERR, LOC_PROT_ERR, WR_FLUSH_ERR = 0, 1, 2, 4, 5
REM_INV_REQ_ERR, REM_ACCESS_ERR, REM_OP_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR = 9, 10, 11, 12, 13
STATUS_NAMES = {
    SUCCESS: "SUCCESS", LOC_LEN_ERR: "LOC_LEN_ERR", LOC_QP_OP_ERR: "LOC_QP_OP_ERR",
    LOC_PROT_ERR: "LOC_PROT_ERR", WR_FLUSH_ERR: "WR_FLUSH_ERR", REM_INV_REQ_ERR: "REM_INV_REQ_ERR", REM_ACCESS_ERR: "REM_ACCESS_ERR", REM_OP_ERR: "REM_OP_ERR",
    RETRY_EXC_ERR: "RETRY_EXC_ERR", RNR_RETRY_EXC_ERR: "RNR_RETRY_EXC_ERR",
}
RECV, RECV_RDMA_WITH_IMM = 128, 129
RC, UC, UD = 2, 3, 4
FENCE, SIGNALED, SOLICITED = 1, 2, 4
STATE_RTS, STATE_ERR = 3, 6
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, MW_BIND = 1, 2, 4, 8, 16
ALL_RIGHTS = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC

# How long a work request may take where nothing goes wrong; the peer is an emulated machine.
PATIENCE_SECONDS = 30

# An acknowledgement may take 4.096 us * 2^n: a second, so that a busy machine provokes no retransmission; and 67 ms, where there
# must be some.
PATIENT_TIMEOUT, IMPATIENT_TIMEOUT = 18, 14


class RowFailed(Exception):
    """Something came out otherwise than it must; the sentence says what."""


def status_name(status):
    return STATUS_NAMES.get(status, f"status {status}")


def expect(what, got, wanted):
    if got != wanted:
        raise RowFailed(f"{what}: {shown(got)} in place of {shown(wanted)}")


def shown(value):
    if isinstance(value, bytes):
        return f"{len(value)} bytes {value[:16].hex()}..."
    return repr(value)


def expect_data(what, got, wanted):
    """As expect, but says where long data differ."""
    if got != wanted:
        place = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
        raise RowFailed(f"{what}: byte {place} of {len(wanted)} is wrong: {got[place : place + 8].hex()}, not {wanted[place : place + 8].hex()}")


class Side:
    """A stack, by the program that drives it."""

    def __init__(self, name, lines, address):
        self.name, self.lines = name, lines
        port = self.call("port")
        self.mtu = port["mtu"]
        self.gids = {ipaddress.IPv6Address(gid): index for index, gid in port["gids"]}
        self._use(ipaddress.IPv6Address("::ffff:" + address))

    def _use(self, gid):
        self.gid, self.gid_index = str(gid), self.gids[gid]

    def at(self, address):
        """The same side, with the GID of another of its addresses; None: of its link-local one."""
        gids = [gid for gid in self.gids if gid.is_link_local] if address is None else [ipaddress.IPv6Address(address)]
        other = copy.copy(self)
        other._use(gids[0])
        return other

    def call(self, op, seconds=PATIENCE_SECONDS + 30, **parameters):
        self.lines.send({"op": op, **parameters})
        answer = self.lines.receive(seconds)
        if "error" in answer:
            raise RowFailed(f"{self.name}: {op}: {answer['error']}")
        return answer

    def reset(self):
        self.call("reset")

    def region(self, size, access=ALL_RIGHTS):
        return Region(self, size, access)

    def shared_queue(self):
        return self.call("srq")["srq"]


class Region:
    """Registered memory."""

    def __init__(self, side, size, access):
        self.side, self.size = side, size
        made = side.call("mr", bytes=size, access=access)
        self.mr, self.lkey, self.rkey, self.addr = made["mr"], made["lkey"], made["rkey"], made["addr"]

    def write(self, data, offset=0):
        self.side.call("write", mr=self.mr, offset=offset, hex=data.hex())

    def read(self, size, offset=0):
        return bytes.fromhex(self.side.call("read", mr=self.mr, offset=offset, bytes=size)["hex"])

    def word(self, offset):
        return int.from_bytes(self.read(8, offset), "little")

    def deregister(self):
        self.side.call("dereg", mr=self.mr)

    def sge(self, offset, size):
        return {"mr": self.mr, "offset": offset, "bytes": size}


class QueuePair:
    def __init__(self, side, srq=None, service=RC):
        self.side, self.srq = side, srq
        made = side.call("qp", type=service, srq=srq)
        self.qp, self.qpn = made["qp"], made["qpn"]

    def connect(self, peer_side, qpn, sq_psn, rq_psn, **attributes):
        chosen = {
            "access": ALL_RIGHTS, "mtu": 1024, "timeout": PATIENT_TIMEOUT, "retry_cnt": 7, "rnr_retry": 7, "min_rnr_timer": 12, "rd_atomic": 4,
            **attributes,
        }
        self.side.call(
            "connect", qp=self.qp, gid_index=self.side.gid_index, gid=peer_side.gid, qpn=qpn, sq_psn=sq_psn, rq_psn=rq_psn, **chosen
        )

    def start(self, qkey, sq_psn=0x0D0000):
        """Gets a UD QP ready."""
        self.side.call("start", qp=self.qp, qkey=qkey, sq_psn=sq_psn)

    def post_recv(self, region, size, offset=0, wr_id=1000, count=1, **sge):
        queue = self.qp if self.srq is None else self.srq
        self.side.call("recv", queue=queue, count=count, wr_id=wr_id, sge={**region.sge(offset, size), **sge})

    def post(self, *work_requests):
        """Posts what `work_request` made."""
        self.side.call("send", qp=self.qp, wrs=work_requests)

    def poll(self, count, seconds=PATIENCE_SECONDS):
        """Exactly `count` completions."""
        completions = self.side.call("poll", qp=self.qp, count=count, timeout=seconds)["completions"]
        if len(completions) != count:
            raise RowFailed(f"{self.side.name}: {len(completions)} of {count} completions after {seconds} s")
        return completions

    def poll_ok(self, count=1, seconds=PATIENCE_SECONDS):
        completions = self.poll(count, seconds)
        for completion in completions:
            if completion["status"] != SUCCESS:
                raise RowFailed(f"{self.side.name}: work request {completion['wr_id']} ended with {status_name(completion['status'])}")
        return completions

    def expect_status(self, wanted, seconds=PATIENCE_SECONDS):
        (completion,) = self.poll(1, seconds)
        expect(f"{self.side.name}'s completion", status_name(completion["status"]), status_name(wanted))
        return completion

    def expect_nothing(self, seconds):
        completions = self.side.call("poll", qp=self.qp, count=1, timeout=seconds)["completions"]
        if completions:
            raise RowFailed(f"{self.side.name}: a completion that nobody expects: {completions[0]}")

    def expect_state(self, wanted):
        expect(f"state of {self.side.name}'s QP", self.side.call("state", qp=self.qp)["state"], wanted)


def work_request(opcode, *sges, wr_id=1, flags=SIGNALED, remote_addr=0, rkey=0, imm=0, invalidate=0, compare_add=0, swap=0, to=None):
    return {
        "opcode": opcode, "sges": sges, "wr_id": wr_id, "flags": flags, "remote_addr": remote_addr, "rkey": rkey, "imm": imm,
        "invalidate": invalidate, "compare_add": compare_add, "swap": swap, "to": to,
    }


class Link:
    """Two connected queue pairs, each with a region that the other may do everything to."""

    def __init__(
        self, requester, responder, size=1 << 16, psns=(0x0A0000, 0x0B0000), srq=None, region_access=ALL_RIGHTS, responder_access=ALL_RIGHTS,
        service=RC, **attributes,
    ):
        self.requester, self.responder = requester, responder
        self.a, self.b = QueuePair(requester, service=service), QueuePair(responder, srq, service)
        self.local, self.remote = requester.region(size), responder.region(size, region_access)
        self.a.connect(responder, self.b.qpn, psns[0], psns[1], **attributes)
        self.b.connect(requester, self.a.qpn, psns[1], psns[0], access=responder_access, **attributes)

    def one(self, opcode, size, offset=0, remote_offset=0, **fields):
        """A work request of the requester on `size` bytes."""
        fields = {"remote_addr": self.remote.addr + remote_offset, "rkey": self.remote.rkey, **fields}
        return work_request(opcode, self.local.sge(offset, size), **fields)

    def reversed(self):
        """The same connection, seen from the other side."""
        other = object.__new__(Link)
        other.requester, other.responder = self.responder, self.requester
        other.a, other.b, other.local, other.remote = self.b, self.a, self.remote, self.local
        return other
