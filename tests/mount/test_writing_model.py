"""Random changes by the mount and by another client, compared with a dictionary after each step."""

import os
import posixpath
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.mount.writable import Writable, writable
from tests.support.mounts import aisfs
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(1200)]
BOTH_WAYS = True

EXAMPLES = int(os.environ.get("AISFS_MODEL_EXAMPLES", "5"))
FILES = ["f0", "f1", "f2"]
DIRECTORIES = ["", "d0", "d1", "d0/d2"]

contents = st.binary(max_size=20) | st.builds(lambda b: b * 5000, st.binary(min_size=1, max_size=3))
paths = st.builds(posixpath.join, st.sampled_from(DIRECTORIES), st.sampled_from(FILES))
directories = st.sampled_from(DIRECTORIES[1:])


class Machine(RuleBasedStateMachine):
    """The model: files with their content, and directories this mount holds though empty."""

    place: Writable
    number = 0

    def __init__(self) -> None:
        super().__init__()
        Machine.number += 1
        self.name = f"example{Machine.number}"
        self.root = self.place.path / self.name
        self.files: dict[str, bytes] = {"keep": b""}
        self.held: set[str] = set()
        self.root.mkdir()
        (self.root / "keep").touch()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    # what the model knows --------------------------------------------------------------------

    def shown(self) -> set[str]:
        found = {""}
        for path in [*self.files, *(f"{held}/" for held in self.held)]:
            while path := posixpath.dirname(path):
                found.add(path)
        return found

    def hold(self, path: str) -> None:
        while path := posixpath.dirname(path):
            self.held.add(path)

    def store(self, path: str, content: bytes) -> None:
        self.files[path] = content
        while path := posixpath.dirname(path):
            self.held.discard(path)

    def has(self, path: str) -> bool:
        return path in self.files

    def can_hold(self, path: str) -> bool:
        return posixpath.dirname(path) in self.shown()

    # what the mount does ---------------------------------------------------------------------

    @rule(path=paths, content=contents)
    def write(self, path: str, content: bytes) -> None:
        if not self.can_hold(path):
            with pytest.raises(FileNotFoundError):
                (self.root / path).write_bytes(content)
            return
        (self.root / path).write_bytes(content)
        self.store(path, content)

    @rule(path=paths, content=contents)
    def append(self, path: str, content: bytes) -> None:
        if self.can_hold(path):
            with open(self.root / path, "ab") as file:
                file.write(content)
            self.store(path, self.files.get(path, b"") + content)

    @rule(path=paths, size=st.integers(0, 6000))
    def truncate(self, path: str, size: int) -> None:
        if self.has(path):
            os.truncate(self.root / path, size)
            content = self.files[path][:size]
            self.store(path, content + bytes(size - len(content)))

    @rule(path=paths, offset=st.integers(0, 6000), content=contents)
    def patch(self, path: str, offset: int, content: bytes) -> None:
        if not self.has(path):
            return
        with open(self.root / path, "r+b") as file:
            file.seek(offset)
            file.write(content)
        if content:
            old = self.files[path]
            old += bytes(max(offset - len(old), 0))
            self.store(path, old[:offset] + content + old[offset + len(content) :])

    @rule(path=paths)
    def unlink(self, path: str) -> None:
        if not self.has(path):
            with pytest.raises(FileNotFoundError):
                os.unlink(self.root / path)
            return
        os.unlink(self.root / path)
        del self.files[path]
        self.hold(path)

    @rule(old=paths, new=paths)
    def rename(self, old: str, new: str) -> None:
        if not self.has(old) or not self.can_hold(new):
            with pytest.raises(FileNotFoundError):
                os.rename(self.root / old, self.root / new)
            return
        os.rename(self.root / old, self.root / new)
        if old != new:
            content = self.files.pop(old)
            self.hold(old)
            self.store(new, content)

    @rule(path=directories)
    def mkdir(self, path: str) -> None:
        if path in self.shown():
            with pytest.raises(FileExistsError):
                os.mkdir(self.root / path)
        elif self.can_hold(path):
            os.mkdir(self.root / path)
            self.held.add(path)

    @rule(path=directories)
    def rmdir(self, path: str) -> None:
        if path not in self.shown():
            return
        below = [*self.files, *self.shown()]
        if any(name.startswith(f"{path}/") for name in below):
            with pytest.raises(OSError, match="not empty"):
                os.rmdir(self.root / path)
            return
        os.rmdir(self.root / path)
        self.held.discard(path)
        self.hold(path)

    @rule(old=st.just("d0"), new=st.just("d1"))
    def rename_directory(self, old: str, new: str) -> None:
        known = self.shown()
        if old not in known or any(n.startswith(f"{new}/") for n in [*self.files, *known]):
            return
        os.rename(self.root / old, self.root / new)
        held = {path for path in self.held if path == old or path.startswith(f"{old}/")}
        moved = {path: c for path, c in self.files.items() if path.startswith(f"{old}/")}
        self.held -= held
        self.held |= {new + path[len(old) :] for path in held}
        if not moved:
            self.held.add(new)
        for path, content in moved.items():
            del self.files[path]
            self.store(new + path[len(old) :], content)

    # what holds after each step --------------------------------------------------------------

    @invariant()
    def the_mount_shows_it(self) -> None:
        files, found = {}, set()
        for folder, _, names in os.walk(self.root):
            where = os.path.relpath(folder, self.root)
            where = "" if where == "." else where
            found.add(where)
            for name in names:
                path = posixpath.join(where, name)
                files[path] = (self.root / path).read_bytes()
                assert (self.root / path).stat().st_size == len(files[path])
        assert files == self.files
        assert found == self.shown()

    @invariant()
    def the_store_has_it(self) -> None:
        objects = self.place.objects(f"{self.name}/")
        stored = {
            str(file.relative_to(objects)): file.read_bytes()
            for file in objects.rglob("*")
            if file.is_file()
        }
        assert stored == self.files


class SharedMachine(Machine):
    """The same with another client, which writes to the bucket itself."""

    @rule(path=paths, content=contents)
    def put_by_another(self, path: str, content: bytes) -> None:
        self.place.put(f"{self.name}/{path}", content)
        self.files[path] = content

    @rule(path=paths)
    def delete_by_another(self, path: str) -> None:
        if self.has(path):
            self.place.delete(f"{self.name}/{path}")
            del self.files[path]


class WaitingMachine(Machine):
    """The same while closed files wait: the store has them after a flush."""

    flushed = False

    @rule()
    def flush(self) -> None:
        assert aisfs("flush", self.place.path).returncode == 0
        self.flushed = True

    @rule(path=paths, mode=st.sampled_from([0o600, 0o644]), seconds=st.integers(1, 10**9))
    def set_attributes(self, path: str, mode: int, seconds: int) -> None:
        if self.has(path):
            os.chmod(self.root / path, mode)
            os.utime(self.root / path, (seconds, seconds))
            status = (self.root / path).stat()
            assert (status.st_mode & 0o777, status.st_mtime) == (mode, seconds)

    @rule(path=paths)
    def sync(self, path: str) -> None:
        if self.has(path):
            with open(self.root / path, "rb+") as file:
                os.fsync(file.fileno())
            assert self.place.stored(f"{self.name}/{path}") == self.files[path]

    @invariant()
    def the_store_has_it(self) -> None:
        if self.flushed:
            super().the_store_has_it()
        self.flushed = False


ALONE = ["--attr-ttl", "600", "--list-ttl", "600", "--negative-ttl", "600"]
"""Then whatever was asked once is believed, but for what the mount changes itself."""
SHARED = ["--attr-ttl", "0", "--list-ttl", "0", "--negative-ttl", "0"]


class MovingMachine(Machine):
    """The cluster moves data while an example begins."""

    def __init__(self) -> None:
        assert isinstance(self.place.server, RunningServer)
        self.place.server.move(unmapped=0.3, joining=1.0, moving=5.0, incomplete=0.5)
        super().__init__()


@pytest.mark.parametrize("machine", [Machine, SharedMachine, WaitingMachine])
@pytest.mark.parametrize("backend", ["ais", "directory"])
def test_like_a_dictionary(backend: str, machine: type[Machine], tmp_path: Path):
    options = SHARED if machine is SharedMachine else ALONE
    options = [*options, *(["--write-back", "3600"] if machine is WaitingMachine else [])]
    with writable(tmp_path, backend=backend, options=options, deadline=1200) as machine.place:
        run(machine, EXAMPLES)


def test_like_a_dictionary_while_data_moves(tmp_path: Path):
    logged = ["moving objects between", "complete again"]
    (tmp_path / "store").mkdir()
    with (
        running_server(tmp_path / "store", traps=True, targets=3) as server,
        writable(tmp_path, server=server, options=ALONE, expected_log=logged) as place,
    ):
        MovingMachine.place = place
        run(MovingMachine, 1)


def run(machine: type[Machine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
