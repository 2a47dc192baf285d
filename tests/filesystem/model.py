"""What a bucket must look like, by the rules of docs/SEMANTICS.md and nothing else.

Slow and obvious on purpose. It shares no code with aisfs, so that a rule has to be got wrong twice,
in the same way, to go unnoticed. The state of a bucket is a dict of keys to contents: bytes, or a
tuple of `Member` for an object that is a tar.
"""

import functools
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from aisfs.settings import Shards

NAME_MAX = 255
DIRECTORY_SIZE = 131_072


@dataclass(frozen=True)
class Member:
    """One member of a tar, before it is written."""

    name: str
    kind: bytes = tarfile.REGTYPE
    data: bytes = b""
    target: str = ""


Content = bytes | tuple[Member, ...]
State = Mapping[str, Content]


@dataclass(frozen=True)
class File:
    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)


@dataclass(frozen=True)
class Link:
    target: bytes

    @property
    def size(self) -> int:
        return len(self.target)


@dataclass
class Folder:
    entries: "dict[bytes, Node]" = field(default_factory=dict)
    """What a listing shows."""
    unlisted: "dict[bytes, Node]" = field(default_factory=dict)
    """What is found by its name only."""
    ordered: bool = False
    """Whether the order of `entries` is promised."""
    size: int = DIRECTORY_SIZE

    def find(self, name: bytes) -> "Node | None":
        return self.entries.get(name, self.unlisted.get(name))


Node = File | Link | Folder


def raw(content: Content) -> bytes:
    """The bytes of an object."""
    return content if isinstance(content, bytes) else tar_of(content)


@functools.lru_cache(maxsize=4096)
def tar_of(members: tuple[Member, ...]) -> bytes:
    """Write a tar with the standard library; the two formats take turns."""
    out = io.BytesIO()
    format_ = tarfile.PAX_FORMAT if len(members) % 2 else tarfile.GNU_FORMAT
    with tarfile.open(fileobj=out, mode="w", format=format_, errors="surrogateescape") as tar:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type = member.kind
            info.linkname = member.target
            info.mtime = 1_600_000_000
            info.size = len(member.data)
            tar.addfile(info, io.BytesIO(member.data))
    return out.getvalue()


def walk(folder: Folder, path: tuple[bytes, ...] = ()) -> Iterator[tuple[tuple[bytes, ...], Node]]:
    """All paths that can be reached, listed or not, without the root."""
    for name, node in [*folder.entries.items(), *folder.unlisted.items()]:
        yield (*path, name), node
        if isinstance(node, Folder):
            yield from walk(node, (*path, name))


# Buckets ---------------------------------------------------------------------------------------


def expected_tree(state: State, shards: Shards) -> Folder:
    """What a mount of a bucket in this state shows."""
    objects: dict[tuple[bytes, ...], Content] = {}
    directories: set[tuple[bytes, ...]] = {()}
    for key, content in state.items():
        # Semantics decision: a key becomes a path by its slashes, byte for byte but for the components
        # that no path has, and those that are called like these.
        *above, name = os.fsencode(key).split(b"/")
        above, name = [shown_as(part) for part in above], name and shown_as(name)
        # Semantics decision: a directory exists because keys start with it, also if the rest of
        # such a key cannot be shown: of `a/NUL/b` there is the empty directory `a`.
        depth = next((i for i, part in enumerate(above) if not showable(part)), len(above))
        directories |= {tuple(above[:i]) for i in range(depth + 1)}
        # Semantics decision: other names that cannot be are left out, never rewritten. The empty name of
        # a folder marker (`a/`) is one of them.
        if depth == len(above) and showable(name):
            objects[(*above, name)] = content
    tree = {path: Folder() for path in directories}
    for path in directories - {()}:
        tree[path[:-1]].entries[path[-1]] = tree[path]
    for path, content in objects.items():
        # Semantics decision: of `a` and `a/b` the directory is shown, so that nothing below it is
        # lost; the object is left out.
        if path not in directories:
            tree[path[:-1]].entries[path[-1]] = File(raw(content))
    for path, content in objects.items():
        if path not in directories and is_shard(path[-1]):
            _show_shard(tree[path[:-1]], path[-1], content, shards)
    return tree[()]


def shown_as(component: bytes) -> bytes:
    """Semantics decision: empty and dots have names; whatever is called like one of these is told from it."""
    words = {b"": b"empty", b".": b"dot", b"..": b"dotdot"}
    if component in words:
        return b"aisfs-" + words[component]
    mark, rest = b"aisfs-", component
    while rest.startswith(mark):
        rest = rest.removeprefix(mark)
    return mark + component if rest != component and rest in words.values() else component


def showable(name: bytes) -> bool:
    """Semantics decision: what no path on Linux can hold, or 255 bytes cannot, is left out."""
    return name not in (b"", b".", b"..") and len(name) <= NAME_MAX and b"\0" not in name


def is_shard(name: bytes) -> bool:
    """Semantics decision: the name decides, in lower case; `.tar` alone is no shard."""
    return name.endswith(b".tar") and name != b".tar"


def _show_shard(folder: Folder, name: bytes, content: Content, shards: Shards) -> None:
    inside = shard_folder(content)
    if shards is Shards.DIR:
        # Semantics decision: X.tar is the folder, its bytes are found as X.tar.raw.
        folder.entries[name] = inside
        alias, other, shown = name + b".raw", File(raw(content)), folder.unlisted
    else:
        # Semantics decision: X.tar is the object. X.tar.d is the folder; only with `both` it is
        # listed, so that with `file` a walk sees every byte once.
        listed = shards is Shards.BOTH
        alias, other = name + b".d", inside
        shown = folder.entries if listed else folder.unlisted
    # Semantics decision: a real key of the other name always wins, be it object or directory. And
    # a name over 255 bytes is nowhere, not even one that aisfs made.
    if alias not in folder.entries and showable(alias):
        shown[alias] = other


# Shards ----------------------------------------------------------------------------------------

Path = tuple[bytes, ...]
_DIR = Folder()
"""Stands for an entry that says there is a directory."""


def shard_folder(content: Content) -> Folder:
    """What the folder of a shard shows. Of anything but a tar it is empty."""
    if isinstance(content, bytes):
        return Folder(ordered=True)
    rows = _without_bad_symlinks(_rows(content))
    last = {path: at for at, (path, node) in enumerate(rows) if node is not _DIR}
    directories = _directories(rows)
    root = Folder(ordered=True)
    for at, (path, node) in enumerate(rows):
        # Semantics decision: the order is that of the tar; the parents of a member are there,
        # whether the tar mentions them or not.
        home = _reach(root, path if node is _DIR else path[:-1])
        # Semantics decision: of members with one name the last one counts.
        if node is _DIR or last[path] != at:
            continue
        name = path[-1]
        if path in directories:
            # Semantics decision: the directory keeps the name, the member becomes `name~file` and
            # gives way to whatever already has that name.
            name += b"~file"
            beside = (*path[:-1], name)
            if beside in last or beside in directories or not showable(name):
                continue
        home.entries[name] = node
    return root


def _rows(members: tuple[Member, ...]) -> list[tuple[Path, Node]]:
    rows: list[tuple[Path, Node]] = []
    latest: dict[Path, Node] = {}
    for member in members:
        path = member_path(member.name)
        # Semantics decision: a device or fifo is left out, so is a file called `.` or `/`.
        if path is None or member.kind == tarfile.FIFOTYPE:
            continue
        if not path and member.kind != tarfile.DIRTYPE:
            continue
        node: Node = File(member.data)
        if member.kind == tarfile.DIRTYPE:
            node = _DIR
        elif member.kind == tarfile.SYMTYPE:
            node = Link(os.fsencode(member.target))
        elif member.kind == tarfile.LNKTYPE:
            # Semantics decision: a hard link is the earlier file it names, else it is left out.
            target = member_path(member.target)
            found = latest.get(target) if target is not None and target != path else None
            if not isinstance(found, File):
                continue
            node = replace(found)
        rows.append((path, node))
        latest[path] = node
    return rows


def member_path(name: str) -> Path | None:
    """Semantics decision: `./a`, `/a`, `b/../a` are `a`; what climbs out has no path."""
    parts: list[bytes] = []
    for part in os.fsencode(name).split(b"/"):
        if part == b"..":
            if not parts:
                return None
            parts.pop()
        elif part not in (b"", b"."):
            parts.append(part)
    # Semantics decision: more than 128 components, or over 4,096 bytes, is left out.
    path = tuple(map(_short, parts))
    return None if len(path) > 128 or len(b"/".join(path)) > 4096 else path


def _short(part: bytes) -> bytes:
    """Semantics decision: too long a component is shortened, keeping its extension."""
    if len(part) <= NAME_MAX:
        return part
    extension = os.path.splitext(part)[1]
    return part[:200] + b"~" + hashlib.sha256(part).hexdigest()[:8].encode() + extension


def _reach(root: Folder, path: Path) -> Folder:
    for part in path:
        below = root.entries.setdefault(part, Folder(ordered=True))
        assert isinstance(below, Folder)
        root = below
    return root


def _directories(rows: list[tuple[Path, Node]]) -> set[Path]:
    found: set[Path] = {()}
    for path, node in rows:
        found |= {path[:i] for i in range(len(path))}
        if node is _DIR:
            found.add(path)
    return found


def _without_bad_symlinks(rows: list[tuple[Path, Node]]) -> list[tuple[Path, Node]]:
    """Semantics decision: a symbolic link stays inside, ends somewhere, and not above itself."""
    while True:
        directories = _directories(rows)
        nodes = {path: node for path, node in rows if node is not _DIR}
        good = [
            (path, node)
            for path, node in rows
            if not isinstance(node, Link) or _is_good(path, node, nodes, directories)
        ]
        if len(good) == len(rows):  # what hung on a bad link is bad as well
            return good
        rows = good


def _is_good(path: Path, link: Link, nodes: Mapping[Path, Node], directories: set[Path]) -> bool:
    end = _follow(path[:-1], link.target, nodes, directories, 40)
    return end is not None and not (end in directories and path[: len(end)] == end)


def _follow(
    here: Path, target: bytes, nodes: Mapping[Path, Node], directories: set[Path], hops: int
) -> Path | None:
    if not hops or not target or target.startswith(b"/"):
        return None
    for part in target.split(b"/"):
        if here not in directories:
            return None
        if part == b"..":
            if not here:
                return None
            here = here[:-1]
        elif part not in (b"", b"."):
            here = (*here, part)
            node = nodes.get(here)
            if here not in directories and isinstance(node, Link):
                onward = _follow(here[:-1], node.target, nodes, directories, hops - 1)
                if onward is None:
                    return None
                here = onward
            elif here not in directories and node is None:
                return None
    return here
