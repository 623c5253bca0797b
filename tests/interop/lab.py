"""The two hosts of the matrix in this process's network namespace: `ferroced` on one end of a veth, a Linux kernel with rxe in QEMU
on a tap, both on a bridge. Nothing leads out of the namespace, and nothing of it outlives the process."""

import ctypes
import itertools
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

# Of the kernel that ferroced shares its interface with, and of the peer.
FERROCE_ADDRESSES = {4: "10.77.0.50", 6: "fd77::50"}
RXE_ADDRESSES = {4: "10.77.0.10", 6: "fd77::10"}
PREFIX_BITS = {4: 24, 6: 64}
FERROCE_MAC = "52:54:00:77:00:50"
RXE_MAC = "52:54:00:77:00:10"

# Room for RoCE's largest path MTU.
INTERFACE_MTU = 9000

# An Ethernet type for local experiments (IEEE 802): frames that mark a row's end in the capture.
MARKER_ETHER_TYPE = 0x88B5

BOOT_SECONDS_MAX = 180
COMMAND_SECONDS = 60


class LabError(Exception):
    """The lab does not work; no verdict about what is tested in it."""


def die_with_parent():
    """Between fork and exec: no process of the lab stays behind, however the matrix ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def spawn(command, **options):
    return subprocess.Popen([str(word) for word in command], preexec_fn=die_with_parent, **options)


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"})
    if done.returncode != 0:
        raise LabError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def make_network():
    """eth0 is ferroced's and this kernel's; port0 is its other end, where everything that eth0 sends is seen."""
    mtu = str(INTERFACE_MTU)
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "mtu", mtu, "type", "bridge", "mcast_snooping", "0", "stp_state", "0", "forward_delay", "0")
    ip("link", "add", "eth0", "address", FERROCE_MAC, "mtu", mtu, "type", "veth", "peer", "name", "port0", "mtu", mtu)
    ip("tuntap", "add", "dev", "tap0", "mode", "tap")
    # An emulated machine reads in bursts: what a transport's window lets out must not be lost meanwhile.
    ip("link", "set", "tap0", "mtu", mtu, "txqueuelen", "20000")
    for port in ("tap0", "port0"):
        ip("link", "set", port, "master", "br0", "addrgenmode", "none", "up")
    ip("link", "set", "br0", "addrgenmode", "none", "up")
    ip("link", "set", "eth0", "up")
    ip("address", "add", f"{FERROCE_ADDRESSES[4]}/{PREFIX_BITS[4]}", "dev", "eth0")
    ip("address", "add", f"{FERROCE_ADDRESSES[6]}/{PREFIX_BITS[6]}", "dev", "eth0", "nodad")


class Lines:
    """Lines of JSON both ways, over a stream; what comes is read by a thread."""

    def __init__(self, reader, writer, name):
        self.writer, self.name = writer, name
        self.received = queue.Queue()
        threading.Thread(target=self._read, args=(reader,), daemon=True).start()

    def _read(self, reader):
        try:
            for line in reader:
                self.received.put(line)
        except OSError:
            pass  # The other end is gone, as at the end of the stream.
        self.received.put(None)

    def send(self, message):
        self.writer.write(json.dumps(message).encode() + b"\n")
        self.writer.flush()

    def receive(self, seconds):
        try:
            line = self.received.get(timeout=seconds)
        except queue.Empty:
            raise LabError(f"{self.name} did not answer within {seconds:.0f} s") from None
        if line is None:
            raise LabError(f"{self.name} went away")
        return json.loads(line)


class Peer:
    """The virtual machine."""

    def __init__(self, image, directory, accelerator):
        self.directory = Path(directory)
        self.console = self.directory / "console.log"
        self.process = self._boot(image, accelerator)
        self.shell_lock, self.answers, self.ids = threading.Lock(), {}, itertools.count()
        self.shell = self._connect("shell")
        self.verbs = self._connect("verbs")
        threading.Thread(target=self._dispatch, daemon=True).start()

    def _boot(self, image, accelerator):
        addresses = ",".join(f"{RXE_ADDRESSES[version]}/{bits}" for version, bits in PREFIX_BITS.items())
        # no_timer_check: on a busy host an emulated timer may be late, which is no reason to panic.
        kernel_words = (
            "console=ttyS0 quiet no_timer_check mitigations=off nokaslr audit=0 apparmor=0 random.trust_cpu=on cryptomgr.notests panic=-1 "
            f"interop.ip={addresses} interop.mtu={INTERFACE_MTU}"
        )
        command = ["qemu-system-x86_64", "-machine", "q35,usb=off,graphics=off", "-smp", "1", "-m", "384", "-accel", accelerator]
        # TCG's carry-less multiplication is slower than what the kernel does without it.
        command += ["-cpu", "max,-pclmulqdq,-la57" if accelerator.startswith("tcg") else "max"]
        command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        command += ["-kernel", image.kernel, "-initrd", image.initrd, "-append", kernel_words]
        command += ["-drive", f"file={image.root},if=none,id=root,format=raw,readonly=on,file.locking=off", "-device", "virtio-blk-pci,drive=root"]
        command += ["-netdev", "tap,id=net,ifname=tap0,script=no,downscript=no", "-device", f"virtio-net-pci,netdev=net,mac={RXE_MAC},romfile="]
        command += ["-device", "virtio-serial-pci", "-device", "virtio-rng-pci"]
        for name in ("shell", "verbs"):
            command += ["-chardev", f"socket,id={name},path={self.directory / name},server=on,wait=off"]
            command += ["-device", f"virtserialport,chardev={name},name={name}"]
        command += ["-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console"]
        log = (self.directory / "qemu.log").open("wb")
        return spawn(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _connect(self, name):
        """Joins a serial port and waits for the greeting of the program behind it."""
        end = time.monotonic() + BOOT_SECONDS_MAX
        stream = socket.socket(socket.AF_UNIX)
        while True:
            if self.process.poll() is not None:
                raise LabError(f"QEMU ended: {(self.directory / 'qemu.log').read_text()[-1000:]}{self.console_end()}")
            try:
                stream.connect(str(self.directory / name))
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        lines = Lines(stream.makefile("rb"), stream.makefile("wb"), f"the peer's {name} agent")
        try:
            lines.receive(BOOT_SECONDS_MAX)
        except LabError as error:
            raise LabError(f"{error}: {self.console_end()}") from None
        return lines

    def console_end(self):
        return self.console.read_text(errors="replace")[-2000:] if self.console.exists() else ""

    def _dispatch(self):
        while True:
            try:
                answer = self.shell.receive(3600)
            except LabError:
                return
            if "id" in answer:
                self.answers[answer["id"]].put(answer)

    def start(self, command, seconds=COMMAND_SECONDS):
        """Starts a shell command; the function that this returns waits for its status and output."""
        number, answer = next(self.ids), queue.Queue()
        self.answers[number] = answer
        with self.shell_lock:
            self.shell.send({"id": number, "command": command, "timeout": seconds})

        def wait():
            try:
                found = answer.get(timeout=seconds + 30)
            except queue.Empty:
                raise LabError(f"the peer did not answer to `{command}`: {self.console_end()}") from None
            return found["status"], found["output"]

        return wait

    def run(self, command, seconds=COMMAND_SECONDS):
        """Runs a shell command that must succeed."""
        status, output = self.start(command, seconds)()
        if status != 0:
            raise LabError(f"`{command}` in the peer ended with status {status}: {output.strip()[-500:]}")
        return output

    def counters(self):
        """rxe's own counters."""
        lines = self.run("grep -H . /sys/class/infiniband/rxe0/ports/1/hw_counters/*").split()
        pairs = (line.rpartition("/")[2].split(":") for line in lines)
        return {name: int(value) for name, value in pairs if name != "lifespan"}


class Daemon:
    """`ferroced`, on eth0 unless `device` says otherwise, and the programs that use it."""

    def __init__(self, programs, directory, device="net_af_packet0,iface=eth0", *options):
        self.programs, self.directory, self.device, self.options = Path(programs), Path(directory), device, options
        self.socket = self.directory / "ferroced.sock"
        self.log = self.directory / "ferroced.log"
        self.process = self._start()

    def _start(self):
        log = self.log.open("ab")
        command = [self.programs / "ferroced", "--socket", self.socket, "--no-huge", "--vdev", self.device, *self.options]
        process = spawn(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while subprocess.run([self.programs / "ferroce", "--socket", self.socket, "devinfo"], capture_output=True).returncode != 0:
            if process.poll() is not None or time.monotonic() > end:
                raise LabError(f"ferroced does not answer: {self.log_end()}")
            time.sleep(0.1)
        return process

    def log_end(self):
        return self.log.read_text(errors="replace")[-2000:]

    def ferroce(self, *words, **options):
        """Starts `ferroce` with these arguments."""
        command = [self.programs / "ferroce", "--socket", self.socket, *words]
        return spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)

    def counters(self):
        """All counters of the daemon, by name."""
        output, _ = self.ferroce("--json", "stat").communicate(timeout=20)
        found = {}

        def collect(value):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(inner, (dict, list)):
                    collect(inner)
                elif isinstance(inner, int):
                    found[key] = found.get(key, 0) + inner

        collect(json.loads(output))
        return found

    def agent(self):
        """Starts a program that drives queue pairs, in words of its own stack."""
        command = [self.programs / "examples/verbs_agent", "--socket", self.socket]
        process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("ab"))
        return Lines(process.stdout, process.stdin, "verbs_agent")


class Capture:
    """Everything that passes an interface, cut into rows by frames that mark where one ends and are sent on `marked`."""

    def __init__(self, path, interface="port0", marked="eth0"):
        self.path = Path(path)
        # The kernel's ring has a slot of the snapshot's length for each frame: no longer than need be, that there are many.
        sizes = ["-s", str(INTERFACE_MTU + 100), "-B", "131072"]
        command = ["tcpdump", "-i", interface, "-n", "-U", "--immediate-mode", *sizes, "-w", self.path]
        if os.geteuid() == 0:
            # Else it would change to a user who may not write there.
            command += ["-Z", "root"]
        path = os.environ["PATH"] + ":/usr/sbin:/sbin"
        self.process = spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "PATH": path})
        said = b""
        while b"listening on" not in said:
            line = self.process.stderr.readline()
            if not line:
                raise LabError(f"tcpdump does not start: {said.decode()}")
            said += line
        self.file = None
        self.header = b""
        self.marks = itertools.count(1)
        self.sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.sender.bind((marked, 0))

    def cut(self, path):
        """Writes what came since the last cut to a file of its own. Returns how many frames that is."""
        mark = struct.pack(">6s6sHI", bytes(6), bytes.fromhex(FERROCE_MAC.replace(":", "")), MARKER_ETHER_TYPE, next(self.marks))
        self.sender.send(mark.ljust(60, b"\0"))
        end = time.monotonic() + 20
        count = 0
        with Path(path).open("wb") as out:
            out.write(self._header(end))
            while True:
                record_header = self._exactly(16, end)
                frame = self._exactly(struct.unpack("<4I", record_header)[2], end)
                if frame.startswith(mark):
                    return count
                out.write(record_header + frame)
                count += 1

    def _header(self, end):
        if self.file is None:
            while not self.path.exists():
                time.sleep(0.01)
            self.file = self.path.open("rb")
            self.header = self._exactly(24, end)
        return self.header

    def _exactly(self, count, end):
        data = b""
        while len(data) < count:
            more = self.file.read(count - len(data))
            if not more:
                if time.monotonic() > end:
                    raise LabError("the capture has stopped")
                time.sleep(0.005)
            data += more
        return data

    def stop(self):
        """Ends the capture; a lost frame is an error, for nothing can be said about it."""
        self.process.send_signal(signal.SIGINT)
        said = self.process.stderr.read().decode()
        self.process.wait()
        dropped = [line for line in said.splitlines() if "dropped by" in line and not line.startswith("0 ")]
        if dropped:
            raise LabError(f"the capture is not whole: {', '.join(dropped)}")


class Lab:
    """All of it."""

    def __init__(self, image, programs, directory, accelerator, say):
        self.directory = Path(directory)
        start = time.monotonic()
        self.capture = Capture(self.directory / "all.pcap")
        self.peer = Peer(image, self.directory, accelerator)
        say(f"the peer booted in {time.monotonic() - start:.0f} s")
        self.daemon = Daemon(programs, self.directory)

    def check_alive(self):
        for name, process, log in (
            ("ferroced", self.daemon.process, self.daemon.log_end),
            ("QEMU", self.peer.process, self.peer.console_end),
            ("tcpdump", self.capture.process, str),
        ):
            if process.poll() is not None:
                raise LabError(f"{name} ended with status {process.returncode}: {log()}")

    def kill(self):
        """Ends the processes at once."""
        for process in (self.daemon.process, self.peer.process, self.capture.process):
            process.kill()
            process.wait()

    def stop(self):
        """Ends the processes, the daemon as an operator does."""
        daemon = self.daemon.process
        daemon.send_signal(signal.SIGTERM)
        try:
            status = daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            status = "none: it had to be killed"
        self.peer.process.kill()
        self.peer.process.wait()
        self.capture.stop()
        if status != 0:
            raise LabError(f"ferroced ended with status {status}: {self.daemon.log_end()}")
