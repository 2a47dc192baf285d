"""What a writer knows of its files: what each one may hold after all that was acknowledged."""

import hashlib
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime

ABSENT = "absent"


def digest(content: bytes) -> str:
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


@dataclass
class Ledger:
    """The states each path may be in. A change that was acknowledged leaves one; one that failed
    leaves the old and the new."""

    may_be: dict[str, set[str]] = field(default_factory=dict)
    members: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """The same of the members of each shard; members have no other writer, and never go."""
    given_up: set[str] = field(default_factory=set)
    """Shards that grew, and may have another name since, or be gone."""
    acknowledged: int = 0
    failed: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    """What was done since the last look, for whoever wants to know how a difference came about."""

    def states(self, path: str) -> set[str]:
        return self.may_be.get(path, {ABSENT})

    def is_there(self, path: str) -> bool:
        return ABSENT not in self.states(path)

    def settle(self, path: str, state: str) -> None:
        """Record that a change was acknowledged."""
        self.may_be[path] = {state}
        self._note(f"{path!r} is {state}")

    def doubt(self, path: str, *states: str) -> None:
        """Record that a change failed: it may have happened, or not."""
        self.may_be[path] = self.states(path) | set(states)
        self._note(f"{path!r} may be {' or '.join(states)}")

    def _note(self, text: str) -> None:
        moment = datetime.now(UTC).strftime("%H:%M:%S.%f")
        self.history.append(f"{moment} {text}")

    def count(self, error: OSError | None, way: str) -> None:
        self._note(f"{way}: {error or 'acknowledged'}")
        if error is None:
            self.acknowledged += 1
            return
        self.failed += 1
        name = f"{way}: {error.strerror}"
        self.refusals[name] = self.refusals.get(name, 0) + 1
