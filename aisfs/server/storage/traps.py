"""Ways in which a real AIStore loses data or names, which the server can imitate.

Observed on AIStore 5.0. Handlers query the object that the server was made with: `Kindness` for use on
a laptop, `Traps` to test clients that have to be safe on a real cluster.

One of them is a rebalance: data moves between targets, after one has joined, or before one leaves. A part
of the names then has a new target, to which their objects come one by one. What AIStore 5.0
says of such a name meanwhile: HEAD, and whatever changes an object without bringing all of it, does not
find it, GET finds it at its old target, and listings leave it out. In the first seconds a target that
joins knows no map, and after that no neighbours to ask, so that GET does not find the object either.
What is written meanwhile is at its new target at once, where versions begin anew. The object that comes
later replaces it if its version is higher, and is dropped otherwise.

A target that returns from maintenance (T15) has its names again at once, with what it had when it left.
HEAD, GET and listings show these old objects, and what is written replaces them and counts on from them,
until the newer ones come, as above: a PUT is lost if less was written to the name since than meanwhile,
and an object that is deleted comes again.

What is still being written when a move begins ends at the target that had the name before. That has sent its
objects on by then: the reply says that all is well, and nobody ever sees the content.

The reference does not say what a DELETE of a hidden object does. Here it is answered as HEAD is, with
404, and the object stays: no client that reads this may believe that the name is free.
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec
from xxhash import xxh64_intdigest

from aisfs.server import failures
from aisfs.server.failures import Failure
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.records import Record

MAINTENANCE, LEAVING = 4, 8
"""Flags of a target in the cluster map."""
_SEED = 11
_HALF = 0.5
_MOMENT = 0.05
_SENT_ON = 0.5
"""Seconds after a move began in which what is still being written is sent on with the rest; AIStore takes longer."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens when; all times are in seconds since the beginning."""

    cause: Literal["join", "maintenance", "leave", "return"] = "join"
    """`return`: of the target that left with the last maintenance."""
    share: float = 0.3
    """The part of the names whose objects move; those that return are the ones that left."""
    unmapped: float = 1.5
    """How long a target that joins knows no map."""
    joining: float = 3.0
    """How long a target that joins does not ask its neighbours for an object."""
    moving: float | None = 10.0
    """When all have moved, the first after half of it; None until the request that ends it."""
    incomplete: float = 3.0
    """How long after that listings still say that they may be incomplete."""


Name = tuple[str, bytes]
"""Bucket and key."""


class Copy(NamedTuple):
    """An object that is not at the target of its name."""

    path: Path
    record: Record


class Moving:
    """Which objects are where at the moment.

    The storage has at each name what the target of the name has, or else what is to come there.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plan: Plan | None = None
        self._began = 0.0
        self._complete = 0.0
        """From when on listings are complete; while data moves it is not known."""
        self._placed = set[Name]()
        """What was changed at the target of its name: what is to come there is no longer the same."""
        self._missing = set[Name]()
        """What the target that returns does not have at all."""
        self.misplaced: dict[Name, Copy] = {}
        """What is to come to a name at whose target there is something else."""
        self._left: dict[Name, Copy | None] | None = None
        """What was changed while a target is away, as that has it; None if none is away."""
        self._share_left = 0.0
        self.version = 1
        """Of the cluster map."""
        self._begun: list[tuple[int, float, float]] = []
        """Of each move the map's version, the beginning on the clock of `time.monotonic`, and the share."""

    def begin(self, plan: Plan) -> bool:
        """Begin, or go on by another plan from its beginning; return whether data began to move."""
        with self._changed:
            is_new = self._plan is None
            if is_new:
                self._placed.clear()
                self._missing.clear()
                self.version += 1
            if plan.cause == "maintenance" and (self._plan is None or self._left is None):
                _remove(self._left or {})
                self._left, self._share_left = {}, plan.share
            if plan.cause == "return":
                plan = msgspec.structs.replace(plan, share=self._share_left)
            self._plan, self._began = plan, time.monotonic()
            if is_new:
                self._begun.append((self.version, self._began, plan.share))
            self._changed.notify_all()
        return is_new

    def hurry(self) -> None:
        """Let all come now that would come later."""
        with self._changed:
            if self._plan is not None:
                self._plan = msgspec.structs.replace(self._plan, moving=0.0)
            self._changed.notify_all()

    def end(self) -> None:
        """Let all data have moved, if by the plan it has come by now."""
        with self._changed:
            if self._plan is not None and not self._is_moving():
                if self._plan.cause == "return":
                    self._share_left = 0.0
                self._complete = time.monotonic() + self._plan.incomplete
                self._plan = None
                self.version += 1
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait a moment; return whether data still moves, by the time that the plan says."""
        with self._changed:
            if self._is_moving():
                self._changed.wait(_MOMENT)
            return self._is_moving()

    def _is_moving(self) -> bool:
        plan = self._plan
        if plan is None or plan.moving is None:
            return plan is not None
        return time.monotonic() - self._began < plan.moving

    def describe(self) -> dict[str, Any]:
        """Return the state."""
        return {
            "moving": self._plan is not None,
            "incomplete": self.is_incomplete,
            "version": self.version,
        }

    @property
    def flags(self) -> int:
        """Those of the target that is the cause, in the cluster map."""
        plan = self._plan
        return {"maintenance": MAINTENANCE, "leave": LEAVING}.get(plan.cause if plan else "", 0)

    @property
    def is_incomplete(self) -> bool:
        """Whether a listing says that it may be incomplete."""
        return self._plan is not None or time.monotonic() < self._complete

    def placed(self, bucket: str, key: bytes) -> None:
        """Note that an object was written, at its new target."""
        if self._plan is not None:
            self._placed.add((bucket, key))
            self._missing.discard((bucket, key))

    def missing(self, bucket: str, key: bytes) -> None:
        """Note that the new target of an object does not have it, or no longer."""
        self._placed.discard((bucket, key))
        self._missing.add((bucket, key))

    def hides(self, bucket: str, key: bytes) -> bool:
        """Return whether the new target of an object does not have it yet."""
        plan = self._plan
        if plan is None or (plan.cause == "return" and (bucket, key) not in self._missing):
            return False
        return self.is_to_come(bucket, key)

    def is_to_come(self, bucket: str, key: bytes) -> bool:
        """Return whether what is stored at a name is to come to the new target."""
        return (bucket, key) not in self._placed and self.is_on_its_way(bucket, key)

    def is_on_its_way(self, bucket: str, key: bytes) -> bool:
        """Return whether something is to come to a name later."""
        plan = self._plan
        if plan is None:
            return False
        draw = _draw(bucket, key)
        if draw >= plan.share or plan.moving is None:
            return draw < plan.share
        arrival = plan.moving * (_HALF + _HALF * draw / plan.share)
        return time.monotonic() - self._began < arrival

    def stays_behind(self, bucket: str, key: bytes, since: int) -> bool:
        """Return whether what began to be written with version `since` of the map is at a target of the past."""
        draw, now = _draw(bucket, key), time.monotonic()
        return any(
            version > since and now > began + _SENT_ON and draw < share
            for version, began, share in self._begun
        )

    # The target that is away

    def has_left(self, bucket: str, key: bytes) -> bool:
        """Return whether the target of a name is away and has what is there, as nothing changed it."""
        left = self._left
        return (
            left is not None and (bucket, key) not in left and _draw(bucket, key) < self._share_left
        )

    def leave(self, bucket: str, key: bytes, copy: Copy | None) -> None:
        """Note what that target has of an object that changes; None if nothing."""
        if self._left is not None:
            self._left[bucket, key] = copy

    def take_back(self) -> dict[Name, Copy | None]:
        """Return what the target has of objects that have changed; it is no longer away."""
        with self._changed:
            left, self._left = self._left, None
        return left or {}

    def drop_bucket(self, bucket: str) -> None:
        """Forget the objects of a bucket."""
        for copies in (self.misplaced, self._left or {}):
            names = [name for name in list(copies) if name[0] == bucket]
            _remove({name: copies.pop(name) for name in names})

    # Checks of requests

    def check_mapped(self, bucket: str, key: bytes | None = None) -> None:
        """Check that the target of an object, or all of them, know the map.

        Raises:
            Failure: 400; one has just joined.
        """
        if self._is_joining("unmapped") and (key is None or self.hides(bucket, key)):
            text = "t[{node}]: cannot handle bucket request: Smap v0"
            raise Failure(400, text, node="t")

    def check_readable(self, bucket: str, key: bytes) -> None:
        """Check that a GET finds an object, if it is anywhere.

        Raises:
            Failure: 404.
        """
        if self._is_joining("joining") and self.hides(bucket, key):
            raise failures.no_object(bucket, key)

    def _is_joining(self, until: str) -> bool:
        plan = self._plan
        if plan is None or plan.cause != "join":
            return False
        return time.monotonic() - self._began < float(getattr(plan, until))


def _remove(copies: Mapping[Name, Copy | None]) -> None:
    for copy in copies.values():
        if copy is not None:
            copy.path.unlink(missing_ok=True)


def _draw(bucket: str, key: bytes) -> float:
    return xxh64_intdigest(bucket.encode() + b"/" + key, seed=_SEED) / (1 << 64)


_PATH = "/$&+,:;=@~"
"""Characters that Go does not escape in the path of a redirect, besides letters, digits and `-._`."""
_CONTROL = re.compile(rb"[\x01-\x08\x0a-\x1f\x7f]")
_ASCII = "".join(map(chr, range(0x01, 0x80)))


class Kindness:
    """A server without traps."""

    loses_repeated_parts = False
    """A part number that is sent twice in one upload silently destroys the part."""
    appends_in_place = False
    """A member overwrites the end of its tar, whose file is not truncated, and half of a member stays
    when the client disconnects; a new shard needs an existing directory."""
    loses_names = False
    """Listings lose names as in `aisfs.server.api.list_objects`."""
    like_amazon = True
    """The S3 API answers as Amazon's does where AIStore's differs: the proxy serves objects itself, and
    listings lose nothing and have ETags and modification times."""
    holds_both = False
    """An object and a directory may have one name, where they are on different disks; a target whose
    disk has the object then gives up listing that directory, as often as not."""
    breaks_transforms = False
    """What breaks a transformation off is appended to its result, and names are a part of URLs: see `aisfs.server.api.jobs.etl`."""
    attaches = False
    """Other clusters can be attached, with what is wrong about that: see `aisfs.server.api.attached`."""
    moves_data = False
    """Data moves between targets on request."""
    moving = Moving()
    """What is hidden meanwhile."""
    targets = 1
    """The simulated number of targets, each with two disks."""

    def target_of(self, bucket: str, key: bytes) -> int:
        """Return the number of the target that has an object."""
        return 0

    def is_misplaced(self, bucket: str, key: bytes) -> bool:
        """Return whether an object is on another target than its name belongs to."""
        return False

    def disk_of(self, bucket: str, key: bytes) -> int:
        """Return the number of the disk that an object is on; those of a target are consecutive."""
        at = xxh64_intdigest(bucket.encode() + b"/" + key) & 1
        return 2 * self.target_of(bucket, key) + at

    def location(self, path: bytes) -> str:
        """Return the path of a redirect for the path of a request, decoded; `%2B` comes back as `+`."""
        return quote(path, safe=_PATH)

    def keep_directory(self, bucket: str, key: bytes) -> None:
        """Keep the parent directories of an object that is deleted."""

    def drop_directory(self, bucket: str, key: bytes) -> None:
        """Remove an empty directory that was kept, if an object of this name would be on its disk."""

    def drop_bucket(self, bucket: str) -> None:
        """Remove what was kept of a bucket."""

    def has_directory(self, bucket: Bucket, key: bytes, disk: int) -> bool:
        """Return whether there is a directory of this name on a disk."""
        return bucket.has_folder(key)

    def kept(self, bucket: str, inside: bytes) -> set[bytes] | None:
        """Return the directories that were kept in this one, with their slash; None if it was not."""
        return None


class Traps(Kindness):
    """A server that loses data and names like a real target with two disks."""

    loses_repeated_parts = True
    appends_in_place = True
    loses_names = True
    like_amazon = False
    holds_both = True
    breaks_transforms = True
    attaches = True
    moves_data = True

    def __init__(self, folder: Path) -> None:
        """Directories that outlive their objects are kept in `folder`."""
        self._folder = folder
        self.moving = Moving()

    def location(self, path: bytes) -> str:
        """Return the path of a redirect; one with control characters is not escaped.

        Line breaks in it become spaces, and the others stay.
        """
        if not _CONTROL.search(path):
            return super().location(path)
        return quote(path.replace(b"\n", b" ").replace(b"\r", b" "), safe=_ASCII)

    def keep_directory(self, bucket: str, key: bytes) -> None:
        """Keep the parent directories of an object on its disk, until `drop_directory`."""
        if b"/" in key:
            os.makedirs(os.path.dirname(self._place(bucket, key)), exist_ok=True)

    def drop_directory(self, bucket: str, key: bytes) -> None:
        """Remove a directory, as the DELETE of an object in its place does."""
        with suppress(OSError):
            os.rmdir(self._place(bucket, key))

    def drop_bucket(self, bucket: str) -> None:
        """Remove what was kept of a bucket."""
        self.moving.drop_bucket(bucket)
        for folder in self._disks(bucket):
            shutil.rmtree(folder, ignore_errors=True)

    def has_directory(self, bucket: Bucket, key: bytes, disk: int) -> bool:
        """Return whether there is a directory on a disk: one that was kept, or with an object of it."""
        if os.path.isdir(self._disks(bucket.name)[disk] + b"/" + key):
            return True
        return any(self.disk_of(bucket.name, name) == disk for name in bucket.below(key))

    def kept(self, bucket: str, inside: bytes) -> set[bytes] | None:
        """Return the directories in this one on any disk."""
        found = None
        for folder in self._disks(bucket):
            with suppress(OSError):
                found = {name + b"/" for name in os.listdir(folder + b"/" + inside)} | (
                    found or set()
                )
        return found

    def _disks(self, bucket: str) -> list[bytes]:
        return [os.fsencode(self._folder / str(disk) / bucket) for disk in range(2 * self.targets)]

    def _place(self, bucket: str, key: bytes) -> bytes:
        return self._disks(bucket)[self.disk_of(bucket, key)] + b"/" + key
