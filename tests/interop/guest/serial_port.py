"""Lines over a virtio serial port, which QEMU joins to a socket of the host."""

import os
import select
import time


def find(name):
    """The device file of the port that QEMU calls `name`; waits until the driver has it."""
    base = "/sys/class/virtio-ports"
    while True:
        for port in os.listdir(base) if os.path.isdir(base) else []:
            with open(f"{base}/{port}/name") as file:
                if file.read().strip() == name and os.path.exists(f"/dev/{port}"):
                    return f"/dev/{port}"
        time.sleep(0.02)


class SerialPort:
    def __init__(self, name):
        self.fd = os.open(find(name), os.O_RDWR)
        # A greeting: whoever is connected knows that the program has started.
        self.write_line('{"ready": true}')

    def lines(self):
        """What the host sends, line by line, for ever."""
        pending = b""
        while True:
            # Without a host the port is at its end, and stays readable.
            if not select.select([self.fd], [], [], 1)[0]:
                continue
            data = os.read(self.fd, 1 << 16)
            if not data:
                pending = b""
                time.sleep(0.02)
                continue
            pending += data
            *complete, pending = pending.split(b"\n")
            yield from (line for line in complete if line.strip())

    def write_line(self, text):
        data = memoryview(text.encode() + b"\n")
        while data:
            data = data[os.write(self.fd, data) :]
