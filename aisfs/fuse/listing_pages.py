"""Replies to READDIRPLUS, packed many entries at a time, and the next one before it is asked for.

A program that lists a directory works for a while on the entries of a reply, and so does the kernel,
which makes an inode of each. The next reply is packed meanwhile.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cachetools import LRUCache

from aisfs.filesystem.filesystem import FileSystem, InstantAnswers
from aisfs.filesystem.handles import DirectoryHandle, MemberRows
from aisfs.filesystem.nodes import LONGEST_TIMEOUT, Entry, Node, ObjectNode, ShardNode
from aisfs.fuse import abi
from aisfs.fuse.abi import FilePacker

KEPT_BYTES_MAX = 32 << 20
"""Packed pages of listings that never change: 200,000 entries. The kernel keeps them too, so they
only serve readers whose kernel has let go of them."""
AHEAD_MAX = 16
"""Directories read at once for which the next page is packed ahead."""
AHEAD_SECONDS = 0.1
"""How long a page packed ahead is good for. The times to live in it are shorter by as much, so that
nothing is believed for longer than it may be."""
ENTRY_BYTES = abi.DIRENTPLUS.size + 24
"""Of an entry with a name of usual length: so many objects are looked at for a reply, and then those
for which there is still room."""
_END = (0, None, None)


class Page(NamedTuple):
    """Packed entries of a directory."""

    data: bytes
    end: int
    """Where the next page begins."""
    counted: list[tuple[int, Node, int]]
    """Lookups to count, and on which inodes."""
    objects: Sequence[tuple[Sequence[int], Sequence[ObjectNode]]] = ()
    """Objects on which one is to be counted each."""


class _Ahead(NamedTuple):
    """A page that was not asked for yet."""

    page: Page
    handle: DirectoryHandle
    """What it is from."""
    until: float
    refreshes: int
    """See `ListingValidity`."""


class ListingPages:
    """Pages of directories as the kernel asks for them. All methods run in the dispatcher."""

    def __init__(self, answers: InstantAnswers, filesystem: FileSystem, *, ahead: bool) -> None:
        """Pack what `answers` has; `ahead` where nothing changes but by what the store says."""
        self._answers = answers
        self._inodes = filesystem.inodes
        self._nodes = filesystem.inodes.table
        self._snapshots = filesystem.snapshots
        self._packs_ahead = ahead
        self._kept: LRUCache[tuple[int, int, int], tuple[Node, Page]] = LRUCache(
            KEPT_BYTES_MAX, getsizeof=lambda kept: len(kept[1].data)
        )
        self._ahead: LRUCache[tuple[int, int, int], _Ahead] = LRUCache(AHEAD_MAX)
        self._next: tuple[int, int, int] | None = None

    def give(
        self, ino: int, offset: int, size: int, opened: DirectoryHandle | None = None
    ) -> Page | None:
        """Return `size` bytes of entries at most and count their lookups; None when not even the first
        entry is known.

        `opened` is what was listed while the directory was being opened, if this reads it first.
        """
        if opened is not None:
            self._snapshots.begin(ino, opened)
            page = _pack(opened, offset, size)
        else:
            page = self._taken_ahead(ino, offset, size) or self._page(ino, offset, size)
        if page is None:
            return None
        for its_ino, its_node, count in page.counted:
            self._inodes.remember(its_ino, its_node, count)
        for inos, nodes in page.objects:
            self._inodes.remember_objects(inos, nodes)
        self._next = (ino, page.end, size) if page.data and self._packs_ahead else None
        return page

    def prepare(self) -> None:
        """Pack the page behind the one given last."""
        wanted, self._next = self._next, None
        if wanted is None:
            return
        ino, offset, size = wanted
        if isinstance(self._nodes.get(ino), ShardNode):
            self._page(ino, offset, size)
            return
        refreshes = self._inodes.validity.refreshes
        handle = self._snapshots.under_way(ino, offset)
        page = _pack_objects(handle, offset, size) if handle is not None else None
        if handle is not None and page is not None:
            self._ahead[wanted] = _Ahead(page, handle, time.monotonic() + AHEAD_SECONDS, refreshes)

    def _taken_ahead(self, ino: int, offset: int, size: int) -> Page | None:
        ahead = self._ahead.pop((ino, offset, size), None)
        if ahead is None or time.monotonic() > ahead.until:
            return None
        if ahead.refreshes != self._inodes.validity.refreshes:
            return None
        return ahead.page if self._snapshots.under_way(ino, offset) is ahead.handle else None

    def _page(self, ino: int, offset: int, size: int) -> Page | None:
        node = self._nodes.get(ino)
        kept = self._kept.get((ino, offset, size))
        if kept is not None and kept[0] is node:
            return kept[1]
        handle = self._answers.try_directory(ino, offset)
        if handle is None or node is None:
            return None
        if handle.members is None:
            return _pack(handle, offset, size)
        page = _pack_members(handle.members, offset, size)
        if len(page.data) < KEPT_BYTES_MAX:
            self._kept[ino, offset, size] = node, page
        return page


def _pack_objects(handle: DirectoryHandle, offset: int, size: int) -> Page | None:
    """Pack entries for later, if they are objects, whose attributes never change, and not few."""
    run = handle.objects(offset, size // ENTRY_BYTES or 1)
    if run is None:
        return None
    timeout = max(run.timeout - AHEAD_SECONDS, 0.0)
    entries, count = FilePacker(*run.owner, timeout).pack(run.files, run.offsets, size)
    if len(entries) < size // 2:
        return None
    counted = (run.files.inos[:count], run.nodes[:count])
    return Page(bytes(entries), run.offsets[count - 1], [], [counted])


def _pack(handle: DirectoryHandle, offset: int, size: int) -> Page | None:
    """Pack entries as far as they are known; None when not even the first is."""
    packed: list[bytes | bytearray] = []
    counted: list[tuple[int, Node, int]] = []
    objects: list[tuple[Sequence[int], Sequence[ObjectNode]]] = []
    singly: Iterator[tuple[int, Entry | None, Node]] | None = None
    while size >= abi.DIRENTPLUS.size:
        run = handle.objects(offset, size // ENTRY_BYTES or 1)
        if run is not None:
            entries, count = FilePacker(*run.owner, run.timeout).pack(run.files, run.offsets, size)
            if not count:
                break
            objects.append((run.files.inos[:count], run.nodes[:count]))
            packed.append(entries)
            size -= len(entries)
            offset, singly = run.offsets[count - 1], None
            continue
        if singly is None:
            singly = handle.try_entries(offset)
        following, entry, node = next(singly, _END)
        if node is None or entry is None:
            if not packed and (node is not None or handle.more is not None):
                return None
            break
        one = abi.direntplus(entry.attr, entry.name, following, entry.entry_timeout)
        if len(one) > size:
            break
        if entry.bare:
            one = abi.bare_entry(entry.attr, entry.name, following)
        else:
            counted.append((entry.attr.ino, node, 1))
        packed.append(one)
        size -= len(one)
        offset = following
    return Page(b"".join(packed), offset, counted, objects)


def _pack_members(members: MemberRows, offset: int, size: int) -> Page:
    packer = FilePacker(members.uid, members.gid, LONGEST_TIMEOUT)
    packed: list[bytes | bytearray] = []
    some, start = 0, offset
    while (listed := members.listed(offset, size // abi.DIRENTPLUS.size)) is not None:
        if isinstance(listed, Entry):
            some = listed.attr.ino
            entries: bytes | bytearray = abi.direntplus(
                listed.attr, listed.name, offset + 1, listed.entry_timeout
            )
            count = int(len(entries) <= size)
        else:
            some = listed.inos[0]
            following = range(offset + 1, offset + 1 + len(listed.names))
            entries, count = packer.pack(listed, following, size)
        if not count:
            break
        packed.append(entries)
        size -= len(entries)
        offset += count
    # Members are counted on their shard, so one of them stands for all.
    counted: list[tuple[int, Node, int]] = []
    if packed:
        counted.append((some, members.node, offset - start))
    return Page(b"".join(packed), offset, counted)
