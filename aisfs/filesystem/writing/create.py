"""Making files, symbolic links, directories and buckets.

`Creator` makes names, above the shards and in them. `BucketMaker` makes buckets, in a mount of all of them.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

import trio
from msgspec import structs

from aisfs.core.names import listing
from aisfs.core.names.listing import check_new_bucket, is_shard
from aisfs.engine.listing import BucketList
from aisfs.engine.overlay import Overlay
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import (
    AisfsError,
    AlreadyExists,
    BucketNotFound,
    IsADirectory,
    NotFound,
    NotPermitted,
    ReadOnly,
    Unsupported,
)
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import FileHandle, OpenFile
from aisfs.filesystem.nodes import (
    LONGEST_TIMEOUT,
    DirectoryNode,
    Entry,
    Node,
    ObjectNode,
    ProviderNode,
    RemovedDirectoryNode,
    ShardNode,
    describe,
    identity,
)
from aisfs.filesystem.trees import Found, Tree
from aisfs.filesystem.writing.commit import Committer
from aisfs.filesystem.writing.open_files import OpenFiles
from aisfs.filesystem.written import ContentLock, WrittenFile, pending_node
from aisfs.model import Bucket
from aisfs.settings import Shards
from aisfs.stores.posix_metadata import LINK, is_link
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)


class BucketMaker:
    """Makes buckets, if that is allowed."""

    def __init__(self, tree: Tree, buckets: BucketList, writer: Writer, *, allowed: bool) -> None:
        """Make with `writer` what `buckets`, the list of `tree`, then shows."""
        self._tree = tree
        self._buckets = buckets
        self._writer = writer
        self._allowed = allowed

    async def make(self, node: ProviderNode, parent: int, name: bytes) -> Found:
        """Make a bucket.

        Raises:
            AlreadyExists: it is there, perhaps since a moment ago.
            InvalidName, Unsupported: AIStore makes no such bucket.
            ReadOnly: buckets may not be made.
        """
        # A namespace is no part of a new name: `@` and `#` are refused.
        bucket = Bucket(os.fsdecode(name), node.provider)
        if not self._allowed:
            log.warning("%s is not made: mount with --allow-bucket-changes to allow it", bucket)
            raise ReadOnly(f"{bucket}: buckets are made only with --allow-bucket-changes")
        check_new_bucket(bucket)
        try:
            await self._writer.create_bucket(bucket)
        finally:  # even after an error: another client may have made it
            self._buckets.forget()
        found = await self._tree.find(node, parent, name)
        if found is None:
            raise BucketNotFound(f"{bucket} was made, and is gone again")
        log.info("made %s", bucket)
        return found


class Creator:
    """Makes files and directories."""

    def __init__(
        self,
        filesystem: FileSystem,
        tree: Tree,
        committer: Committer,
        open_files: OpenFiles,
        overlay: Overlay,
        writer: Writer,
        buckets: BucketMaker,
        clock: Callable[[], float],
        *,
        drops_modes: bool = False,
    ) -> None:
        """Stage with `writer`, and show what is new in `overlay`, the lister of `tree`."""
        self._filesystem = filesystem
        self._inodes = filesystem.inodes
        self._folders = filesystem.folders
        self._tree = tree
        self._committer = committer
        self._open_files = open_files
        self._overlay = overlay
        self._writer = writer
        self._buckets = buckets
        self._clock = clock
        self._drops_modes = drops_modes
        self._without_links = set[Bucket]()
        """Buckets that turned out to keep no custom metadata."""
        self._token = trio.lowlevel.current_trio_token()
        self._made_by = os.urandom(12).hex()
        self._made = count()
        """With a number each, names for files that are to be new; asking the kernel for one would take longer."""

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile | FileHandle]:
        """Make a file and open it; the store has it when it is closed.

        Raises:
            AlreadyExists: it is there, and O_EXCL asks for a new one.
            InvalidName: AIStore refuses such a name, or would never list it.
        """
        while True:
            node = await self._filesystem.settled(parent)
            if isinstance(node, ShardNode):
                return await self._create_member(node, parent, name, mode, flags)
            where = writable_directory(node)
            key = new_key(where, name)
            if self._asks(where, flags):
                found = await self._tree.find_to_make(where, parent, name, only_object=True)
            else:
                found = await self._tree.find(where, parent, name)
            if self._filesystem.stands(where, parent):
                break
        if found is None:
            return self._make_file(where, key, parent, name, mode, flags)
        if flags & os.O_EXCL:
            raise AlreadyExists(f"{where.bucket}/{key} exists")
        if not isinstance(found.node, ObjectNode):
            raise IsADirectory(f"{where.bucket}/{key} is a directory")
        entry = self._inodes.counted(found)
        try:
            return entry, await self._open_files.open(entry.attr.ino, flags)
        except BaseException:
            self._filesystem.forget(entry.attr.ino, 1)  # the kernel learns nothing of it
            raise

    async def make_empty(self, parent: int, name: bytes, mode: int) -> Entry:
        """Make an empty file that nobody has open.

        Raises:
            AlreadyExists: the name is taken.
            NotPermitted: in a shard, whose members cannot be written after they were made.
        """
        return await self._make_closed(parent, name, mode, b"")

    async def symlink(self, parent: int, name: bytes, target: bytes) -> Entry:
        """Make a symbolic link; the store has it when this returns, also with `--write-back`.

        Raises:
            AlreadyExists: the name is taken.
            NotPermitted: the bucket keeps no custom metadata, or it is a shard.
        """
        return await self._make_closed(parent, name, LINK, target)

    async def _make_closed(self, parent: int, name: bytes, mode: int, content: bytes) -> Entry:
        """Make a file with its content in one step."""
        where, key = await self._free_name(parent, name)
        if mode == LINK and where.bucket in self._without_links:
            raise _no_links(where.bucket)
        entry, opened = self._make_file(where, key, parent, name, mode, os.O_WRONLY | os.O_EXCL)
        file = opened.file
        assert file is not None, "it is open for writing"
        try:
            if content:
                await self._open_files.write(opened, 0, content)
            await self._committer.commit(file, sync=mode == LINK)
            if mode == LINK:
                await self._check_link(file)
        except BaseException as error:
            self._filesystem.forget(entry.attr.ino, 1)  # the kernel learns nothing of it
            if isinstance(error, AisfsError) and file.staged is not None and file.dirty:
                self._committer.discard(file, error)
            raise
        finally:
            await self._open_files.release(opened)
        return structs.replace(entry, attr=self._inodes.written_attr(file))

    async def _check_free(self, where: DirectoryNode, parent: int, name: bytes) -> None:
        """Make sure that a name is free, by the word of the store where that may be asked; see `_asks`."""
        if self._asks(where, os.O_EXCL):
            found = await self._tree.find_to_make(where, parent, name)
        else:
            found = await self._tree.find(where, parent, name)
        if found is not None:
            raise AlreadyExists(f"{where.bucket}/{listing.child_key(where.prefix, name)} exists")

    async def _free_name(self, parent: int, name: bytes) -> tuple[DirectoryNode, str]:
        """Return directory and key of a name that is free, by the word of the store."""
        while True:
            node = await self._filesystem.settled(parent)
            if isinstance(node, ShardNode):
                raise NotPermitted("a new member of a shard is made by writing it")
            where = writable_directory(node)
            key = new_key(where, name)
            await self._check_free(where, parent, name)
            if self._filesystem.stands(where, parent):
                return where, key

    async def _check_link(self, file: WrittenFile) -> None:
        """Remove what is a plain file to all others, since its bucket keeps no custom metadata."""
        async with file.lock:
            if file.base is None or is_link(file.base):
                return
            self._without_links.add(file.bucket)
            await self._writer.remove(file.bucket, file.key)
            with self._overlay.namespace_lock:
                file.unlinked = True
                self._inodes.files.unname(file)
                self._overlay.remove(file.bucket, file.key)
        raise _no_links(file.bucket)

    @any_thread
    def try_create(
        self,
        parent: int,
        name: bytes,
        mode: int,
        flags: int,
        made: Callable[[Entry, OpenFile], None],
    ) -> bool:
        """Make a file and open it, if that takes no question to the store; return whether it does not.

        For the fast path, which does not wait for what changes names at this moment. `made` is called before
        all that can be done later.
        """
        where = self._inodes.get(parent)
        if not isinstance(where, DirectoryNode):
            return False
        key = new_key(where, name)
        lock = self._overlay.namespace_lock
        if not lock.acquire(blocking=False):
            return False
        try:
            if self._filesystem.name_changes.of(where) is not None:
                return False
            if self._tree.try_find(where, parent, name) is not None or self._asks(where, flags):
                return False
            file = self._new_file(pending_node(where.bucket, key, parent, name), mode, flags)
            made(*self._open_new(file, flags))
            self._show(file)
            with suppress(AisfsError):  # the first write tries again, and reports it
                self._open_files.record(file)
            return True
        finally:
            lock.release()

    def _make_file(
        self, where: DirectoryNode, key: str, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile]:
        file = self._new_file(pending_node(where.bucket, key, parent, name), mode, flags)
        self._record(file)
        with self._overlay.namespace_lock:
            self._show(file)
            return self._open_new(file, flags)

    @any_thread
    def _open_new(self, file: WrittenFile, flags: int) -> tuple[Entry, OpenFile]:
        """Open a new file for the program that makes it; called with `namespace_lock` held."""
        self._inodes.files.add(file)
        attr = self._inodes.counted_new(file)
        timeout = min(self._overlay.list_ttl, LONGEST_TIMEOUT)
        return Entry(file.node.name, attr, timeout), self._open_files.begin(file, flags)

    @any_thread
    def _show(self, file: WrittenFile) -> None:
        """Show a new file to all; called with `namespace_lock` held."""
        self._overlay.set_pending(file.bucket, file.key, file.node.info)
        folder, slash, _ = file.key.rpartition("/")
        self._inodes.directory_attributes.touch(file.bucket, folder + slash)

    async def _create_member(
        self, node: ShardNode, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile]:
        """Begin a new member of a shard; it is added when it is closed."""
        if await self._place_in_shard(node, parent, name) is not None:
            raise ReadOnly("members of a shard cannot be changed")
        path = await self._folders.path(node, parent, name)
        pending = pending_node(node.bucket, node.info.key, parent, name)
        file = self._new_file(pending, mode, flags, path)
        self._record(file)
        self._inodes.files.add(file)
        entry = Entry(name, self._inodes.written_attr(file), 0.0)
        self._inodes.remember(entry.attr.ino, file.node)
        return entry, self._open_files.begin(file, flags)

    async def _place_in_shard(self, node: ShardNode, parent: int, name: bytes) -> Entry | None:
        """Check that a name can be in a folder of a shard; returns what it stands for already."""
        listing.check_new_member(os.fsdecode(name))
        if not listing.is_plain_tar(os.fsencode(node.info.key)):
            raise ReadOnly(f"{node.bucket}/{node.info.key}: only plain tars take new members")
        if await self._folders.in_opened_tar(node, parent):
            raise ReadOnly(f"{node.bucket}/{node.info.key}: a tar in it takes no new members")
        now = self._inodes.node(parent)  # perhaps another version by now
        assert isinstance(now, ShardNode), "only shards have members"
        if await self._filesystem.new_member(now, parent, name) is not None:
            raise AlreadyExists(f"{os.fsdecode(name)!r} is being written")
        found = self._folders.find(await self._filesystem.view(now), now, parent, name)
        if found is None:
            await self._folders.check_whole(node)
        return found

    @any_thread
    def _new_file(self, node: ObjectNode, mode: int, flags: int, member: str = "") -> WrittenFile:
        """Stage a new file; nothing shows it yet, and nothing is recorded of it."""
        spelled = identity(node)
        ino = self._inodes.table.number(spelled)
        lock = ContentLock(self._token)
        times = time.time_ns()
        if mode != LINK:
            mode = kept_mode(mode, drops=self._drops_modes)
        file = WrittenFile(ino, spelled, node, None, mode, times, member, lock=lock)
        if not member:
            file.made_only_new, file.overwrites = self._mark(), _overwrites(flags)
        file.staged = self._writer.new()
        file.dirty = True
        return file

    @any_thread
    def _asks(self, where: DirectoryNode, flags: int) -> bool:
        """Return whether the store is to be asked for a name that is missing here, before it is made.

        Not for what overwrites anyway. Nor for what must be new in a directory that was made here a moment
        ago: `cp -r` and `tar x` make all in such, and the upload looks once more.
        """
        if _overwrites(flags):
            return False
        with self._overlay.namespace_lock:
            fresh = self._overlay.held.is_fresh(where.bucket, where.prefix)
        return not (flags & os.O_EXCL and fresh)

    @any_thread
    def _mark(self) -> str:
        """Return a text that no other writer of a new object has; see `Upload`."""
        return f"{self._made_by}{next(self._made):08x}"

    def _record(self, file: WrittenFile) -> None:
        try:
            self._open_files.record(file)
        except BaseException:
            assert file.staged is not None, "it is new"
            file.staged.discard()
            raise

    # directories -----------------------------------------------------------------------------

    async def mkdir(self, parent: int, name: bytes, mode: int) -> Entry:
        """Make a directory, which the store has once there is an object in it; or a new shard or bucket.

        Raises:
            AlreadyExists: the name is taken.
        """
        node = await self._filesystem.settled(parent)
        if isinstance(node, ShardNode):
            return await self._make_folder(node, parent, name, mode)
        if isinstance(node, ProviderNode):
            made = await self._buckets.make(node, parent, name)
            self._inodes.validity.changed(parent)
            return self._inodes.counted(made)
        where = writable_directory(node)
        key = new_key(where, name, directory=True)
        await self._check_free(where, parent, name)
        attributes = self._inodes.directory_attributes
        shard = self._shard_of(name)
        if shard is not None:
            shard_key = new_key(where, shard)
            if not listing.is_plain_tar(shard):
                raise Unsupported(f"{where.bucket}/{shard_key}: only plain tars can be begun")
            if shard != name and await self._tree.find_to_make(where, parent, shard) is not None:
                raise AlreadyExists(f"{where.bucket}/{shard_key} exists")
            info = await self._writer.make_shard(where.bucket, shard_key, self._mark())
            self._overlay.settle(where.bucket, shard_key, info)
            self._committer.invalidate(parent, shard)
        else:
            self._overlay.held.check_room(where.bucket, f"{key}/")
            with self._overlay.namespace_lock:
                attributes.keep(where.bucket, f"{key}/", mode & 0o7777, time.time_ns())
                self._overlay.set_pending(where.bucket, f"{key}/", None)
        attributes.touch(where.bucket, where.prefix)
        return self._inodes.counted(await find_name(self._tree, where, parent, name))

    def _shard_of(self, name: bytes) -> bytes | None:
        """Return the shard that a new directory is to be, if any."""
        if self._tree.shards is Shards.DIR:
            return name if is_shard(name) else None
        return listing.shard_of_directory(name)

    async def _make_folder(self, node: ShardNode, parent: int, name: bytes, mode: int) -> Entry:
        """Make a directory in a shard, which has it when this returns."""
        if await self._place_in_shard(node, parent, name) is not None:
            raise AlreadyExists(f"{node.bucket}/{node.info.key}.d/{os.fsdecode(name)} exists")
        path = await self._folders.path(node, parent, name)
        mode = kept_mode(mode, drops=self._drops_modes)
        return await self.store_folder(node, path, mode, time.time_ns())

    async def store_folder(
        self, node: ShardNode, path: str, mode: int | None, mtime_ns: int
    ) -> Entry:
        """Add a directory to a shard, or what is different of it; returns its entry, counted."""
        bucket, key = node.bucket, node.info.key
        attributes, kept = self._inodes.directory_attributes, f"{key}//{path}"
        if mode is None:  # which is remembered nowhere else
            mode, _ = attributes.of(bucket, kept)
        async with self._filesystem.name_changes.using(lambda: frozenset({(bucket, key)})):
            info = await self._writer.append(bucket, key, path, None, mtime_ns=mtime_ns, mode=mode)
            attributes.keep(bucket, kept, mode, None)
            now = replace(node, info=info)
            entry = await self._folders.resolve(now, self._inodes.number(now), path)
        self._inodes.remember(entry.attr.ino, now)
        return entry


def kept_mode(mode: int, *, drops: bool) -> int:
    """Return the permissions to keep of a file.

    Raises:
        NotPermitted: there are setuid, setgid or sticky, which are not kept, and `drops` does not say to drop them.
    """
    if mode & 0o7000 and not drops:
        raise NotPermitted(
            "files have no setuid, setgid or sticky bit here; --ignore-attr-changes drops them"
        )
    return mode & 0o777


def _no_links(bucket: Bucket) -> NotPermitted:
    log.warning("%s: no symbolic links: the bucket keeps no custom metadata", bucket)
    return NotPermitted(f"{bucket} keeps no custom metadata, and so no symbolic links")


def _overwrites(flags: int) -> bool:
    """Return whether an open is to replace whatever has the name."""
    return bool(flags & os.O_TRUNC and not flags & os.O_EXCL)


def writable_directory(node: Node) -> DirectoryNode:
    """Return a directory in which names can be changed, or raise."""
    if isinstance(node, DirectoryNode):
        return node
    if isinstance(node, ShardNode):
        raise ReadOnly("members of a shard cannot be changed")
    if isinstance(node, RemovedDirectoryNode):
        raise NotFound(f"{describe(node)}: nothing can be made in it")
    raise ReadOnly("only buckets are here, and only directories can be made")


def new_key(where: DirectoryNode, name: bytes, *, directory: bool = False) -> str:
    """Return the key of a new object or directory, if the store takes and lists such a key."""
    key = listing.child_key(where.prefix, name)
    listing.check_new_key(where.bucket, key, directory=directory)
    return key


async def find_name(tree: Tree, where: DirectoryNode, parent: int, name: bytes) -> Found:
    """Return what a name stands for; raises `NotFound` if it is missing."""
    found = await tree.find(where, parent, name)
    if found is None:
        raise NotFound(f"{where.bucket}/{listing.child_key(where.prefix, name)}: no such name")
    return found
