"""Ways to ask the S3 API of a server."""

from collections.abc import Callable
from dataclasses import dataclass
from xml.etree import ElementTree

import requests

from tests.support.servers import RunningServer


@dataclass
class Answer:
    """A reply, and its document without namespaces."""

    status: int
    headers: "requests.structures.CaseInsensitiveDict[str]"
    content: bytes

    @property
    def root(self) -> ElementTree.Element:
        root = ElementTree.fromstring(self.content)
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root

    @property
    def code(self) -> str:
        """The code of an error."""
        return self.root.findtext("Code", "")

    def texts(self, path: str) -> list[str]:
        return [element.text or "" for element in self.root.findall(path)]


Ask = Callable[..., Answer]


class asking:
    """Ask a server, below `/s3`, without following redirects."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._session = requests.Session()

    def __enter__(self) -> Ask:
        return self._ask

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def _ask(
        self,
        method: str,
        path: str,
        data: object = None,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> Answer:
        reply = self._session.request(
            method,
            f"{self._server.endpoint}/s3{path}",
            params={name.replace("_", "-"): value for name, value in query.items()},
            data=data,
            headers=headers,
            allow_redirects=False,
            timeout=30,
        )
        return Answer(reply.status_code, reply.headers, reply.content)
