"""A READ is answered when its own bytes have come, whatever else their request has yet to bring."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import payload
from tests.mount.odd_server import BUCKET, serving_keys
from tests.support.mounts import Mount, mounted

pytestmark = pytest.mark.mount
BOTH_WAYS = True

MIB = 1 << 20
HELD_FROM = 3 * MIB
CONTENT = payload(24 * MIB)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What lets the server send the rest."""
    release = threading.Event()
    yield release
    release.set()


@pytest.fixture
def mount(tmp_path: Path, release: threading.Event) -> Iterator[Mount]:
    place = tmp_path / "mnt"
    place.mkdir()
    with (
        serving_keys({"big.bin": CONTENT}, held_from=HELD_FROM, release=release) as endpoint,
        mounted(f"ais://{BUCKET}", place, endpoint=endpoint) as mount,
    ):
        yield mount
        release.set()


def read_start(path: Path) -> bytes:
    """Read what is not held back, as a program with large buffers does."""
    with path.open("rb", buffering=0) as file:
        return b"".join(file.read(MIB) for _ in range(HELD_FROM // MIB))


def answered(mount: Mount, who: str) -> int:
    """Return how many READs a kind of thread has answered."""
    text = os.getxattr(mount.path, "user.aisfs.stats").decode()
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("aisfs_operations_total{") and 'operation="read"' in line
    ]
    return sum(int(float(line.split()[-1])) for line in lines if f'answered_by="{who}"' in line)


def test_bytes_that_came_are_read_while_the_rest_of_their_request_is_on_its_way(
    mount: Mount, release: threading.Event, fastpath: bool
) -> None:
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(read_start(mount.path / "big.bin")))
    reader.start()
    reader.join(20)
    there = not reader.is_alive()
    release.set()
    reader.join(60)
    assert there, "it waited for bytes that it does not want"
    assert found == [CONTENT[:HELD_FROM]]
    assert (mount.path / "big.bin").read_bytes() == CONTENT
    assert not fastpath or answered(mount, "receiver") > 0


def test_who_waits_for_the_rest_is_served_by_the_thread_that_receives_it(
    mount: Mount, release: threading.Event, fastpath: bool
) -> None:
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((mount.path / "big.bin").read_bytes()))
    reader.start()
    # As many READs wait as the kernel sends ahead; then all of them are answered, each once.
    reader.join(1)
    release.set()
    reader.join(60)
    assert found == [CONTENT]
    assert not fastpath or answered(mount, "receiver") > 0
