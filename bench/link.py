"""A shaped link between this machine and a network namespace, for a server inside it.

A pair of virtual interfaces, whose packets the kernel lets through at a rate (`tbf`), both ways, and
delays by half of the round trip each way (`netem`), if it can. It takes root and iproute2.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from bench.interruptions import Interrupts
from bench.processes import NotMeasured

BURST_SECONDS, QUEUE_SECONDS = 0.001, 0.02
"""How much `tbf` lets through at once, longer than its timer's steps, and how much may wait there."""
LEAST_BURST = 256 << 10
"""Bytes: several of the largest packets that go through such interfaces in one piece."""
PACKETS = 1_000_000
"""How many `netem` may hold: 25 Gbit/s for 20 ms are 42,000 of 1,500 bytes."""
_NAME = "aisfs-bench-"
_numbers = count()


@dataclass(frozen=True)
class Link:
    """A link that is there."""

    namespace: str
    host: str
    """The address of the other end."""
    delayed: bool
    """Whether the kernel delays its packets; if not, the server has to delay its replies."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """What starts a command at the other end."""
        return ("ip", "netns", "exec", self.namespace)


@contextmanager
def shaped(rate: float, delay: float, interruptions: Interrupts) -> Iterator[Link]:
    """Make a link until the block ends.

    Args:
        rate: bits a second, each way.
        delay: seconds there and back.
        interruptions: held back while something is made that has to be removed.

    Raises:
        NotMeasured: this machine cannot.
    """
    if os.geteuid() != 0:
        raise NotMeasured("network namespaces need root")
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        raise NotMeasured(f"{' and '.join(missing)} of iproute2 not installed")
    _remove_stale()
    number = next(_numbers)
    name = f"{_NAME}{os.getpid()}-{number}"
    near, far = (f"ab{os.getpid()}{side}{number % 100}" for side in "nf")
    # Addresses that RFC 2544 sets aside for benchmarks; runs at the same time have their own.
    block = (os.getpid() * 100 + number % 100) % (1 << 15)
    hosts = [
        f"198.{18 + (block >> 14)}.{block >> 6 & 255}.{(block & 63) * 4 + at}" for at in (1, 2)
    ]
    with ExitStack() as stack:
        with interruptions.held():
            _run("ip", "netns", "add", name)
            # Its end of the pair goes with it, and with that one the other.
            stack.callback(_run, "ip", "netns", "delete", name)
        inside = partial(_run, "ip", "-netns", name)
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        _run("ip", "address", "add", f"{hosts[0]}/30", "dev", near)
        inside("address", "add", f"{hosts[1]}/30", "dev", far)
        _run("ip", "link", "set", near, "up")
        inside("link", "set", far, "up")
        inside("link", "set", "lo", "up")
        delayed = _shape(("tc", "qdisc", "add", "dev", near), rate, delay)
        _shape(("tc", "-netns", name, "qdisc", "add", "dev", far), rate, delay)
        stack.enter_context(_without_proxy(hosts[1]))
        yield Link(name, hosts[1], delayed)


def _remove_stale() -> None:
    """Remove the namespaces of runs that were killed."""
    listed = subprocess.run(
        ("ip", "netns", "list"), check=False, capture_output=True, text=True
    ).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(_NAME)):
        run = name.removeprefix(_NAME).partition("-")[0]
        if not Path("/proc", run).exists():
            with suppress(NotMeasured):  # another run was faster
                _run("ip", "netns", "delete", name)


def _shape(add: tuple[str, ...], rate: float, delay: float) -> bool:
    """Shape what one end sends; say whether its packets are delayed."""
    burst = max(LEAST_BURST, int(rate / 8 * BURST_SECONDS))
    limit = burst + int(rate / 8 * QUEUE_SECONDS)
    limits = ("rate", f"{rate:.0f}bit", "burst", f"{burst}b", "limit", f"{limit}b")
    netem = ("netem", "delay", f"{delay / 2 * 1e6:.0f}us", "limit", str(PACKETS))
    try:
        _run(*add, "root", "handle", "1:", *netem)
    except NotMeasured as error:
        if "unknown" not in str(error):
            raise
        _run(*add, "root", "tbf", *limits)
        return False
    _run(*add, "parent", "1:1", "handle", "10:", "tbf", *limits)
    return True


def _run(*words: str) -> None:
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NotMeasured(f"{' '.join(words[:4])}: {reason}")


@contextmanager
def _without_proxy(host: str) -> Iterator[None]:
    """Keep programs from asking a proxy for this host."""
    names = ("NO_PROXY", "no_proxy")
    old = {name: os.environ.get(name) for name in names}
    for name in names:
        os.environ[name] = ",".join(filter(None, (old[name], host)))
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
