"""A server that fails while a file is uploaded: what was acknowledged is stored, the rest is kept."""

import errno
import io
import itertools
import mmap
import os
import signal
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.cache_tools import big_directory
from tests.mount.content import payload
from tests.mount.faulty_stores import FaultyStore, Rule, faulty_store
from tests.mount.test_writing_shards_faults import padded
from tests.mount.writable import records_of_unsent, writable
from tests.support.for_each import for_each
from tests.support.mounts import Mount, eventually

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

OLD = b"old content"
NEW = payload(700_000)
LARGE = payload(12 << 20)
"""Three parts."""
IN_TIME = {errno.EIO, errno.ETIMEDOUT}
QUICK = ("--io-timeout", "3", "--part-size", "5MiB")

FAULTS: dict[str, Rule] = {
    "500": {"action": "status", "status": 500},
    "429": {"action": "status", "status": 429},
    "503 before the body": {"action": "status", "status": 503, "stage": "headers"},
    "503 from a target": {"action": "status", "status": 503, "match": {"marked": True}},
    "507": {"action": "status", "status": 507},
    "507 from a target": {"action": "status", "status": 507, "match": {"marked": True}},
    "a reset": {"action": "reset"},
    "a reset amid the body": {"action": "reset", "stage": "mid"},
    "a reset by a target": {"action": "reset", "match": {"marked": True}},
    "silence": {"action": "stall", "seconds": 60, "until_cleared": True},
    "a reply cut off": {"action": "truncate", "fraction": 0.0, "match": {"marked": True}},
    "the reply lost": {"action": "reset", "stage": "done"},
    "an answer of somebody else": {"action": "status", "status": 200},
}
LOST = {"a reply cut off", "the reply lost", "silence"}
"""The store has the object then, and the client may find that out."""

OF_SHARDS = ("503 before the body", "a reset amid the body", "the reply lost")


def faults(*left_out: str) -> list[object]:
    """Return each fault with each store; targets are AIStore's."""
    return [
        pytest.param(kind, name, id=f"{kind}-{name}")
        for kind, name in itertools.product(("ais", "s3"), FAULTS)
        if name not in left_out and (kind == "ais" or "marked" not in FAULTS[name].get("match", {}))
    ]


def errno_of(call: Callable[[], object]) -> int:
    """Return with which errno a call fails, 0 for none."""
    try:
        call()
    except OSError as error:
        return error.errno or errno.EPERM
    return 0


@dataclass
class Place:
    """A mount to be written to."""

    store: FaultyStore
    mount: Mount
    staging: Path

    @property
    def path(self) -> Path:
        return self.mount.path

    def unsent(self) -> list[Path]:
        return records_of_unsent(self.staging)

    def recover(self, *words: str) -> str:
        """Run `aisfs recover`, which succeeds."""
        done = self.store.command("recover", "--staging-dir", self.staging, *words)
        assert done.returncode == 0, done.stderr
        return str(done.stdout.decode())

    def forget(self) -> None:
        """Have nothing be left of a test."""
        for record in self.unsent():
            record.with_suffix(".data").unlink()
            record.unlink()


@contextmanager
def place_of(kind: str, *options: str) -> Iterator[Place]:
    objects = {"f": OLD, **{f"{fault}.tar": padded({"x": b"x"}) for fault in OF_SHARDS}}
    with big_directory() as base, faulty_store(kind, base / "store", objects) as store:
        (base / "mnt").mkdir()
        words = ["--writable", "--staging-dir", str(base / "staging"), *(options or QUICK)]
        with store.mounted(base / "mnt", *words, deadline=900) as mount:
            yield Place(store, mount, base / "staging")


@pytest.fixture(scope="module")
def places(fastpath: bool) -> Iterator[dict[str, Place]]:
    with place_of("ais") as ais, place_of("s3") as s3:
        yield {"ais": ais, "s3": s3}


@pytest.fixture
def place(request: pytest.FixtureRequest, places: dict[str, Place]) -> Iterator[Place]:
    """A mount of one kind of store, which many tests share."""
    place = places[request.param]
    yield place
    place.forget()


both = pytest.mark.parametrize("place", ["ais", "s3"], indirect=True)
s3 = pytest.mark.parametrize("place", ["s3"], indirect=True)


def rule_of(name: str, times: int = -1) -> Rule:
    match = {"method": "PUT", **FAULTS[name].get("match", {})}
    return {**FAULTS[name], "match": match, "times": times}


@pytest.mark.parametrize(
    ("place", "fault"),
    faults("507", "507 from a target", "an answer of somebody else"),
    indirect=["place"],
)
def test_what_passes_is_retried(fault: str, place: Place):
    path = place.path / f"passing {fault}"
    path.write_bytes(OLD)
    with place.store.failing(rule_of(fault, 1 if fault == "silence" else 2)):
        path.write_bytes(NEW)
    assert place.store.stored(path.name) == path.read_bytes() == NEW
    assert place.unsent() == []


@pytest.mark.parametrize("old", [OLD, None], ids=["overwritten", "new"])
@pytest.mark.parametrize(("place", "fault"), faults("a reply cut off"), indirect=["place"])
def test_what_stays_is_the_error_of_close(fault: str, old: bytes | None, place: Place):
    path = place.path / f"staying {fault} {old is None}"
    if old is not None:
        path.write_bytes(old)
    with place.store.failing(rule_of(fault)):
        code = errno_of(lambda: path.write_bytes(NEW))
    if not code:
        assert fault in LOST, "nothing was stored"
        assert place.store.stored(path.name) == NEW
        return
    assert code in ({errno.ENOSPC} if "507" in fault else IN_TIME)
    assert place.store.stored(path.name) in ((old, NEW) if fault in LOST else (old,))
    assert eventually(lambda: len(place.unsent()) == 1)
    assert path.name in place.recover()
    if fault not in LOST:
        assert path.exists() == (old is not None)
        assert old is None or path.read_bytes() == old
    place.recover("--upload", "--all", *(["--force"] if fault in LOST else []))
    assert place.store.stored(path.name) == NEW
    assert place.unsent() == []


@both
def test_a_failed_fsync_can_be_repeated(place: Place):
    path = place.path / "repeated"
    with open(path, "wb", buffering=0) as file:
        file.write(NEW)
        with place.store.failing(rule_of("500")), pytest.raises(OSError, match=r"."):
            os.fsync(file.fileno())
        assert place.store.stored("repeated") is None
        os.fsync(file.fileno())
        assert place.store.stored("repeated") == NEW
    assert place.unsent() == []


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that has room for the names of files, and for nothing in them."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", disk]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    yield disk
    subprocess.run(["umount", disk], check=True, timeout=30)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Leave no room on a disk."""
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(bytes(4096)):
            pass
    yield
    (disk / "filler").unlink()


@pytest.mark.parametrize("old", [OLD, None], ids=["overwritten", "new"])
def test_what_a_full_disk_has_refused_is_not_uploaded(
    old: bytes | None, full_disk: Path, tmp_path: Path
):
    options = ["--staging-dir", str(full_disk / "staging")]
    with writable(tmp_path, options=options, expected_log=["No space left"]) as place:
        if old is not None:
            place.put("f", old)
        with filled(full_disk), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (place.path / "f").write_bytes(NEW)
        (place.path / "other").write_bytes(NEW)
        assert place.stored("f") == old


def test_who_has_a_file_open_sees_it_as_before_what_a_full_disk_has_refused(
    full_disk: Path, tmp_path: Path
):
    options = ["--staging-dir", str(full_disk / "staging")]
    with writable(tmp_path, options=options, expected_log=["No space left"]) as place:
        place.put("f", OLD)
        with open(place.path / "f", "rb", buffering=0) as reader:
            before = os.fstat(reader.fileno())
            writer = os.open(place.path / "f", os.O_WRONLY | os.O_TRUNC)
            with filled(full_disk), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                os.write(writer, NEW)
            with suppress(OSError):
                os.close(writer)
            assert eventually(lambda: os.fstat(reader.fileno()).st_size == len(OLD))
            assert os.fstat(reader.fileno()).st_mtime_ns == before.st_mtime_ns
            assert reader.read() == OLD


def map_into(path: Path, offset: int, piece: bytes) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[offset : offset + len(piece)] = piece
        mapped.flush()


def test_what_a_full_disk_has_refused_of_a_mapping_is_gone(full_disk: Path, tmp_path: Path):
    options = ["--staging-dir", str(full_disk / "staging")]
    with writable(tmp_path, options=options, expected_log=["No space left"]) as place:
        place.put("f", OLD)
        with filled(full_disk), pytest.raises(OSError, match=r"."):
            map_into(place.path / "f", 0, b"failed")
        assert eventually(lambda: (place.path / "f").read_bytes() == OLD)
        map_into(place.path / "f", len(OLD) - 3, b"new")
        assert place.stored("f") == OLD[:-3] + b"new"


CHANGES: dict[str, Rule] = {
    "500": {"action": "status", "status": 500},
    "the reply lost": {"action": "reset", "stage": "done"},
    "silence": {"action": "stall", "seconds": 60, "until_cleared": True},
    "an answer of somebody else": {"action": "status", "status": 200},
}
METHODS = {"ais": ("POST", "PUT", "HEAD"), "s3": ("PUT", "HEAD", "DELETE")}
"""Of what a rename sends, one after the other."""


@pytest.mark.parametrize("fault", CHANGES)
@both
def test_a_failed_rename_leaves_the_source(fault: str, place: Place):
    """Or all of it was done, whatever was answered."""
    store = place.store
    for method in METHODS[store.kind]:
        (place.path / "source").write_bytes(NEW)
        (place.path / "victim").write_bytes(OLD)
        store.server.faults([{**CHANGES[fault], "match": {"method": method}, "times": -1}])
        try:
            os.rename(place.path / "source", place.path / "victim")
        except OSError:
            store.server.faults([])
            found = {store.stored("source"), store.stored("victim")}
            assert NEW in found, (method, found)
            assert store.stored("victim") in (OLD, NEW), method
        else:
            store.server.faults([])
            assert store.stored("victim") == NEW, method
            assert (place.path / "victim").read_bytes() == NEW, method
            assert store.stored("source") in (None, NEW), method


@both
def test_a_failed_removal_leaves_the_file_or_removes_it(place: Place):
    store, path = place.store, place.path / "removed"
    for fault, rule in CHANGES.items():
        path.write_bytes(NEW)
        with store.failing({**rule, "match": {"method": "DELETE"}}):
            assert errno_of(path.unlink) in {0, *IN_TIME}, fault
        assert store.stored("removed") in (None, NEW)


@both
def test_a_directory_rename_that_fails_half_way(place: Place):
    (place.path / "dir").mkdir()
    names = [f"f{n}" for n in range(5)]
    for name in names:
        (place.path / "dir" / name).write_bytes(name.encode())
    refused = {"action": "status", "status": 403, "match": {"path_contains": "/dir/f3"}}
    with place.store.failing(refused), pytest.raises(OSError, match=r"."):
        os.rename(place.path / "dir", place.path / "moved")
    for name in names:
        assert place.store.stored(f"dir/{name}") == name.encode()
    assert sorted(os.listdir(place.path / "dir")) == names
    assert not (place.path / "moved").exists()
    assert "of 5 objects" in place.mount.log()
    os.rename(place.path / "dir", place.path / "moved")
    assert sorted(os.listdir(place.path / "moved")) == names


@both
def test_the_server_dies_and_comes_back(place: Place):
    file = open(place.path / "f", "wb", buffering=0)  # noqa: SIM115
    file.write(NEW)
    with place.store.gone(), pytest.raises(OSError, match=r"."):
        file.close()
    assert place.store.stored("f") == OLD
    assert eventually(lambda: len(place.unsent()) == 1)
    assert (place.path / "f").read_bytes() == OLD
    place.recover("--upload", "--all")
    assert place.store.stored("f") == NEW


@for_each("kind", ["ais", "s3"])
def test_the_daemon_dies_while_it_uploads(kind: str):
    """The server has all of it, and nobody was told."""
    with place_of(kind, "--io-timeout", "60") as place:
        slow = {"action": "stall", "seconds": 20, "fraction": 0.0, "match": {"method": "PUT"}}
        if kind == "ais":
            slow["match"]["marked"] = True
        with place.store.failing(slow):
            file = open(place.path / "f", "wb", buffering=0)  # noqa: SIM115
            file.write(NEW)
            threading.Timer(1.5, os.kill, (place.mount.pid, signal.SIGKILL)).start()
            with pytest.raises(OSError, match=r"."):
                file.close()
        subprocess.run(["fusermount3", "-uz", place.path], check=True, timeout=30)
        assert place.store.stored("f") in (OLD, NEW), "whole, whichever it is"
        assert "/f\n" in place.recover()
        # A cloud does not tell whether the object is our own.
        place.recover("--upload", "--all", *(["--force"] if kind == "s3" else []))
        assert place.store.stored("f") == NEW
        assert place.unsent() == []


def members(shard: bytes | None) -> dict[str, bytes]:
    assert shard is not None
    with tarfile.open(fileobj=io.BytesIO(shard)) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}


@pytest.mark.parametrize("fault", OF_SHARDS)
@s3
def test_new_members_of_a_shard(fault: str, place: Place):
    """They are there once, or the shard is as it was; those of AIStore have a module of their own."""
    store, key = place.store, f"{fault}.tar"
    folder, expected = place.path / f"{key}.d", {"x": b"x", "y": b"y" * 50_000}
    with store.failing(rule_of(fault, 1)):
        (folder / "y").write_bytes(expected["y"])
    assert members(store.stored(key)) == expected
    with store.failing(rule_of(fault)):
        assert errno_of(lambda: (folder / "z").write_bytes(b"z")) in IN_TIME
    if fault not in LOST:
        assert members(store.stored(key)) == expected
    assert eventually(lambda: len(place.unsent()) == 1)
    place.recover("--upload", "--all")
    assert members(store.stored(key)) == {**expected, "z": b"z"}
    assert store.stored(key).count(b"ustar") == 3


PARTS: dict[str, Rule] = {
    "begun": {"match": {"method": "POST", "query_contains": "uploads"}},
    "a part": {"match": {"method": "PUT", "query_contains": "partNumber=2"}},
    "the end": {"match": {"method": "POST", "query_contains": "uploadId"}},
}
ERROR = "<Error><Code>InternalError</Code><Message>try again</Message></Error>"
OF_PARTS: dict[str, Rule] = {
    "a reset": {"action": "reset"},
    "the reply lost": {"action": "reset", "stage": "done"},
    "an error that looks like success": {"action": "lie", "status": 200, "body": ERROR},
    "an answer that is none": {"action": "lie", "status": 200, "body": "", "headers": {"ETag": ""}},
}


@pytest.mark.parametrize("fault", OF_PARTS)
@pytest.mark.parametrize("step", PARTS)
@s3
def test_each_step_of_an_upload_in_parts(step: str, fault: str, place: Place):
    """What passes is repeated, what stays is an error of close, and none leaves half a file."""
    store, path = place.store, place.path / f"parts {step} {fault}"
    with store.failing({**OF_PARTS[fault], **PARTS[step], "times": 1}):
        path.write_bytes(LARGE)
    assert store.stored(path.name) == LARGE
    with store.failing({**OF_PARTS[fault], **PARTS[step]}):
        code = errno_of(lambda: path.write_bytes(LARGE[::-1]))
    assert code in {0, *IN_TIME}
    allowed = [LARGE[::-1]] if not code else [LARGE, LARGE[::-1]] if step == "the end" else [LARGE]
    stored = store.stored(path.name)
    assert stored in allowed
    with suppress(OSError):  # what was believed until now is stale
        path.read_bytes()
    assert path.read_bytes() == stored
