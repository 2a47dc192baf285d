"""--write-back: a close returns when the file is safe here, and everything that waits for it reaches the store."""

import json
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from aisfs.engine.writing.unsent import sole_uploader
from aisfs.work.mounts import read_counters, summary
from tests.mount.writable import Writable, writable
from tests.support.mounts import aisfs, environment, eventually, start_aisfs
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

WAITING = ["--write-back", "3600"]
"""Nothing is uploaded unless it is asked for."""
LEFT = ["wait for their upload since their mount was killed"]


@pytest.fixture(params=["directory", "ais"])
def place(request: pytest.FixtureRequest, fastpath: bool, tmp_path: Path) -> Iterator[Writable]:
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "store" / "b" / "old").write_bytes(b"old content")
    with writable(tmp_path, backend=request.param, options=WAITING) as place:
        yield place


def flush(place: Writable) -> tuple[int, str]:
    done = aisfs("flush", place.path)
    return done.returncode, (done.stdout + done.stderr).decode()


def waiting(place: Writable) -> int:
    return int(summary(read_counters(place.path))["writing"].get("waiting_files", 0))


def kill(place: Writable) -> None:
    for pid in place.mount.pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not place.mount.living())
    subprocess.run(["fusermount3", "-uz", place.path], check=True, timeout=30)


def recover(place: Writable, *words: str) -> tuple[int, str, str]:
    done = aisfs("recover", "--staging-dir", place.staging, *words)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def fill(place: Writable) -> None:
    """Leave files waiting after everything that can happen to one."""
    path = place.path
    (path / "new").write_bytes(b"new")
    (path / "old").write_bytes(b"changed")
    (path / "d").mkdir()
    (path / "d" / "below").write_bytes(b"below")
    (path / "empty").touch()
    (path / "gone").write_bytes(b"gone")
    (path / "gone").unlink()
    (path / "twice").write_bytes(b"first")
    (path / "twice").write_bytes(b"second")
    with open(path / "twice", "ab") as file:
        file.write(b" and more")
    (path / "before").write_bytes(b"renamed")
    (path / "before").rename(path / "after")
    (path / "temporary").write_bytes(b"over")
    (path / "victim").write_bytes(b"victim")
    (path / "temporary").rename(path / "victim")
    (path / "cut").write_bytes(b"0123456789")
    os.truncate(path / "cut", 4)
    os.chmod(path / "cut", 0o640)
    os.utime(path / "cut", (1_000_000_000, 1_000_000_000))


FILLED = {
    "after": b"renamed",
    "cut": b"0123",
    "d/below": b"below",
    "empty": b"",
    "new": b"new",
    "old": b"changed",
    "twice": b"second and more",
    "victim": b"over",
}


def shown(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def stored(place: Writable) -> dict[str, bytes | None]:
    return {name: place.stored(name) for name in sorted(place.names())}


def test_what_waits_is_here_and_not_in_the_store(place: Writable):
    fill(place)
    assert shown(place.path) == FILLED
    status = (place.path / "cut").stat()
    assert (status.st_size, status.st_mtime) == (4, 1_000_000_000)
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert sorted(os.listdir(place.path)) == sorted({n.partition("/")[0] for n in FILLED})
    assert stored(place) == {"old": b"old content"}
    assert waiting(place) == len(FILLED)


def test_flush_uploads_it(place: Writable):
    fill(place)
    assert flush(place) == (0, "8 files uploaded\n")
    assert stored(place) == FILLED
    assert shown(place.path) == FILLED
    assert waiting(place) == 0
    assert flush(place) == (0, "0 files uploaded\n")


def test_fsync_of_a_file_uploads_it(place: Writable):
    (place.path / "other").write_bytes(b"waits")
    with open(place.path / "f", "wb") as file:
        file.write(b"synced")
        file.flush()
        os.fsync(file.fileno())
        assert place.stored("f") == b"synced"
    (place.path / "f").write_bytes(b"closed")
    assert place.stored("f") == b"synced"
    with open(place.path / "f", "rb+") as file:
        os.fsync(file.fileno())
    assert place.stored("f") == b"closed"
    assert place.stored("other") is None


def test_fsync_of_a_directory_uploads_all(place: Writable):
    fill(place)
    subprocess.run(["sync", place.path], check=True, timeout=60)
    assert stored(place) == FILLED


@pytest.mark.parametrize("command", ["aisfs", "fusermount3"])
def test_unmounting_uploads_all(command: str, fastpath: bool, tmp_path: Path):
    with writable(tmp_path, backend="directory", options=WAITING) as place:
        fill(place)
        if command == "aisfs":
            assert aisfs("umount", place.path).returncode == 0
            assert stored(place) == FILLED
        else:
            subprocess.run(["fusermount3", "-u", place.path], check=True, timeout=30)
    assert stored(place) == FILLED
    assert recover(place) == (0, "", "")
    assert list(place.staging.iterdir()) == []


def test_it_is_uploaded_when_its_time_has_come(fastpath: bool, tmp_path: Path):
    with writable(tmp_path, options=["--write-back", "0.2"]) as place:
        fill(place)
        assert eventually(lambda: stored(place) == FILLED)
        assert eventually(lambda: waiting(place) == 0)
        assert shown(place.path) == FILLED


def test_a_directory_is_renamed_with_what_waits_in_it(place: Writable):
    fill(place)
    (place.path / "d").rename(place.path / "e")
    assert (place.path / "e" / "below").read_bytes() == b"below"
    assert flush(place)[0] == 0
    assert stored(place) == {n.replace("d/", "e/"): c for n, c in FILLED.items()}


def test_what_is_open_lives_on(place: Writable):
    (place.path / "f").write_bytes(b"content")
    with open(place.path / "f", "rb") as reader:
        (place.path / "f").unlink()
        assert reader.read() == b"content"
    with open(place.path / "g", "w+b", buffering=0) as file:
        file.write(b"one")
        os.close(os.dup(file.fileno()))
        file.write(b"two")
        assert (place.path / "g").read_bytes() == b"onetwo"
    assert (place.path / "g").read_bytes() == b"onetwo"
    assert flush(place)[0] == 0
    assert stored(place) == {"old": b"old content", "g": b"onetwo"}


def test_large_files_and_shards_do_not_wait(place: Writable):
    large = os.urandom(3 << 20)
    (place.path / "large").write_bytes(large)
    assert place.stored("large") == large
    subprocess.run(
        ["tar", "cf", place.path / "x.tar", "-C", place.path, "old"], check=True, timeout=30
    )
    assert place.stored("x.tar") is not None
    assert os.listdir(place.path / "x.tar.d") == ["old"]


@pytest.mark.parametrize("backend", ["directory", "ais"])
@pytest.mark.parametrize("name", ["old", "new", "renamed", "over"])
def test_what_another_client_writes_while_a_file_waits_stays(
    backend: str, name: str, tmp_path: Path
):
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "store" / "b" / "old").write_bytes(b"old content")
    (tmp_path / "store" / "b" / "over").write_bytes(b"old content")
    expected = ["was not uploaded", "flush failed", "another client", "recover"]
    with writable(tmp_path, backend=backend, options=WAITING, expected_log=expected) as place:
        path = place.path / name
        if name in ("renamed", "over"):
            (place.path / "temporary").write_bytes(b"ours")
            (place.path / "temporary").rename(path)
        else:
            path.write_bytes(b"ours")
        place.put(name, b"theirs")
        code, told = flush(place)
        assert code, told
        assert place.stored(name) == b"theirs"
        assert [kept.with_suffix(".data").read_bytes() for kept in place.unsent()] == [b"ours"]
        assert path.read_bytes() == b"theirs"
        assert recover(place, "--drop", "--all")[0] == 0
        assert flush(place)[0] == 0


@pytest.mark.parametrize("backend", ["directory", "ais"])
def test_what_waits_keeps_its_name_though_another_client_removes_what_it_replaces(
    backend: str, fastpath: bool, tmp_path: Path
):
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "store" / "b" / "old").write_bytes(b"old content")
    options = [*WAITING, "--list-ttl", "0", "--attr-ttl", "0", "--negative-ttl", "0"]
    expected = ["was not uploaded", "flush failed", "another client", "recover"]
    with writable(tmp_path, backend=backend, options=options, expected_log=expected) as place:
        (place.path / "old").write_bytes(b"ours")
        place.delete("old")
        assert aisfs("refresh", place.path).returncode == 0
        assert os.listdir(place.path) == ["old"]
        with pytest.raises(FileExistsError):
            (place.path / "old").open("xb")
        assert (place.path / "old").read_bytes() == b"ours"
        assert flush(place)[0]  # it builds on what is gone
        assert [kept.with_suffix(".data").read_bytes() for kept in place.unsent()] == [b"ours"]
        assert os.listdir(place.path) == []


def test_without_room_a_close_waits_for_the_store(tmp_path: Path):
    options = [*WAITING, "--staging-size", "1MiB"]
    expected = ["uploaded at once for a while"]
    with writable(tmp_path, backend="directory", options=options, expected_log=expected) as place:
        for number in range(3):
            (place.path / f"f{number}").write_bytes(b"content")
            assert place.stored(f"f{number}") == b"content"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one journal and a little more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=20m,mode=0700", "none", disk]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    yield disk
    subprocess.run(["umount", disk], check=True, timeout=30)


def test_on_a_full_disk_a_close_waits_for_the_store(small_disk: Path, tmp_path: Path):
    options = [*WAITING, "--staging-dir", str(small_disk / "staging"), "--staging-size", "1GiB"]
    expected = ["uploaded at once for a while", *LEFT]
    contents = {f"f{number:02}": os.urandom(900_000) for number in range(30)}
    with writable(tmp_path, backend="directory", options=options, expected_log=expected) as place:
        for name, content in contents.items():
            (place.path / name).write_bytes(content)
        assert shown(place.path) == contents
        waited = waiting(place)
        assert 10 < waited < 20, "as many as the journal has room for"
        assert stored(place) == dict(list(contents.items())[waited:])
        kill(place)
    with writable(tmp_path, backend="directory", options=options, expected_log=LEFT) as place:
        assert stored(place) == contents


def write_on(folder: Path, closed: list[str]) -> None:
    """Write files until the mount is gone; what was closed is in `closed`."""
    with suppress(OSError):
        for number in range(100_000):
            name = f"{folder.name}-{number}"
            with open(folder / name, "wb") as file:
                file.write(name.encode() * 100)
            closed.append(name)


@pytest.mark.parametrize("writers", [1, 4])
def test_killed_among_many_closes_none_is_lost(fastpath: bool, writers: int, tmp_path: Path):
    """Alone, the dispatcher writes to the journal; together, its thread does. Another mount goes on beside it."""
    (tmp_path / "other" / "store" / "b").mkdir(parents=True)
    beside = [*WAITING, "--staging-dir", str(tmp_path / "staging")]
    with ExitStack() as stack:
        other = stack.enter_context(
            writable(tmp_path / "other", backend="directory", options=beside)
        )
        place = stack.enter_context(writable(tmp_path, backend="directory", options=WAITING))
        closed: dict[Path, list[str]] = {}
        for number in range(writers):
            folder = place.path / f"w{number}"
            folder.mkdir()
            closed[folder] = []
        threads = [threading.Thread(target=write_on, args=one) for one in closed.items()]
        (other.path / "mine").write_bytes(b"mine")
        for thread in threads:
            thread.start()
        assert eventually(lambda: all(len(names) >= 50 for names in closed.values()))
        kill(place)
        for thread in threads:
            thread.join()
        (other.path / "later").write_bytes(b"later")
        with writable(tmp_path, backend="directory", expected_log=[*LEFT, "was not upl"]) as place:
            for folder, names in closed.items():
                for name in names:
                    assert place.stored(f"{folder.name}/{name}") == name.encode() * 100
        assert stored(other) == {}, "its mount lives"
        assert flush(other)[0] == 0
        assert stored(other) == {"mine": b"mine", "later": b"later"}


@pytest.fixture(params=["directory", "ais"])
def killed(request: pytest.FixtureRequest, fastpath: bool, tmp_path: Path) -> Iterator[Writable]:
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "store" / "b" / "old").write_bytes(b"old content")
    with writable(tmp_path, backend=request.param, options=WAITING) as place:
        (place.path / "done").write_bytes(b"uploaded, then removed")
        assert flush(place)[0] == 0
        fill(place)
        (place.path / "done").unlink()
        handle = os.open(place.path / "open", os.O_WRONLY | os.O_CREAT)
        os.write(handle, b"never closed")
        kill(place)
        with suppress(OSError):
            os.close(handle)
        assert stored(place) == {"old": b"old content"}
        yield place


def test_the_next_mount_uploads_what_was_closed(killed: Writable, tmp_path: Path):
    backend = "ais" if killed.server else "directory"
    expected = [*LEFT, "was not uploaded before its mount was killed"]
    with writable(tmp_path, backend=backend, server=killed.server, expected_log=expected) as place:
        assert stored(place) == FILLED
        assert shown(place.path) == FILLED
        status = (place.path / "cut").stat()
        assert status.st_mtime == 1_000_000_000
        assert stat.S_IMODE(status.st_mode) == 0o640
        code, listed, _ = recover(place)
        assert code == 0
        assert "/open\n" in listed, "nobody was told that this one is safe"
        assert listed.count("\n") == 2


def test_recover_uploads_what_was_closed(killed: Writable):
    code, said, _ = recover(killed)
    assert code == 0
    assert said.count(": uploaded\n") == len(FILLED)
    assert stored(killed) == FILLED
    assert recover(killed)[1].count("\n") == 2, "what was not closed is only listed"
    assert [path.suffix for path in killed.staging.glob("*/*.journal")] == []


@pytest.mark.parametrize("words", [["umount"], ["umount", "--lazy"]])
def test_umount_of_a_killed_mount_says_what_waits(words: list[str], tmp_path: Path):
    (tmp_path / "store" / "b").mkdir(parents=True)
    with writable(tmp_path, options=WAITING) as place:
        for name in ("a", "b", "c"):
            (place.path / name).write_bytes(name.encode())
        # A close is acknowledged before the kernel lets go of the file, and that of its copy.
        assert eventually(lambda: waiting(place) == 3)
        assert eventually(lambda: not place.staged())
        for pid in place.mount.pids:
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not place.mount.living())
        done = aisfs(*words, place.path, env={"AISFS_STAGING_DIR": str(place.staging)})
        assert done.returncode == 0
        said = "aisfs: warning: 3 files closed with --write-back and not uploaded yet: the next writable mount"
        assert done.stderr.decode().startswith(said)
        assert done.stderr.count(b"\n") == 1
        assert recover(place)[1].count(": uploaded\n") == 3
        done = aisfs("recover", "--staging-dir", place.staging)
        assert (done.returncode, done.stdout) == (0, b""), "nothing waits any more"


def test_one_process_at_a_time_uploads_it(killed: Writable):
    with sole_uploader(killed.staging):
        code, said, complaint = recover(killed)
        assert code == 1
        assert "another process" in complaint
        assert said.count("closed, and not uploaded yet") == len(FILLED)
        assert stored(killed) == {"old": b"old content"}
    assert recover(killed)[0] == 0
    assert stored(killed) == FILLED


def test_a_mount_waits_for_what_another_process_uploads(killed: Writable, tmp_path: Path):
    backend = "ais" if killed.server else "directory"
    expected = [*LEFT, "was not uploaded before"]
    with ExitStack() as others:  # a mount of another source, for example
        assert others.enter_context(sole_uploader(killed.staging))
        done = threading.Timer(3, others.close)
        done.start()
        with writable(
            tmp_path, backend=backend, server=killed.server, expected_log=expected
        ) as place:
            done.join()
            assert stored(place) == FILLED
            assert shown(place.path) == FILLED


def test_a_mount_of_another_source_leaves_it(killed: Writable, tmp_path: Path):
    (tmp_path / "other" / "store" / "b").mkdir(parents=True)
    options = ["--staging-dir", str(killed.staging)]
    expected = [*LEFT, "was not uploaded before"]
    with writable(
        tmp_path / "other", backend="directory", options=options, expected_log=expected
    ) as place:
        assert os.listdir(place.path) == []
    assert stored(killed) == {"old": b"old content"}
    assert recover(killed)[0] == 0
    assert stored(killed) == FILLED


def test_what_others_have_changed_since_is_not_overwritten(killed: Writable):
    killed.put("old", b"theirs")
    code, said, complaint = recover(killed)
    assert code == 1
    assert "changed by somebody else" in complaint
    assert said.count(": uploaded\n") == len(FILLED) - 1
    assert "closed, and not uploaded yet" in said
    assert stored(killed) == {**FILLED, "old": b"theirs"}
    assert recover(killed, "--upload", "--all", "--force")[0] == 0
    assert killed.stored("old") == b"changed"


def test_the_server_dies_between_close_and_upload(tmp_path: Path):
    base = tmp_path.resolve()
    (base / "store" / "b").mkdir(parents=True)
    (base / "store" / "b" / "old").write_bytes(b"old content")
    options = [*WAITING, "--io-timeout", "2"]
    with running_server(base / "store") as server:
        port = int(server.endpoint.rpartition(":")[2])
        with writable(base, server=server, options=options, expected_log=["."]) as place:
            (place.path / "new").write_bytes(b"new")
            server.kill()
            (place.path / "old").write_bytes(b"changed")
            code, said = flush(place)
            assert code == 1
            assert "2 closed files still wait for their upload" in said
            assert (place.path / "new").read_bytes() == b"new"
            with running_server(base / "store", port=port):
                assert eventually(lambda: flush(place)[0] == 0)
                assert stored(place) == {"new": b"new", "old": b"changed"}


@pytest.mark.parametrize("change", ["remove", "rename", "replace"])
def test_what_was_uploaded_unnoticed_goes_where_the_file_goes(change: str, tmp_path: Path):
    """The reply is lost, and so are those to the questions after it; the program goes on."""
    with writable(
        tmp_path.resolve(),
        faulty=True,
        options=["--write-back", "3600", "--io-timeout", "5"],
        expected_log=["still wait"],
    ) as place:
        (place.path / "f").write_bytes(b"unnoticed")
        of_file = {"path_contains": "/v1/objects/b/f", "marked": True}
        unclear = {"action": "reset", "stage": "done", "match": {**of_file, "method": "PUT"}}
        silent = {"action": "status", "every": 2, "match": {**of_file, "method": "HEAD"}}
        place.server.faults([{**rule, "times": -1} for rule in (unclear, silent)])
        assert aisfs("flush", place.path).returncode != 0
        place.server.faults([])
        assert place.stored("f") == b"unnoticed"
        expected: dict[str, bytes] = {}
        match change:
            case "remove":
                os.unlink(place.path / "f")
            case "rename":
                os.rename(place.path / "f", place.path / "g")
                expected = {"g": b"unnoticed"}
            case "replace":
                (place.path / "g").write_bytes(b"newer")
                os.rename(place.path / "g", place.path / "f")
                expected = {"f": b"newer"}
        assert aisfs("flush", place.path).returncode == 0
        assert {name: place.stored(name) for name in place.names()} == expected
        assert {
            name: (place.path / name).read_bytes() for name in os.listdir(place.path)
        } == expected


def test_unmounting_while_the_server_is_down(tmp_path: Path):
    base = tmp_path.resolve()
    (base / "store" / "b").mkdir(parents=True)
    options = [*WAITING, "--io-timeout", "2"]
    with running_server(base / "store") as server:
        port = int(server.endpoint.rpartition(":")[2])
        with writable(base, server=server, options=options, expected_log=["."]) as place:
            (place.path / "new").write_bytes(b"new")
            server.kill()
            done = aisfs("umount", place.path)
            assert done.returncode == 1
            assert b"1 closed files still wait" in done.stderr
            assert eventually(lambda: not place.mount.living())
            assert "the next mount of this source or `aisfs recover` uploads them" in (
                place.mount.log()
            )
        with (
            running_server(base / "store", port=port) as again,
            writable(base, server=again) as place,
        ):
            assert place.stored("new") == b"new"


REFUSED = {
    "match": {"method": "PUT", "path_contains": "/v1/objects/b/bad"},
    "action": "status",
    "status": 403,
    "times": -1,
}


def test_an_upload_that_fails_for_good_is_told(fastpath: bool, tmp_path: Path):
    expected = ["was not uploaded", "(fsync|flush) failed"]
    with writable(tmp_path, faulty=True, options=WAITING, expected_log=expected) as place:
        assert isinstance(place.server, RunningServer)
        place.server.faults([REFUSED])
        (place.path / "bad").write_bytes(b"kept")
        (place.path / "good").write_bytes(b"good")
        code, said = flush(place)
        assert code == 1
        assert "1 closed files could not be uploaded, such as ais://b/bad" in said
        assert place.stored("good") == b"good"
        found = json.loads(aisfs("status", "--json", place.path).stdout)
        assert found["writing"]["failed_uploads"] == 1
        assert flush(place)[0] == 1, "until something is done about it"
        assert not (place.path / "bad").exists(), "the name shows what the store has"
        code, listed, _ = recover(place)
        assert "ais://b/bad" in listed
        (place.path / "bad2").write_bytes(b"kept")
        with pytest.raises(PermissionError), open(place.path / "bad2", "rb+") as file:
            os.fsync(file.fileno())
        place.server.faults([])
        assert eventually(lambda: len(place.unsent()) == 2)
        assert recover(place, "--upload", "--all")[0] == 0
        assert place.stored("bad") == b"kept"
        assert flush(place)[0] == 0


def test_the_exit_code_of_the_daemon_tells_of_failed_uploads(tmp_path: Path):
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "mnt").mkdir()
    with running_server(tmp_path / "store", faulty=True) as server:
        server.faults([REFUSED])
        words = [
            "mount", "--foreground", "ais://b", tmp_path / "mnt", "--endpoint", server.endpoint,
            "--writable", "--staging-dir", tmp_path / "staging", *WAITING,
            "--log-file", tmp_path / "log",
        ]  # fmt: skip
        with open(tmp_path / "out", "wb") as out:
            process = start_aisfs(
                *map(str, words), output=out, env=environment(home=tmp_path), cwd=tmp_path
            )
            try:
                assert eventually(lambda: os.path.ismount(tmp_path / "mnt"))
                (tmp_path / "mnt" / "bad").write_bytes(b"kept")
                subprocess.run(["fusermount3", "-u", tmp_path / "mnt"], check=True, timeout=30)
                assert process.wait(60) == Exit.DENIED
            finally:
                process.kill()
        assert "could not be uploaded" in (tmp_path / "out").read_text()
        done = aisfs("recover", "--staging-dir", tmp_path / "staging")
        assert b"ais://b/bad" in done.stdout


def test_only_a_writable_mount_can_wait(tmp_path: Path):
    done = aisfs("mount", "--write-back", "5", tmp_path, tmp_path / "mnt")
    assert done.returncode == 2
    assert b"--write-back needs --writable" in done.stderr
