"""Programs that a row starts on the daemon's side: it waits for their end."""

import os
import subprocess

SECONDS_MAX = 60


def finish(process, seconds=SECONDS_MAX):
    """Waits for the process's end, and brings it about. Returns what it said."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def ours(lab, words):
    """Starts a program that was built for rdma-core over our libraries, line by line."""
    libraries = os.environ["FERROCE_LIB_DIR"]
    command = ["run", "--libraries", libraries, "--sockets", lab.daemon.socket, "--", "stdbuf", "-oL", *words]
    return lab.daemon.ferroce(*command)
