"""Every way to read a file gives the same bytes, while the cache evicts and the kernel forgets."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset, make_shards
from tests.mount.content import put
from tests.support.mounts import environment, mounted
from tests.support.servers import RunningServer

pytestmark = pytest.mark.mount

PROCESSES = 8
ANSWER_SECONDS = 10.0
"""An operation that takes longer counts as never answered."""
# Reads members in all ways, in an order of its own, until the time is over; tells what was wrong.
EVERY_WAY = """
import hashlib, json, mmap, os, random, sys, tempfile, time
job = json.loads(sys.stdin.readline())
chance = random.Random(job["seed"])
wrong, slowest, done = [], 0.0, 0

def whole(path, size):
    with open(path, "rb") as file:
        return file.read()

def mapped(path, size):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        return bytes(memory)

def sent(path, size):
    with open(path, "rb", buffering=0) as file, tempfile.TemporaryFile() as copy:
        at = 0
        while at < size:
            step = os.sendfile(copy.fileno(), file.fileno(), at, size - at)
            if not step:
                break
            at += step
        copy.seek(0)
        return copy.read()

def direct(path, size):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, (size // 4096 + 1) * 4096) as room:
            length = os.preadv(fd, [room], 0)
            return room[:length]
    finally:
        os.close(fd)

def scattered(path, size):
    fd = os.open(path, os.O_RDONLY)
    try:
        pieces = {}
        starts = list(range(0, size, 7777))
        chance.shuffle(starts)
        for start in starts:
            pieces[start] = os.pread(fd, min(7777, size - start), start)
        if chance.random() < 0.5:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return b"".join(pieces[start] for start in sorted(pieces))
    finally:
        os.close(fd)

until = time.monotonic() + job["seconds"]
while time.monotonic() < until or done < 50:
    path, digest = chance.choice(job["files"])
    way = chance.choice([whole, mapped, sent, direct, scattered])
    began = time.monotonic()
    try:
        size = os.stat(path).st_size
        if hashlib.sha256(way(path, size)).hexdigest() != digest:
            wrong.append(f"{way.__name__} of {path}: other bytes")
        if chance.random() < 0.02:
            names = os.listdir(os.path.dirname(path))
            if len(names) != job["names"]:
                wrong.append(f"{os.path.dirname(path)}: {len(names)} names")
    except OSError as error:
        wrong.append(f"{way.__name__} of {path}: {error}")
    slowest = max(slowest, time.monotonic() - began)
    done += 1
print(json.dumps([wrong, slowest, done]))
"""


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """24 shards of 16 members of 48 KiB: three times what the cache holds."""
    return make_shards(store / "b", 24, 16, 48 * 1024)


def test_eight_processes_in_every_way(
    server: RunningServer, shards: Dataset, mountpoint: Path, tmp_path: Path
):
    options = (
        "--cache-dir", str(tmp_path / "cache"), "--cache-size", "10MiB", "--memory-limit", "16MiB",
        "--list-ttl", "2", "--attr-ttl", "2",
    )  # fmt: skip
    with mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=options, expected_log=["changed"]
    ) as mount:
        files = [(str(mount.path / name), digest) for name, digest in shards.members.items()]
        processes = []
        try:
            for seed in range(PROCESSES):
                process = subprocess.Popen(
                    [sys.executable, "-c", EVERY_WAY], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, text=True, env=environment(),
                )  # fmt: skip
                processes.append(process)
                job = {"files": files, "seed": seed, "seconds": 3, "names": len(files) // 24}
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
            disturb(server, mount.path)
            results = [json.loads(each.communicate(timeout=60)[0]) for each in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate(timeout=20)
    wrong = [each for found, _, _ in results for each in found]
    assert not wrong, (len(wrong), wrong[:5])
    assert max(slowest for _, slowest, _ in results) < ANSWER_SECONDS


def disturb(server: RunningServer, root: Path) -> None:
    """Change the directory again and again, so that names and listings are invalidated."""
    for turn in range(10):
        put(server.endpoint, "b", f"other-{turn % 3}.bin", bytes([turn]) * 100_000)
        with suppress(OSError):  # it may be stale just now
            (root / f"other-{turn % 3}.bin").read_bytes()
        os.listdir(root)
        time.sleep(0.5)
