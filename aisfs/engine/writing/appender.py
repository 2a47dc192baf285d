"""Adds members to shards: each shard is uploaded whole, as a new version, for all members that wait.

AIStore's own append changes a shard in place and can destroy it (docs/adr/0024). So a shard is copied
to the staging directory, gets its members there and is uploaded like any other file: until that has
succeeded the store has the shard as it was. While one upload of a shard is under way, further members
wait, and go together into the next. The copy stays for a while, for the members that come next.

    | members as they were | headers, content, padding of each new one | two blocks of zeros |

What was there stays byte for byte up to the zeros that ended it. Nothing is added to a tar that cannot
be read to its end, since what lies behind the damage would be lost.

A shard that another client changes meanwhile is read again. Where the store has no conditional writes, that is
noticed up to the moment before the upload ends; see `Upload`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from aisfs.core.archive.tar import BLOCK, padded
from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.shuffled_tar import member_header
from aisfs.core.views.tree import MembersView
from aisfs.engine.disk import unattended
from aisfs.engine.scanning import scan_local
from aisfs.engine.shards import Indexer
from aisfs.engine.writing.staging import StagedFile, StagingArea
from aisfs.errors import AisfsError, ShardDamaged, Stale, Unsupported, untraced
from aisfs.model import NO_CUSTOM, Bucket, ObjectInfo
from aisfs.stores.port import BytesContent, Content, FileContent, Upload, WritableStore, pieces_of
from aisfs.stores.posix_metadata import mode_of, with_posix_metadata

END_MARK = bytes(2 * BLOCK)
"""What ends a tar. Padding to a whole record, as tar writes for tapes, is not needed."""
_LOOK = 256 << 10
"""Bytes read at once: some hundred small members, or little more than the header of a large one."""
_SECOND = 1_000_000_000
_FILE_MODE, _DIRECTORY_MODE = 0o644, 0o755


@dataclass(frozen=True, slots=True)
class NewMember:
    """A member to be added to a shard."""

    path: str
    content: Content | None
    """None for a directory."""
    mode: int | None
    """Permissions; None for the usual ones."""
    mtime_ns: int
    replaces: bool = False
    """Whether it takes the place of what the shard has under this path: an earlier state of it."""

    def header(self) -> bytes:
        """Return its header blocks."""
        directory = self.content is None
        usual = _DIRECTORY_MODE if directory else _FILE_MODE
        return member_header(
            self.path,
            0 if self.content is None else self.content.size,
            mode=usual if self.mode is None else self.mode,
            mtime=self.mtime_ns // _SECOND,
            directory=directory,
        )


@dataclass(slots=True)
class Growth:
    """What became of new members."""

    errors: list[AisfsError | None]
    """For each member why it was not added."""
    changed: bool = False
    """Whether the shard is another than before; not if it had them already."""
    replaced: int | None = None
    """The row, the last one by then, that a member took."""
    in_place: bool = True
    """Whether all other rows are what they were."""


class ShardCopy:
    """The content of one version of a shard."""

    def __init__(self, staged: StagedFile, subject: str, *, ignore_zeros: bool = False) -> None:
        """Use `staged`, which has the whole content, and find its end.

        Args:
            staged: The content; stays the caller's to discard.
            subject: What messages call the shard.
            ignore_zeros: Go on behind zeros, in archives that were joined.

        Raises:
            ShardDamaged: it is no tar, or not all of one.
            Unsupported: there is something behind its end, which would be lost.
        """
        self.staged = staged
        self._subject = subject
        self._ignore_zeros = ignore_zeros
        self.index, self._end = self._scan()
        self._check_behind()

    def content(self) -> FileContent:
        """Return the bytes as they are to be uploaded."""
        return self.staged.content()

    def add(self, members: Sequence[NewMember]) -> Growth:
        """Add members, each one wholly or not at all.

        Raises:
            OutOfSpace: the zeros at the end do not fit. After any error the copy is of no more use.
        """
        before = self.index
        growth = Growth([])
        rows = _rows(before)
        for member in members:
            behind = self._end
            try:
                row = rows.get(member.path.encode(errors="surrogateescape"))
                if row is not None and self._is(row, member):
                    growth.errors.append(None)
                    continue
                self._append(member)
            except AisfsError as error:
                growth.errors.append(error)
                continue
            growth.errors.append(None)
            growth.changed = True
            if row is not None and member.replaces:
                # Not before: the store may have the earlier state only, and the later one did not fit.
                last = self._drop(row, behind)
                growth.replaced = row if last else None
                growth.in_place &= last
                rows = _rows(self.index)
        self.staged.truncate(self._end)
        self.staged.write(self._end, END_MARK)
        self.index, self._end = self._scan()
        growth.in_place &= _extends(self.index, before, growth.replaced)
        return growth

    # parts of these --------------------------------------------------------------------------

    def _scan(self) -> tuple[MemberIndex, int]:
        """Find the members, and where the next one goes."""
        scanner = TarScanner(self.staged.size, ignore_zeros=self._ignore_zeros)
        scan_local(scanner, self.staged.size, self.staged.read)
        index = scanner.finish()
        if index.warnings:
            raise ShardDamaged(f"{self._subject}: nothing can be added: {index.warnings[0]}")
        return index, scanner.end

    def _check_behind(self) -> None:
        for start in range(self._end, self.staged.size, _LOOK):
            piece = self.staged.read(start, _LOOK)
            if piece.count(0) < len(piece):
                raise Unsupported(
                    f"{self._subject}: nothing can be added: other bytes follow the end of the tar"
                )

    def _append(self, member: NewMember) -> None:
        """Add a member behind the last one; after an error what was written of it does not count."""
        header = member.header()
        size = 0 if member.content is None else member.content.size
        following = self._end + len(header) + padded(size)
        self.staged.truncate(self._end)  # whatever is there is no padding
        self.staged.truncate(following)
        at = self._end
        for content in (BytesContent(header), member.content or BytesContent(b"")):
            for piece in pieces_of(content):
                self.staged.write(at, piece)
                at += len(piece)
        self._end = following

    def _is(self, row: int, member: NewMember) -> bool:
        """Return whether a member is there already: an earlier attempt may have got so far."""
        index, content = self.index, member.content
        if content is None or not index.plain(row) or index.size(row) != content.size:
            return False
        header = member.header()
        if member.replaces and self.staged.read(index.span(row).start, len(header)) != header:
            return False  # its mode or time is another one now
        at = index.data_range(row).start
        for piece in pieces_of(content):
            if self.staged.read(at, len(piece)) != piece:
                return False
            at += len(piece)
        return True

    def _drop(self, row: int, behind: int) -> bool:
        """Remove a member; return whether it was the last one of those that end at `behind`."""
        span = self.index.span(row)
        to, start = span.start, span.start + padded(span.stop - span.start)
        last = start >= behind
        while start < self._end:
            piece = self.staged.read(start, min(_LOOK, self._end - start))
            self.staged.write(to, piece)
            start, to = start + len(piece), to + len(piece)
        self.staged.truncate(to)
        self.index, self._end = self._scan()
        return last


def _rows(index: MemberIndex) -> dict[bytes, int]:
    """Return the last member of each path, other than directories."""
    return {
        name: row
        for row, name in enumerate(index.names())
        if index.kind(row) is not MemberKind.DIRECTORY
    }


def _extends(new: MemberIndex, old: MemberIndex, replaced: int | None) -> bool:
    """Return whether an index begins with all rows of another one, but for `replaced`, its last."""
    one, two = old.columns, new.columns
    rows = len(old) if replaced is None else replaced
    named = one.ends[len(old) - 1] if len(old) else 0
    return (
        len(new) >= len(old)
        and two.ends[: len(old)] == one.ends
        and two.names[:named] == one.names[:named]
        and two.offsets[:rows] == one.offsets[:rows]
        and two.sizes[:rows] == one.sizes[:rows]
        and two.flags[:rows] == one.flags[:rows]
    )


KEEP_SECONDS = 30.0
"""How long a copy waits for further members; longer than a program is busy with one of them."""
KEPT_MAX = 8
"""Shards whose copies wait; a copy has two open files."""
_TRIES = 5
"""How often a shard is read anew because another client changed it meanwhile."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A member on its way into a shard."""

    member: NewMember
    info: ObjectInfo | None = None
    """The shard that has it."""
    error: Exception | None = None


@dataclass(eq=False, slots=True)
class _Kept:
    copy: ShardCopy
    info: ObjectInfo
    """The version that it is."""


@dataclass(eq=False, slots=True)
class _Shard:
    """A shard that is being written, or was a while ago."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while it is written."""
    waiting: list[_Waiting] = field(default_factory=list)
    kept: _Kept | None = None
    used: float = 0.0
    tidied: bool = False
    """Whether a task is running that will drop the copy."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What a shard has become."""

    bucket: Bucket
    base: ObjectInfo
    """What it was."""
    info: ObjectInfo
    growth: Growth


async def load(
    store: WritableStore, staging: StagingArea, bucket: Bucket, info: ObjectInfo
) -> StagedFile:
    """Stage the content of a version of an object.

    Raises:
        Stale, NotFound: it is another version by now, or gone.
        OutOfSpace: it does not fit.
    """
    staged = staging.create()
    position = 0

    def take(piece: memoryview) -> None:
        nonlocal position
        staged.fill(position, piece)
        position += len(piece)

    try:
        # Of an empty one too: only its bytes prove that there are none.
        staged.truncate(info.size)
        await store.stream(bucket, info, take)
    except BaseException:
        staged.discard()
        raise
    return staged


class Appender:
    """Adds members to shards."""

    def __init__(
        self,
        store: WritableStore,
        staging: StagingArea,
        services: trio.Nursery,
        *,
        ignore_zeros: bool = False,
        indexer: Indexer | None = None,
    ) -> None:
        """Write to `store`.

        Args:
            store: Where the shards are.
            staging: Where their copies are.
            services: Runs the tasks that drop idle copies.
            ignore_zeros: Add behind the last of several tars that were joined.
            indexer: Gets the index of each new version, which then need not be fetched.
        """
        self._store = store
        self._staging = staging
        self._services = services
        self._ignore_zeros = ignore_zeros
        self._indexer = indexer
        self._shards: dict[tuple[Bucket, str], _Shard] = {}
        self.on_append: Callable[[Appended], None] = lambda appended: None
        """Told as soon as a shard is another version, before anybody else hears of it."""

    async def append(self, bucket: Bucket, key: str, member: NewMember) -> ObjectInfo:
        """Add a member to a shard, and describe the shard that has it.

        Raises:
            NotFound: there is no such shard.
            ShardDamaged, Unsupported: nothing can be added to it without losing something.
            Stale: another client keeps changing it.
        """
        shard = self._shards.setdefault((bucket, key), _Shard())
        mine = _Waiting(member)
        shard.waiting.append(mine)
        try:
            async with shard.lock:
                if mine in shard.waiting:  # else the write before took it along
                    await self._write_waiting(bucket, key, shard)
        finally:
            if mine in shard.waiting:
                shard.waiting.remove(mine)
            self._tidy(bucket, key, shard)
        if mine.error is not None:
            raise mine.error
        assert mine.info is not None, "each waiting member gets an answer"
        return mine.info

    def restamped(self, bucket: Bucket, old: ObjectInfo, new: ObjectInfo) -> None:
        """Let the next members keep the mode and time that a shard was given."""
        shard = self._shards.get((bucket, new.key))
        if shard is not None and shard.kept is not None and shard.kept.info.same_content(old):
            shard.kept.info = new

    async def _write_waiting(self, bucket: Bucket, key: str, shard: _Shard) -> None:
        """Write a shard with all members that wait; each gets its answer."""
        batch, shard.waiting = shard.waiting, []
        try:
            appended = await self._rewrite(bucket, key, shard, [one.member for one in batch])
        except AisfsError as error:
            for one in batch:
                one.error = untraced(error)
        except BaseException:
            shard.waiting = batch + shard.waiting  # the next of them goes on
            raise
        else:
            for one, failed in zip(batch, appended.growth.errors, strict=True):
                one.info, one.error = appended.info, failed

    async def _rewrite(
        self, bucket: Bucket, key: str, shard: _Shard, members: list[NewMember]
    ) -> Appended:
        for _ in range(_TRIES):
            kept = self._take_kept(shard)
            if kept is None:
                try:
                    kept = await self._load(bucket, key)
                except Stale:
                    continue
            staged = kept.copy.staged
            try:
                appended = await self._write(bucket, kept, members)
            except BaseException:
                staged.discard()
                raise
            if appended is None:
                staged.discard()
                continue
            self._keep(shard, _Kept(kept.copy, appended.info))
            return appended
        raise Stale(f"{bucket}/{key}: another client keeps changing it")

    async def _load(self, bucket: Bucket, key: str) -> _Kept:
        info = await self._store.head(bucket, key, latest=True)
        staged = await load(self._store, self._staging, bucket, info)
        read = partial(ShardCopy, staged, f"{bucket}/{key}", ignore_zeros=self._ignore_zeros)
        try:
            return _Kept(await trio.to_thread.run_sync(read), info)
        except BaseException:
            staged.discard()
            raise

    async def _write(
        self, bucket: Bucket, kept: _Kept, members: list[NewMember]
    ) -> Appended | None:
        """Upload a copy with more members; None when the store has another version by now."""
        base, shard = kept.info, kept.copy
        growth = await trio.to_thread.run_sync(shard.add, members)
        view: MembersView | None = None
        if self._indexer is not None and growth.changed:
            view = await trio.to_thread.run_sync(
                self._indexer.view_of, shard.index, shard.staged.size, shard.staged.read
            )
        if not growth.changed:
            now = await self._store.head(bucket, base.key, latest=True)
            return Appended(bucket, base, base, growth) if now.same_content(base) else None
        custom = NO_CUSTOM
        if base.custom:
            custom = with_posix_metadata(base.custom, mtime_ns=time.time_ns(), mode=mode_of(base))
        upload = Upload(bucket, base.key, shard.content(), custom, replaces=base)
        try:
            info = await self._store.upload(upload)
        except Stale:
            return None
        # No other task may run before all of them know.
        appended = Appended(bucket, base, info, growth)
        if self._indexer is not None and view is not None:
            self._indexer.learn(bucket, info, view)
        self.on_append(appended)
        return appended

    # copies that wait ------------------------------------------------------------------------

    def _take_kept(self, shard: _Shard) -> _Kept | None:
        """Take the copy back, unless its room was needed."""
        kept, shard.kept = shard.kept, None
        if kept is None or self._staging.reuse(kept.copy.staged):
            return kept
        kept.copy.staged.discard()
        return None

    def _keep(self, shard: _Shard, kept: _Kept) -> None:
        shard.kept, shard.used = kept, trio.current_time()
        self._staging.keep(kept.copy.staged)
        others = [one for one in self._shards.values() if one.kept is not None]
        if len(others) > KEPT_MAX:
            self._let_go(min(others, key=lambda one: one.used))

    def _let_go(self, shard: _Shard) -> None:
        kept = self._take_kept(shard)
        if kept is not None:
            kept.copy.staged.discard()

    def _tidy(self, bucket: Bucket, key: str, shard: _Shard) -> None:
        """Forget a shard that is not in use; see to it that it will be when it has a copy."""
        if shard.lock.locked() or shard.waiting or shard.tidied:
            return
        if self._services.cancel_scope.cancel_called:
            self._let_go(shard)
        if shard.kept is None:
            if self._shards.get((bucket, key)) is shard:
                del self._shards[bucket, key]
            return
        shard.tidied = True
        what = f"letting go of the copy of {bucket}/{key}"
        self._services.start_soon(unattended, what, partial(self._expire, bucket, key, shard))

    async def _expire(self, bucket: Bucket, key: str, shard: _Shard) -> None:
        """Drop a copy that was not used for a while."""
        await trio.sleep_until(shard.used + KEEP_SECONDS)
        shard.tidied = False
        if trio.current_time() >= shard.used + KEEP_SECONDS:
            self._let_go(shard)
        self._tidy(bucket, key, shard)
