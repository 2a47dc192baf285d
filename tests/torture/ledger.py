"""What is known of names that several clients change: what each may hold after all that was acknowledged."""

import fcntl
import hashlib
import pickle
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ABSENT = "absent"


def digest(content: bytes | bytearray) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def pick_size(rng: random.Random, largest: int) -> int:
    """Return a size: mostly some KiB, sometimes nothing, now and then up to `largest` bytes."""
    kind = rng.random()
    if kind < 0.03:
        return 0
    if kind < 0.85:
        return rng.randrange(1, min(64 << 10, largest))
    if kind < 0.985:
        return rng.randrange(1, min(2 << 20, largest))
    return rng.randrange(1, largest + 1)


@dataclass(frozen=True)
class Waiting:
    """What is acknowledged and not uploaded yet (`--write-back`)."""

    mount: str
    stored: str
    """What was in the store before."""
    may_conflict: bool
    """Whether the mount need not have known of that: then its own may be kept instead of uploaded."""


@dataclass
class Ledger:
    """The states each path of a group may be in. A change that was acknowledged leaves one; one of which
    it is not known whether it happened leaves the old and the new."""

    may_be: dict[str, set[str]] = field(default_factory=dict)
    ever: dict[str, set[str]] = field(default_factory=dict)
    """What each path has been, which a mount may show as long as it believes what it knows."""
    since: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When each path was changed last, and by which client."""
    members: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """The states of the members of each shard that is there. Its bytes are not ours to foretell."""
    given_up: set[str] = field(default_factory=set)
    """Shards that may be another one by now, or gone: the next look tells what they are."""
    resting: set[str] = field(default_factory=set)
    """Paths that nobody changes before the next look."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """Paths with a content that waits for its upload."""
    no_room: dict[str, float] = field(default_factory=dict)
    """When a local disk was too full for a path: until the kernel has told of its close, the new file stands."""
    to_keep: list[tuple[str, str, str]] = field(default_factory=list)
    """Mount, path and digest of what waited while another client wrote the path: kept, and not uploaded."""
    wrong: list[str] = field(default_factory=list)
    """What was answered, or shown, that is not true."""
    names: int = 0
    """Numbers for new names that were used."""
    acknowledged: int = 0
    failed: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    """What was done since the last look, for the one that wants to know how a difference came about."""

    def states(self, path: str) -> set[str]:
        return self.may_be.get(path, {ABSENT})

    def state(self, path: str) -> str | None:
        """Return the state of a path; None if it is to be left alone until the next look."""
        states = self.states(path)
        return next(iter(states)) if len(states) == 1 and path not in self.resting else None

    def settle(self, path: str, state: str, client: str) -> None:
        """Record that a change was acknowledged."""
        self._change(path, {state}, client)

    def doubt(self, path: str, state: str, client: str) -> None:
        """Record that a change may have happened, or not."""
        self._change(path, self.states(path) | {state}, client)

    def _change(self, path: str, states: set[str], client: str) -> None:
        self.may_be[path] = states
        self.ever.setdefault(path, {ABSENT}).update(states)
        self.since[path] = (time.monotonic(), client)
        self.note(f"{client}: {path!r} is {' or '.join(states)}")

    def kept(self, path: str, client: str) -> None:
        """Record that what waits of a path is kept for `aisfs recover`, and the store has what it had."""
        waited = self.waiting.pop(path)
        (state,) = self.states(path)
        self.to_keep.append((waited.mount, path, state))
        self.settle(path, waited.stored, client)

    def note(self, text: str) -> None:
        moment = datetime.now(UTC).strftime("%H:%M:%S.%f")
        self.history.append(f"{moment} {text}")

    def count(self, error: OSError | None, way: str) -> None:
        self.note(f"{way}: {error or 'acknowledged'}")
        if error is None:
            self.acknowledged += 1
            return
        self.failed += 1
        name = f"{way}: {error.strerror}"
        self.refusals[name] = self.refusals.get(name, 0) + 1

    def looked(self) -> None:
        """Begin anew after a look that found what each path is."""
        for path in self.waiting:
            self.since[path] = (time.monotonic(), self.since[path][1])
        for known in (self.given_up, self.resting, self.waiting, self.to_keep, self.wrong):
            known.clear()
        self.history.clear()


class Shelf:
    """The ledgers of all groups, one file each, and the contents that they speak of.

    Only one process at a time changes the names of a group: AIStore has no conditional writes.
    """

    def __init__(self, folder: Path, groups: int) -> None:
        self.groups = range(groups)
        self.folder = folder
        self._contents = folder / "contents"

    def make(self) -> None:
        self._contents.mkdir(parents=True)
        for group in self.groups:
            self._file(group).write_bytes(pickle.dumps(Ledger()))

    def _file(self, group: int) -> Path:
        return self.folder / str(group)

    @contextmanager
    def taken(self, group: int, *, wait: bool = True) -> Iterator[Ledger | None]:
        """Have a ledger to oneself; None if another process has it."""
        with self._file(group).open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            ledger: Ledger = pickle.load(file)
            yield ledger
            file.seek(0)
            file.truncate()
            pickle.dump(ledger, file)

    def keep(self, content: bytes) -> str:
        """Keep a content, and return its digest."""
        name = digest(content)
        (self._contents / name).write_bytes(content)
        return name

    def content(self, name: str) -> bytes:
        return (self._contents / name).read_bytes()

    def tidy(self, used: set[str]) -> None:
        """Drop all contents but these."""
        for file in self._contents.iterdir():
            if file.name not in used:
                with suppress(FileNotFoundError):
                    file.unlink()
