"""The ways of writing: each changes names of one group by one client, and notes what that leads to.

No client hears of what the others do, and none waits until what it believes has expired.
"""

import ctypes
import errno
import io
import mmap
import os
import random
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aisfs.engine.overlay import FRESH_SECONDS
from tests.torture.foreign import BrokenObject, Foreign
from tests.torture.ledger import ABSENT, Ledger, Shelf, Waiting, digest, pick_size

SHARED = ["", "d0/", "d0/e/", "d0/e/f/", "d1/", "d1/x y/", "d2/", "d2.d/", "d2-/"]
"""Directories that all groups have names in. They share prefixes, nested: what listings of AIStore
stumble over."""
ENDINGS = ["", ".jpg", ".bin", " x", "\n", "%2B+", "é"]
FILES, SHARDS = 14, 3
"""Names of a group: few, so that each client comes upon what the others have just made of them."""
CURL = "curl"
RELEASE_SECONDS = 2.0
UPLOADED_SECONDS = 0.5
"""After a close that long, what waits may be on its way (`--write-back` of a second, or more)."""
SURE = {
    errno.ENOENT, errno.EEXIST, errno.ESTALE, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.ENOSPC,
}  # fmt: skip
"""What says that nothing was changed. After any other error nobody knows."""
_ERRNOS = {os.strerror(number): number for number in errno.errorcode}
_libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_NOREPLACE = -100, 1


class Writer:
    """One process's way to change all names, by each client in turn."""

    def __init__(
        self,
        shelf: Shelf,
        foreign: Foreign,
        ttls: Mapping[str, float],
        enter: Callable[[str], None],
        *,
        write_back: bool,
        seed: int,
        largest: int,
    ) -> None:
        """Keep what is known on `shelf`.

        Args:
            shelf: The ledgers of the groups.
            foreign: The client that is no mount.
            ttls: How long each mount may show what is no longer so.
            enter: Makes a mount the current directory.
            write_back: Whether what the mounts have acknowledged may wait there.
            seed: Of all that is decided by chance.
            largest: Bytes of the largest file.
        """
        self._shelf = shelf
        self._foreign = foreign
        self._ttls = ttls
        self._enter = enter
        self._write_back = write_back
        self.rng = random.Random(seed)
        self._largest = largest
        self.ledger = Ledger()
        self.group = 0
        self.client = ""
        self._ways: list[tuple[Callable[[], None], int]] = [
            (self.overwrite, 20),
            (self.copy_in, 8),
            (self.create_new, 12),
            (self.append, 14),
            (self.change_a_part, 8),
            (self.change_while_sent, 2),
            (self.truncate, 6),
            (self.map, 5),
            (self.unlink, 8),
            (self.rename, 12),
            (self.rename_folder, 2),
            (self.remove_folder, 1),
            (self.make_directory, 3),
            (self.remove_directory, 3),
            (self.file_for_folder, 1),
            (self.add_member, 4),
            (self.untar_into_shard, 1),
            (self.tar_a_shard, 3),
            (self.append_by_tar, 3),
            (self.make_shard, 2),
            (self.unlink_shard, 2),
        ]
        self._on_what_is_there = (
            self.append, self.change_a_part, self.truncate, self.map,
            self.unlink, self.rename, self.rename_folder, self.remove_folder,
        )  # fmt: skip
        self._foreign_ways: list[tuple[Callable[[], None], int]] = [
            (self.put, 20),
            (self.put_more, 10),
            (self.delete, 12),
            (self.put_shard, 4),
            (self.put_longer_shard, 6),
            (self.delete_shard, 2),
        ]

    def step(self, group: int, ledger: Ledger) -> None:
        """Change something."""
        self.group, self.ledger = group, ledger
        self.client = self.rng.choice([*self._ttls, CURL])
        if self.client == CURL and ledger.waiting and self.rng.random() < 0.3:
            self.put_over_waiting()
            return
        ways, weights = zip(
            *(self._foreign_ways if self.client == CURL else self._ways), strict=True
        )
        try:
            way = self.rng.choices(ways, weights)[0]
            self._hand_over(own=way in self._on_what_is_there)
            way()
        except OSError as error:
            ledger.count(error, "look")  # nothing was asked to change

    # What it knows --------------------------------------------------------------------------

    def content(self, size: int | None = None) -> bytes:
        return self.rng.randbytes(pick_size(self.rng, self._largest) if size is None else size)

    def a_path(self) -> str:
        """Return a file that may be changed, whether it is there or not."""
        for _ in range(100):
            path = self._drawn()
            if self.ledger.state(path) is not None:
                return path
        return self._new(f"more{self.group}-")

    def _drawn(self) -> str:
        moved = [p for p in self.ledger.may_be if p.startswith(tuple(self.own_folders()))]
        if moved and self.rng.random() < 0.1:
            return self.rng.choice(moved)
        number = self.rng.randrange(FILES)
        folders = [*SHARED, *self.own_folders()]
        folder = folders[(5 * number + self.group) % len(folders)]
        return f"{folder}{self.group}-f{number}{ENDINGS[number % len(ENDINGS)]}"

    def a_file(self) -> str | None:
        """Return one that is there."""
        there = [p for p in self.ledger.may_be if self._is_there(p) and p not in self._all_shards()]
        return self.rng.choice(there) if there else None

    def a_file_or_not(self) -> str:
        """Return one that is there, most often."""
        path = self.a_file() if self.rng.random() < 0.8 else None
        return self.a_path() if path is None else path

    def own_folders(self) -> list[str]:
        """Return the directories that only this group has names in."""
        return [f"a{self.group}/", f"a{self.group}/e/", f"b{self.group}/"]

    def _new(self, start: str) -> str:
        self.ledger.names += 1
        return f"{start}{self.ledger.names}"

    def _is_there(self, path: str) -> bool:
        return self.ledger.state(path) not in (ABSENT, None)

    def known(self, path: str) -> bytes:
        """Return the content of a file; nothing if there is none."""
        state = self.ledger.state(path)
        return self._shelf.content(state) if state not in (ABSENT, None) else b""

    # What clients show ----------------------------------------------------------------------

    def _back(self) -> None:
        if self.client != CURL:
            self._enter(self.client)

    def _may_be_stale(self, client: str, path: str) -> bool:
        """Return whether a mount may still show what a path was before its last change."""
        moment, by = self.ledger.since.get(path, (0.0, ""))
        return by != client and time.monotonic() < moment + self._ttls[client]

    def _may_be_unseen(self, path: str) -> bool:
        """Return whether a mount may let a new file of this name wait without asking whether there is one.

        It may have made the directory a moment before somebody else put this file into it.
        """
        moment, by = self.ledger.since.get(path, (0.0, ""))
        moves_in = by != self.client and time.monotonic() < moment + FRESH_SECONDS
        return self._write_back and moves_in

    def look(self, client: str, path: str) -> None:
        """Read a file through a mount, which shows what it is, or what it was a while ago."""
        try:
            self._enter(client)
            state = digest(Path(path).read_bytes())
        except FileNotFoundError:
            state = ABSENT
        except OSError:
            return
        states = self.ledger.states(path)
        waited = self.ledger.waiting.get(path)
        if self._may_be_stale(client, path) or (waited is not None and waited.may_conflict):
            states = states | self.ledger.ever.get(path, {ABSENT})
        if state not in states and path not in self.ledger.resting:
            what = f"{client} shows {state} for {path!r}; expected {' or '.join(states)}"
            self.ledger.note(what)
            self.ledger.wrong.append(what)

    def _look_around(self, *paths: str) -> None:
        """Let mounts see what they will believe later."""
        for client in self._ttls:
            for path in paths:
                if self.rng.random() < 0.4:
                    self.look(client, path)
            if paths and self.rng.random() < 0.1:
                with suppress(OSError):
                    self._enter(client)
                    os.listdir(os.path.dirname(paths[0]) or ".")
        self._back()

    def _hand_over(self, *, own: bool = False) -> None:
        """Have uploaded what waits in a mount before another client changes anything.

        With `own` also what this client may have acknowledged of a name that it did not know to be taken: another
        client's content may be what it changes, removes or renames next.
        """
        for path, waited in list(self.ledger.waiting.items()):
            if waited.mount == self.client and not (own and waited.may_conflict):
                continue
            try:
                self._enter(waited.mount)
                with open(path, "r+b", buffering=0) as file:
                    os.fsync(file.fileno())
            except OSError as error:
                self.ledger.note(f"fsync in {waited.mount}: {path!r}: {error}")
                self.ledger.resting.add(path)
                if error.errno not in (errno.ESTALE, errno.EEXIST):
                    continue
            if waited.may_conflict and not self._was_uploaded(path):
                self.ledger.resting.add(path)
            if path in self.ledger.resting:
                continue
            self.ledger.since[path] = (time.monotonic(), waited.mount)
            del self.ledger.waiting[path]
        self._back()

    def _was_uploaded(self, path: str) -> bool:
        """Return whether the store has what has waited. If not, the look finds whether it is kept, or was uploaded later.

        A mount that starts after a kill may see an older copy while data moves, and uploads it the next time.
        """
        found = self._foreign.version(path)
        return found is not None and found[1] == self.ledger.state(path)

    # What is done ---------------------------------------------------------------------------

    def change(
        self,
        way: str,
        act: Callable[[], None],
        after: Mapping[str, str],
        *,
        needs: str | None = None,
        creates: str | None = None,
        refused: bool = False,
        steps: bool = False,
        believes: bool = True,
    ) -> bool:
        """Do something, and return whether it was acknowledged.

        Args:
            way: Its name.
            act: Does it.
            after: What the paths that it changes are then.
            needs: A path without which it cannot be done.
            creates: A path that it makes if there is none.
            refused: It must not be acknowledged, and changes nothing.
            steps: It may fail after having done a part.
            believes: Whether the mount that does it shows at once what is then there.
        """
        paths = [path for path in (needs, creates) if path is not None]
        self._look_around(*paths)
        before = self._before(after)
        error = self._attempt(f"{way} of {', '.join(map(repr, paths))} by {self.client}", way, act)
        if error is not None and error.errno == errno.ENOSPC:
            self.ledger.no_room.update(dict.fromkeys(paths, time.monotonic()))
        if error is None and not refused:
            for path, state in after.items():
                self.ledger.settle(path, state, self.client)
                self._wait_in_mount(path, before)
            for path in after:
                if believes and self.client != CURL and self.rng.random() < 0.3:
                    self.look(self.client, path)
            return True
        if error is None:
            if way == "O_EXCL" and self._may_be_unseen(paths[0]):
                self.ledger.to_keep.append((self.client, paths[0], after[paths[0]]))
            else:
                self._wrong(f"{way} of {paths} by {self.client} was acknowledged")
            self.ledger.resting.update(paths)
        elif refused or (error.errno in SURE and not steps):
            if not self._is_plausible(error.errno or 0, needs, creates, refused):
                self._wrong(f"{way} of {paths} by {self.client}: {error}")
        else:
            self._doubt(after)
        return False

    def _doubt(self, after: Mapping[str, str]) -> None:
        """Note that nobody knows whether paths were changed."""
        for path, state in after.items():
            self.ledger.doubt(path, state, self.client)
            waited = self.ledger.waiting.pop(path, None)
            if waited is not None and waited.may_conflict:  # then it may be kept instead
                self.ledger.doubt(path, waited.stored, self.client)

    def _attempt(self, what: str, way: str, act: Callable[[], None]) -> OSError | None:
        self.ledger.note(what)
        error = None
        try:
            act()
        except OSError as raised:
            error = raised
        self.ledger.count(error, way)
        return error

    def _wrong(self, what: str) -> None:
        self.ledger.note(what)
        self.ledger.wrong.append(what)

    def _wait_in_mount(self, path: str, before: Mapping[str, Waiting]) -> None:
        """Note that a path now waits, unless it is gone; `before` is what it replaces."""
        self.ledger.waiting.pop(path, None)
        if path in before and self.ledger.states(path) != {ABSENT}:
            self.ledger.waiting[path] = before[path]

    def _before(self, paths: Iterable[str]) -> dict[str, Waiting]:
        """Return what each path is to replace if a mount lets it wait."""
        found = dict[str, Waiting]()
        if self._write_back and self.client != CURL:
            for path in paths:
                stale = self._may_be_stale(self.client, path)
                stored = self.ledger.state(path) or ABSENT
                found[path] = self.ledger.waiting.get(path, Waiting(self.client, stored, stale))
        return found

    def _is_plausible(
        self, number: int, needs: str | None, creates: str | None, refused: bool
    ) -> bool:
        """Return whether an error can be true, or come of what this client was right to believe."""
        if self.client == CURL or refused:
            return True
        gone = needs is not None and not self._is_there(needs)
        stale = needs is not None and self._may_be_stale(self.client, needs)
        if number == errno.ENOENT and (gone or stale):
            return True
        if number == errno.ENOENT and creates is not None:
            return not os.path.isdir(os.path.dirname(creates) or ".")
        if number == errno.EEXIST and creates is not None:
            stands = time.monotonic() < self.ledger.no_room.get(creates, 0.0) + RELEASE_SECONDS
            return stands or self._is_there(creates) or self._may_be_stale(self.client, creates)
        return number != errno.ENOENT or needs is None

    # Files ----------------------------------------------------------------------------------

    def store(self, way: str, path: str, content: bytes, act: Callable[[], None]) -> None:
        """Do what makes `content` the content of `path`, which need not be there."""
        self.change(way, act, {path: self._shelf.keep(content)}, creates=path)

    def edit(
        self, way: str, path: str, content: bytes, act: Callable[[], None], *, steps: bool = False
    ) -> None:
        """Do what makes `content` the content of `path`, if there is one."""
        after, refused = {path: self._shelf.keep(content)}, not self._is_there(path)
        self.change(way, act, after, needs=path, refused=refused, steps=steps)

    def overwrite(self) -> None:
        path, content = self.a_path(), self.content()
        self.store("overwrite", path, content, lambda: _write(path, "wb", content))

    def copy_in(self) -> None:
        """Copy with a program."""
        path, content = self.a_path(), self.content()

        def act() -> None:
            _make_parent(path)
            _run(["cp", "/dev/stdin", f"./{path}"], content)

        self.store("cp", path, content, act)

    def create_new(self) -> None:
        """Create what must not be there."""
        path, content = self.a_path(), self.content()
        after = {path: self._shelf.keep(content)}
        refused = self._is_there(path)
        act = lambda: _write(path, "xb", content)  # noqa: E731
        self.change("O_EXCL", act, after, creates=path, refused=refused)

    def append(self) -> None:
        path = self.a_file_or_not()
        more = self.content(self.rng.randrange(1, 20_000))
        content = self.known(path) + more
        self.store("append", path, content, lambda: _write(path, "ab", more))

    def change_a_part(self) -> None:
        path = self.a_file_or_not()
        known = self.known(path)
        offset, piece = self.rng.randrange(len(known) + 5000), self.content(9000)
        changed = known + bytes(max(0, offset - len(known)))
        changed = changed[:offset] + piece + changed[offset + len(piece) :]

        def act() -> None:
            with open(path, "r+b", buffering=0) as file:
                file.seek(offset)
                _write_all(file, piece)
                os.fsync(file.fileno())

        self.edit("change a part", path, changed, act)

    def change_while_sent(self) -> None:
        """Write a file of several parts, and go back before it is closed."""
        path, first = self.a_path(), self.content(min(self._largest, 24 << 20))
        piece = self.content(70_000)
        offset = self.rng.randrange(len(first))
        content = first[:offset] + piece + first[offset + len(piece) :]

        def act() -> None:
            _make_parent(path)
            with open(path, "wb", buffering=0) as file:
                _write_all(file, first)
                file.seek(offset)
                _write_all(file, piece)

        self.store("change while sent", path, content, act)

    def truncate(self) -> None:
        path = self.a_file_or_not()
        known = self.known(path)
        size = self.rng.choice([0, self.rng.randrange(len(known) + 10_000)])
        content = known[:size] + bytes(max(0, size - len(known)))
        self.edit("truncate", path, content, lambda: os.truncate(path, size))

    def map(self) -> None:
        if (path := self.a_file()) is None or not (known := self.known(path)):
            return
        piece = self.content(min(len(known), 5000))
        offset = self.rng.randrange(len(known) - len(piece) + 1)

        def act() -> None:
            with open(path, "r+b") as file:
                if os.fstat(file.fileno()).st_size < len(
                    known
                ):  # what it was before, still believed
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
                with mmap.mmap(file.fileno(), len(known)) as mapped:
                    mapped[offset : offset + len(piece)] = piece
                    mapped.flush()
                os.fsync(file.fileno())

        content = known[:offset] + piece + known[offset + len(piece) :]
        # The kernel may write pages later.
        self.edit("mmap", path, content, lambda: _in_child(act), steps=True)

    def unlink(self) -> None:
        path = self.a_file_or_not()
        self.change("unlink", lambda: os.unlink(path), {path: ABSENT}, needs=path)

    # Names ----------------------------------------------------------------------------------

    def rename(self) -> None:
        """Rename over what may be there, or only if nothing is."""
        old, new = self.a_file_or_not(), self.a_path()
        if old == new:
            return
        state = self.ledger.state(old)
        assert state is not None
        keeps = self.rng.random() < 0.4

        def act() -> None:
            _make_parent(new)
            flags = RENAME_NOREPLACE if keeps else 0
            names = os.fsencode(old), os.fsencode(new)
            if _libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], flags):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

        refused = state == ABSENT or (keeps and self._is_there(new))
        way = "rename to a new name" if keeps else "rename"
        after = {old: ABSENT, new: state}
        self.change(way, act, after, needs=old, creates=new, refused=refused)

    def _below(self, folder: str) -> list[str] | None:
        """Return what is below a directory; None if that is not certain."""
        paths = [path for path in self.ledger.may_be if path.startswith(folder)]
        if any(self.ledger.state(path) is None for path in paths):
            return None
        return [path for path in paths if self._is_there(path)]

    def rename_folder(self) -> None:
        old, new = f"a{self.group}/", f"b{self.group}/"
        if self.rng.random() < 0.5:
            old, new = new, old
        below, there = self._below(old), self._below(new)
        if not below or there is None:
            return
        moved = {new + path[len(old) :]: self.ledger.state(path) or "" for path in below}
        after = {**dict.fromkeys(below, ABSENT), **moved}

        def act() -> None:
            os.rename(old, new)

        needs, refused = below[0], bool(there)
        if self.change("rename folder", act, after, needs=needs, refused=refused, believes=False):
            for (
                path
            ) in moved:  # what was believed of what is in it goes along, also that it is missing
                self.ledger.since[path] = (time.monotonic(), "a folder")

    def remove_folder(self) -> None:
        """Do `rm -r`."""
        folder = self.rng.choice(self.own_folders())
        below = self._below(folder)
        if below:
            after = dict.fromkeys(below, ABSENT)
            act = lambda: shutil.rmtree(folder)  # noqa: E731
            self.change("rm -r", act, after, needs=below[0], steps=True)

    def make_directory(self) -> None:
        folder = self.rng.choice([*SHARED[1:], *self.own_folders()])
        there = folder in SHARED or self._below(folder)
        if there is not None:
            self.change("mkdir", lambda: os.mkdir(folder), {}, refused=bool(there))

    def remove_directory(self) -> None:
        folder = self.rng.choice([*SHARED[1:], *self.own_folders()])
        there = folder in SHARED or self._below(folder)
        if there is not None:
            self.change("rmdir", lambda: os.rmdir(folder), {}, refused=bool(there))

    def file_for_folder(self) -> None:
        """Remove a directory and give a file its name."""
        name, content = self._new(f"turn{self.group}-"), self.content(1000)
        below = f"{name}/x"
        self.store("below", below, content, lambda: _write(below, "wb", content))
        remove = lambda: shutil.rmtree(name)  # noqa: E731
        if self.change("rm -r", remove, {below: ABSENT}, needs=below, steps=True):
            self.store("in its place", name, content, lambda: _write(name, "wb", content))

    # Shards ---------------------------------------------------------------------------------

    def _all_shards(self) -> list[str]:
        places = [SHARED[(2 * n + self.group) % len(SHARED)] for n in range(SHARDS)]
        return [f"{place}{self.group}-s{n}.tar" for n, place in enumerate(places)]

    def _free_shards(self) -> list[str]:
        taken = self.ledger.given_up | self.ledger.resting
        return [shard for shard in self._all_shards() if shard not in taken]

    def a_shard(self) -> str | None:
        """Return one that is there."""
        there = [shard for shard in self._free_shards() if shard in self.ledger.members]
        return self.rng.choice(there) if there else None

    def a_shard_or_not(self) -> str | None:
        return self.rng.choice(self._free_shards() or [None])  # type: ignore[list-item]

    def add(
        self,
        way: str,
        shard: str,
        members: dict[str, bytes],
        act: Callable[[], None],
        *,
        steps: bool = False,
    ) -> None:
        """Do what adds members to a shard; in `steps` it may fail after some of them."""
        self._look_into(shard)
        error = self._attempt(f"{way} into {shard!r} by {self.client}", way, act)
        if error is not None and error.errno in SURE and not steps:
            return
        if error is not None and shard not in self.ledger.members:
            self.ledger.given_up.add(shard)
            return
        known = self.ledger.members.setdefault(shard, {})
        for name, content in members.items():
            known[name] = {digest(content)} if error is None else {digest(content), ABSENT}
        if error is not None:
            self.ledger.resting.add(shard)

    def make(
        self, way: str, shard: str, act: Callable[[], None], members: dict[str, bytes]
    ) -> None:
        """Do what makes a shard, whatever was there."""
        self._look_into(shard)
        error = self._attempt(f"{way} of {shard!r} by {self.client}", way, act)
        if error is None:
            self.ledger.members[shard] = {name: {digest(c)} for name, c in members.items()}
        elif error.errno not in SURE:
            self.ledger.given_up.add(shard)

    def _look_into(self, shard: str) -> None:
        for client in self._ttls:
            if self.rng.random() < 0.4:
                with suppress(OSError):
                    self._enter(client)
                    os.listdir(f"{shard}.d")
        self._back()

    def tar_a_shard(self) -> None:
        """Write a shard, or another one over it."""
        if shard := self.a_shard_or_not():
            members = self._many()
            archive = _tar_of(members)
            self.make("tar", shard, lambda: _write(shard, "wb", archive), members)

    def make_shard(self) -> None:
        """Make a shard without members, unless there is one."""
        if (shard := self.a_shard_or_not()) is None:
            return
        act = lambda: os.mkdir(f"{shard}.d")  # noqa: E731
        if shard in self.ledger.members:
            self.change("mkdir x.tar.d", act, {}, refused=True)
        else:
            self.make("mkdir x.tar.d", shard, act, {})

    def add_member(self) -> None:
        if shard := self.a_shard():
            name = self._new("new/m")
            content = self.content(self.rng.randrange(1, 40_000))
            act = lambda: _write(f"{shard}.d/{name}", "wb", content)  # noqa: E731
            self.add("member", shard, {name: content}, act)

    def untar_into_shard(self) -> None:
        if shard := self.a_shard():
            members = {self._new("u/"): self.content(2000 + n) for n in range(6)}

            def act() -> None:
                command = ["tar", "-x", "--no-same-owner", "-C", f"./{shard}.d"]
                _run(command, _tar_of(members))

            self.add("tar x", shard, members, act, steps=True)

    def append_by_tar(self) -> None:
        """Do `tar r`, which makes an archive if there is none."""
        if shard := self.a_shard_or_not():
            name, content = self._new("r"), self.content(3000)
            source = self._shelf.keep(content)
            place = self._shelf.folder / "contents"

            def act() -> None:
                move = f"--transform=s/{source}/{name}/"
                _run(["tar", "-r", "-f", f"./{shard}", "-C", os.fspath(place), move, source], b"")

            self.add("tar r", shard, {name: content}, act)

    def unlink_shard(self) -> None:
        if shard := self.a_shard():
            self._remove_shard("unlink a shard", shard, lambda: os.unlink(shard))

    def _remove_shard(self, way: str, shard: str, act: Callable[[], None]) -> None:
        self._look_into(shard)
        error = self._attempt(f"{way} {shard!r} by {self.client}", way, act)
        if error is None:
            del self.ledger.members[shard]
            self.ledger.settle(shard, ABSENT, self.client)
        elif error.errno not in SURE:
            self.ledger.given_up.add(shard)

    def _many(self) -> dict[str, bytes]:
        return {f"{n:04}.bin": self.content(self.rng.randrange(3000)) for n in range(20)}

    # The client that is no mount ------------------------------------------------------------

    def put(self) -> None:
        path, content = self.a_path(), self.content()
        self.store("PUT", path, content, lambda: self._put(path, content))

    def _put(self, path: str, content: bytes) -> None:
        self._foreign.put(path, content)

    def put_more(self) -> None:
        if path := self.a_file():
            content = self.known(path) + self.content(self.rng.randrange(1, 20_000))
            self.store("PUT of more", path, content, lambda: self._put(path, content))

    def delete(self) -> None:
        if path := self.a_file():
            self.change("DELETE", lambda: self._foreign.delete(path), {path: ABSENT}, needs=path)

    def put_shard(self) -> None:
        if shard := self.a_shard_or_not():
            members = self._many()
            archive = _tar_of(members)
            self.make("PUT of a shard", shard, lambda: self._put(shard, archive), members)

    def put_longer_shard(self) -> None:
        """Replace a shard by itself with more members."""
        if (shard := self.a_shard()) is None:
            return
        try:
            archive = self._foreign.get(shard)
        except BrokenObject:
            return
        if archive is not None:  # else it is being moved
            members = {self._new("f"): self.content(4000)}
            longer = _tar_of(members, archive)
            self.add("PUT of a longer shard", shard, members, lambda: self._put(shard, longer))

    def delete_shard(self) -> None:
        if shard := self.a_shard():
            self._remove_shard("DELETE of a shard", shard, lambda: self._foreign.delete(shard))

    def put_over_waiting(self) -> None:
        """Write what a mount has acknowledged and not uploaded yet."""
        paths = [path for path in self.ledger.waiting if self.ledger.state(path) is not None]
        if not paths:
            return
        path, content = self.rng.choice(paths), self.content(self.rng.randrange(1, 60_000))
        waited, state = self.ledger.waiting[path], self.ledger.state(path) or ""
        before, version = self._foreign.version(path), 0

        def act() -> None:
            nonlocal version
            version = self._foreign.put(path, content)

        after = {path: self._shelf.keep(content)}
        acknowledged = self.ledger.since.get(path, (0.0, ""))[0]
        done = self.change("PUT over what waits", act, after, creates=path)
        self.ledger.resting.add(path)
        if done and time.monotonic() > acknowledged + UPLOADED_SECONDS:
            # Then the upload may have looked before this PUT and replaced it: AIStore has no conditional write.
            self.ledger.doubt(path, state, CURL)
            return
        if not done or waited.may_conflict or (before is not None and before[1] == state):
            return  # nobody knows, or it was uploaded
        if version == (before[0] if before is not None else 0) + 1:  # nobody wrote between the two
            self.ledger.to_keep.append((waited.mount, path, state))


def _make_parent(path: str) -> None:
    with suppress(FileExistsError):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def _write(path: str, mode: str, content: bytes) -> None:
    _make_parent(path)
    file: Any
    with open(path, mode, buffering=0) as file:
        _write_all(file, content)


def _write_all(file: io.FileIO, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[file.write(view[: 1 << 20]) :]


def _run(command: list[str], content: bytes) -> None:
    done = subprocess.run(command, input=content, capture_output=True, check=False, timeout=300)
    if done.returncode:
        reasons = [line.rpartition(": ")[2] for line in done.stderr.decode().splitlines()]
        number = next((_ERRNOS[reason] for reason in reasons if reason in _ERRNOS), 0)
        raise OSError(number, reasons[0] if reasons else "")


def _in_child(work: Callable[[], None]) -> None:
    """Do something in a process of its own: one that touches a mapping of a daemon that was killed gets SIGBUS."""
    child = os.fork()
    if not child:
        number = errno.EIO
        try:
            work()
            number = 0
        except OSError as error:
            number = error.errno or number
        finally:
            os._exit(number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        number = code if code > 0 else errno.EIO
        raise OSError(number, os.strerror(number))


def _tar_of(members: dict[str, bytes], more_than: bytes = b"") -> bytes:
    """Return a tar of members, behind those that a tar has already."""
    file = io.BytesIO(more_than)
    with tarfile.open(fileobj=file, mode="a" if more_than else "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()
