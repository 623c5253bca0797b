"""Connections by librdmacm, called as a C program does: what pyverbs has of it knows no datagram services and no private data of a
rejection. Layouts are those of rdma/rdma_cma.h."""

import ctypes
import ipaddress
import os
import select
import socket
import struct

PS_TCP = 0x106
ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, UNREACHABLE, ESTABLISHED = 0, 2, 4, 7, 9
PATIENCE_MS = 5000

# READs and atomics that this side answers at a time, and has outstanding.
RESPONDER_RESOURCES, INITIATOR_DEPTH = 4, 3

Pointer, U8, U16, U32 = ctypes.c_void_p, ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32


class ConnParam(ctypes.Structure):
    _fields_ = [
        ("private_data", Pointer), ("private_data_len", U8), ("responder_resources", U8), ("initiator_depth", U8), ("flow_control", U8),
        ("retry_count", U8), ("rnr_retry_count", U8), ("srq", U8), ("qp_num", U32),
    ]


class AhAttr(ctypes.Structure):
    _fields_ = [
        ("dgid", U8 * 16), ("flow_label", U32), ("sgid_index", U8), ("hop_limit", U8), ("traffic_class", U8), ("dlid", U16), ("sl", U8),
        ("src_path_bits", U8), ("static_rate", U8), ("is_global", U8), ("port_num", U8), ("_", U8),
    ]


class UdParam(ctypes.Structure):
    _fields_ = [
        ("private_data", Pointer), ("private_data_len", U8), ("_", U8 * 7), ("ah_attr", AhAttr), ("qp_num", U32), ("qkey", U32),
    ]


class Param(ctypes.Union):
    _fields_ = [("conn", ConnParam), ("ud", UdParam)]


class Event(ctypes.Structure):
    _fields_ = [("id", Pointer), ("listen_id", Pointer), ("event", ctypes.c_int), ("status", ctypes.c_int), ("param", Param)]


class QpInitAttr(ctypes.Structure):
    _fields_ = [
        ("qp_context", Pointer), ("send_cq", Pointer), ("recv_cq", Pointer), ("srq", Pointer), ("max_send_wr", U32), ("max_recv_wr", U32),
        ("max_send_sge", U32), ("max_recv_sge", U32), ("max_inline_data", U32), ("qp_type", ctypes.c_int), ("sq_sig_all", ctypes.c_int),
    ]


assert (ctypes.sizeof(ConnParam), ctypes.sizeof(AhAttr), ctypes.sizeof(UdParam), ctypes.sizeof(QpInitAttr)) == (24, 32, 56, 64)

library = ctypes.CDLL("librdmacm.so.1", use_errno=True)
library.rdma_create_event_channel.restype = Pointer


def call(name, *arguments):
    if getattr(library, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def sockaddr(address, port):
    address = ipaddress.ip_address(address)
    if address.version == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + address.packed + bytes(8)
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0) + address.packed + bytes(4)


def conn_param(private, qpn=0):
    """The parameter, and what it points to."""
    buffer = ctypes.create_string_buffer(private, len(private))
    param = ConnParam(ctypes.addressof(buffer), len(private), RESPONDER_RESOURCES, INITIATOR_DEPTH, 0, 7, 7, 0, qpn)
    return param, buffer


class Connections:
    """Ids by number: the address of their rdma_cm_id."""

    def __init__(self):
        self.channel = Pointer(library.rdma_create_event_channel())
        # The channel begins with its descriptor.
        self.poll = select.poll()
        self.poll.register(ctypes.cast(self.channel, ctypes.POINTER(ctypes.c_int))[0], select.POLLIN)
        # Port space by id; those that have a QP.
        self.spaces, self.with_qp = {}, set()

    def create(self, space):
        created = Pointer()
        call("rdma_create_id", self.channel, ctypes.byref(created), None, space)
        self.spaces[created.value] = space
        return created.value

    def listen(self, address, port, space):
        number = self.create(space)
        call("rdma_bind_addr", Pointer(number), sockaddr(address, port))
        call("rdma_listen", Pointer(number), 8)
        return number

    def connect(self, address, port, space, private):
        number = self.create(space)
        call("rdma_resolve_addr", Pointer(number), None, sockaddr(address, port), PATIENCE_MS)
        self.expect(ADDR_RESOLVED)
        call("rdma_resolve_route", Pointer(number), PATIENCE_MS)
        self.expect(ROUTE_RESOLVED)
        self.give_qp(number)
        param, _buffer = conn_param(private)
        call("rdma_connect", Pointer(number), ctypes.byref(param))
        return number

    def accept(self, number, private, qpn):
        self.give_qp(number)
        param, _buffer = conn_param(private, qpn)
        call("rdma_accept", Pointer(number), ctypes.byref(param))

    def reject(self, number, private):
        call("rdma_reject", Pointer(number), private, len(private))

    def disconnect(self, number):
        call("rdma_disconnect", Pointer(number))

    def give_qp(self, number):
        """librdmacm makes its domain and its queues."""
        if self.spaces[number] == PS_TCP:
            reliable = 2
            call("rdma_create_qp", Pointer(number), None, ctypes.byref(QpInitAttr(None, None, None, None, 8, 8, 1, 1, 0, reliable, 0)))
            self.with_qp.add(number)

    def expect(self, wanted):
        event = self.event(2 * PATIENCE_MS / 1000)
        if event is None or event["event"] != wanted:
            raise OSError(f"event {event} in place of {wanted}")

    def event(self, seconds):
        """The next event, or None."""
        if not self.poll.poll(1000 * seconds):
            return None
        event = ctypes.POINTER(Event)()
        call("rdma_get_cm_event", self.channel, ctypes.byref(event))
        found = self.describe(event[0])
        call("rdma_ack_cm_event", event)
        return found

    def describe(self, event):
        if event.event == CONNECT_REQUEST:
            self.spaces[event.id] = self.spaces[event.listen_id]
        is_datagram = self.spaces[event.id] != PS_TCP
        conn, ud = event.param.conn, event.param.ud
        private = ctypes.string_at(conn.private_data, conn.private_data_len) if conn.private_data else b""
        found = {"event": event.event, "id": event.id, "status": event.status, "private": private.hex()}
        if is_datagram and event.event == ESTABLISHED:
            return {**found, "qpn": ud.qp_num, "qkey": ud.qkey, "gid": str(ipaddress.IPv6Address(bytes(ud.ah_attr.dgid)))}
        return {**found, "responder_resources": conn.responder_resources, "initiator_depth": conn.initiator_depth}

    def clear(self):
        for number in self.with_qp:
            library.rdma_destroy_qp(Pointer(number))
        for number in self.spaces:
            call("rdma_destroy_id", Pointer(number))
        self.spaces.clear()
        self.with_qp.clear()
