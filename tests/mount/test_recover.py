"""What was not acknowledged is kept, listed and uploaded only on request; the disk may fill up."""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.mount.writable import Writable, writable
from tests.support.mounts import aisfs, eventually

pytestmark = pytest.mark.mount

KILLED = ["was not uploaded before its mount was killed"]


def kill(place: Writable) -> None:
    """End the daemon as a power cut would, and clear its mount away."""
    for pid in place.mount.pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not place.mount.living())
    subprocess.run(["fusermount3", "-uz", place.path], check=True, timeout=30)


def recover(place: Writable, *words: str) -> tuple[int, str, str]:
    done = aisfs("recover", "--staging-dir", place.staging, *words)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture(params=["directory", "ais"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Writable]:
    """A mount that was killed with three files dirty and one committed."""
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "store" / "b" / "old").write_bytes(b"old content")
    with writable(tmp_path, backend=request.param) as place:
        (place.path / "done").write_bytes(b"acknowledged")
        handles = [open(place.path / name, "wb") for name in ("new", "synced")]  # noqa: SIM115
        handles.append(open(place.path / "old", "r+b"))  # noqa: SIM115
        for handle in handles:
            handle.write(b"unsaved")
            handle.flush()
        os.fsync(handles[1].fileno())
        handles[1].write(b" and more")
        handles[1].flush()
        kill(place)
        for handle in handles:
            with pytest.raises(OSError, match="not connected"):
                handle.close()
        yield place


def uri(place: Writable, key: str) -> str:
    """How the list calls an object; a file of a directory by its path."""
    return str(place.files / key) if place.server is None else f"ais://{place.bucket}/{key}"


def test_nothing_is_lost_and_nothing_is_uploaded_by_surprise(killed: Writable):
    assert killed.stored("done") == b"acknowledged"
    assert killed.stored("synced") == b"unsaved", "what fsync acknowledged"
    assert killed.stored("new") is None
    assert killed.stored("old") == b"old content"
    code, listed, _ = recover(killed)
    assert code == 0
    for name in ("new", "old", "synced"):
        assert uri(killed, name) in listed
    assert "done" not in listed
    assert killed.stored("new") is None


def test_upload_by_name(killed: Writable):
    new = uri(killed, "new")
    code, said, _ = recover(killed, "--upload", new)
    assert (code, said) == (0, f"{new}: uploaded\n")
    assert killed.stored("new") == b"unsaved"
    assert killed.stored("old") == b"old content"
    assert new not in recover(killed)[1]
    code, _, complaint = recover(killed, "--upload", new)
    assert code == 2
    assert "nothing of this name" in complaint


def test_upload_all(killed: Writable):
    code, said, _ = recover(killed, "--upload", "--all")
    assert code == 0
    assert said.count("uploaded") == 3
    assert killed.stored("old") == b"unsavedtent"
    assert killed.stored("synced") == b"unsaved and more"
    assert recover(killed) == (0, "", "")


def test_upload_does_not_overwrite_what_somebody_else_changed(killed: Writable):
    killed.put("old", b"theirs")
    code, _, complaint = recover(killed, "--upload", uri(killed, "old"))
    assert code == 1
    assert "changed by somebody else" in complaint
    assert killed.stored("old") == b"theirs"
    assert recover(killed, "--upload", uri(killed, "old"), "--force")[0] == 0
    assert killed.stored("old") == b"unsavedtent"


@pytest.mark.parametrize("key", ["old", "new"])
def test_what_somebody_else_writes_while_it_is_uploaded_stays(key: str, tmp_path: Path):
    fill(tmp_path / "store" / "b", {"old": b"old content"})
    with writable(tmp_path, faulty=True) as place:
        with (place.path / key).open("r+b" if key == "old" else "wb") as file:
            file.write(b"unsaved")
            file.flush()
            kill(place)
            with pytest.raises(OSError, match="not connected"):
                file.close()
        match = {"method": "HEAD", "path_contains": f"/v1/objects/b/{key}", "marked": True}
        place.server.faults([{"match": match, "action": "stall", "seconds": 2}])
        with ThreadPoolExecutor() as pool:
            uploading = pool.submit(recover, place, "--upload", "--all")
            assert eventually(lambda: place.server.held() or uploading.done())
            place.put(key, b"theirs")
        code, _, complaint = uploading.result()
        assert code == 1
        assert "another client has" in complaint
        assert place.stored(key) == b"theirs"
        assert len(place.unsent()) == 1


def test_upload_or_drop(killed: Writable):
    for words in (("--upload", "--drop"), ("--drop", "--upload")):
        assert recover(killed, *words, "--all")[0] == 2
    assert recover(killed)[0] == 0
    assert len(killed.unsent()) == 3


def test_drop(killed: Writable):
    assert recover(killed, "--drop")[0] == 2, "it wants to know which"
    assert recover(killed, "--drop", "--all")[0] == 0
    assert recover(killed) == (0, "", "")
    assert killed.stored("new") is None


def test_the_next_mount_says_that_there_is_something(killed: Writable, tmp_path: Path):
    backend = "ais" if killed.server else "directory"
    with writable(tmp_path, backend=backend, server=killed.server, expected_log=KILLED) as place:
        said = [line for line in place.mount.log().splitlines() if KILLED[0] in line]
        assert sum(line.startswith("aisfs: warning: ") for line in said) == 3, "on the terminal"
        assert len(said) == 6, "and in the log"
        assert sorted(os.listdir(place.path)) == ["done", "old", "synced"]
        assert (place.path / "old").read_bytes() == b"old content"
        (place.path / "new").write_bytes(b"another")
    assert len(place.unsent()) == 3
    assert place.stored("new") == b"another"


def test_what_a_running_mount_writes_is_not_listed(tmp_path: Path):
    with writable(tmp_path, backend="directory") as place:
        with open(place.path / "f", "wb") as file:
            file.write(b"x")
            file.flush()
            assert recover(place) == (0, "", "")
        assert eventually(lambda: not place.staged()), "nothing is left behind"
    assert list(place.staging.iterdir()) == []


def test_a_full_disk_does_not_bring_back_what_was_removed(tmp_path: Path):
    options = ["--staging-size", "1MiB"]
    failed = ["staging directory"]
    with writable(tmp_path, backend="directory", options=options, expected_log=failed) as place:
        place.put("listed", b"listed")
        assert os.listdir(place.path) == ["listed"]
        os.unlink(place.path / "listed")
        with pytest.raises(OSError, match="No space left"):
            (place.path / "listed").write_bytes(bytes(3_000_000))
        assert eventually(lambda: os.listdir(place.path) == [], 5)
        assert not (place.path / "listed").exists()


def test_a_full_staging_directory(tmp_path: Path):
    failed = ["staging directory"]
    options = ["--staging-size", "1MiB"]
    with writable(tmp_path, backend="directory", options=options, expected_log=failed) as place:
        (place.path / "fits").write_bytes(bytes(1_000_000))
        (place.path / "old").write_bytes(b"old")
        with pytest.raises(OSError, match="No space left") as caught:
            (place.path / "large").write_bytes(bytes(3_000_000))
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="No space left"):
            (place.path / "old").write_bytes(bytes(3_000_000))
        with pytest.raises(OSError, match="No space left"):
            os.truncate(place.path / "fits", 1 << 40)
        assert eventually(lambda: sorted(os.listdir(place.path)) == ["fits", "old"])
        assert place.stored("large") is None, "half a file is no file"
        assert place.stored("old") == (place.path / "old").read_bytes() == b"old"
        assert place.stored("fits") == (place.path / "fits").read_bytes() == bytes(1_000_000)
        (place.path / "again").write_bytes(bytes(1_000_000))
        assert place.stored("again") == bytes(1_000_000)
    assert place.unsent() == []


def test_a_write_that_failed_is_not_the_end(tmp_path: Path):
    options = ["--staging-size", "1MiB"]
    with (
        writable(
            tmp_path, backend="directory", options=options, expected_log=["staging dir"]
        ) as at,
        open(at.path / "f", "wb", buffering=0) as file,
    ):
        file.write(b"good")
        file.seek(2 << 20)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"far away")
        with pytest.raises(OSError, match="No space left"):
            os.fsync(file.fileno())
        file.truncate(4)
        os.fsync(file.fileno())
        assert at.stored("f") == b"good"
