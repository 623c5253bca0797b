"""Programs of ours that a row starts: it waits for their end."""

import subprocess

SECONDS_MAX = 60


def finish(process, seconds=SECONDS_MAX):
    """Waits for the process's end, and brings it about. Returns what it said."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]
