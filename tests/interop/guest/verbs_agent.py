"""Drives queue pairs of rxe0 for the matrix: the counterpart, in pyverbs, of verbs/examples/verbs_agent/main.rs, whose header says
what the requests are. They come as lines of JSON on a serial port."""

import ipaddress
import json
import socket
import sys
import time

import pyverbs.enums as e
import serial_port
from connections import Connections
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

QUEUE_DEPTH = 256
SGES_MAX = 4
GID_TABLE_MAX = 16
RDMA = (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ)
ATOMIC = (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD)


class Agent:
    """The objects that requests have made, by number."""

    def __init__(self):
        self.context = Context(name="rxe0")
        self.pd = PD(self.context)
        self.made, self.cqs = {}, {}
        self.connections = Connections()
        self.count = 0

    def keep(self, value):
        self.count += 1
        self.made[self.count] = value
        return self.count

    def port(self, _):
        gids = []
        for index in range(GID_TABLE_MAX):
            try:
                gid = ipaddress.IPv6Address(str(self.context.query_gid(1, index)))
            except PyverbsError:
                break
            if int(gid):
                gids.append([index, str(gid)])
        return {"gids": gids, "mtu": 128 << self.context.query_port(1).active_mtu}

    def mr(self, r):
        mr = MR(self.pd, r["bytes"], r["access"])
        mr.write(bytes(r["bytes"]), r["bytes"])
        return {"mr": self.keep(mr), "lkey": mr.lkey, "rkey": mr.rkey, "addr": mr.buf}

    def srq(self, _):
        return {"srq": self.keep(SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=QUEUE_DEPTH, max_sge=SGES_MAX))))}

    def qp(self, r):
        cq = CQ(self.context, 2 * QUEUE_DEPTH)
        srq = self.made[r["srq"]] if r.get("srq") else None
        cap = QPCap(max_send_wr=QUEUE_DEPTH, max_recv_wr=0 if srq else QUEUE_DEPTH, max_send_sge=SGES_MAX, max_recv_sge=SGES_MAX)
        qp = QP(self.pd, QPInitAttr(qp_type=r["type"], scq=cq, rcq=cq, srq=srq, cap=cap, sq_sig_all=0))
        number = self.keep(qp)
        self.cqs[number] = cq
        return {"qp": number, "qpn": qp.qp_num}

    def connect(self, r):
        qp, attr = self.made[r["qp"]], QPAttr(port_num=1)
        attr.qp_access_flags = r["access"]
        qp.to_init(attr)
        attr.ah_attr = address(r)
        attr.path_mtu = (r["mtu"] // 128).bit_length() - 1
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = r["qpn"], r["rq_psn"], r["sq_psn"]
        attr.max_rd_atomic = attr.max_dest_rd_atomic = r["rd_atomic"]
        attr.timeout, attr.retry_cnt = r["timeout"], r["retry_cnt"]
        attr.rnr_retry, attr.min_rnr_timer = r["rnr_retry"], r["min_rnr_timer"]
        qp.to_rtr(attr)
        qp.to_rts(attr)
        return {}

    def start(self, r):
        qp, attr = self.made[r["qp"]], QPAttr(port_num=1)
        attr.qkey, attr.sq_psn = r["qkey"], r["sq_psn"]
        qp.to_init(attr)
        qp.to_rtr(attr)
        qp.to_rts(attr)
        return {}

    def ah(self, r):
        return {"ah": self.keep(AH(self.pd, attr=address(r)))}

    def recv(self, r):
        queue = self.made[r["queue"]]
        for i in range(r["count"]):
            queue.post_recv(RecvWR(wr_id=r["wr_id"] + i, num_sge=1, sg=[self.sge(r["sge"], i)]))
        return {}

    def send(self, r):
        qp = self.made[r["qp"]]
        for wr in r["wrs"]:
            opcode = wr["opcode"]
            imm = wr["invalidate"] if opcode == e.IBV_WR_SEND_WITH_INV else socket.htonl(wr["imm"])
            sges = [self.sge(sge, 0) for sge in wr["sges"]]
            work = SendWR(wr_id=wr["wr_id"], opcode=opcode, num_sge=len(sges), sg=sges, imm_data=imm, send_flags=wr["flags"])
            if opcode in RDMA:
                work.set_wr_rdma(wr["rkey"], wr["remote_addr"])
            if wr.get("to"):
                work.set_wr_ud(self.made[wr["to"]["ah"]], wr["to"]["qpn"], wr["to"]["qkey"])
            if opcode in ATOMIC:
                work.set_wr_atomic(wr["rkey"], wr["remote_addr"], wr["compare_add"], wr["swap"])
            qp.post_send(work)
        return {}

    def sge(self, sge, index):
        mr, offset, length = sge["mr"], sge["offset"], sge["bytes"]
        mr = self.made[mr]
        return SGE(mr.buf + offset + index * length, length, sge.get("lkey", mr.lkey))

    def poll(self, r):
        cq, end, found = self.cqs[r["qp"]], time.monotonic() + r["timeout"], []
        while True:
            count, completions = cq.poll(num_entries=r["count"] - len(found))
            found += [self.completion(wc) for wc in completions or []]
            if len(found) >= r["count"] or time.monotonic() >= end:
                return {"completions": found}
            if count == 0:
                # The peer's emulated processor has other work to do as well: softirqs carry the packets.
                time.sleep(0.0005)

    def completion(self, wc):
        imm = socket.ntohl(wc.imm_data) if wc.wc_flags & e.IBV_WC_WITH_IMM else None
        invalidated = wc.imm_data if wc.wc_flags & e.IBV_WC_WITH_INV else None
        return {
            "wr_id": wc.wr_id, "status": wc.status, "opcode": wc.opcode, "byte_len": wc.byte_len,
            "imm": imm, "invalidated": invalidated, "qpn": wc.qp_num,
            "src_qpn": wc.src_qp, "grh": bool(wc.wc_flags & e.IBV_WC_GRH),
        }

    def window(self, r):
        """Binds a memory window of type 2, which a peer's SEND can invalidate, as it can't an ordinary region of rxe's users."""
        qp, mr, window = self.made[r["qp"]], self.made[r["mr"]], MW(self.pd, e.IBV_MW_TYPE_2)
        wr = SendWR(wr_id=0, opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_bind_wr(window, MWBindInfo(mr, mr.buf, mr.length, r["access"]))
        qp.post_send(wr)
        (bound,) = self.poll({"qp": r["qp"], "count": 1, "timeout": 5})["completions"]
        if bound["status"]:
            raise PyverbsError(f"binding a window ended with status {bound['status']}")
        # Binding makes a key with the next low byte.
        return {"mr": self.keep(window), "rkey": (window.rkey & ~0xFF) | ((window.rkey + 1) & 0xFF)}

    def write(self, r):
        data = bytes.fromhex(r["hex"])
        self.made[r["mr"]].write(data, len(data), r["offset"])
        return {}

    def read(self, r):
        return {"hex": self.made[r["mr"]].read(r["bytes"], r["offset"]).hex()}

    def dereg(self, r):
        self.made.pop(r["mr"]).close()
        return {}

    def state(self, r):
        attr, _ = self.made[r["qp"]].query(e.IBV_QP_STATE)
        return {"state": attr.qp_state}

    def cm_listen(self, r):
        return {"id": self.connections.listen(r["addr"], r["port"], r["space"])}

    def cm_connect(self, r):
        return {"id": self.connections.connect(r["addr"], r["port"], r["space"], bytes.fromhex(r["private"]))}

    def cm_event(self, r):
        return {"event": self.connections.event(r["timeout"])}

    def cm_accept(self, r):
        qpn = 0 if r["qp"] is None else self.made[r["qp"]].qp_num
        self.connections.accept(r["id"], bytes.fromhex(r["private"]), qpn)
        return {}

    def cm_reject(self, r):
        self.connections.reject(r["id"], bytes.fromhex(r["private"]))
        return {}

    def cm_disconnect(self, r):
        self.connections.disconnect(r["id"])
        return {}

    def reset(self, _):
        self.connections.clear()
        for kind in (QP, MW, SRQ, MR, AH):
            for thing in [thing for thing in self.made.values() if isinstance(thing, kind)]:
                thing.close()
        for cq in self.cqs.values():
            cq.close()
        self.made.clear()
        self.cqs.clear()
        return {}


def address(r):
    dgid = GID(ipaddress.IPv6Address(r["gid"]).exploded)
    return AHAttr(gr=GlobalRoute(dgid=dgid, sgid_index=r["gid_index"], hop_limit=64), is_global=1, port_num=1)


OPERATIONS = (
    "port", "mr", "srq", "qp", "connect", "start", "ah", "recv", "send", "poll", "window", "write", "read", "dereg", "state", "cm_listen",
    "cm_connect", "cm_event", "cm_accept", "cm_reject", "cm_disconnect", "reset",
)


def answer(agent, line):
    try:
        request = json.loads(line)
        if request["op"] not in OPERATIONS:
            return {"error": f"no operation {request['op']}"}
        return {"ok": True, **getattr(agent, request["op"])(request)}
    except Exception as error:  # Whatever goes wrong is the row's to judge.
        return {"error": f"{type(error).__name__}: {error}"}


port = serial_port.SerialPort(sys.argv[1])
agent = Agent()
for line in port.lines():
    port.write_line(json.dumps(answer(agent, line)))
