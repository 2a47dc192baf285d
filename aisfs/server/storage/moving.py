"""Data that moves between targets, as it does after one has joined, or is to leave (a rebalance).

A part of the names then has a new target, to which their objects come one by one. What AIStore 5.0
says of such a name meanwhile: HEAD, and whatever changes an object without bringing all of it, does not
find it, GET finds it at its old target, and listings leave it out. In the first seconds a target that
joins knows no map, and after that no neighbours to ask, so that GET does not find the object either.
What is written meanwhile is at its new target at once.

The reference does not say what a DELETE then does. Here it is answered as HEAD is, with 404, and the
object stays: nobody who is told so may believe that the name is free.
"""

import threading
import time
from typing import Any, Literal

import msgspec
from xxhash import xxh64_intdigest

from aisfs.server import failures
from aisfs.server.failures import Failure

MAINTENANCE, LEAVING = 4, 8
"""Flags of a target in the cluster map."""
_SEED = 11
_HALF = 0.5


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens when; all times are in seconds since the beginning."""

    cause: Literal["join", "maintenance", "leave"] = "join"
    share: float = 0.3
    """The part of the names whose objects move."""
    unmapped: float = 1.5
    """How long a target that joins knows no map."""
    joining: float = 3.0
    """How long a target that joins does not ask its neighbours for an object."""
    moving: float | None = 10.0
    """When all have moved, the first after half of it; None until the request that ends it."""
    incomplete: float = 3.0
    """How long after that listings still say that they may be incomplete."""


class Moving:
    """Which objects are where at the moment."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plan: Plan | None = None
        self._began = 0.0
        self._complete = 0.0
        """From when on listings are complete; while data moves it is not known."""
        self._placed = set[tuple[str, bytes]]()
        self.version = 1
        """Of the cluster map."""

    def begin(self, plan: Plan) -> bool:
        """Begin, or go on by another plan from its beginning; return whether data began to move."""
        with self._changed:
            is_new = self._plan is None
            if is_new:
                self._placed.clear()
                self.version += 1
            self._plan, self._began = plan, time.monotonic()
            self._changed.notify_all()
        return is_new

    def end(self) -> None:
        """Let all data have moved."""
        with self._changed:
            if self._plan is not None:
                self._complete = time.monotonic() + self._plan.incomplete
                self._plan = None
                self.version += 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all data has moved, which it has when the plan says so."""
        with self._changed:
            while (plan := self._plan) is not None:
                left = None
                if plan.moving is not None:
                    left = self._began + plan.moving - time.monotonic()
                if left is not None and left <= 0:
                    self.end()
                else:
                    self._changed.wait(left)

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

    def hides(self, bucket: str, key: bytes) -> bool:
        """Return whether the new target of an object does not have it yet."""
        plan = self._plan
        if plan is None or (bucket, key) in self._placed:
            return False
        draw = xxh64_intdigest(bucket.encode() + b"/" + key, seed=_SEED) / (1 << 64)
        if draw >= plan.share or plan.moving is None:
            return draw < plan.share
        arrival = plan.moving * (_HALF + _HALF * draw / plan.share)
        return time.monotonic() - self._began < arrival

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
