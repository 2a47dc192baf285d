"""What is known of a cluster: what answers at its endpoint, and which buckets have their objects elsewhere.

Those are in other AIStore clusters, or in clouds. AIStore keeps a copy of what was read of them and does not
look at the original again by itself. `Session` is the interface through which the other modules use the
client.

Must not know: HTTP beyond requests and replies, trio.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol, TypeVar

import msgspec

from aisfs.errors import AisfsError, ProtocolError, Stale, Unavailable
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import Reply, environment_proxy, other_scheme
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.stores.ais.replies import CLUSTER_MAP, HEALTH, VERSION, Identity, identify, parse_buckets
from aisfs.stores.ais.requests import BucketFacts, Request, check_content, list_buckets
from aisfs.stores.ais.transport import Body, Transport
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

_LOOKED_AT_MAX = 10_000
"""Versions whose originals were looked at; as many as the engine remembers objects."""
_LOOKED_AT_SECONDS = 60.0
"""How long that counts: as long as a name is believed, by default."""


class _Attached(msgspec.Struct):
    alias: str = ""
    uuid: str = ""


class _AllAttached(msgspec.Struct):
    a: list[_Attached] | None = None


_decode = msgspec.json.Decoder(_AllAttached).decode


@any_thread
class Remotes:
    """The other clusters that are attached to this one."""

    def __init__(self, transport: Transport) -> None:
        """Ask nothing yet."""
        self._transport = transport
        self._uuids: dict[str, str] = {}
        self._buckets: dict[str, list[Bucket]] = {}

    def buckets(self, connections: ConnectionSet) -> list[Bucket]:
        """List the buckets of the attached clusters; of one that does not answer, those of before."""
        known = {}
        for name in self._attached(connections):
            space = f"@{name}#"
            known[name] = self._buckets.get(name, [])
            try:
                reply = self._transport.fetch(connections, list_buckets(Provider.AIS, space))
                known[name] = [replace(each, namespace=space) for each in parse_buckets(reply)]
            except AisfsError as error:
                log.warning("the buckets of the attached cluster %s are unknown: %s", name, error)
        self._buckets = known
        return [bucket for found in known.values() for bucket in found]

    def is_attached(self, bucket: Bucket) -> bool:
        """Return whether a bucket is in a cluster that was found to be attached."""
        return bucket.cluster in self._uuids.values()

    def by_uuid(self, connections: ConnectionSet, bucket: Bucket) -> Bucket:
        """Name the cluster of a bucket by its uuid: as the place of a copy AIStore takes no alias."""
        alias = bucket.cluster
        if not alias:
            return bucket
        if alias not in self._uuids:
            self._attached(connections)
        name = bucket.namespace.partition("#")[2]
        return replace(bucket, namespace=f"@{self._uuids.get(alias, alias)}#{name}")

    def _attached(self, connections: ConnectionSet) -> list[str]:
        """Return the names of the attached clusters; none where the token may not see them."""
        request = Request("GET", "/v1/cluster", "what=remote", "attached clusters")
        try:
            found = _decode(self._transport.fetch(connections, request).body).a or []
        except msgspec.MsgspecError as error:
            log.debug("the attached clusters are unknown: %s", error)
            return []
        except AisfsError as error:
            if error.transient:
                raise
            log.debug("the attached clusters are unknown: %s", error)
            return []
        self._uuids = {each.alias: each.uuid for each in found if each.alias and each.uuid}
        return [each.alias or each.uuid for each in found if each.alias or each.uuid]


@any_thread
class Originals:
    """Reads objects, and has AIStore look at the original of what may be an old copy."""

    def __init__(self, transport: Transport, *, look: bool) -> None:
        """Start with no object looked at."""
        self._transport = transport
        self.look = look
        """Whether all are to be compared, when they are first read."""
        self._lock = ranked_lock(Rank.ORIGINALS)
        self._looked_at: OrderedDict[tuple[Bucket, ObjectInfo], float] = OrderedDict()

    @contextmanager
    def open(
        self,
        connections: ConnectionSet,
        bucket: Bucket,
        expected: ObjectInfo,
        request: Callable[..., Request],
        facts: BucketFacts,
        start: int,
        stop: int,
    ) -> Iterator[Body]:
        """Open the bytes `[start, stop)` of exactly the version `expected`, got by `request`.

        Raises:
            Stale: it is another version, also where the object comes from.
        """

        @contextmanager
        def opened(*, latest: bool) -> Iterator[Body]:
            with self._transport.open(connections, request(latest=latest)) as body:
                check_content(body.reply, bucket, expected, facts, start, stop)
                yield body

        with ExitStack() as stack:
            latest = self._is_due(bucket, expected)
            try:
                body = stack.enter_context(opened(latest=latest))
                if latest:
                    self._note_look(bucket, expected)
            except Stale:
                if latest or bucket.is_local:
                    raise
                # AIStore may have another version than it lists, until it is told to look.
                body = stack.enter_context(opened(latest=True))
            yield body

    def _is_due(self, bucket: Bucket, version: ObjectInfo) -> bool:
        """Return whether to look at the original now."""
        if not self.look or bucket.is_local:
            return False
        with self._lock:
            last = self._looked_at.get((bucket, version))
        return last is None or time.monotonic() - last >= _LOOKED_AT_SECONDS

    def _note_look(self, bucket: Bucket, version: ObjectInfo) -> None:
        """Count a version as looked at from now on."""
        with self._lock:
            self._looked_at[bucket, version] = time.monotonic()
            self._looked_at.move_to_end((bucket, version))
            while len(self._looked_at) > _LOOKED_AT_MAX:
                self._looked_at.popitem(last=False)


T = TypeVar("T")


class Session(Protocol):
    """A client, as the parts of it see it."""

    transport: Transport
    remotes: Remotes

    async def run(
        self,
        subject: str,
        work: Callable[[ConnectionSet], T],
        bucket: Bucket | None = None,
        key: str = "",
    ) -> T:
        """Run `work` in a thread, on connections of its own; a cancellation aborts them.

        If `work` does not find the object `key`, it is missing, or this raises `Unavailable`.
        """
        ...

    def facts_of(self, connections: ConnectionSet, bucket: Bucket) -> BucketFacts:
        """Look the bucket's properties up, once. In the thread."""
        ...

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe the current version of one object; see `ObjectStore.head`."""
        ...

    def describe(
        self, connections: ConnectionSet, bucket: Bucket, key: str, *, latest: bool = False
    ) -> ObjectInfo:
        """Do the same in the thread; an answer other than that to a HEAD is an error."""
        ...

    async def read_range(
        self, bucket: Bucket, expected: ObjectInfo, start: int, buffer: memoryview
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        ...


async def check_answers(session: Session) -> None:
    """Check that the endpoint answers, with one request that needs no token and no target.

    Raises:
        Unavailable: nothing answers, or only an error of the server does.
        ConfigError: the TLS settings do not fit.
    """
    transport = session.transport

    def work(connections: ConnectionSet) -> Reply:
        return transport.ask(connections, HEALTH)

    reply = await session.run(transport.endpoint, work)
    if reply.status >= 500:
        raise Unavailable(f"{transport.endpoint}: HTTP {reply.status} to {HEALTH.path}")


async def identify_endpoint(session: Session) -> Identity:
    """Ask what answers at the endpoint; replies of any kind will do.

    Raises:
        Unavailable: nothing answers.
        ConfigError: the TLS settings do not fit.
    """
    transport = session.transport

    def ask(connections: ConnectionSet, request: Request) -> Reply:
        try:
            return transport.ask(connections, request)
        except ProtocolError:  # redirected to a login page, for example
            return Reply(302, {})

    def work(connections: ConnectionSet) -> Identity:
        before = time.time()
        health = ask(connections, HEALTH)
        clock = before, time.time()
        return identify(health, ask(connections, CLUSTER_MAP), ask(connections, VERSION), clock)

    return await session.run(transport.endpoint, work)


def wrong_scheme(url: str, *, is_aistore: bool = True) -> str | None:
    """Return what is wrong with the scheme of a URL whose host gave no answer; None if that is not why.

    Others than AIStore may be behind a proxy of the environment, which is all that can be asked then.
    """
    if not is_aistore and environment_proxy(url) is not None:
        return None
    return other_scheme(url)
