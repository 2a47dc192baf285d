"""--write-back: what was acknowledged is kept, seen and uploaded, whatever fails around it."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aisfs.work.mounts import read_counters, summary
from tests.mount.test_write_back import WAITING, flush, kill, recover, shown, stored
from tests.mount.writable import writable
from tests.support.failing_disk import failing_disk
from tests.support.servers import RunningServer

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk")


def code_of(call: object, *words: object) -> str:
    try:
        call(*words)  # type: ignore[operator]
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


# fsync --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["fsync", "fdatasync", "sync FILE"])
@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_sync_through_a_reader_waits_for_the_store(
    fastpath: bool, sync: str, opened: str, tmp_path: Path
):
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "store" / "b" / "f").write_bytes(b"old")
    with writable(tmp_path, options=WAITING) as place:
        early = os.open(place.path / "f", os.O_RDONLY)
        (place.path / "f").write_bytes(b"changed")
        assert place.stored("f") == b"old"
        reader = early if opened == "before" else os.open(place.path / "f", os.O_RDONLY)
        if sync == "sync FILE":
            subprocess.run(["sync", f"/proc/self/fd/{reader}"], pass_fds=[reader], check=True)
        else:
            getattr(os, sync)(reader)
        assert place.stored("f") == b"changed"
        with open(place.path / "f", "ab", buffering=0) as writer:
            writer.write(b" again")
            os.fsync(reader)
            assert place.stored("f") == b"changed again", "what nobody has closed yet, too"
        for descriptor in {early, reader}:
            os.close(descriptor)


# a full disk --------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=22m,mode=0700", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True, timeout=30)


@as_root
@pytest.mark.parametrize("reader", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    "flags",
    [
        os.O_WRONLY | os.O_TRUNC,
        os.O_RDWR | os.O_TRUNC,
        os.O_RDWR,
        os.O_WRONLY | os.O_APPEND,
    ],
)
def test_an_overwrite_that_fails_leaves_what_was_acknowledged(
    flags: int, waits: bool, reader: bool, fastpath: bool, small_disk: Path, tmp_path: Path
):
    options = [*WAITING, "--staging-dir", str(small_disk / "staging"), "--staging-size", "300MiB"]
    kept = b"A" * 131_711
    with writable(tmp_path, options=options, expected_log=["(write|flush) failed"]) as place:
        path = place.path / "f"
        path.write_bytes(kept)
        os.utime(path, ns=(-5, -5))
        for _ in range(3):
            assert waits or flush(place)[0] == 0
            hog = os.open(place.path / "hog", os.O_CREAT | os.O_WRONLY)
            filled = 0
            with suppress(OSError):
                while True:
                    filled += os.write(hog, b"h" * 65536)
            os.ftruncate(hog, filled - 300_000)
            writer = os.open(path, flags)
            assert "ENOSPC" in {code_of(os.write, writer, b"B" * 300_000) for _ in range(3)}
            other = open(path, "rb") if reader else None  # noqa: SIM115 - closed below
            with pytest.raises(OSError, match="No space"):
                os.close(writer)
            if other:
                other.read()
            assert path.read_bytes() == kept, "at once, and for whoever opens it"
            if other:
                other.close()
            os.close(hog)
            (place.path / "hog").unlink()
            assert path.stat().st_size == len(kept)
            assert path.stat().st_mtime_ns == -5
            appender = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.write(appender, b"C" * 10)
            os.close(appender)
            kept += b"C" * 10
            assert path.read_bytes() == kept
            os.utime(path, ns=(-5, -5))
        assert flush(place)[0] == 0
        assert place.stored("f") == kept


# a disk that fails --------------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize("what", ["writes", "all"])
def test_a_staging_disk_that_fails_is_an_error_of_who_writes(
    what: str, fastpath: bool, tmp_path: Path
):
    with failing_disk(tmp_path / "disk", 100 << 20) as disk:
        options = [*WAITING, "--staging-dir", str(disk.path / "staging"), "--staging-size", "60MiB"]
        with writable(tmp_path, options=options, expected_log=["."]) as place:
            path = place.path
            for number in range(10):
                (path / f"f{number}").write_bytes(b"x" * 1000)
            flags = os.O_WRONLY | os.O_CREAT
            opened = [os.open(path / f"o{number}", flags) for number in range(10)]
            for writer in opened:
                os.write(writer, b"y")
            disk.fail(what)
            with suppress(OSError):
                descriptor = os.open(disk.path, os.O_RDONLY)
                os.fsync(descriptor)
            codes = {code_of(os.close, writer) for writer in opened}
            for number in range(20):
                codes.add(code_of((path / f"n{number}").write_bytes, b"z" * 100_000))
                codes.add(code_of((path / f"f{number % 10}").write_bytes, b"q"))
                codes.add(code_of(os.truncate, path / f"f{number % 10}", 5))
                codes.add(code_of(os.utime, path / f"f{number % 10}", (1, 1)))
                codes.add(code_of(os.unlink, path / f"f{number % 5}"))
            assert codes <= {"", "EIO", "ENOSPC", "EROFS", "ENOENT"}
            os.close(descriptor)
            log = place.mount.log()
            disk.fail("nothing")
            kill(place)
        assert "bug in aisfs" not in log
        assert "Traceback" not in log


# a gateway in between -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 409])
def test_an_answer_that_is_not_the_stores_takes_no_file_away(
    status: int, fastpath: bool, tmp_path: Path
):
    expected = ["it waits and is tried again", "still wait for their upload", "fsync failed"]
    answer = {
        "match": {"method": "PUT", "path_contains": "/v1/objects/b/bad"},
        "action": "status",
        "status": status,
        "times": -1,
    }
    with writable(tmp_path, faulty=True, options=WAITING, expected_log=expected) as place:
        assert isinstance(place.server, RunningServer)
        place.server.faults([answer])
        files = {f"bad{number}": b"kept" for number in range(3)} | {"good": b"good"}
        for name, content in files.items():
            (place.path / name).write_bytes(content)
        code, said = flush(place)
        assert code == 1
        assert "3 closed files still wait for their upload" in said
        assert place.stored("good") == b"good", "others do not wait for them"
        assert shown(place.path) == files
        with pytest.raises(OSError, match=r"Input/output|No such file"):
            subprocess_sync(place.path / "bad0")
        assert summary(read_counters(place.path))["writing"]["failed_uploads"] == 3
        assert "it waits and is tried again" in place.mount.log()
        assert recover(place)[1] == "", "nothing was given up"
        place.server.faults([])
        assert flush(place)[0] == 0
        assert stored(place) == files
        assert summary(read_counters(place.path))["writing"].get("failed_uploads", 0) == 0


def subprocess_sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# times --------------------------------------------------------------------------------------------

OLD_TIMES = {"a": -1, "b": -86_400_000_000_000, "c": -2_000_000_000_500_000_000}


@pytest.mark.parametrize("backend", ["directory", "ais"])
@pytest.mark.parametrize("killed", [True, False])
def test_times_before_1970_are_kept(backend: str, killed: bool, fastpath: bool, tmp_path: Path):
    with writable(tmp_path, backend=backend, options=WAITING) as place:
        for name, mtime_ns in OLD_TIMES.items():
            (place.path / name).write_bytes(b"content")
            os.utime(place.path / name, ns=(mtime_ns, mtime_ns))
            assert (place.path / name).stat().st_mtime_ns == mtime_ns
        if killed:
            kill(place)
            assert recover(place)[0] == 0
        else:
            assert flush(place)[0] == 0
        server = place.server
        with writable(tmp_path, backend=backend, server=server, name="again") as again:
            for name, mtime_ns in OLD_TIMES.items():
                assert (again.path / name).stat().st_mtime_ns == mtime_ns
