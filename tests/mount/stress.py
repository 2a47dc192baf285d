"""What the readers of the stress test do; each is a process of its own: `python stress.py JOB`.

Every file says which version of it it is, and its bytes follow from that, so a reader can tell right
from wrong without knowing when the file was overwritten.
"""

import errno
import json
import mmap
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator

BEAT = struct.Struct("=d")
GOING = (errno.ESTALE, errno.ENOENT)
"""What may be said of a file that is being overwritten."""


def content(shard: str, version: int, row: int) -> bytes:
    """Give the bytes of a member: small ones, and some that take several requests."""
    chance = random.Random(f"{shard} {version} {row}")
    size = chance.choice((20, 1000, 1024, 4096, 5000))
    if row % 100 == 99:
        size = chance.choice((110_000, 300_000))
    line = b"%s %d %d\n" % (shard.encode(), version, row)
    return (line * (size // len(line) + 1))[: max(size, len(line))]


class Reader:
    """Reads until the time is over, and says when it began what it is doing."""

    def __init__(self, job: dict) -> None:
        self.root = job["root"]
        self.shards = job["shards"]
        self.rows = job["rows"]
        self.changing = job["changing"]
        self.until = time.monotonic() + job["seconds"]
        self.place = job["number"] * BEAT.size
        with open(job["beats"], "r+b") as file:
            self.beats = mmap.mmap(file.fileno(), 0)
        self.chance = random.Random(job["number"])
        self.wrong: list[str] = []
        self.reads = 0

    def watched(self, work: Callable[[], object], path: str) -> None:
        """Do something that the daemon must not leave unanswered."""
        BEAT.pack_into(self.beats, self.place, time.monotonic())
        try:
            work()
            self.reads += 1
        except OSError as error:
            if not (any(name in path for name in self.changing) and error.errno in GOING):
                self.wrong.append(f"{path}: {error!r}")
        finally:
            BEAT.pack_into(self.beats, self.place, 0.0)

    def member(self, shard: str, row: int) -> None:
        """Read a member by path, and every second time drop its pages."""
        path = f"{self.root}/{shard}.d/{row:05}.txt"

        def read() -> None:
            with open(path, "rb", buffering=0) as file:
                data = file.readall()
                if self.chance.random() < 0.5:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                version = int(data.split(b" ", 2)[1])
            except (IndexError, ValueError):
                self.wrong.append(f"{path}: {data[:40]!r}")
                return
            if data != content(shard, version, row):
                self.wrong.append(f"{path}: other bytes, {len(data)} of version {version}")
            if shard not in self.changing and version:
                self.wrong.append(f"{path}: version {version}")

        self.watched(read, path)

    def steps(self, kind: str) -> Iterator[None]:
        """Give one step after the other, for ever."""
        while True:
            shard = self.chance.choice(self.shards)
            match kind:
                case "order":
                    yield self.names(shard)
                    for row in range(self.rows):
                        yield self.member(shard, row)
                case "random":
                    yield self.names(shard)
                    for _ in range(self.rows // 2):
                        yield self.member(shard, self.chance.randrange(self.rows))
                case "everywhere":
                    for _ in range(100):
                        row = self.chance.randrange(self.rows)
                        yield self.member(self.chance.choice(self.shards), row)
                case "walk":
                    yield self.walk()

    def names(self, shard: str) -> None:
        """List a folder."""
        path = f"{self.root}/{shard}.d"

        def listing() -> None:
            found = os.listdir(path)
            if len(found) != self.rows:
                self.wrong.append(f"{path}: {len(found)} names")

        self.watched(listing, path)

    def walk(self) -> None:
        """List everything with attributes, as ImageFolder does; the shards as files too."""
        for name in sorted(os.listdir(self.root)):
            path = f"{self.root}/{name}"

            def scan(path: str = path) -> None:
                with os.scandir(path + ".d") as entries:
                    for entry in entries:
                        entry.stat()

            def whole(path: str = path) -> None:
                with open(path, "rb", buffering=0) as file:
                    while file.read(1 << 20):
                        pass

            self.watched(whole, path)
            if name.endswith(".tar"):
                self.watched(scan, path)

    def run(self, kind: str) -> None:
        """Read until the time is over."""
        for _ in self.steps(kind):
            if time.monotonic() > self.until or len(self.wrong) > 10:
                return


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    reader = Reader(job)
    reader.run(job["kind"])
    print(json.dumps({"reads": reader.reads, "wrong": reader.wrong}))
