"""The same program of Debian's on both sides: over the kernel and rxe there, over our libibverbs and librdmacm here."""

import re

from lab import FERROCE_ADDRESSES, RXE_ADDRESSES
from programs import SECONDS_MAX, finish, ours
from rows import row
from rows_pingpong import RXE_GID_INDEX, SHORT_TIMEOUT, TCP_PORT, ferroce_gid_index, wait_for_listener
from verbs import RowFailed


def judge(process, rxe, wanted):
    """Both end well, and the client's output has what is wanted."""
    output = finish(process)
    status, rxe_output = rxe()
    if process.returncode != 0 or status != 0 or not (re.search(wanted, output) or re.search(wanted, rxe_output)):
        said = f"ours ended with {process.returncode}: {output[-400:]!r}, rxe's with {status}: {rxe_output[-400:]!r}"
        raise RowFailed(said)


def meet_over_tcp(lab, client, words, gid_option, wanted):
    """A program whose two sides tell each other over TCP where their queue pairs are."""
    theirs = f"{words} {gid_option} {RXE_GID_INDEX[4]}"
    of_ours = [*words.split(), gid_option, str(ferroce_gid_index(lab, 4))]
    if client == "rxe":
        process = ours(lab, of_ours)
        wait_for_listener(process)
        rxe = lab.peer.start(f"{theirs} {FERROCE_ADDRESSES[4]}", SECONDS_MAX)
    else:
        rxe = lab.peer.start(theirs, SECONDS_MAX)
        lab.peer.run(f"for i in $(seq 400); do ss -Hltn | grep -q ':{TCP_PORT} ' && exit; sleep 0.05; done; exit 1")
        process = ours(lab, [*of_ours, RXE_ADDRESSES[4]])
    judge(process, rxe, wanted)


@row(may_count=SHORT_TIMEOUT)
def ibv_rc_pingpong(lab, requester, _responder):
    meet_over_tcp(lab, requester.name, "ibv_rc_pingpong -n 200 -c", "-g", r"200 iters in")


# (A megabyte on the way is more than the emulated side takes within the program's timeout.)
@row(may_count=SHORT_TIMEOUT)
def ib_write_bw(lab, requester, _responder):
    meet_over_tcp(lab, requester.name, "ib_write_bw -F -s 4096 -n 200 -t 16", "-x", r"(?m)^ *4096 +200 ")


@row(may_count=SHORT_TIMEOUT)
def rdmacm_rping(lab, requester, _responder):
    """librdmacm's rping on both sides (`ferroce rping` has rows of its own)."""
    pings = ["-C", "10", "-S", "5000", "-v", "-V"]
    if requester.name == "rxe":
        process = ours(lab, ["rping", "-s", "-a", FERROCE_ADDRESSES[4], "-d", *pings])
        if not any("rdma_listen" in line for line in iter(process.stdout.readline, "")):
            raise RowFailed(f"rping does not listen: {finish(process)[-400:]!r}")
        rxe = lab.peer.start(f"rping -c -a {FERROCE_ADDRESSES[4]} {' '.join(pings)}", SECONDS_MAX)
    else:
        rxe = lab.peer.start(f"rping -s -a {RXE_ADDRESSES[4]} {' '.join(pings)}", SECONDS_MAX)
        lab.peer.run("for i in $(seq 400); do rdma resource show cm_id | grep -q LISTEN && exit; sleep 0.05; done; exit 1")
        process = ours(lab, ["rping", "-c", "-a", RXE_ADDRESSES[4], *pings])
    judge(process, rxe, r"ping data: rdma-ping-9")
