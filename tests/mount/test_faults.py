"""A store that fails, is slow or lies: what passes is invisible, what lasts is the right error, in time.

No wrong byte, no short listing and no hang, whatever the store: see `faulty_stores`. What happens to the
whole server is in `test_outages`, what happens to writes in `test_writing_faults`.
"""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.cache_tools import big_directory
from tests.mount.content import payload
from tests.mount.faulty_stores import STORES, FaultyStore, Rule, faulty_store
from tests.support.mounts import Mount
from tests.support.tars import END, entry

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

BIG = {kind: payload(1 << 20) for kind in STORES} | {"whole": payload(5 << 20)}
"""Of what has no ranges, more than is read whole for any range of it."""
MEMBERS = {f"{number:02}.bin": payload(20_000 + number) for number in range(20)}
SHARD = b"".join(entry(name.encode(), data) for name, data in MEMBERS.items()) + END
NAMES = ["a.txt", "b.txt"]
DIRECTORIES = 100
"""Each is read from once: what was listed and read before needs no store."""
HANGS = 60.0
"""Seconds after which a call with a deadline of some seconds counts as hung."""
IN_TIME = {errno.EIO, errno.ETIMEDOUT}


@pytest.fixture(scope="module", params=(*STORES, "whole"))
def store(request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    objects = {f"x{n}/d/{name}": b"" for n in range(DIRECTORIES) for name in NAMES}
    with big_directory() as directory:
        directory.chmod(0o755)
        with faulty_store(request.param, directory / "store", objects) as store:
            yield store


@dataclass
class Place:
    """A mount of a store."""

    store: FaultyStore
    mount: Mount
    _numbers: Iterator[int]

    def fresh(self) -> "Files":
        """Return a directory of which nothing is known yet."""
        name = f"x{next(self._numbers)}"
        self.store.put(f"{name}/big.bin", BIG[self.store.kind])
        self.store.put(f"{name}/s.tar", SHARD)
        return Files(self.mount.path / name, BIG[self.store.kind])

    def known(self) -> "Files":
        """Return a directory whose names are known."""
        files = self.fresh()
        files.names()
        return files


@dataclass
class Files:
    """What is read, and what must come out."""

    root: Path
    content: bytes

    def names(self) -> None:
        assert sorted(os.listdir(self.root)) == ["big.bin", "d", "s.tar"]

    def big(self) -> None:
        assert (self.root / "big.bin").read_bytes() == self.content

    def shard(self) -> None:
        assert (self.root / "s.tar").read_bytes() == SHARD

    def scan(self) -> None:
        assert sorted(os.listdir(self.root / "s.tar.d")) == sorted(MEMBERS)

    def members(self) -> None:
        for name, data in MEMBERS.items():
            assert (self.root / "s.tar.d" / name).read_bytes() == data, name

    def listing(self) -> None:
        assert sorted(os.listdir(self.root / "d")) == NAMES

    @property
    def reads(self) -> list[Callable[[], None]]:
        return [self.big, self.shard, self.scan, self.members]

    @property
    def all(self) -> list[Callable[[], None]]:
        return [*self.reads, self.names, self.listing]


def outcomes(calls: list[Callable[[], None]]) -> dict[str, int]:
    """Make calls, all at once; return their errnos, 0 for what came out right."""

    def outcome(call: Callable[[], None]) -> int:
        try:
            call()
        except OSError as error:
            return error.errno or errno.EPERM
        return 0

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = {
            f"{number} {call.__name__}": pool.submit(outcome, call)
            for number, call in enumerate(calls)
        }
        return {name: future.result(HANGS) for name, future in futures.items()}


@contextmanager
def place_of(store: FaultyStore, io_timeout: int, first: int) -> Iterator[Place]:
    with big_directory() as directory:
        (directory / "mnt").mkdir()
        options = ("--io-timeout", str(io_timeout))
        with store.mounted(directory / "mnt", *options, deadline=900) as mount:
            assert len(os.listdir(mount.path)) == DIRECTORIES
            yield Place(store, mount, itertools.count(first))


@pytest.fixture(scope="module")
def patient(store: FaultyStore, fastpath: bool) -> Iterator[Place]:
    with place_of(store, 60, 0) as place:
        yield place


@pytest.fixture(scope="module")
def hasty(store: FaultyStore, fastpath: bool) -> Iterator[Place]:
    with place_of(store, 3, DIRECTORIES // 4) as place:
        yield place


PASSING: dict[str, Rule] = {
    "503 burst": {"action": "status", "status": 503, "times": 4},
    "429 burst": {"action": "status", "status": 429, "times": 4},
    "503 now and then": {"action": "status", "status": 503, "every": 4},
    "empty 500 now and then": {"action": "status", "status": 500, "every": 4},
    "resets now and then": {"action": "reset", "every": 4},
    "cut bodies now and then": {"action": "truncate", "every": 4},
    "silence": {"action": "stall", "seconds": 30, "until_cleared": True, "times": 3},
    "silence amid a body": {"action": "stall", "fraction": 0.3, "seconds": 30, "until_cleared": True, "times": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", PASSING)
def test_passing_failures_are_invisible(name: str, patient: Place):
    files = patient.fresh()
    with patient.store.failing(PASSING[name]):
        assert not any(outcomes(files.all).values())


LASTING: dict[str, Rule] = {
    "503": {"action": "status", "status": 503},
    "429": {"action": "status", "status": 429},
    "reset": {"action": "reset"},
    "cut off": {"action": "truncate"},
    "silence": {"action": "stall", "seconds": 60, "until_cleared": True},
    "silence amid a body": {"action": "stall", "fraction": 0.5, "seconds": 60, "until_cleared": True},
}  # fmt: skip


@pytest.mark.parametrize("name", LASTING)
def test_lasting_failures_end_at_the_deadline(name: str, hasty: Place):
    """Both while names are looked up and when only bytes are missing."""
    fresh, known = hasty.fresh(), hasty.known()
    with hasty.store.failing(LASTING[name]):
        found = outcomes([*fresh.all, *known.reads, known.listing])
    assert set(found.values()) <= IN_TIME, found
    for files in (fresh, known):
        for call in files.all:
            call()


def test_slow_answers_are_right_or_end_at_the_deadline(hasty: Place):
    fresh, known = hasty.fresh(), hasty.known()
    with hasty.store.failing({"action": "drip", "piece": 200, "seconds": 0.5}):
        found = outcomes([*fresh.all, *known.reads, known.listing])
    assert set(found.values()) <= {0, *IN_TIME}, found
    assert found["6 big"] in IN_TIME
    for call in known.all:
        call()


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_permission_denied(status: int, hasty: Place):
    fresh, known = hasty.fresh(), hasty.known()
    with hasty.store.failing({"action": "status", "status": status}):
        found = outcomes([*fresh.all, *known.reads, known.listing])
    # A web server that does not permit the index has none.
    no_index = (
        {errno.EOPNOTSUPP} if hasty.store.kind in ("http", "whole") and status == 403 else set()
    )
    assert set(found.values()) == {errno.EACCES, *no_index}, found
    for call in known.all:
        call()


LIES: dict[str, Rule] = {
    "other bytes": {"action": "shift", "by": 100},
    "other bytes than it says": {"action": "lie", "headers": {"Content-Range": "bytes 5-104/1048576"}},
    "no range": {"action": "strip", "names": ["Content-Range"]},
    "the whole instead of a range": {"action": "ignore", "names": ["Range"]},
    "too short": {"action": "lie", "missing": 100},
    "empty": {"action": "lie", "body": ""},
    "another version": {"action": "lie", "headers": {"ETag": '"other"', "Ais-Version": "99"}},
    "no version": {"action": "strip", "names": ["ETag", "Ais-Version", "Ais-Checksum-Value"]},
    "compressed": {"action": "lie", "headers": {"Content-Encoding": "gzip"}},
    "a page instead of the file": {"action": "lie", "status": 200, "body": "<html>log in</html>", "headers": {"Content-Type": "text/html"}},
    "nothing": {"action": "lie", "status": 204, "body": ""},
    "not modified": {"action": "lie", "status": 304, "body": ""},
    "an error that looks like success": {"action": "lie", "status": 200, "body": "<Error><Code>InternalError</Code></Error>"},
    "no such file": {"action": "status", "status": 404},
}  # fmt: skip


HARMLESS = {
    ("ais", "the whole instead of a range"),
    ("http", "the whole instead of a range"),
    ("http", "compressed"),
    ("s3", "compressed"),
}
"""What holds the right bytes all the same: an object has the encoding that somebody wrote it with, and a server
that says nothing else of a file."""
WRONG = {errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.EOPNOTSUPP, errno.ENOENT}


def test_no_wrong_byte_of_a_server_that_lies(hasty: Place):
    """All lies at once, each about a directory of its own."""
    store, told = hasty.store, {name: hasty.known() for name in LIES}
    matches = {
        name: {"range": True, **store.bytes_of(f"/{files.root.name}/")}
        for name, files in told.items()
    }
    with store.failing(*({**LIES[name], "match": match} for name, match in matches.items())):
        found = outcomes([call for files in told.values() for call in files.reads])
    errors = iter(found.values())
    for name, files in told.items():
        these = {next(errors) for _ in files.reads}
        harmless = {0} if (store.kind, name) in HARMLESS else set()
        if store.kind == "whole":  # what is wrong with ranges is nothing to it
            harmless = {0, *WRONG}
        assert these <= (harmless or WRONG), (name, these)
        for call in files.all:
            call()


LISTING_LIES: dict[str, Rule] = {
    "cut short": {"action": "lie", "missing": 40},
    "empty": {"action": "lie", "body": ""},
    "a page": {"action": "lie", "status": 200, "body": "<html>log in</html>", "headers": {"Content-Type": "text/html"}},
    "nothing": {"action": "lie", "status": 204, "body": ""},
    "an error that looks like success": {"action": "lie", "status": 200, "body": "<Error><Code>InternalError</Code></Error>"},
    "a gateway that finds nothing": {"action": "status", "status": 404},
}  # fmt: skip


@pytest.mark.parametrize("name", LISTING_LIES)
def test_no_short_listing_of_a_server_that_lies(name: str, hasty: Place):
    known = hasty.known()
    match = (
        {"path_contains": "/d/"} if hasty.store.kind in ("http", "whole") else hasty.store.listing
    )
    with hasty.store.failing({**LISTING_LIES[name], "match": match}):
        found = outcomes([known.listing])
    assert set(found.values()) <= WRONG, found
    known.listing()
