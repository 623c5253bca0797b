"""Checks captured RoCE frames, with no line of code in common with the engine: every ICRC is computed anew, and tshark must decode
every packet without complaint and see the same opcodes and PSNs as this program."""

import collections
import functools
import struct
import subprocess
import zlib
from pathlib import Path

UDP_PORT = 4791
ETHER_IPV4, ETHER_IPV6, ETHER_VLAN, ETHER_ROCE_V1 = 0x0800, 0x86DD, 0x8100, 0x8915
IP_PROTOCOL_UDP = 17
BTH_BYTES = 12
ICRC_BYTES = 4
# Findings that a verdict names.
FINDINGS_MAX = 5

Packet = collections.namedtuple("Packet", "number source opcode psn dest_qpn payload_bytes icrc_right fault")


class CaptureFault(Exception):
    """What was sent is wrong; the sentence says what."""


def frames(path):
    """The frames of a capture (pcap, little endian, Ethernet), counted from 1 as tshark does. Of TCP there are some that the capture
    cut, which the kernel hands over in pieces larger than a frame."""
    data = Path(path).read_bytes()
    magic, link_type = struct.unpack_from("<I16xI", data)
    if magic not in (0xA1B2C3D4, 0xA1B23C4D) or link_type != 1:
        raise CaptureFault(f"{path} is not a capture of Ethernet: magic {magic:#x}, link type {link_type}")
    position, number = 24, 0
    while position < len(data):
        captured, _ = struct.unpack_from("<8xII", data, position)
        number += 1
        yield number, data[position + 16 : position + 16 + captured]
        position += 16 + captured


def icrc(network_header, rest):
    """The ICRC of a packet: CRC-32 over 8 bytes of ones in place of an LRH and the packet from its network header on, where what
    routers may change counts as ones. IBTA annex A17.3.3, IBTA 7.8.1."""
    header, rest = bytearray(network_header), bytearray(rest)
    if header[0] >> 4 == 4:
        ones, bth = (1, 8, 10, 11), 8
        rest[6:8] = b"\xff\xff"
    else:
        header[0] |= 0x0F
        ones = (1, 2, 3, 7)
        # A GRH (RoCEv1) has no UDP behind it; its next header is IBA's, 0x1b.
        bth = 8 if header[6] == IP_PROTOCOL_UDP else 0
        if bth:
            rest[6:8] = b"\xff\xff"
    for offset in ones:
        header[offset] = 0xFF
    rest[bth + 4] = 0xFF
    return zlib.crc32(b"\xff" * 8 + header + rest)


def parse(number, frame):
    """The RoCE packet in a frame, or None."""
    ether_type, offset = struct.unpack_from(">H", frame, 12)[0], 14
    while ether_type == ETHER_VLAN:
        ether_type, offset = struct.unpack_from(">H", frame, offset + 2)[0], offset + 4
    if ether_type == ETHER_IPV4:
        header_bytes = (frame[offset] & 15) * 4
        end = offset + struct.unpack_from(">H", frame, offset + 2)[0]
        protocol = frame[offset + 9]
    elif ether_type in (ETHER_IPV6, ETHER_ROCE_V1):
        header_bytes = 40
        end = offset + 40 + struct.unpack_from(">H", frame, offset + 4)[0]
        protocol = frame[offset + 6]
    else:
        return None
    network_header, rest = frame[offset : offset + header_bytes], frame[offset + header_bytes : end]
    bth = 0
    if ether_type != ETHER_ROCE_V1:
        if protocol != IP_PROTOCOL_UDP or struct.unpack_from(">H", rest, 2)[0] != UDP_PORT:
            return None
        bth = 8
    return packet(number, frame, end, network_header, rest, bth)


def packet(number, frame, end, network_header, rest, bth):
    source = frame[6:12].hex(":")
    if end > len(frame) or len(rest) < bth + BTH_BYTES + ICRC_BYTES:
        return Packet(number, source, None, None, None, 0, False, "shorter than its headers say")
    opcode, _, _, dest_qpn, psn = struct.unpack_from(">BBHII", rest, bth)
    given = struct.unpack("<I", rest[-ICRC_BYTES:])[0]
    fault = None
    if bth and struct.unpack_from(">H", rest, 4)[0] != len(rest):
        fault = "the UDP length is not that of the IP packet"
    elif (len(rest) - bth) % 4:
        fault = "not padded to 4 bytes"
    right = given == icrc(network_header, rest[:-ICRC_BYTES])
    payload_bytes = len(rest) - bth - BTH_BYTES - ICRC_BYTES
    return Packet(number, source, opcode, psn & 0xFFFFFF, dest_qpn & 0xFFFFFF, payload_bytes, right, fault)


def tags(path, source):
    """The VLANs of all RoCE packets from a MAC address; None: untagged."""
    found = set()
    for number, frame in frames(path):
        if parse(number, frame) and frame[6:12].hex(":") == source:
            ether_type, control = struct.unpack_from(">HH", frame, 12)
            found.add(control & 0xFFF if ether_type == ETHER_VLAN else None)
    return found


def management(path):
    """The management datagrams in a capture of IPv4: pairs of source MAC address and attribute id."""
    ipv4_udp_bytes, deth_bytes, attribute_offset = 14 + 20 + 8, 8, 16
    found = []
    for number, frame in frames(path):
        packet = parse(number, frame)
        if packet and packet.dest_qpn == 1 and frame[12:14] == b"\x08\x00":
            found.append((packet.source, struct.unpack_from(">H", frame, ipv4_udp_bytes + BTH_BYTES + deth_bytes + attribute_offset)[0]))
    return found


def packets(path):
    found = (parse(number, frame) for number, frame in frames(path))
    return [packet for packet in found if packet]


@functools.cache
def without_guesses():
    """Options that keep tshark from guessing at protocols in what applications send: a SEND of nothing is no malformed RPC. Each of these
    protocols is left out, but for "ethertype", which Ethernet frames are dissected by: there it is only the guess."""
    report = subprocess.run(["tshark", "-G", "heuristic-decodes"], capture_output=True, text=True, check=True).stdout
    rows = (line.split("\t") for line in report.splitlines())
    guessed = [row[1] for row in rows if row[0] == "infiniband.payload" and row[1] != "ethertype"]
    return ["--disable-heuristic", "eth_over_ib", *(word for protocol in guessed for word in ("--disable-protocol", protocol))]


def dissect(path):
    """What tshark makes of a capture: of each frame, whether it is malformed, and opcode and PSN if it is RoCE."""
    command = ["tshark", "-n", "-r", str(path), "-T", "fields"]
    for field in ("frame.number", "_ws.malformed", "infiniband.bth.opcode", "infiniband.bth.psn"):
        command += ["-e", field]
    command += without_guesses()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CaptureFault(f"tshark: {done.stderr.strip()[-500:]}")

    def number(text):
        return int(text.split(",")[0], 0) if text else None

    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {int(row[0]): (row[1], number(row[2]), number(row[3])) for row in rows}


def check(path, source):
    """Checks every RoCE packet that `source` (a MAC address) sent; returns how many they are. Those of others must have right ICRCs
    as well: if not, it is this program that is wrong.

    Raises CaptureFault."""
    all_packets = packets(path)
    dissected = dissect(path) if all_packets else {}
    faults = []
    for packet in all_packets:
        malformed, opcode, psn = dissected[packet.number]
        if not packet.icrc_right:
            faults.append(f"packet {packet.number} from {packet.source} has a wrong ICRC")
        if packet.source != source:
            continue
        if packet.fault:
            faults.append(f"packet {packet.number} is {packet.fault}")
        if malformed:
            faults.append(f"tshark calls packet {packet.number} malformed")
        if (opcode, psn) != (packet.opcode, packet.psn):
            faults.append(f"packet {packet.number} is opcode {packet.opcode} PSN {packet.psn}, tshark says {opcode}, {psn}")
    if faults:
        more = f" and {len(faults) - FINDINGS_MAX} more" if len(faults) > FINDINGS_MAX else ""
        raise CaptureFault("; ".join(faults[:FINDINGS_MAX]) + more)
    return sum(packet.source == source for packet in all_packets)
