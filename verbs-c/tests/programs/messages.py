"""A client and a server of python3-pyverbs: `messages.py` serves one client, `messages.py ADDRESS` is one.

Both look at their device, connect by address, send messages both ways, and the client writes into the server's memory and reads it back.
Each checks what has arrived. The last line says how many bytes that were.
"""

import struct
import sys

import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.cm_enums import RAI_PASSIVE, RDMA_PS_TCP
from pyverbs.cq import CqInitAttrEx, CQEX
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPCap, QPInitAttr

SERVICE = "7475"
SIZE = 100_000
# Where the client writes: not at the start of the server's memory.
OFFSET = 64


def look_at_device():
    """What the device says of itself; objects of it come and go."""
    name = get_device_list()[0].name.decode()
    with Context(name=name) as context:
        port = context.query_port(1)
        assert port.state == e.IBV_PORT_ACTIVE, port.state
        assert port.link_layer == e.IBV_LINK_LAYER_ETHERNET, port.link_layer
        table = context.query_gid_table(64)
        assert table and table[0].gid_type == e.IBV_GID_TYPE_ROCE_V2, table
        limits = context.query_device_ex().orig_attr
        assert limits.max_qp > 0 and limits.max_sge >= 1
        with PD(context) as pd:
            access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ
            with MR(pd, 3000, access) as region:
                region.write("pages", 5, 2995)
                assert region.read(5, 2995) == b"pages"
        with CQEX(context, CqInitAttrEx(cqe=100, wc_flags=e.IBV_WC_EX_WITH_BYTE_LEN)) as cq:
            assert cq.start_poll(None) == 2, "an empty CQ has nothing to poll"
    print(f"{name}: {limits.max_qp} QPs, {len(table)} GIDs")


def pattern(seed, length):
    return bytes((seed + i * 7) % 251 for i in range(length))


def attributes():
    return QPInitAttr(cap=QPCap(max_send_wr=8, max_recv_wr=8, max_send_sge=1, max_recv_sge=1))


def done(poll):
    completion = poll()
    assert completion.status == e.IBV_WC_SUCCESS, completion
    return completion


def receive(id_, region):
    completion = done(id_.get_recv_comp)
    return region.read(completion.byte_len, 0)


def serve():
    passive = AddrInfo(src="0.0.0.0", src_service=SERVICE, port_space=RDMA_PS_TCP, flags=RAI_PASSIVE)
    listener = CMID(creator=passive, qp_init_attr=attributes())
    listener.listen()
    print("listening", flush=True)
    id_ = listener.get_request()
    access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
    target = MR(id_.pd, SIZE + OFFSET, access)
    message = id_.reg_msgs(SIZE)
    id_.post_recv(message)
    id_.accept()
    assert receive(id_, message) == b"where to?"
    id_.post_recv(message)
    answer = id_.reg_msgs(64)
    words = struct.pack("QI", target.buf, target.rkey)
    answer.write(words, len(words))
    id_.post_send(answer, length=len(words))
    done(id_.get_send_comp)
    assert receive(id_, message) == pattern(1, SIZE), "a message"
    assert target.read(SIZE, OFFSET) == pattern(2, SIZE), "what was written"
    answer.write("well", 4)
    id_.post_send(answer, length=4)
    done(id_.get_send_comp)
    return 2 * SIZE


def ask(address):
    active = AddrInfo(dst=address, dst_service=SERVICE, port_space=RDMA_PS_TCP)
    id_ = CMID(creator=active, qp_init_attr=attributes())
    answer = id_.reg_msgs(64)
    id_.connect()
    id_.post_recv(answer)
    message = id_.reg_msgs(SIZE)
    message.write("where to?", 9)
    id_.post_send(message, length=9)
    done(id_.get_send_comp)
    remote, rkey = struct.unpack("QI", receive(id_, answer)[:12])
    id_.post_recv(answer)

    message.write(pattern(2, SIZE), SIZE)
    id_.post_write(message, SIZE, remote + OFFSET, rkey, e.IBV_SEND_SIGNALED)
    done(id_.get_send_comp)
    back = id_.reg_msgs(SIZE)
    id_.post_read(back, SIZE, remote + OFFSET, rkey, e.IBV_SEND_SIGNALED)
    done(id_.get_send_comp)
    assert back.read(SIZE, 0) == pattern(2, SIZE), "what was read"

    message.write(pattern(1, SIZE), SIZE)
    id_.post_send(message, e.IBV_SEND_SIGNALED, SIZE)
    done(id_.get_send_comp)
    assert receive(id_, answer) == b"well"
    id_.disconnect()
    return 3 * SIZE


look_at_device()
total = ask(sys.argv[1]) if len(sys.argv) > 1 else serve()
print(f"{total} bytes are right")
