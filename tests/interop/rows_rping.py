"""`ferroce rping` against librdmacm's rping: connections made by the connection manager, from addresses."""

from lab import FERROCE_ADDRESSES, RXE_ADDRESSES
from programs import SECONDS_MAX, finish
from rows import row
from verbs import RowFailed

PINGS = 10
# A busy machine that emulates one of the two is slower at times than the timeout of a QP.
SHORT_TIMEOUT = ("completer_retry_err", "duplicate_request")


def outcome(ferroce, rxe, ferroce_output):
    status, output = rxe
    return f"ferroce ended with {ferroce.returncode}: {ferroce_output[-400:]!r}, rping with {status}: {output[-400:]!r}"


def ping(lab, client, size, version=4):
    """Pings that the client checks, and an end that the client brings about."""
    address = (FERROCE_ADDRESSES if client == "rxe" else RXE_ADDRESSES)[version]
    of_client = ["-c", "-a", address, "-C", str(PINGS), "-S", str(size), "-v", "-V"]
    of_server = ["-s", "-a", address, "-v"]
    if client == "rxe":
        ferroce = lab.daemon.ferroce("rping", *of_server, "-d")
        if not any("listening" in line for line in iter(ferroce.stdout.readline, "")):
            raise RowFailed(f"ferroce does not listen: {finish(ferroce)[-400:]!r}")
        rxe = lab.peer.start(f"rping {' '.join(of_client)}", SECONDS_MAX)
    else:
        rxe = lab.peer.start(f"rping {' '.join(of_server)} -C {PINGS} -S {size}", SECONDS_MAX)
        lab.peer.run("for i in $(seq 400); do rdma resource show cm_id | grep -q LISTEN && exit; sleep 0.05; done; exit 1")
        ferroce = lab.daemon.ferroce("rping", *of_client)
    output = finish(ferroce)
    answer = rxe()
    if ferroce.returncode != 0 or answer[0] != 0:
        raise RowFailed(outcome(ferroce, answer, output))
    of_client = answer[1] if client == "rxe" else output
    if of_client.count("ping data") != PINGS:
        raise RowFailed(f"{of_client.count('ping data')} of {PINGS} pings: {outcome(ferroce, answer, output)}")


@row(fast=True, may_count=SHORT_TIMEOUT, variants=[(64,), (2000,), (60_000,)])
def rping(lab, requester, _responder, size):
    ping(lab, requester.name, size)


@row(may_count=SHORT_TIMEOUT)
def rping_ipv6(lab, requester, _responder):
    ping(lab, requester.name, 64, version=6)


@row()
def rping_refused(lab, requester, _responder):
    """Nobody listens there: the client is told so at once."""
    if requester.name == "rxe":
        status, output = lab.peer.start(f"rping -c -a {FERROCE_ADDRESSES[4]} -C 1", 20)()
    else:
        process = lab.daemon.ferroce("rping", "-c", "-a", RXE_ADDRESSES[4], "-C", "1")
        output = finish(process, 20)
        status = process.returncode
    if status in (0, 124, -9) or "reject" not in output.lower():
        raise RowFailed(f"{requester.name}'s rping ended with {status}: {output[-400:]!r}")
