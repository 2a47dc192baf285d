"""The ETLs of a cluster: define, describe, start and stop them, and have them transform objects, for good or to be read.

Questions are repeated until they are answered, what starts something is sent once.

A transformed object is read whole and at once, since the time that AIStore gives a transformation counts until the
client has read all of it. The reply says nothing about which version it is made of, and may end in an error where the
transformation broke off: see `EtlTransformer`.

Must not know: HTTP, requests, errnos.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
import trio

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    ConfigError,
    JobFailed,
    JobNotFound,
    ProtocolError,
    Stale,
    TransformBroken,
    TransformFailed,
    Unavailable,
)
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import Reply
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.ais.cluster import Session
from aisfs.stores.ais.jobs import Questions, parse_job_id
from aisfs.stores.ais.replies import MOST_APPENDED, appended_error
from aisfs.stores.ais.requests import (
    ETLS,
    JSON,
    Request,
    bucket_path,
    bucket_query,
    encode_json,
    get_transformed,
    transform_object,
)
from aisfs.stores.port import ObjectStore
from aisfs.stores.results import Draft

log = logging.getLogger(__name__)

RUNNING = "Running"
"""The stage of an ETL that transforms."""
PULLED = "hpull://"
"""The type of communication in which names of objects need not fit into a URL."""
_NAME = re.compile(r"[a-z0-9-]{1,64}")
_START_SECONDS = 600.0
"""A definition or a start is answered once all transformers are ready, or its own `init_timeout` has passed."""
_MOST_LOGS = 64 << 20
"""Bytes of the logs of all targets."""

_DEFINITION_SECONDS = 2.0
"""How old what is known of definitions may be when results are looked for. After each transformation it is asked again."""
_IN_A_URL = frozenset("?#%")
"""What ends or changes a name in the URL that AIStore makes of it, unescaped, for a transformer."""
_PIECE = 1 << 20

T = TypeVar("T")


class Etl(msgspec.Struct, rename={"name": "id", "job": "xaction_id", "objects": "obj_count"}):
    """An ETL, as the list has it."""

    name: str
    stage: str = ""
    job: str = ""
    objects: int = 0
    """How many it has transformed; AIStore asks only one target."""


class ObjectError(msgspec.Struct, rename={"name": "obj_name", "text": "msg", "status": "ecode"}):
    """An object that could not be transformed."""

    name: str = ""
    text: str = ""
    status: int = 0


class Details(msgspec.Struct, rename={"definition": "init_msg", "errors": "obj_errors"}):
    """What a cluster says of a running ETL."""

    definition: dict[str, Any] = {}
    errors: list[ObjectError] | None = None


class Log(msgspec.Struct, rename={"target": "target_id", "content": "logs"}):
    """What the transformer of a target has logged."""

    target: str = ""
    content: bytes = b""
    """Sent as base64."""


def etl_path(name: str, verb: str = "") -> str:
    """Return the path of an ETL, whose name a user has typed.

    Raises:
        ConfigError: it can be none.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not the name of an ETL; `aisfs etl list` lists them")
    return f"{ETLS}/{name}/{verb}" if verb else f"{ETLS}/{name}"


def start_transform(etl: str, source: Bucket, prefix: str, to: Bucket, prepend: str) -> Request:
    """Start the job that transforms a bucket or a prefix; the reply is its id.

    Names of results begin with `prepend`, before those of the sources. A failure does not end the job.
    """
    place = f"{to.provider.value}/{to.namespace or '@#'}/{to.name}/"
    value = {"id": etl, "prefix": prefix, "prepend": prepend, "coer": True}
    body = encode_json({"action": "etl-bck", "name": "", "value": value})
    query, subject = bucket_query(source, {"bck_to": place}), f"the ETL {etl} of {source}/{prefix}"
    path, headers = bucket_path(source), {"Content-Type": JSON}
    return Request("POST", path, query, subject, headers, body, patience=_START_SECONDS)


class Etls(Questions):
    """The ETLs of a cluster.

    Raises in all methods:
        Unsupported: the cluster has no ETLs.
    """

    async def all(self) -> list[Etl]:
        """Return all ETLs, by name."""
        reply = await self._ask(Request("GET", ETLS, "", "ETLs"))
        return sorted(_decoded(reply, list[Etl], "ETLs"), key=lambda etl: etl.name)

    async def one(self, name: str) -> Etl:
        """Return one ETL.

        Raises:
            JobNotFound: there is none of this name.
        """
        etl_path(name)
        for etl in await self.all():
            if etl.name == name:
                return etl
        raise JobNotFound(f"the ETL {name}: the cluster has none of this name")

    async def details(self, name: str, job: str = "") -> Details:
        """Describe a running ETL, with the objects that it, or the job of that id, could not transform."""
        query = urlencode({"uuid": job}) if job else ""
        request = Request("GET", etl_path(name), query, f"the ETL {name}")
        return _decoded(await self._ask(request), Details, request.subject)

    async def logs(self, name: str) -> list[Log]:
        """Return what the transformers of a running ETL have logged."""
        path, subject = etl_path(name, "logs"), f"the logs of {name}"
        reply = await self._ask(Request("GET", path, "", subject, most_reply=_MOST_LOGS))
        return _decoded(reply, list[Log], subject)

    async def define(self, name: str, definition: dict[str, Any]) -> None:
        """Define an ETL, and wait until it runs."""
        etl_path(name)
        headers, body = {"Content-Type": JSON}, encode_json(definition)
        subject = f"the ETL {name}"
        await self._send(Request("PUT", ETLS, "", subject, headers, body, patience=_START_SECONDS))

    async def start(self, name: str) -> None:
        """Start a stopped ETL again, and wait until it runs."""
        path, subject = etl_path(name, "start"), f"the ETL {name}"
        await self._send(Request("POST", path, "", subject, patience=_START_SECONDS))

    async def stop(self, name: str) -> None:
        """Stop an ETL; its definition stays."""
        await self._ask(Request("POST", etl_path(name, "stop"), "", f"the ETL {name}"))

    async def delete(self, name: str) -> None:
        """Stop and forget an ETL."""
        await self._ask(Request("DELETE", etl_path(name), "", f"the ETL {name}"))

    async def start_transform(
        self, etl: str, source: Bucket, prefix: str, to: Bucket, prepend: str
    ) -> str:
        """Start the job that transforms a bucket or a prefix; return its id."""
        request = start_transform(etl, source, prefix, to, prepend)
        return parse_job_id(await self._send(request), request.subject)

    async def transform(
        self, etl: str, arguments: str, bucket: Bucket, key: str, to: Bucket, new_key: str
    ) -> None:
        """Store a copy of one object as an ETL transforms it."""
        await self._send(transform_object(bucket, key, etl, arguments, to, new_key))


class EtlTransformer(Questions):
    """Transforms objects by ETLs, one after the other; see `aisfs.stores.transformed.Transformer`."""

    at_once = 8
    """As many as other requests for single objects."""

    def __init__(
        self,
        session: Session,
        names: Sequence[str],
        arguments: str,
        *,
        deadline: float,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Use the ETLs of these names, with the arguments of each request.

        `note` is given how they are defined, in a thread, whenever that is another text than before; see `go_on`.
        """
        super().__init__(session, deadline=deadline)
        self._etls = Etls(session, deadline=deadline)
        self._names = names
        self._arguments = arguments
        self._note = note
        self._said = ""
        self._defined = self._define("")
        """How the ETLs are defined, as far as the cluster says that."""
        self._is_pulled = False
        self._is_secret = False
        self._asked = float("-inf")
        self._turn = trio.Lock()
        self._begun = self._answered = 0
        """Number of the last question about definitions, and of the last one that was answered."""

    async def definition(self) -> str:
        """Return how the ETLs are defined; asks now and then, and believes what it knows while they do not run."""
        if trio.current_time() >= self._asked + _DEFINITION_SECONDS:
            with suppress(AisfsError):
                await self.ask()
        return self._defined

    def _define(self, said: str) -> str:
        return json.dumps(["etl", *self._names, self._arguments, said])

    def go_on(self, said: str) -> None:
        """Believe what was noted, until the ETLs say it themselves."""
        self._believe(said)
        self._is_pulled = _is_pulled(json.loads(said) if said else [])

    def _believe(self, said: str) -> None:
        self._said, self._defined = said, self._define(said)

    async def ask(self) -> None:
        """Ask how the ETLs are defined, which run then; one question for all that wait.

        Raises:
            Unsupported: the cluster has none. `JobNotFound`: one does not run.
        """
        wanted = self._begun + 1  # one under way may have begun too early
        async with self._turn:
            if self._answered < wanted:
                self._begun = number = self._begun + 1
                await self._ask_all()
                self._answered = number

    async def _ask_all(self) -> None:
        said: list[dict[str, Any]] = []
        for name in self._names if not self._is_secret else ():
            try:
                details = await self._etls.details(name)
            except AccessDenied as error:
                # Managing ETLs takes more rights than reading through them.
                log.warning("an ETL that is defined anew would not be noticed: %s", error)
                self._is_secret, said = True, []
                break
            said.append(details.definition)
        self._is_pulled = _is_pulled(said)
        self._asked, before = trio.current_time(), self._said
        self._believe(json.dumps(said, sort_keys=True))
        if self._said != before:
            await trio.to_thread.run_sync(self._note, self._said)

    async def transform(
        self, store: ObjectStore, bucket: Bucket, source: ObjectInfo, out: Draft
    ) -> str:
        """Write what the ETLs make of exactly this version; see `Transformer`.

        The version is that of the source, if it is the current one afterwards, too.
        """
        before, subject = self._defined, f"{bucket}/{source.key}"
        if not self._is_pulled and not _IN_A_URL.isdisjoint(source.key):
            text = "an ETL would transform another object than this, since its name has ?, # or %"
            raise TransformFailed(f"{subject}: {text}")
        try:
            found = await self._read(bucket, source.key, out)
            if found is None:
                found = await store.head(bucket, source.key)
            await self.ask()
        except JobNotFound as error:
            raise Unavailable(str(error)) from error
        except (JobFailed, ProtocolError) as error:
            raise TransformFailed(str(error)) from error
        if not source.same_content(found):
            raise Stale(f"{subject}: changed while it was transformed")
        if self._defined != before:
            raise Unavailable(f"{subject}: the ETL was defined anew meanwhile")
        return before

    def close(self) -> None:
        """See `Transformer`."""

    async def _read(self, bucket: Bucket, key: str, out: Draft) -> ObjectInfo | None:
        """Read a whole result; return what the source is then, unless that has to be asked for again."""
        request = get_transformed(bucket, key, self._names, self._arguments)
        transport = self._session.transport

        def work(connections: ConnectionSet) -> ObjectInfo | None:
            out.restart()
            with transport.open(connections, request) as body:
                reply = body.reply
                is_delimited = "content-length" in reply.headers or "chunked" in reply.headers.get(
                    "transfer-encoding", ""
                )
                if reply.status != 200 or not is_delimited:
                    text = "the transformer's answer does not say where it ends"
                    raise ProtocolError(f"{request.subject}: {text} (HTTP {reply.status})")
                piece = memoryview(bytearray(_PIECE))
                try:
                    while got := body.read_into(piece):
                        out.write(piece[:got])
                except Unavailable as error:
                    raise TransformBroken(str(error)) from error
            if why := appended_error(out.end(MOST_APPENDED), request.path):
                raise TransformBroken(f"{request.subject}: the transformation broke off: {why}")
            with suppress(AisfsError):
                return self._session.describe(connections, bucket, key)
            return None

        return await self._session.run(request.subject, work, bucket, key)


def _is_pulled(said: Sequence[dict[str, Any]]) -> bool:
    """Return whether clients ask the transformer themselves, of ETLs with these definitions."""
    return bool(said) and said[0].get("communication") == PULLED


def _decoded(reply: Reply, kind: type[T], subject: str) -> T:
    try:
        return msgspec.json.decode(reply.body.decode("utf-8", "replace"), type=kind, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"{subject}: an answer that makes no sense: {error}") from error
