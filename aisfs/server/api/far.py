"""Requests to another cluster, which is attached to this one."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection, HTTPException
from typing import Any, BinaryIO, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from aisfs.server.failures import Failure

Headers = Sequence[tuple[str, str]]
_SECONDS = 60.0
"""How long the other cluster may be silent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, whole but for content that went elsewhere."""

    status: int
    headers: Message
    body: bytes

    def failure(self, where: str) -> Failure:
        """Return the error that this says, as AIStore passes it on."""
        text = self.headers.get("Hdr-Error") or self.body.decode(errors="replace")
        try:
            document = json.loads(text)
            message, tcode = str(document["message"]), str(document.get("tcode", ""))
        except (ValueError, KeyError, TypeError):
            message, tcode = text[:200], ""
        return Failure(self.status, f"remote-cluster[{where}]: {message}", tcode)


class Far:
    """Requests to another cluster."""

    def __init__(self, alias: str, url: str, uuid: str = "") -> None:
        self.alias, self.url = alias, url.rstrip("/")
        self.uuid = uuid or str(self.map()["uuid"])

    def map(self) -> dict[str, Any]:
        """Return its map."""
        answer = self.ask("GET", "/v1/daemon?what=smap")
        if answer.status != 200:
            raise answer.failure(self.alias)
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def ask(
        self,
        method: str,
        target: str,
        headers: Headers = (),
        body: bytes | BinaryIO | None = None,
        *,
        url: str = "",
        sink: BinaryIO | None = None,
    ) -> Answer:
        """Send a request to its proxy, or to another `url`; the content of a success goes to `sink`.

        Raises:
            Failure: 400 when it does not answer.
        """
        place = urlsplit(url or self.url)
        connection = HTTPConnection(place.hostname or "", place.port, timeout=_SECONDS)
        try:
            connection.putrequest(method, target, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            if sink is None or reply.status != 200:
                return Answer(reply.status, reply.headers, reply.read())
            shutil.copyfileobj(reply, sink)
            if sink.tell() != int(reply.headers.get("Content-Length", sink.tell())):
                raise HTTPException("unexpected EOF")
            return Answer(reply.status, reply.headers, b"")
        except (OSError, HTTPException, ValueError) as error:
            text = f"remote-cluster[{self.alias}]: dial tcp {place.netloc}: connect: {error}"
            raise Failure(400, text, "OpError") from error
        finally:
            connection.close()

    def object(
        self,
        method: str,
        bucket: str,
        key: bytes,
        query: Mapping[str, str] | None = None,
        headers: Headers = (),
        body: bytes | BinaryIO | None = None,
        sink: BinaryIO | None = None,
    ) -> Answer:
        """Send a request about an object to the target that has it."""
        path = f"/v1/objects/{quote(bucket)}/{quote(key, safe='/')}"
        asked = f"{path}?{urlencode({'provider': 'ais', **(query or {})})}"
        answer = self.ask(method, asked)
        if answer.status not in (301, 307):
            return answer
        place = urlsplit(answer.headers["Location"])
        there = f"{place.scheme}://{place.netloc}"
        return self.ask(method, f"{path}?{place.query}", headers, body, url=there, sink=sink)

    def refuse(self, answer: Answer) -> NoReturn:
        """Pass an error on."""
        raise answer.failure(f"{self.uuid}/@{self.alias}")
