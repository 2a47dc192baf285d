"""Whether the cluster is whole: a proxy that was just started knows no, or not all, targets.

Such a proxy answers 404 for objects that exist, and sends what is written to targets that nobody
will ask for it later. It cannot be told by its replies, so each new connection to a proxy begins
with the question whether it is ready: behind one connection there is one process, and one that is
ready stays so. When nothing happens this costs a request for each connection that is made
(docs/adr/0025).

A target that vanished from the cluster's map without having been put into maintenance is missed:
until it is back, or the mount is made anew, nothing is changed, and neither "no such object" nor a
listing is believed. What is there is read.

Must not know: redirects, what requests mean, trio.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from aisfs.errors import Unavailable
from aisfs.http.exchange import BodyDelivered, Exchange, Reply, WatchedConnection
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

_HEALTH = "/v1/health?prr=true"
_ALIVE = "/v1/health"
_MAP = "/v1/daemon?what=smap"
_MOST_MAP = 16 << 20
"""Bytes of a map: some 600 for each target, and no cluster has 20,000."""
_LEAVING = 4 | 8
"""Flags of a target in maintenance, or being taken out for good."""
_NS = 1_000_000_000
_MUTE = 60.0
"""Seconds after which a listing that was refused is tried again: rights and tokens change."""
MAP_SETTLES = 10.0
"""Seconds after a change of the map in which nothing counts as missing. A target that joins does not ask the
others for what it lacks in its first two or three."""


class _Node(msgspec.Struct):
    flags: int = 0


class _Map(msgspec.Struct):
    uuid: str
    version: int
    tmap: dict[str, _Node] | None = None


# Not strict: the version is a string.
_decode_map = msgspec.json.Decoder(_Map, strict=False).decode


@any_thread
class Readiness:
    """What is known about the proxies and targets of one cluster."""

    def __init__(self, authorization: Callable[[], str | None], timeout: float | None) -> None:
        """Know nothing yet.

        Args:
            authorization: Gives the value of that header, or None.
            timeout: Seconds without a byte of a reply; None waits without end.
        """
        self._authorization = authorization
        self._timeout = timeout
        self._lock = ranked_lock(Rank.READINESS)
        self.episode = 0
        """Changes whenever a proxy may have been started again: connections of before are not
        to be used any more."""
        self.missed: frozenset[str] = frozenset()
        """Targets that are gone and should not be."""
        self._targets: frozenset[str] = frozenset()
        """Those that should be there."""
        self._cluster = ""
        self.version = 0
        """Of the map that is known; 0 when none is."""
        self._looked = float("-inf")
        """When the map was last asked for, on the clock of `time.monotonic`."""
        self._changed = float("-inf")
        """When it was first seen to be another one than before, on the same clock."""
        self._calm: dict[str, int] = {}
        """Buckets of which a listing was complete, and the map's version then: as long as it is this one, nothing of
        them moves. Of another bucket it says nothing: a target that has none of this one may be sending that one's."""
        self._moves: set[str] = set()
        """Buckets whose last listing was not complete."""
        self._muted: dict[str, float] = {}
        """Buckets whose listing was refused, and when, on the clock of `time.monotonic`."""
        self.note: Callable[[list[Any]], None] = lambda _: None
        """Told what is known of the map whenever that changes, for another process."""

    @property
    def known(self) -> list[Any]:
        """What is known of the map, to be spelled as JSON; see `go_on`."""
        changed = self._changed if self._changed != float("-inf") else None
        return [self._cluster, self.version, sorted(self._targets), changed]

    def go_on(self, known: list[Any]) -> None:
        """Know what another process of this machine knew lately: targets may have joined or left a moment ago."""
        with self._lock:
            self._cluster, self.version, targets, changed = known
            self._targets = frozenset(targets)
            self._changed = float("-inf") if changed is None else changed
            self._looked = float("-inf")
            self._calm.clear()

    def disturbed(self, episode: int) -> None:
        """Note a sign of a restart that showed on a connection of `episode`."""
        with self._lock:
            if episode == self.episode:
                self.episode += 1

    @contextmanager
    def undisturbed(self, subject: str) -> Iterator[None]:
        """Surround a change: done while a proxy was started again, it may be in the wrong place.

        Raises:
            BodyDelivered: it was.
        """
        before = self.episode
        yield
        if self.episode != before:
            raise BodyDelivered(f"{subject}: the cluster was started again meanwhile")

    def admit(self, connection: WatchedConnection) -> None:
        """Make sure that a new connection leads to a proxy that is ready.

        Raises:
            Unavailable: it does not.
            HTTPException, OSError: no answer.
        """
        reply = self._ask(connection, _HEALTH)
        if reply.status >= 500 or reply.status == 429:
            raise Unavailable(f"the cluster is starting, or stopping (HTTP {reply.status})")
        # Other refusals are those of a proxy that is not the primary, or of a gateway; then the
        # map alone tells.
        started_since = reply.status != 200 or _start_of(reply) > self._looked
        if started_since and connection.sock is not None:
            self._look(connection)
            if self.missed:
                raise self._incomplete()

    def greet(self, connection: WatchedConnection) -> None:
        """Make sure that a new connection leads to a target that runs, before a change is sent.

        The kernel of one that was stopped takes what is sent all the same. When it goes on it would
        do what was given up long ago, perhaps after what was sent later and acknowledged.

        Raises:
            HTTPException, OSError: no answer.
        """
        self._ask(connection, _ALIVE)

    @property
    def may_miss(self) -> bool:
        """Whether objects can be out of reach while others are not."""
        return len(self._targets) > 1

    def settle(
        self, connection: WatchedConnection, before: int, age: float = 0.0
    ) -> Unavailable | None:
        """Return why a "not found" or a listing cannot be trusted; None if it can.

        Args:
            connection: One to the proxy.
            before: Version of the map that was known before it was asked for.
            age: Seconds that the map may be old.

        Raises:
            HTTPException, OSError: no answer.
        """
        if not age or self.age > age:
            self._look(connection)
        if self.missed:
            return self._incomplete()
        if before and self.version != before:
            return Unavailable("the cluster's map changed meanwhile")
        since = time.monotonic() - self._changed
        if since < MAP_SETTLES:
            return Unavailable(f"targets joined or left the cluster {since:.0f} s ago")
        return None

    def moving(self, bucket: str) -> None:
        """Note that a listing of a bucket was not complete."""
        self._calm.clear()
        was_calm = not self._moves
        self._moves.add(bucket)
        if was_calm:
            log.warning(
                "the cluster is moving objects between its targets: until it has, listings and what must not be "
                "there yet wait, and time out"
            )

    def calmed(self, bucket: str) -> None:
        """Note that a listing of a bucket was complete, after `settle` has found nothing against it."""
        self._calm[bucket] = self.version
        if bucket in self._moves:
            self._moves.discard(bucket)
            if not self._moves:
                log.warning("the cluster's listings are complete again")

    def muted(self, bucket: str) -> None:
        """Note that the listing of a bucket was refused."""
        self._muted[bucket] = time.monotonic()

    def is_mute(self, bucket: str) -> bool:
        """Return whether it was refused so lately that it is not worth another request."""
        return time.monotonic() - self._muted.get(bucket, float("-inf")) < _MUTE

    def moves_nothing(self, bucket: str) -> bool:
        """Return whether nothing of a bucket has moved since a listing of it was complete."""
        return self.version != 0 and self._calm.get(bucket) == self.version and not self.missed

    @property
    def age(self) -> float:
        """Seconds since the map was asked for."""
        return time.monotonic() - self._looked

    def _incomplete(self) -> Unavailable:
        return Unavailable(f"the cluster misses {_named(self.missed)}")

    def _look(self, connection: WatchedConnection) -> None:
        """Ask for the map. Not everybody may ask: then nothing is known."""
        now = time.monotonic()
        reply = self._ask(connection, _MAP)
        if reply.status >= 500:
            raise Unavailable(f"the cluster does not give its map (HTTP {reply.status})")
        try:
            found = _decode_map(reply.body) if reply.status == 200 else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found = None
        with self._lock:
            if now < self._looked:  # another thread has a newer one
                return
            self._looked = now
            before = self.known
            if found is None:
                log.debug("the cluster does not give its map (HTTP %d)", reply.status)
            else:
                self._take(found)
        if self.known != before:
            self.note(self.known)

    def _take(self, found: _Map) -> None:
        nodes = found.tmap or {}
        active = frozenset(name for name, node in nodes.items() if not node.flags & _LEAVING)
        first = not self._cluster
        if not first and found.uuid != self._cluster:
            log.warning("another cluster answers at this endpoint: %s", found.uuid)
            first = True
        missed = frozenset() if first else self._targets - nodes.keys()
        if missed and missed != self.missed:
            log.warning(
                "the cluster misses %s. Until it is back nothing is changed, and what is not "
                "found may be there. If it was taken out for good, mount again",
                _named(missed),
            )
        elif self.missed and not missed:
            log.warning("the cluster is complete again")
        if not first and found.version < self.version:
            self.episode += 1
        if self.version and found.version != self.version:
            self._changed = time.monotonic()
        self.missed, self._targets = missed, active | missed
        self._cluster, self.version = found.uuid, found.version

    def _ask(self, connection: WatchedConnection, target: str) -> Reply:
        headers = {"Content-Length": "0"}
        # Health is told to everybody; a token goes no further than it has to.
        if target == _MAP and (authorization := self._authorization()):
            headers["Authorization"] = authorization
        # On the same socket, but apart from the request that the connection may be made for.
        own = connection.beside()
        try:
            sent = Exchange(own, "GET", target, headers, timeout=self._timeout)
            return sent.take_all(_MOST_MAP, self._timeout)
        finally:
            if own.sock is None:  # the server wanted to close it
                connection.sock = None


_UPTIME = re.compile(r"[0-9]{1,19}")


def _start_of(reply: Reply) -> float:
    """When the process behind a reply was started; after everything else if it does not say."""
    uptime = reply.headers.get("ais-node-uptime", "")
    return time.monotonic() - int(uptime) / _NS if _UPTIME.fullmatch(uptime) else float("inf")


def _named(targets: frozenset[str]) -> str:
    shown = ", ".join(sorted(targets)[:5])
    plural = "s" if len(targets) > 1 else ""
    return f"{len(targets)} target{plural} ({shown}{', …' if len(targets) > 5 else ''})"
