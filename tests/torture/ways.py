"""The ways of writing: each changes files below one directory and tells the ledger what to expect."""

import io
import mmap
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.torture.ledger import ABSENT, Ledger, digest, pick_size

FOLDERS = ["", "d0/", "d0/e/", "d0/e/f/", "d1/", "d1/x y/", "d2/", "d2.d/", "d2-/"]
"""Names that share prefixes, nested: what listings of AIStore stumble over."""
TRIES = 3


class Writer:
    """One process's files, in a directory that no other process changes."""

    def __init__(self, root: Path, seed: int, largest: int) -> None:
        self.root = root
        self.ledger = Ledger()
        self.rng = random.Random(seed)
        self._largest = largest
        self._names = 0
        self._ways: list[tuple[Callable[[], None], int]] = [
            (self.create, 30),
            (self.copy_in, 10),
            (self.overwrite, 12),
            (self.change_a_part, 8),
            (self.change_while_sent, 3),
            (self.append, 8),
            (self.truncate, 4),
            (self.map, 5),
            (self.unlink, 5),
            (self.rename, 8),
            (self.rename_over, 4),
            (self.rename_folder, 2),
            (self.remove_folder, 2),
            (self.file_for_folder, 1),
            (self.add_member, 3),
            (self.untar_into_shard, 1),
            (self.tar_a_shard, 2),
        ]

    def step(self) -> None:
        """Change something."""
        ways, weights = zip(*self._ways, strict=True)
        way = self.rng.choices(ways, weights)[0]
        try:
            way()
        except OSError as error:
            self.ledger.count(error, "look")  # nothing was asked to change

    # What it knows --------------------------------------------------------------------------

    def content(self, size: int | None = None) -> bytes:
        return self.rng.randbytes(pick_size(self.rng, self._largest) if size is None else size)

    def new_path(self) -> str:
        self._names += 1
        ending = self.rng.choice(["", ".jpg", ".bin", " x", "\n", "%2B+", "é"])
        return f"{self.rng.choice(FOLDERS)}f{self._names}{ending}"

    def old_path(self) -> str | None:
        """Return a file that is there for certain, and in one state."""
        there = [p for p, states in self.ledger.may_be.items() if len(states) == 1]
        there = [p for p in there if self.ledger.is_there(p) and not p.endswith(".tar")]
        return self.rng.choice(there) if there else None

    def place(self, path: str) -> Path:
        """Return where a file is; its directories are made, as far as they are gone."""
        place = self.root / path
        os.makedirs(place.parent, exist_ok=True)
        return place

    def attempt(self, way: str, act: Callable[[], None]) -> bool:
        """Do something, and return whether it was acknowledged."""
        try:
            act()
        except OSError as error:
            self.ledger.count(error, way)
            return False
        self.ledger.count(None, way)
        return True

    def store(self, way: str, path: str, content: bytes, act: Callable[[Path], None]) -> None:
        """Do what makes `content` the content of `path`."""
        if self.attempt(way, lambda: act(self.place(path))):
            self.ledger.settle(path, digest(content))
        else:
            self.ledger.doubt(path, digest(content))

    # Files ----------------------------------------------------------------------------------

    def create(self) -> None:
        content = self.content()
        self.store("create", self.new_path(), content, lambda place: _write(place, content))

    def copy_in(self) -> None:
        """Copy with a program."""
        content = self.content()

        def act(place: Path) -> None:
            _run(["cp", "/dev/stdin", os.fspath(place)], content)

        self.store("cp", self.new_path(), content, act)

    def overwrite(self) -> None:
        if path := self.old_path():
            content = self.content()
            self.store("overwrite", path, content, lambda place: _write(place, content))

    def change_a_part(self) -> None:
        if (path := self.old_path()) is None:
            return
        known = self.read(path)
        if known is None:
            return
        offset, piece = self.rng.randrange(len(known) + 5000), self.content(9000)
        changed = known + bytes(max(0, offset - len(known)))
        changed = changed[:offset] + piece + changed[offset + len(piece) :]

        def act(place: Path) -> None:
            with open(place, "r+b", buffering=0) as file:
                file.seek(offset)
                _write_all(file, piece)
                os.fsync(file.fileno())

        self.store("change a part", path, changed, act)

    def change_while_sent(self) -> None:
        """Write a file of several parts, and go back before it is closed."""
        first = self.content(min(self._largest, 24 << 20))
        piece = self.content(70_000)
        offset = self.rng.randrange(len(first))
        content = first[:offset] + piece + first[offset + len(piece) :]

        def act(place: Path) -> None:
            with open(place, "wb", buffering=0) as file:
                _write_all(file, first)
                file.seek(offset)
                _write_all(file, piece)

        self.store("change while sent", self.new_path(), content, act)

    def append(self) -> None:
        if (path := self.old_path()) is None or (known := self.read(path)) is None:
            return
        more = self.content(self.rng.randrange(1, 20_000))

        def act(place: Path) -> None:
            with open(place, "ab", buffering=0) as file:
                _write_all(file, more)

        self.store("append", path, known + more, act)

    def truncate(self) -> None:
        if (path := self.old_path()) is None or (known := self.read(path)) is None:
            return
        size = self.rng.randrange(len(known) + 10_000)
        content = known[:size] + bytes(max(0, size - len(known)))
        self.store("truncate", path, content, lambda place: os.truncate(place, size))

    def map(self) -> None:
        if (path := self.old_path()) is None or not (known := self.read(path)):
            return
        piece = self.content(min(len(known), 5000))
        offset = self.rng.randrange(len(known) - len(piece) + 1)

        def act(place: Path) -> None:
            with open(place, "r+b") as file:
                with mmap.mmap(file.fileno(), 0) as mapped:
                    mapped[offset : offset + len(piece)] = piece
                    mapped.flush()
                os.fsync(file.fileno())

        self.store("mmap", path, known[:offset] + piece + known[offset + len(piece) :], act)

    def unlink(self) -> None:
        if path := self.old_path():
            if self.attempt("unlink", lambda: os.unlink(self.root / path)):
                self.ledger.settle(path, ABSENT)
            else:
                self.ledger.doubt(path, ABSENT)

    def read(self, path: str) -> bytes | None:
        """Return what the mount has of a file; None when it cannot be read now."""
        try:
            content = (self.root / path).read_bytes()
        except OSError:
            return None
        assert digest(content) in self.ledger.states(path), f"the mount shows other bytes of {path}"
        return content

    # Names ----------------------------------------------------------------------------------

    def rename(self) -> None:
        self._rename("rename", self.new_path())

    def rename_over(self) -> None:
        if (onto := self.old_path()) is not None:
            self._rename("rename over", onto)

    def _rename(self, way: str, new: str) -> None:
        old = self.old_path()
        if old is None or old == new:
            return
        state = next(iter(self.ledger.states(old)))
        if self.attempt(way, lambda: os.rename(self.root / old, self.place(new))):
            self.ledger.settle(old, ABSENT)
            self.ledger.settle(new, state)
        else:
            self.ledger.doubt(old, ABSENT)
            self.ledger.doubt(new, state)

    def rename_folder(self) -> None:
        folder = self.rng.choice(FOLDERS[1:])
        below = {p: s for p, s in self.ledger.may_be.items() if p.startswith(folder)}
        there = [p for p in below if below[p] != {ABSENT}]
        if not there or len(there) > 300:
            return
        self._names += 1
        new = f"moved{self._names}/"
        done = self.attempt("rename folder", lambda: os.rename(self.root / folder, self.root / new))
        for path in there:
            moved = new + path[len(folder) :]
            if done:
                self.ledger.may_be[moved] = below[path]
                self.ledger.settle(path, ABSENT)
            else:
                self.ledger.doubt(path, ABSENT)
                self.ledger.doubt(moved, *below[path])
        lost = [s for s in self.ledger.given_up if s.startswith(folder)]
        self.ledger.given_up |= {new + shard[len(folder) :] for shard in lost}
        for shard in [s for s in self.ledger.members if s.startswith(folder)]:
            members, moved = self.ledger.members.pop(shard), new + shard[len(folder) :]
            if done:
                self.ledger.members[moved] = members
            else:
                self.ledger.given_up |= {shard, moved}

    def remove_folder(self) -> None:
        """Do `rm -r`."""
        folder = self.rng.choice(FOLDERS[2:])
        if not (self.root / folder).is_dir():
            return
        done = self.attempt("rm -r", lambda: shutil.rmtree(self.root / folder))
        for path in [p for p in self.ledger.may_be if p.startswith(folder)]:
            if done:
                self.ledger.settle(path, ABSENT)
            else:
                self.ledger.doubt(path, ABSENT)
        for shard in [s for s in self.ledger.members if s.startswith(folder)]:
            del self.ledger.members[shard]
            self.ledger.given_up |= set() if done else {shard}

    def file_for_folder(self) -> None:
        """Remove a directory and give a file its name, and the other way round."""
        self._names += 1
        name, content = f"turn{self._names}", self.content(1000)
        self.store("below", f"{name}/x", content, lambda place: _write(place, content))
        if not self.attempt("rm -r", lambda: shutil.rmtree(self.root / name)):
            self.ledger.doubt(f"{name}/x", ABSENT)
            return
        self.ledger.settle(f"{name}/x", ABSENT)
        self.store("in its place", name, content, lambda place: _write(place, content))

    # Shards ---------------------------------------------------------------------------------

    def tar_a_shard(self) -> None:
        """Write a shard with GNU tar."""
        self._names += 1
        path = f"{self.rng.choice(FOLDERS)}s{self._names}.tar"
        members = {f"{n:04}.bin": self.content(self.rng.randrange(3000)) for n in range(20)}
        archive = _tar_of(members)
        self.store("tar", path, archive, lambda place: _write(place, archive))
        if self.ledger.is_there(path) and len(self.ledger.states(path)) == 1:
            self.ledger.members[path] = {name: {digest(c)} for name, c in members.items()}

    def add_member(self) -> None:
        if shard := self._shard():
            self._names += 1
            name, content = f"new/m{self._names}.bin", self.content(self.rng.randrange(1, 40_000))
            done = self.attempt("member", lambda: _write(self._folder(shard) / name, content))
            self._expect(shard, {name: content}, done)

    def untar_into_shard(self) -> None:
        if shard := self._shard():
            self._names += 1
            members = {f"u{self._names}/{n}.bin": self.content(2000 + n) for n in range(6)}
            command = ["tar", "-x", "--no-same-owner", "-C", os.fspath(self._folder(shard))]
            done = self.attempt("tar x", lambda: _run(command, _tar_of(members)))
            self._expect(shard, members, done)

    def _shard(self) -> str | None:
        return self.rng.choice(sorted(self.ledger.members)) if self.ledger.members else None

    def _folder(self, shard: str) -> Path:
        folder = self.root / f"{shard}.d"
        os.makedirs(folder / "new", exist_ok=True)
        return folder

    def _expect(self, shard: str, members: dict[str, bytes], done: bool) -> None:
        self.ledger.may_be.pop(shard, None)  # its bytes are not ours to foretell; its members are
        for name, content in members.items():
            states = {digest(content)} if done else {digest(content), ABSENT}
            self.ledger.members[shard][name] = states


def _write(place: Path, content: bytes) -> None:
    os.makedirs(place.parent, exist_ok=True)
    with open(place, "wb", buffering=0) as file:
        _write_all(file, content)


def _write_all(file: io.FileIO, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[file.write(view[: 1 << 20]) :]


def _run(command: list[str], content: bytes) -> None:
    done = subprocess.run(command, input=content, capture_output=True, check=False, timeout=300)
    if done.returncode:
        raise OSError(0, done.stderr.decode(errors="replace").rpartition(": ")[2].strip())


def _tar_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()
