"""XML of the S3 API: documents to send, and a reader of received ones that refuses DTDs."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NoReturn, Union
from xml.etree import ElementTree

from aisfs.server.api.s3.errors import code_of, malformed
from aisfs.server.failures import Failure
from aisfs.server.messages import Reply, Request

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
LARGEST = 4 << 20
"""Bytes of a document: 10,000 parts with checksums, or 1,000 keys of 1,024 escaped characters, fit."""
Element = tuple[str, Union[str, int, bool, "Sequence[Element]"]]
"""A name, and text or further elements."""

_ESCAPED = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&#34;",
    "\t": "&#x9;",
    "\n": "&#xA;",
    "\r": "&#xD;",
}
_SPECIAL = re.compile(r'[&<>"\x00-\x1f\ud800-\udfff\ufffe\uffff]')


def render(name: str, content: Sequence[Element], namespace: str = NAMESPACE) -> bytes:
    """Return a document; characters that XML cannot have become U+FFFD, as in Go."""
    parts = ['<?xml version="1.0" encoding="UTF-8"?>\n', f"<{name}"]
    parts.append(f' xmlns="{namespace}">' if namespace else ">")
    _append(parts, content)
    parts.append(f"</{name}>")
    return "".join(parts).encode()


def xml_reply(name: str, content: Sequence[Element]) -> Reply:
    """Return a reply with a document."""
    return Reply(headers=[("Content-Type", "application/xml")], body=render(name, content))


def time_text(time_ns: int) -> str:
    """Return a time as S3's documents have it."""
    moment = datetime.fromtimestamp(time_ns // 10**9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns // 10**6 % 1000:03d}Z"


def parse(text: bytes, root: str) -> ElementTree.Element:
    """Return the root of a document that a client sent, without namespaces.

    Raises:
        Failure: 400; it is malformed, has a DTD or another root.
    """
    parser = ElementTree.XMLParser(target=_Builder())
    try:
        parser.feed(text)
        found = parser.close()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise malformed(str(error)) from error
    if found.tag != root:
        raise malformed(f"expecting {root}")
    return found


def error_document(failure: Failure, request: Request, node_id: str) -> Reply:
    """Return the reply for a failure; one to a HEAD, or with status 304, has no body."""
    if failure.status == 304 or request.method == "HEAD":
        return Reply(failure.status, failure.headers)
    message = failure.message.replace("{node}", node_id)
    found: list[Element] = [
        ("Code", code_of(failure)),
        ("Message", message),
        ("Resource", request.path),
    ]
    headers = [*failure.headers, ("Content-Type", "application/xml")]
    return Reply(failure.status, headers, render("Error", found, namespace=""))


class _Builder(ElementTree.TreeBuilder):
    """Builds elements without namespaces."""

    def start(self, tag: str, attrs: dict[str, str]) -> ElementTree.Element:
        """Begin an element."""
        return super().start(tag.rpartition("}")[2], attrs)

    def end(self, tag: str) -> ElementTree.Element:
        """End an element."""
        return super().end(tag.rpartition("}")[2])

    def doctype(self, name: str, public: str | None, system: str | None) -> NoReturn:
        """Refuse a DTD, whose entities could stand for any amount of text."""
        raise malformed("a DTD is not accepted")


def _append(parts: list[str], content: Sequence[Element]) -> None:
    for name, value in content:
        if isinstance(value, str | int):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            parts.append(f"<{name}>{_SPECIAL.sub(_escape, text)}</{name}>")
        else:
            parts.append(f"<{name}>")
            _append(parts, value)
            parts.append(f"</{name}>")


def _escape(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[0], "\ufffd")
