"""The ETLs of a cluster: define, describe, start and stop them, and have them transform objects for good.

Questions are repeated until they are answered, what starts something is sent once.

Must not know: HTTP, requests, errnos.
"""

import re
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from aisfs.errors import ConfigError, JobNotFound, ProtocolError
from aisfs.http.exchange import Reply
from aisfs.model import Bucket
from aisfs.stores.ais.jobs import Questions, parse_job_id
from aisfs.stores.ais.requests import (
    ETLS,
    JSON,
    Request,
    bucket_path,
    bucket_query,
    encode_json,
    transform_object,
)

RUNNING = "Running"
"""The stage of an ETL that transforms."""
PULLED = "hpull://"
"""The type of communication in which names of objects need not fit into a URL."""
_NAME = re.compile(r"[a-z0-9-]{1,64}")
_START_SECONDS = 600.0
"""A definition or a start is answered once all transformers are ready, or its own `init_timeout` has passed."""
_MOST_LOGS = 64 << 20
"""Bytes of the logs of all targets."""

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


def _decoded(reply: Reply, kind: type[T], subject: str) -> T:
    try:
        return msgspec.json.decode(reply.body.decode("utf-8", "replace"), type=kind, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"{subject}: an answer that makes no sense: {error}") from error
