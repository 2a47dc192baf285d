"""A mount while the cluster moves data between its targets: nothing is missing, short or written over."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisfs.stores.ais.absence import READ_AGE, WRITE_AGE
from tests.mount.content import fill
from tests.mount.writable import MOVES_LOGGED, Writable, writable
from tests.support.mounts import mounted
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

NAMES = [f"f{number}" for number in range(60)]
FRESH = ("--attr-ttl", "0", "--list-ttl", "0", "--negative-ttl", "0")
DEFAULT: tuple[str, ...] = ()
MOVES = {"unmapped": 0.5, "joining": 2.0, "moving": 8.0, "incomplete": 1.0}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    fill(tmp_path / "store" / "b", {f"d/{name}": f"{name} old\n".encode() for name in NAMES})
    return tmp_path


@pytest.fixture
def place(files: Path) -> Iterator[Writable]:
    with writable(files, traps=True, expected_log=MOVES_LOGGED) as place:
        yield place


def server_of(place: Writable) -> RunningServer:
    assert isinstance(place.server, RunningServer)
    return place.server


@pytest.mark.parametrize("cause", ["join", "maintenance"])
@pytest.mark.parametrize("options", [FRESH, DEFAULT], ids=["fresh", "default"])
def test_what_is_appended_is_appended(files: Path, cause: str, options: tuple[str, ...]):
    with writable(files, traps=True, options=options, expected_log=MOVES_LOGGED) as place:
        if options == DEFAULT:
            assert len(os.listdir(place.path / "d")) == len(NAMES)
        append_while_data_moves(place, cause)


def append_while_data_moves(place: Writable, cause: str) -> None:
    folder, server = place.path / "d", server_of(place)
    server.move(cause=cause, **MOVES)
    failed = []

    def append(name: str) -> None:
        script = 'echo tail >> "$0"'
        if subprocess.run(["sh", "-c", script, folder / name], check=False).returncode:
            failed.append(name)

    threads = [threading.Thread(target=append, args=(name,)) for name in NAMES[:20]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.moved()
    for name in NAMES[:20]:
        wanted = f"{name} old\n" + "tail\n" * (name not in failed)
        assert place.stored(f"d/{name}") == wanted.encode()
    assert not failed


def test_readers_see_every_name_and_byte(place: Writable):
    folder, server = place.path / "d", server_of(place)
    server.move(cause="join", **MOVES)
    for name in NAMES:
        assert (folder / name).read_bytes() == f"{name} old\n".encode()
    assert sorted(os.listdir(folder)) == sorted(NAMES)
    assert sorted(os.listdir(place.path)) == ["d"]


@pytest.mark.parametrize("prefix", ["", "/d", "/empty"])
def test_a_mount_that_begins_meanwhile_waits_for_nothing(files: Path, prefix: str):
    mountpoint = files / "mnt"
    mountpoint.mkdir()
    with running_server(files / "store", traps=True) as server:
        server.move(cause="maintenance", moving=None)
        with mounted(
            f"ais://b{prefix}", mountpoint, endpoint=server.endpoint, expected_log=MOVES_LOGGED
        ):
            server.moved()
            seen = [file.name for file in mountpoint.rglob("f*")]
            assert sorted(seen) == ([] if prefix == "/empty" else sorted(NAMES))


def test_new_names_are_made_once_it_is_sure_that_they_are_new(place: Writable):
    folder, server = place.path / "d", server_of(place)
    server.move(cause="join", **MOVES)
    for name in NAMES[:10]:
        with pytest.raises(FileExistsError):
            os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    (folder / "overwritten").write_bytes(b"at once")
    with open(folder / "new", "xb") as file:
        file.write(b"new")
    assert place.stored("d/new") == b"new"
    assert place.stored("d/overwritten") == b"at once"
    with pytest.raises(FileExistsError):
        os.mkdir(place.path / "d")


def test_what_is_removed_is_gone(place: Writable):
    folder, server = place.path / "d", server_of(place)
    server.move(cause="maintenance", **MOVES)
    for name in NAMES[:10]:
        os.unlink(folder / name)
    with pytest.raises(OSError, match="not empty"):
        os.rmdir(folder)
    server.moved()
    assert place.names() == {f"d/{name}" for name in NAMES[10:]}


def test_what_cannot_be_told_in_time_is_an_error_and_nothing_is_made(files: Path):
    with writable(
        files,
        traps=True,
        options=["--io-timeout", "2"],
        expected_log=[*MOVES_LOGGED, "given up", "failed"],
    ) as place:
        folder, server = place.path / "d", server_of(place)
        server.move(cause="maintenance", moving=None)
        for flags in (os.O_EXCL, os.O_APPEND):
            with pytest.raises(TimeoutError):
                os.open(folder / "new", os.O_WRONLY | os.O_CREAT | flags)
        with pytest.raises(TimeoutError):
            os.listdir(folder)
        with pytest.raises(TimeoutError):
            os.stat(folder / "new")
        with pytest.raises(TimeoutError):
            os.mkdir(place.path / "new")
        for name in NAMES:
            assert (folder / name).read_bytes() == f"{name} old\n".encode()
        server.moved()
        assert place.names() == {f"d/{name}" for name in NAMES}


def let_return(server: RunningServer) -> None:
    """Let a target return, and wait as long as the map of before is believed."""
    server.move(cause="return", moving=10.0, incomplete=0.5)
    time.sleep(READ_AGE + WRITE_AGE)


@pytest.mark.parametrize("options", [FRESH, DEFAULT], ids=["fresh", "default"])
@pytest.mark.parametrize("act", ["append", "overwrite"])
def test_what_is_written_while_a_target_returns_stays(
    files: Path, options: tuple[str, ...], act: str
):
    """The target has the objects of when it left, at lower versions than what was written since."""
    with writable(files, traps=True, options=options, expected_log=MOVES_LOGGED) as place:
        folder, server = place.path / "d", server_of(place)
        server.take_away()
        for name in NAMES[:10]:
            for line in ("1", "2", "3"):
                (folder / name).write_text(f"{name} since {line}\n")
        let_return(server)
        for name in NAMES[:10]:
            with open(folder / name, "a" if act == "append" else "w") as file:
                file.write("more\n")
        kept = "" if act == "overwrite" else "{} since 3\n"
        for moves in (True, False):
            if not moves:
                server.moved()
            for name in NAMES[:10]:
                wanted = kept.format(name) + "more\n"
                assert (folder / name).read_text() == wanted
                assert moves or place.stored(f"d/{name}") == wanted.encode()


@pytest.mark.parametrize("cause", ["join", "maintenance", "return"])
def test_what_is_being_written_when_targets_come_or_go_stays(files: Path, cause: str):
    """It ends at the target that had the name when it began, and has sent its objects on already."""
    options, logged = ("--upload-limit", "1MiB"), (*MOVES_LOGGED, "slow request")
    with writable(files, traps=True, options=options, expected_log=logged) as place:
        folder, server = place.path / "d", server_of(place)
        if cause == "return":
            server.take_away()
        content = b"new" * (1 << 20)
        writer = threading.Thread(target=(folder / "f1").write_bytes, args=(content,))
        (folder / "f1").write_bytes(b"since")
        writer.start()
        time.sleep(1)
        server.move(cause=cause, share=1.0, moving=4.0, incomplete=0.5)
        writer.join()
        server.moved()
        assert place.stored("d/f1") == content


def test_an_old_object_of_a_target_that_returns_is_never_seen(place: Writable):
    folder, server = place.path / "d", server_of(place)
    server.take_away()
    for name in NAMES[:10]:
        (folder / name).write_text(f"{name} is longer now\n")
    let_return(server)
    with mounted_again(place) as fresh:
        for name in NAMES[:10]:
            wanted = f"{name} is longer now\n"
            assert (fresh / "d" / name).stat().st_size == len(wanted)
            assert (fresh / "d" / name).read_text() == wanted
    server.moved()
    for name in NAMES[:10]:
        assert (folder / name).read_text() == f"{name} is longer now\n"


@contextmanager
def mounted_again(place: Writable) -> Iterator[Path]:
    """A mount that knows nothing yet."""
    mountpoint = place.path.parent / "again"
    mountpoint.mkdir()
    endpoint = server_of(place).endpoint
    with mounted("ais://b", mountpoint, endpoint=endpoint, expected_log=MOVES_LOGGED):
        yield mountpoint
