"""`ferroce pingpong` against the ibv programs of rdma-core as Debian ships them, either of them as the server."""

import json
import subprocess
import time

from lab import FERROCE_ADDRESSES, RXE_ADDRESSES
from programs import SECONDS_MAX, finish
from rows import row
from rows_rc import MTUS
from verbs import RowFailed

# The client is who requests first. The ibv programs can't play with messages of nothing: rxe registers no memory of 0 bytes.
SIZES = (1, 1024, 1025, 65536, 1 << 20)
TCP_PORT = 18515
# Both sides' GIDs of an address.
RXE_GID_INDEX = {4: 1, 6: 2}


def ferroce_gid_index(lab, version):
    """Where ferroced has the GID of its address."""
    output, _ = lab.daemon.ferroce("--json", "devinfo").communicate(timeout=20)
    gids = json.loads(output)["ports"][0]["gids"]
    return next(gid["index"] for gid in gids if gid["ip"] == FERROCE_ADDRESSES[version])


def play(lab, client, kind, *options, version=4):
    """One pingpong, `client` being ferroce or rxe; both programs must end well, and ours must find every byte right. They meet over
    IPv4, which is all that a server of the ibv programs listens to, and play over `version`."""
    gid_index = ferroce_gid_index(lab, version)
    ours = ["pingpong", "--type", kind, "-g", str(gid_index), *options, "--chk"]
    theirs = " ".join([f"ibv_{kind}_pingpong", "-g", str(RXE_GID_INDEX[version]), *options, "--chk"])
    if client == "rxe":
        ferroce = lab.daemon.ferroce(*ours)
        wait_for_listener(ferroce)
        rxe = lab.peer.start(f"{theirs} {FERROCE_ADDRESSES[4]}", SECONDS_MAX)
    else:
        rxe = lab.peer.start(theirs, SECONDS_MAX)
        lab.peer.run(f"for i in $(seq 400); do ss -Hltn | grep -q ':{TCP_PORT} ' && exit; sleep 0.05; done; exit 1")
        ferroce = lab.daemon.ferroce(*ours, RXE_ADDRESSES[4])
    output = finish(ferroce)
    status, peer_output = rxe()
    if ferroce.returncode != 0 or status != 0:
        raise RowFailed(f"ferroce ended with {ferroce.returncode}: {output[-400:]!r}, {theirs} with {status}: {peer_output[-400:]!r}")
    if "invalid data" in peer_output:
        raise RowFailed(f"{theirs}: {peer_output[-400:]!r}")


def wait_for_listener(process):
    end = time.monotonic() + 20
    while not subprocess.run(["ss", "-Hltn", f"sport = :{TCP_PORT}"], capture_output=True, text=True).stdout:
        if process.poll() is not None or time.monotonic() > end:
            raise RowFailed(f"ferroce does not listen: {finish(process, 0)[-400:]!r}")
        time.sleep(0.02)


# The ibv programs wait 67 ms for an acknowledgement, which is less than a busy machine takes that emulates one of the two.
SHORT_TIMEOUT = ("completer_retry_err", "duplicate_request")

KINDS = ("rc", "uc", "ud", "srq")
# A datagram is one packet, of any size up to the MTU of the ports.
CONNECTED = ("rc", "uc", "srq")
DATAGRAM_SIZES = (1, 2, 255, 1024, 2047, 4096)


@row(fast=True, may_count=SHORT_TIMEOUT, variants=[(kind,) for kind in KINDS])
def pingpong(lab, requester, _responder, kind):
    """As one would type it; the ibv program polls, then sleeps for events."""
    play(lab, requester.name, kind, "-n", "300")
    play(lab, requester.name, kind, "-n", "100", "-e")


@row(may_count=SHORT_TIMEOUT, variants=[*((kind, size) for kind in CONNECTED for size in SIZES), *(("ud", size) for size in DATAGRAM_SIZES)])
def pingpong_size(lab, requester, _responder, kind, size):
    """16 QPs that send 1 MiB each are more than an emulated processor takes within the ibv program's timeouts: 2 do."""
    options = ["-n", "100"] if size < 65536 else ["-n", "20", "-r", "64"]
    if kind == "srq" and size > 65536:
        options += ["-q", "2"]
    play(lab, requester.name, kind, "-s", str(size), *options)


@row(may_count=SHORT_TIMEOUT, variants=[(kind, mtu) for kind in CONNECTED for mtu in MTUS])
def pingpong_mtu(lab, requester, _responder, kind, mtu):
    play(lab, requester.name, kind, "-m", str(mtu), "-s", "10000", "-n", "50")


@row(may_count=SHORT_TIMEOUT, variants=[(kind,) for kind in KINDS])
def pingpong_ipv6(lab, requester, _responder, kind):
    play(lab, requester.name, kind, "-n", "100", version=6)


