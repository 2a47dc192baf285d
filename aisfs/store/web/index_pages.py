"""The names in a directory, as a web server's own index of it gives them.

Understood are the pages that nginx, Apache, lighttpd, Python's http.server and others like them make,
the JSON of nginx and caddy, and the reply to PROPFIND of WebDAV. A page that somebody wrote by hand
may name only some of the files, so it is not believed: an index says so in its title. Nor is a page
without its end.

Must not know: connections, requests.
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import unquote_to_bytes, urljoin, urlsplit
from xml.etree import ElementTree

from aisfs.errors import ProtocolError

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
