"""Runs the interoperation matrix: `scripts/interop`, docs/interop.md."""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import roce
import rows
import rows_cm  # noqa: F401 (registers its rows)
import rows_datagrams  # noqa: F401 (registers its rows)
import rows_faults  # noqa: F401 (registers its rows)
import rows_paths  # noqa: F401 (registers its rows)
import rows_pingpong  # noqa: F401 (registers its rows)
import rows_programs  # noqa: F401 (registers its rows)
import rows_rc  # noqa: F401 (registers its rows)
import rows_rping  # noqa: F401 (registers its rows)
import rows_rsocket  # noqa: F401 (registers its rows)
import rows_vlan  # noqa: F401 (registers its rows)
from image import Image, ImageError
from lab import FERROCE_ADDRESSES, FERROCE_MAC, RXE_ADDRESSES, Lab, LabError, make_network
from verbs import RowFailed, Side

# Set in the process that lives in the namespace of the lab.
INSIDE = "FERROCE_INTEROP_INSIDE"

# What rxe counts that is no error: the rest stays as it is in a row that provokes none.
TRAFFIC_COUNTERS = {"sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs", "ack_deferred"}


def say(text):
    print(text, file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/interop", description="Runs ferroced against Linux's rxe, booted in QEMU: one line a row, then 'N passed, N failed'."
    )
    parser.add_argument("-k", metavar="REGEX", type=re.compile, help="only the rows whose names match")
    parser.add_argument("--fast", action="store_true", help="only the small set that scripts/test runs as well")
    parser.add_argument("--list", action="store_true", help="print the rows and run none")
    parser.add_argument("--keep", metavar="DIRECTORY", type=Path, help="keep captures and logs there")
    parser.add_argument("--accel", default="tcg,tb-size=256,thread=multi", help="QEMU's accelerator (default: %(default)s)")
    return parser.parse_args()


def chosen_rows(options):
    chosen = [row for row in rows.ROWS if row.fast or not options.fast]
    return [row for row in chosen if options.k is None or options.k.search(row.name)]


def enter_namespace():
    """Goes on in a network namespace of its own, with every right there: as root, or by capabilities, as tcpdump wants it."""
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--user", "--map-current-user", "--keep-caps"]
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*unshare, sys.executable, "-B", *sys.argv])


class BadNetwork:
    """netem on the peer's interface, in both directions while it is entered."""

    def __init__(self, peer, netem):
        self.peer, self.netem = peer, netem

    def __enter__(self):
        if self.netem:
            self.peer.run(
                "modprobe ifb numifbs=1 && ip link set ifb0 mtu 9000 up && tc qdisc add dev eth0 handle ffff: ingress && "
                "tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0 && "
                f"tc qdisc add dev ifb0 root netem limit 20000 {self.netem} && tc qdisc add dev eth0 root netem limit 20000 {self.netem}"
            )

    def __exit__(self, *_):
        if self.netem:
            self.peer.run("tc qdisc del dev eth0 root; tc qdisc del dev eth0 ingress; tc qdisc del dev ifb0 root")


class Matrix:
    """The rows, and the lab they run in, which is set up anew when a row has broken it."""

    def __init__(self, options, image, programs, directory):
        self.options, self.image, self.programs, self.directory = options, image, programs, directory
        self.lab = None
        self.sides = {}
        # Of the row that runs: no part of its time.
        self.boot_seconds = 0.0

    def ready_lab(self):
        if self.lab is None:
            start = time.monotonic()
            self.lab = Lab(self.image, self.programs, tempfile.mkdtemp(prefix="lab-", dir=self.directory), self.options.accel, say)
            self.sides = {
                "ferroce": Side("ferroce", self.lab.daemon.agent(), FERROCE_ADDRESSES[4]),
                "rxe": Side("rxe", self.lab.peer.verbs, RXE_ADDRESSES[4]),
            }
            self.boot_seconds = time.monotonic() - start
        return self.lab

    def run(self, row):
        """Runs one row. Returns its seconds, and why it failed or None."""
        start = time.monotonic()
        reason = self.judge(row)
        return time.monotonic() - start - self.boot_seconds, reason

    def judge(self, row):
        """Why a row failed, or None."""
        self.boot_seconds = 0.0
        try:
            self.run_in(self.ready_lab(), row)
            return None
        except (RowFailed, roce.CaptureFault) as error:
            return str(error)
        except LabError as error:
            # Nothing can be said of the next row in a lab that is broken.
            self.close()
            return str(error)
        except Exception as error:  # The row is wrong itself: that is no reason to keep back the others' verdicts.
            traceback.print_exc()
            return f"{type(error).__name__}: {error}"

    def run_in(self, lab, row):
        rxe_before, ferroce_before = lab.peer.counters(), lab.daemon.counters()
        capture = self.directory / (row.name.replace("/", ".") + ".pcap")
        try:
            with BadNetwork(lab.peer, row.netem):
                row.run(lab, self.sides[row.requester], self.sides[row.responder])
        finally:
            lab.check_alive()
            for side in self.sides.values():
                side.reset()
            lab.capture.cut(capture)
        sent = roce.check(capture, FERROCE_MAC)
        if sent == 0 and row.ferroce_speaks:
            raise RowFailed("ferroced sent nothing in this row")
        if row.look:
            row.look(capture, row.requester, row.responder)
        rxe, ferroce = changes(rxe_before, lab.peer.counters()), changes(ferroce_before, lab.daemon.counters())
        errors = {name: count for name, count in rxe.items() if name not in TRAFFIC_COUNTERS | row.may_count}
        if errors:
            raise RowFailed("rxe counted " + ", ".join(f"{name} {count}" for name, count in errors.items()))
        if row.shows and not any(rxe.get(name) or ferroce.get(name) for name in row.shows):
            raise RowFailed(f"the network did no harm: none of {', '.join(row.shows)} was counted")
        if not self.options.keep:
            capture.unlink()

    def close(self):
        if self.lab is not None:
            lab, self.lab = self.lab, None
            lab.kill()

    def finish(self):
        """Ends the lab in order. Returns what is wrong with it, or None."""
        try:
            if self.lab is not None:
                self.lab.stop()
            return None
        except LabError as error:
            return str(error)


def changes(before, after):
    return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}


def run_matrix(options, directory):
    make_network()
    image = Image(image_directory())
    matrix = Matrix(options, image, os.environ["FERROCE_BIN_DIR"], directory)
    passed, failed = 0, 0

    def report(name, seconds, reason):
        nonlocal passed, failed
        passed, failed = passed + (reason is None), failed + (reason is not None)
        verdict = "pass" if reason is None else "FAIL"
        print(f"{verdict}  {name:<52} {seconds:6.1f}" + (f"  ({reason})" if reason else ""), flush=True)

    for row in chosen_rows(options):
        report(row.name, *matrix.run(row))
    start = time.monotonic()
    reason = matrix.finish()
    report("the_daemon_ends_in_order_and_the_capture_is_whole", time.monotonic() - start, reason)
    print(f"{passed} passed, {failed} failed")
    return failed


def image_directory():
    top = Path(__file__).resolve().parents[2]
    return Path(os.environ.get("CARGO_TARGET_DIR", top / "target")) / "interop"


def main():
    options = arguments()
    if options.list:
        print("\n".join(row.name for row in chosen_rows(options)))
        return 0
    if not chosen_rows(options):
        say("no row has such a name; --list shows them")
        return 2
    if INSIDE not in os.environ:
        try:
            Image(image_directory()).build(say)
        except ImageError as error:
            say(f"the peer's image can't be built: {error}")
            return 2
        enter_namespace()
    directory = Path(tempfile.mkdtemp(prefix="ferroce-interop-"))
    try:
        return 1 if run_matrix(options, directory) else 0
    finally:
        if options.keep:
            shutil.copytree(directory, options.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("shell", "verbs", "*.sock", "all.pcap"))
        shutil.rmtree(directory, ignore_errors=True)


sys.exit(main())
