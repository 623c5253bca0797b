"""Runs shell commands that come as lines of JSON on a serial port; any number at a time.

{"id": ANY, "command": TEXT, "timeout": SECONDS} is answered by {"id": ANY, "status": NUMBER, "output": TEXT}: standard output
and error together. Status 124: it ran out of time; 128 + n: it died of signal n.
"""

import json
import os
import signal
import subprocess
import sys
import threading

import serial_port

write_lock = threading.Lock()


def run(port, request):
    process = subprocess.Popen(
        ["/bin/sh", "-c", request["command"]],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, cwd="/root",
    )
    try:
        output, _ = process.communicate(timeout=request["timeout"])
        status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        status = 124
    answer = {"id": request["id"], "status": status, "output": output.decode(errors="replace")}
    with write_lock:
        port.write_line(json.dumps(answer))


port = serial_port.SerialPort(sys.argv[1])
for line in port.lines():
    threading.Thread(target=run, args=(port, json.loads(line)), daemon=True).start()
