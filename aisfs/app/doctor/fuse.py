"""Can this machine mount? The kernel, /dev/fuse, fusermount3 and what belongs to them."""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from aisfs.app.doctor.check import Check, note, ok, wrong
from aisfs.fuse.mountpoint import CONNECTIONS, DEVICE, FUSERMOUNT, device_problem

CONFIGURATION = Path("/etc/fuse.conf")
STATUS = Path("/proc/self/status")

_GOOD_KERNEL = (5, 1)
"""The first that opens directories without asking; older ones work."""


def fuse_checks() -> Iterator[Check]:
    """Check what mounting needs."""
    yield _kernel()
    yield _device()
    yield _fusermount()
    yield _library()
    yield _allow_other()
    yield _setpriv()
    yield _fusectl()


def _kernel() -> Check:
    system = os.uname()
    text = f"{system.sysname} {system.release} ({system.machine})"
    if system.sysname != "Linux":
        return wrong("kernel", text, "aisfs needs Linux")
    numbers = re.match(r"(\d+)\.(\d+)", system.release)
    if numbers and (int(numbers[1]), int(numbers[2])) < _GOOD_KERNEL:
        cure = "a kernel from 5.1 on opens directories without asking the daemon"
        return note("kernel", text, cure)
    return ok("kernel", text)


def _device() -> Check:
    if problem := device_problem():
        return wrong("fuse device", *problem)
    return ok("fuse device", f"{DEVICE} can be opened")


def _fusermount() -> Check:
    program = shutil.which(FUSERMOUNT)
    if program is None:
        found, cure = "not installed", "on Debian: apt install fuse3"
        if os.geteuid() == 0:
            return note(FUSERMOUNT, f"{found}; root needs it only with --no-fastpath", cure)
        return wrong(FUSERMOUNT, found, cure)
    if os.geteuid() == 0:
        return ok(FUSERMOUNT, program)
    status = os.stat(program)
    if not status.st_mode & stat.S_ISUID or status.st_uid:
        cure = f"as root: chown root {program} && chmod 4755 {program}"
        return wrong(FUSERMOUNT, f"{program} is not setuid root, so it cannot mount", cure)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        cure = "as root: remount that file system with suid"
        return wrong(FUSERMOUNT, f"{program} is on a file system mounted nosuid", cure)
    if _no_new_privileges():
        cure = "allow it, as with --security-opt no-new-privileges=false, or mount as root"
        return wrong(FUSERMOUNT, "this process may not gain privileges (no_new_privs)", cure)
    return ok(FUSERMOUNT, program)


def _no_new_privileges() -> bool:
    with suppress(OSError):
        return bool(re.search(r"^NoNewPrivs:\s*1$", STATUS.read_text(), re.MULTILINE))
    return False


def _library() -> Check:
    try:
        from aisfs.fuse.operations import serves_descriptors  # loads libfuse
    except ImportError as error:
        return wrong("libfuse", f"cannot be loaded: {error}", "on Debian: apt install libfuse3-3")
    if not serves_descriptors():
        cure = "install libfuse 3.3 or later; until then mounts go without the fast path"
        return note("libfuse", "older than 3.3", cure)
    return ok("libfuse", "can serve the fast path")


def _allow_other() -> Check:
    if os.geteuid() == 0:
        return ok("user_allow_other", "root needs none for --allow-other")
    with suppress(OSError):
        lines = CONFIGURATION.read_text(errors="replace").splitlines()
        if "user_allow_other" in (line.partition("#")[0].strip() for line in lines):
            return ok("user_allow_other", f"set in {CONFIGURATION}")
    cure = f"for --allow-other, as root: echo user_allow_other >> {CONFIGURATION}"
    return note("user_allow_other", "not set, so only you can use your mounts", cure)


def _setpriv() -> Check:
    program = shutil.which("setpriv")
    if program is None:
        found = "not installed: readers may hang if the daemon is killed with -9"
        return note("setpriv", found, "on Debian: apt install util-linux")
    return ok("setpriv", program)


def _fusectl() -> Check:
    if CONNECTIONS.is_mount():
        return ok("fusectl", f"mounted on {CONNECTIONS}")
    found = f"not mounted on {CONNECTIONS}: a hanging mount cannot be aborted"
    return note("fusectl", found, f"as root: mount -t fusectl none {CONNECTIONS}")
