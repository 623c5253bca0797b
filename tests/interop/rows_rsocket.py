"""Sockets over RDMA: rdma-core's own rstream on both sides, over its librdmacm on rxe's and over ours on the daemon's."""

from lab import FERROCE_ADDRESSES, RXE_ADDRESSES
from programs import SECONDS_MAX, finish, ours
from rows import row
from verbs import RowFailed

# A busy machine that emulates one of the two is slower at times than the timeout of a QP.
SHORT_TIMEOUT = ("completer_retry_err", "duplicate_request")


def stream(lab, client, program, words):
    """Bytes both ways that both check, and an end in peace."""
    address = (FERROCE_ADDRESSES if client == "rxe" else RXE_ADDRESSES)[4]
    of_server = [program, *words]
    of_client = [*of_server, "-s", address]
    if client == "rxe":
        server = ours(lab, of_server)
        if not any(line.startswith("name") for line in iter(server.stdout.readline, "")):
            raise RowFailed(f"{program} does not listen: {finish(server)[-400:]!r}")
        process, rxe = server, lab.peer.start(" ".join(of_client), SECONDS_MAX)
    else:
        rxe = lab.peer.start(" ".join(of_server), SECONDS_MAX)
        lab.peer.run("for i in $(seq 400); do rdma resource show cm_id | grep -q LISTEN && exit; sleep 0.05; done; exit 1")
        process = ours(lab, of_client)
    output = finish(process)
    status, rxe_output = rxe()
    if process.returncode != 0 or status != 0 or "custom" not in output or "custom" not in rxe_output:
        said = f"ours ended with {process.returncode}: {output[-400:]!r}, rxe's with {status}: {rxe_output[-400:]!r}"
        raise RowFailed(said)


# More than the receive memory holds, and more messages than there are credits.
@row(may_count=SHORT_TIMEOUT, variants=[(50_000, 40), (64, 1000)])
def rstream(lab, requester, _responder, size, count):
    stream(lab, requester.name, "rstream", f"-S {size} -C {count} -I 2 -T v -T b".split())


@row(may_count=SHORT_TIMEOUT)
def rstream_nonblocking(lab, requester, _responder):
    # (Not with rpoll: rdma-core's tells of the end before all that came before it is read, and rstream takes that for a failure.)
    stream(lab, requester.name, "rstream", "-S 5000 -C 20 -I 2 -T v".split())


@row(may_count=SHORT_TIMEOUT)
def riostream(lab, requester, _responder):
    """Each writes into a buffer that the other has mapped."""
    stream(lab, requester.name, "riostream", "-S 20000 -C 5 -I 3 -T v -T b".split())
