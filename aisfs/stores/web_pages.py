"""The names in a directory, as a web server's own index of it gives them.

Understood are the pages that nginx, Apache, lighttpd, Python's http.server and others like them make,
the JSON of nginx and caddy, and the reply to PROPFIND of WebDAV. A page that somebody wrote by hand
may name only some of the files, so it is not believed: an index says so in its title. Nor is a page
without its end.

Which version of a file a reply is about, and whether it is what was asked for.

A version is what tells contents apart, as the server sent it: a strong ETag, with its quotes, or the
date of the last change. A weak ETag says only that two contents are alike. A file without any of
these has no version.

Must not know: connections, requests.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from urllib.parse import unquote_to_bytes, urljoin, urlsplit
from xml.etree import ElementTree

from aisfs.errors import ProtocolError, Stale, Unsupported
from aisfs.http.exchange import Reply
from aisfs.model import ObjectInfo
from aisfs.redaction import shown

_TITLE = re.compile(r"\s*(index of|directory listing for|directory:)\s*[/\[]", re.IGNORECASE)
"""How the titles of all servers begin that make such pages; then comes the path."""
_HEADINGS = ("title", "h1", "h2")
_OTHER = "other"
"""What nginx calls pipes and devices."""


@dataclass(slots=True)
class Names:
    """The names in one directory."""

    files: set[str] = field(default_factory=set)
    directories: set[str] = field(default_factory=set)
    """Without their slashes."""

    def add(self, name: str, *, is_directory: bool) -> None:
        """Add one."""
        (self.directories if is_directory else self.files).add(name)


def names_in_index(url: str, body: bytes) -> Names | None:
    """Return the names in an index page; None if it is no page that a server made of a directory.

    Args:
        url: Where the page was found, after all redirects.
        body: The page.

    Raises:
        ProtocolError: it is one, but not whole, or it makes no sense.
    """
    if body.lstrip()[:1] == b"[":
        return _names_in_json(url, body)
    page = _Page()
    page.feed(body.decode("utf-8", "surrogateescape"))
    page.close()
    if not any(_TITLE.match(heading) for heading in page.headings):
        return None
    if not page.ended:
        raise ProtocolError(f"{url}: the index page breaks off")
    return _children(url, page.links)


def names_in_multistatus(url: str, body: bytes) -> Names:
    """Return the names in the reply to a PROPFIND with depth 1.

    Raises:
        ProtocolError: it is none.
    """
    try:
        # expat itself refuses entities that grow without bound.
        tree = ElementTree.fromstring(body)
    except (ElementTree.ParseError, ValueError) as error:
        raise ProtocolError(f"{url}: the answer to PROPFIND is no XML ({error})") from error
    if tree.tag != "{DAV:}multistatus":
        raise ProtocolError(f"{url}: the answer to PROPFIND is no list")
    names, directory = Names(), _directory(url)
    itself = False
    for response in tree.iterfind("{DAV:}response"):
        href = (response.findtext("{DAV:}href") or "").strip()
        path = _path(urljoin(url, href))
        if path.rstrip(b"/") == directory.rstrip(b"/"):
            itself = True
            continue
        kind = response.find(".//{DAV:}resourcetype")
        is_directory = kind is not None and kind.find("{DAV:}collection") is not None
        name = _child(directory, path.rstrip(b"/"))
        if name is None:
            raise ProtocolError(f"{url}: the answer to PROPFIND names what is not in the directory")
        names.add(name, is_directory=is_directory or path.endswith(b"/"))
    if not itself:
        raise ProtocolError(f"{url}: the answer to PROPFIND does not name the directory itself")
    return names


def _names_in_json(url: str, body: bytes) -> Names | None:
    try:
        # Not msgspec: nginx sends bytes that are not UTF-8 as they are.
        entries = json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        raise ProtocolError(f"{url}: the index is broken JSON") from None
    names = Names()
    for entry in entries:
        match entry:
            case {"name": str(name), "type": str(kind)}:  # nginx
                is_directory = kind == "directory"
            case {"url": str(link), "is_dir": bool(is_directory)}:  # caddy, whose names are UTF-8
                path = _path(urljoin(url, link)).rstrip(b"/")
                name, kind = _child(_directory(url), path) or "", ""
            case _:
                return None
        if not name or "/" in name:
            raise ProtocolError(f"{url}: the index names what is not in the directory")
        if kind != _OTHER:
            names.add(name, is_directory=is_directory)
    return names


class _Page(HTMLParser):
    """The headings and the links of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.headings: list[str] = []
        self.links: list[str] = []
        self.ended = False
        """Whether the page has its end."""
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HEADINGS:
            self.headings.append("")
            self._in_heading = True
        elif tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]

    def handle_endtag(self, tag: str) -> None:
        if tag in _HEADINGS:
            self._in_heading = False
        elif tag == "html":
            self.ended = True

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.headings[-1] += data


def _children(url: str, links: Iterable[str]) -> Names:
    """Return which links lead to an entry of the directory.

    All others are none of its names: parents, orders to sort by, other places and other hosts.
    """
    names, directory, here = Names(), _directory(url), urlsplit(url)
    for link in links:
        try:
            target = urlsplit(urljoin(url, link))
        except ValueError:  # an impossible host
            continue
        if (target.scheme, target.netloc) != (here.scheme, here.netloc):
            continue
        path = _unquoted(target.path)
        name = _child(directory, path.rstrip(b"/"))
        if name is None:
            continue
        if target.query:
            raise ProtocolError(f"{url}: the index links {name} with a query, which is no file's")
        names.add(name, is_directory=path.endswith(b"/"))
    return names


def _child(directory: bytes, path: bytes) -> str | None:
    """Return the name of what lies directly in a directory; None for anything else."""
    if not path.startswith(directory):
        return None
    name = path[len(directory) :]
    if not name or b"/" in name or name in (b".", b".."):
        return None
    return os.fsdecode(name)


def _directory(url: str) -> bytes:
    return _path(url).rpartition(b"/")[0] + b"/"


def _path(url: str) -> bytes:
    return _unquoted(urlsplit(url).path)


def _unquoted(path: str) -> bytes:
    return unquote_to_bytes(os.fsencode(path)) or b"/"


_ETAG = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')
_LENGTH = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_MOST_TEXT = 100
"""Characters of a header that are passed on."""


def described(subject: str, key: str, reply: Reply) -> ObjectInfo:
    """Return what the reply to a HEAD, or to a GET of the first byte, says of a file.

    Raises:
        Unsupported: it does not say how long the file is, or the server compresses it on its way.
    """
    size = total_of(subject, reply) if reply.status == 206 else length_of(subject, reply)
    check_plain(subject, reply, stored=size is not None)
    if size is None:
        raise Unsupported(f"{subject}: the server does not say how long it is")
    headers = reply.headers
    return ObjectInfo(key, size, version_of(headers), mtime_ns=_mtime_ns(headers))


def version_of(headers: Mapping[str, str]) -> str:
    """Return the version that a reply is about; empty if it does not say."""
    etag = headers.get("etag", "")
    if _ETAG.fullmatch(etag):
        return etag
    date = headers.get("last-modified", "")
    return date if _date(date) is not None else ""


def conditions(expected: ObjectInfo) -> dict[str, str]:
    """Return the headers with which a server refuses to send another version."""
    if not expected.version:
        return {}
    name = "If-Match" if expected.version.startswith('"') else "If-Unmodified-Since"
    return {name: expected.version}


def check_version(subject: str, expected: ObjectInfo, reply: Reply) -> None:
    """Make sure that a reply is about the version `expected`.

    Raises:
        Stale: it is about another one.
        ProtocolError: it does not say.
    """
    if not expected.version:
        return
    name = "etag" if expected.version.startswith('"') else "last-modified"
    found = reply.headers.get(name, "")
    if not found:
        raise ProtocolError(f"{subject}: the server does not say of which version it sends bytes")
    if found != expected.version:
        version = shown(found)[:_MOST_TEXT]
        raise Stale(f"{subject}: the file changed: its {name} is {version!r} now")


def check_range(subject: str, expected: ObjectInfo, start: int, stop: int, reply: Reply) -> None:
    """Make sure that a reply with status 206 has exactly the bytes that were asked for.

    Raises:
        Stale: the file has another size now.
        ProtocolError: it has other bytes.
    """
    total, length = total_of(subject, reply), length_of(subject, reply)
    check_plain(subject, reply, stored=(total, length) == (expected.size, stop - start))
    if total is not None and total != expected.size:
        raise Stale(f"{subject}: {total} bytes long now, no longer {expected.size}")
    said = reply.headers.get("content-range", "")
    found = _RANGE.fullmatch(said)
    if found is None or (int(found[1]), int(found[2])) != (start, stop - 1):
        wanted = f"bytes {start}-{stop - 1}"
        raise ProtocolError(
            f"{subject}: the server sends {shown(said)[:_MOST_TEXT]!r} for {wanted}"
        )
    if length is not None and length != stop - start:
        raise ProtocolError(f"{subject}: the server sends {length} bytes for {stop - start}")


def check_whole(subject: str, expected: ObjectInfo, reply: Reply) -> None:
    """Make sure that a reply with status 200 has all bytes of the version `expected`.

    Raises:
        Stale: it has those of another version.
        ProtocolError: it has something else.
    """
    length = length_of(subject, reply)
    check_plain(subject, reply, stored=length == expected.size)
    check_version(subject, expected, reply)
    if length is not None and length != expected.size:
        raise Stale(f"{subject}: {length} bytes long now, no longer {expected.size}")


def check_plain(subject: str, reply: Reply, *, stored: bool) -> None:
    """Refuse a body that is not the file itself.

    Args:
        subject: The start of messages.
        reply: The reply.
        stored: Whether its length is that of the file. Then a `Content-Encoding` says how the file is
            stored (Apache's AddEncoding, uploads of s3cmd): its bytes are the file's, as curl saves them.

    Raises:
        Unsupported: it is compressed on its way.
    """
    coding = reply.headers.get("content-encoding", "identity").strip().lower()
    transfer = reply.headers.get("transfer-encoding", "").strip().lower()
    stored = stored and not transfer  # the length of chunks is another one
    for said, is_plain in (
        (coding, stored or coding in ("", "identity")),
        (transfer, transfer in ("", "chunked", "identity")),
    ):
        if not is_plain:
            raise Unsupported(
                f"{subject}: the server compresses what it sends ({shown(said)[:_MOST_TEXT]}),"
                " though it was asked not to: its bytes cannot be told from the file's"
            )


def length_of(subject: str, reply: Reply) -> int | None:
    """Return how long a reply says that its body is; None if it does not say.

    Raises:
        ProtocolError: that makes no sense.
    """
    said = reply.headers.get("content-length")
    if said is None:
        return None
    if _LENGTH.fullmatch(said) is None:
        raise ProtocolError(f"{subject}: a length of {shown(said)[:_MOST_TEXT]!r}")
    return int(said)


def total_of(subject: str, reply: Reply) -> int | None:
    """Return how long the file is of which a reply has a range; None if it does not say.

    Raises:
        ProtocolError: there is no range.
    """
    said = reply.headers.get("content-range", "")
    found = _RANGE.fullmatch(said)
    if found is None:
        raise ProtocolError(
            f"{subject}: the server sends a part of it, but not which: {shown(said)[:_MOST_TEXT]!r}"
        )
    return None if found[3] == "*" else int(found[3])


def _mtime_ns(headers: Mapping[str, str]) -> int:
    date = _date(headers.get("last-modified", ""))
    return 0 if date is None else max(0, int(date.timestamp())) * 1_000_000_000


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
        return date if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, TypeError, OverflowError):
        return None
