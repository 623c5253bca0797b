"""Builds the disk image of the rxe peer from Debian packages: no root, no chroot, nothing of it installed on the host.

Packages are only unpacked. None of their scripts run: what a peer uses of them (Python, iproute2, the example programs of
rdma-core) needs none. apt resolves and checks them against a package database of its own that says that nothing is installed.
"""

import hashlib
import lzma
import os
import shutil
import stat
import struct
import subprocess
import time
from pathlib import Path

# depmod and mke2fs are not on everybody's path.
SEARCH_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

GUEST_FILES = Path(__file__).parent / "guest"

PACKAGES = (
    "busybox-static dash coreutils mount libc-bin grep kmod iproute2 iputils-ping procps "
    "ibverbs-providers ibverbs-utils rdmacm-utils perftest python3-minimal python3-pyverbs"
).split()

# The kernel that this package depends on is unpacked too: a stock kernel has rdma_rxe, one of a cloud has not.
KERNEL_METAPACKAGE = "linux-image-amd64"

# What the peer loads. The first ones find the root file system, and so must be in the initial RAM disk.
BOOT_MODULES = ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "overlay"]
MODULES = BOOT_MODULES + (
    "crc32_generic virtio_net virtio_console virtio_rng ib_uverbs rdma_rxe rdma_ucm "
    "8021q ifb sch_ingress sch_netem cls_u32 cls_matchall act_mirred"
).split()

# Directories that nothing in the peer reads.
UNUSED = [
    "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/i18n", "usr/share/perl", "usr/share/zoneinfo",
    "usr/lib/x86_64-linux-gnu/gconv", "usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/perl-base", "var/cache", "var/log",
]

# Most of a kernel's modules, by size: none of them drives what QEMU shows the peer.
UNUSED_MODULES = [
    f"./lib/modules/*/kernel/{name}"
    for name in ("sound", "drivers/gpu", "drivers/media", "drivers/net/ethernet", "drivers/net/wireless", "drivers/staging", "drivers/usb", "drivers/scsi", "drivers/iio", "drivers/hwmon")
]

INITRD_INIT = """\
#!/bin/sh
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t devtmpfs dev /dev
for module in /modules/*; do $B insmod $module; done
i=0
while [ ! -b /dev/vda ] && [ $i -lt 200 ]; do $B usleep 50000; i=$((i + 1)); done
$B mount -t ext4 -o ro,noload /dev/vda /lower || exit 1
$B mount -t tmpfs tmpfs /upper
$B mkdir /upper/data /upper/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /root || exit 1
$B umount /proc
exec $B switch_root /root /opt/interop/init
"""


class ImageError(Exception):
    """The image can't be built; the sentence says why."""


def command(*args, **options):
    """Runs a command and returns its output; what it says is shown only if it fails."""
    done = subprocess.run([str(arg) for arg in args], env={**os.environ, "PATH": SEARCH_PATH}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        raise ImageError(f"{' '.join(map(str, args))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


class Image:
    """The files that QEMU boots, under a directory that may be deleted at any time."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.kernel = self.directory / "vmlinux"
        self.initrd = self.directory / "initrd.cpio"
        self.root = self.directory / "root.ext4"
        self._made_of = self.directory / "made-of"

    def build(self, say):
        """Builds what is missing or was made of other files than these."""
        if self._made_of.is_file() and self._made_of.read_text() == recipe():
            return
        start = time.monotonic()
        scratch = self.directory / "build"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        self._made_of.unlink(missing_ok=True)
        say("building the peer's image: packages")
        debs, kernel_deb = download(scratch)
        say(f"building the peer's image: {len(debs)} packages, {kernel_deb.name.split('_')[0]}")
        tree = scratch / "root"
        unpack(debs, tree, [f"./{name}/*" for name in UNUSED])
        kernel_tree = scratch / "kernel"
        unpack([kernel_deb], kernel_tree, UNUSED_MODULES)
        install_guest_files(tree)
        boot_modules = install_modules(kernel_tree, tree)
        write_initrd(self.initrd, tree, boot_modules)
        write_kernel(next(kernel_tree.glob("boot/vmlinuz-*")), self.kernel)
        write_root(self.root, tree)
        shutil.rmtree(scratch)
        self._made_of.write_text(recipe())
        say(f"built the peer's image in {time.monotonic() - start:.0f} s")


def recipe():
    """A digest of everything that decides what is in the image, but for the versions that the mirror has."""
    digest = hashlib.sha256()
    for path in [Path(__file__), *sorted(GUEST_FILES.iterdir())]:
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def download(scratch):
    """Fetches the packages, all that they depend on, and the kernel, from the mirrors that the host's apt uses."""
    state, cache = scratch / "apt/state", scratch / "apt/cache"
    (state / "lists/partial").mkdir(parents=True)
    (cache / "archives/partial").mkdir(parents=True)
    status = scratch / "apt/status"
    status.touch()
    options = {
        "Dir::State": state, "Dir::State::status": status, "Dir::State::extended_states": scratch / "apt/extended",
        "Dir::Cache": cache, "APT::Install-Recommends": "0", "APT::Sandbox::User": "", "Debug::NoLocking": "1",
        # The host's hooks are about the host's packages.
        "DPkg::Post-Invoke": "", "APT::Update::Post-Invoke": "", "APT::Update::Post-Invoke-Success": "",
    }
    apt_options = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    command("apt-get", "-q", *apt_options, "update")
    depends = command("apt-cache", *apt_options, "depends", KERNEL_METAPACKAGE).split()
    kernel = next((word for word in depends if word.startswith("linux-image-") and word != KERNEL_METAPACKAGE), None)
    if kernel is None:
        raise ImageError(f"apt knows no {KERNEL_METAPACKAGE}: the peer needs the mirrors of Debian 12 for amd64")
    command("apt-get", "-q", "-y", *apt_options, "--download-only", "install", *PACKAGES)
    debs = sorted((cache / "archives").glob("*.deb"))
    command("apt-get", "-q", *apt_options, "download", kernel, cwd=scratch)
    return debs, next(scratch.glob("linux-image-*.deb"))


def unpack(debs, tree, unused):
    """Unpacks packages into one tree in which /bin, /sbin and /lib are in /usr, as in Debian 12, and deletes them.

    Members that a pattern of `unused` matches stay out: what is never written needs no room on a small disk.
    """
    excludes = [f"--exclude={pattern}" for pattern in unused]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")
    for deb in debs:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as archive:
            command("tar", "-x", *excludes, "--keep-directory-symlink", "--no-same-owner", "-C", tree, stdin=archive.stdout)
        if archive.returncode != 0:
            raise ImageError(f"dpkg-deb can't read {deb}")
        deb.unlink()


def install_guest_files(tree):
    """Adds our own programs, and takes away what only makes the image larger."""
    for name in UNUSED:
        shutil.rmtree(tree / name, ignore_errors=True)
    for name in ("proc", "sys", "dev", "run", "tmp", "root", "etc"):
        (tree / name).mkdir(exist_ok=True)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\n")
    programs = tree / "opt/interop"
    programs.mkdir(parents=True)
    for path in GUEST_FILES.iterdir():
        if path.is_file():
            shutil.copy(path, programs / path.name)
            (programs / path.name).chmod(0o755)


def install_modules(kernel_tree, tree):
    """Copies the modules that the peer loads, with those they depend on. Returns those to boot with, in loading order."""
    source = next(kernel_tree.glob("lib/modules/*"), None) or next(kernel_tree.glob("usr/lib/modules/*"))
    version = source.name
    command("depmod", "-b", kernel_tree, version)
    dependencies, names = {}, {}
    for line in (source / "modules.dep").read_text().splitlines():
        file, _, needs = line.partition(":")
        dependencies[file] = needs.split()
        names[Path(file).name.partition(".")[0].replace("-", "_")] = file
    builtin = {Path(line).name.partition(".")[0].replace("-", "_") for line in (source / "modules.builtin").read_text().split()}
    target = tree / "usr/lib/modules" / version

    def files(module):
        if module in builtin:
            return []
        if module not in names:
            raise ImageError(f"kernel {version} has no module {module}")
        # modules.dep names what must be there last first.
        return [*reversed(dependencies[names[module]]), names[module]]

    for file in {file for module in MODULES for file in files(module)}:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / file, target / file)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(source / name, target / name)
    command("depmod", "-b", tree, version)
    ordered = dict.fromkeys(file for module in BOOT_MODULES for file in files(module))
    return [source / file for file in ordered]


def write_initrd(path, tree, modules):
    """A RAM disk with busybox, the modules of the disk's driver, and a script that makes the disk the root."""
    busybox = next(file for file in (tree / "usr/bin/busybox", tree / "bin/busybox") if file.is_file())
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "dev", "proc", "lower", "upper", "root", "modules")]
    entries += [("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()), ("bin/sh", stat.S_IFLNK | 0o777, b"busybox")]
    entries += [("init", stat.S_IFREG | 0o755, INITRD_INIT.encode())]
    entries += [(f"modules/{i:02}-{file.name}", stat.S_IFREG | 0o644, file.read_bytes()) for i, file in enumerate(modules)]
    with path.open("wb") as out:
        for inode, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
            out.write(cpio_entry(inode, name, mode, data))


def cpio_entry(inode, name, mode, data):
    """One member of an archive in the format "newc": Documentation/driver-api/early-userspace/buffer-format.rst of Linux."""
    fields = [inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def write_kernel(compressed, path):
    """Takes the ELF image out of a bzImage. QEMU starts it by PVH: in emulation, unpacking takes longer than all the rest.

    Documentation/arch/x86/boot.rst of Linux: setup_sects at 0x1f1, payload_offset and payload_length at 0x248.
    """
    data = compressed.read_bytes()
    setup_bytes = ((data[0x1F1] or 4) + 1) * 512
    offset, length = struct.unpack_from("<II", data, 0x248)
    payload = data[setup_bytes + offset :][:length]
    if payload[:6] != b"\xfd7zXZ\0":
        raise ImageError(f"{compressed.name} is not compressed by xz, but begins with {payload[:6].hex()}")
    path.write_bytes(lzma.LZMADecompressor().decompress(payload))


def write_root(path, tree):
    """A file system of the tree, all files root's, with a tenth to spare for its own tables."""
    used = sum(file.lstat().st_blocks * 512 for file in tree.rglob("*"))
    path.unlink(missing_ok=True)
    size_mib = used * 12 // 10 // (1 << 20) + 32
    command("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "root_owner=0:0", "-d", tree, path, f"{size_mib}M")
