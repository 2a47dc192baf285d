"""The port every source of objects implements; one contract suite (tests/contract) holds them to it.

All methods are coroutines for trio and may be called by many tasks at once. A cancelled call
leaves nothing behind: no open request on the server, no thread that still writes to a buffer.
Failures are `aisfs.errors` only; `error.transient` tells whether to try again.

Also what stores share: contents to be written, all pages of a listing, stores that read one whole object with each
request, and stores that can only be read.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aisfs.core.names.listing import ListingBounds
from aisfs.errors import (
    AlreadyExists,
    BucketNotFound,
    ContentUnreadable,
    NotFound,
    ReadOnly,
    Stale,
    Unsupported,
)
from aisfs.model import NO_CUSTOM, Bucket, Keys, ObjectInfo, Page, Provider, hasher_of
from aisfs.system.threads import any_thread

Sink = Callable[[memoryview], None]
"""Takes the next bytes of a stream, in order. The view is only valid during the call."""
Arrived = Callable[[int], int]
"""Told how many of the first bytes of a buffer have arrived, for good, in the thread that receives them. Returns
after how many more it had best be told again. Must not raise, nor wait for anything but the processor."""
Count = Callable[[str, int], None]
"""Told, in any thread, the class of requests that are sent (list, head, get, put, copy, delete) and their
number."""


def uncounted(kind: str, number: int) -> None:
    """Count nothing."""


class ObjectStore(Protocol):
    """Buckets of objects, to be read."""

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """List the buckets this client may see, sorted; all providers when None."""
        ...

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List one page of the directory `prefix`, without recursion.

        Args:
            bucket: The bucket.
            prefix: Empty for the top level, otherwise ends in `/`.
            token: `next_token` of the page before; empty for the first page.

        A directory without entries is an empty page, not an error. An entry may come again on a later
        page. A directory may be listed although nothing is below it any more; see `first_keys`.

        Raises:
            BucketNotFound: the bucket does not exist.
            NotFound: the store knows directories, and says that there is no such one.
            Unavailable: names may be missing, since the store moves objects.
        """
        ...

    async def peek_page(self, bucket: Bucket, prefix: str) -> Page:
        """Return the first page of a directory, which may not be `complete`; see `list_page`.

        While a store moves objects, what is listed is there, and what is not listed may be there.
        """
        ...

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Return `most` keys at most of objects below the directory `prefix`, however deep.

        What tells whether there is anything in a directory; the marker that some tools leave in
        clouds, an object called `prefix`, is something. Which keys come first is the store's choice.

        Args:
            bucket: The bucket.
            prefix: The directory, with its slash.
            most: How many.
            sure: Leave out nothing even where an object has the directory's name.

        Raises:
            BucketNotFound: the bucket does not exist.
        """
        ...

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe the current version of one object.

        Args:
            bucket: The bucket.
            key: Name of the object.
            latest: Where the cluster only keeps copies of what is elsewhere, have it look there.

        Raises:
            NotFound: no such object; `BucketNotFound` when it is the bucket that is missing.
        """
        ...

    async def sized(self, bucket: Bucket, info: ObjectInfo) -> ObjectInfo:
        """Return an object with its size, which listings and `head` of a store that makes objects may not know.

        Raises:
            NotFound: it is gone.
        """
        ...

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`.

        The range must be non-empty and lie within `expected.size`, else ValueError: the caller's
        bug. On an error the content of `buffer` is undefined, but for what had `arrived`: stores that
        receive a range piece by piece tell it, those of an attempt that fails and of the next one.

        Raises:
            Stale: the object is now another version; nothing of it was delivered as `expected`.
            NotFound: the object is gone.
            NoRanges: the store has this object only whole; `stream` sends it.
        """
        ...

    async def read_many(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, memoryview]]
    ) -> list[bool]:
        """Fill buffers with whole objects, with one request, where the store has such requests.

        Args:
            bucket: Where all of them are.
            wanted: Each version with a buffer of its size. None is empty.

        Returns:
            Which buffers hold exactly the version. The others hold anything: their objects changed,
            are gone, cannot be had this way, or the answer broke off. `read_range` tells which.

        Raises:
            Unsupported: the store has no such requests; nor will it later on.
        """
        ...

    async def read_ranges(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, int, memoryview]]
    ) -> list[bool]:
        """Fill buffers with ranges of objects, with one request, where the store has such requests.

        Which bytes they are is the word of the server alone: callers compare them with what they know.

        Args:
            bucket: Where all of the objects are.
            wanted: Each version, with the start of the range and a buffer of its length. None is empty.

        Returns:
            Which buffers were filled while the object was this version. The others hold anything, as
            for `read_many`.

        Raises:
            Unsupported: the store has no such requests; nor will it later on.
        """
        ...

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole object, version `expected`, to `sink` as the bytes arrive.

        `sink` runs in a worker thread, not always one of trio's (it may use a trio token, not
        `trio.from_thread` without one), and must not wait for anything but the processor; an
        exception from it ends the stream and comes out of this call.

        Raises:
            Stale, NotFound: as for `read_range`; `sink` may have been given a part by then.
        """
        ...

    async def aclose(self) -> None:
        """Release connections. Calls in progress fail."""
        ...


class Content(Protocol):
    """The bytes of an object to be written, readable any number of times and in any order.

    Both methods may be called from several worker threads at once. The bytes must stay the same
    until the call that was given them has ended; `aisfs.stores.port` has the usual kinds.
    """

    @property
    def size(self) -> int:
        """Length in bytes; must not change."""
        ...

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `start` on; it never reaches beyond `size`.

        Raises:
            ContentUnreadable: they cannot be had. Any other `AisfsError` comes out likewise.
        """
        ...


Progress = Callable[[int], None]
"""Told, in a worker thread, how many bytes of a content were sent so far; a retry begins lower. A store that
does not know tells what a slow line has sent by now, as long as something shows that it is not dead."""

Announce = Callable[[str], None]
"""Told, before anything of an upload is sent, the name by which `abandon_upload` knows it; once more
for each try. Nothing may come out of it."""


class UploadAhead(Protocol):
    """An upload that began before all of its content was known; `WritableStore.upload` ends it."""

    @property
    def name(self) -> str:
        """What the store calls it."""
        ...

    @property
    def wants(self) -> int:
        """Bytes that a content must have, from its beginning, for its next part to be sent."""
        ...

    def next_part(self, content: Content) -> Callable[[], Awaitable[None]]:
        """Take the next part of a content that has `wants` bytes by now; return what sends it.

        Several may be sent at once. A part that failed is sent again by `upload`.
        """
        ...

    @any_thread
    def invalidate(self, start: int, stop: int) -> None:
        """Note that the bytes [start, stop) were changed."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether no object comes of it any more, and `upload` sends all of the content anew.

        So it is when bytes were changed that were sent, or are being sent, and when the store may
        have a part that it did not confirm.
        """
        ...

    async def abandon(self) -> None:
        """Throw away what was sent, if `upload` did not end it."""
        ...


@dataclass(frozen=True, slots=True)
class Upload:
    """An object to be written."""

    bucket: Bucket
    key: str
    content: Content
    """Large ones are read in several places at once."""
    custom: Mapping[str, str] = field(default_factory=lambda: NO_CUSTOM)
    """Replaces what was there. A store that keeps no custom metadata writes the object without."""
    progress: Progress = lambda done: None
    ahead: UploadAhead | None = None
    """What `begin_upload` gave for this object, no part of which is under way. It is over after the
    upload, which need not make use of it."""
    announce: Announce = lambda name: None
    """Not called where nothing can be left behind."""
    only_new: str = ""
    """Write only if there is no such object but one that an upload with this same text, which no other
    writer has, put there: a try whose answer was lost. Empty to overwrite."""
    replaces: ObjectInfo | None = None
    """Write only if the object is still this version, or what an upload before this one sent, whose
    answer was lost."""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"

    @property
    def is_conditional(self) -> bool:
        """Whether it depends on what is there."""
        return bool(self.only_new) or self.replaces is not None

    def check(self, there: ObjectInfo | None) -> None:
        """Make sure that what is there may be replaced.

        Raises:
            AlreadyExists, Stale: it may not.
        """
        if self.only_new and there is not None:
            raise AlreadyExists(f"{self}: another client has made it meanwhile")
        if self.replaces is not None and (there is None or not there.same_content(self.replaces)):
            what = "removed" if there is None else "changed"
            raise Stale(f"{self}: another client has {what} it meanwhile")


class WritableStore(ObjectStore, Protocol):
    """Buckets of objects, to be read and written.

    What a call reports done is done: the object is in the store, whole, with these bytes. A call
    that fails leaves the old object, or none; after `Unavailable`, `DeadlineExceeded` and a
    cancellation it is unknown which of old and new is there, but never a mixture. All calls but
    an upload with `only_new` or `replaces` overwrite what is there; the last one to end wins.

    Names are checked before anything is sent: `InvalidName` or `NameTooLong` for one that a store
    refuses or would never list (`aisfs.core.names.listing.check_new_key`). Where a store keeps objects
    as files, `IsADirectory` means that other keys begin with `key/`, and `NotADirectory` that a
    part of the key's path is an object. `OutOfSpace`, `AccessDenied` and `BucketNotFound` may
    come from any call.

    Custom metadata belongs to one content: it is gone, in whatever a store says, as soon as
    anybody writes other bytes. Names are ASCII letters, digits, `-` and `_`, values any text, all
    of it 1 KiB at most, else ValueError.
    """

    async def create_bucket(self, bucket: Bucket) -> None:
        """Make an empty bucket; `aisfs.core.names.listing.check_new_bucket` checks its name before.

        Raises:
            AlreadyExists: it is there. After `Unavailable` it may be there, too.
            Unsupported: this store makes no such buckets.
        """
        ...

    async def upload(self, upload: Upload) -> ObjectInfo:
        """Write one object whole, or not at all, and describe it.

        Where a store has no conditional writes, it looks right before it writes; what another client writes
        between the two is overwritten.

        Raises:
            AlreadyExists: `only_new`, and somebody else's object is there; nothing was changed.
            Stale: `replaces`, and the object is another one, or gone; nothing was changed.
            ContentUnreadable: what `content` gave; nothing was changed.
        """
        ...

    @property
    def ahead_above(self) -> int:
        """Bytes above which `begin_upload` may be of use; `sys.maxsize` for never."""
        ...

    async def begin_upload(self, bucket: Bucket, key: str) -> UploadAhead | None:
        """Begin to write an object that is not complete yet; None where a store cannot.

        Nobody sees anything of it until `upload` has ended it.
        """
        ...

    async def abandon_upload(self, bucket: Bucket, key: str, name: str) -> None:
        """Throw away what was sent of an upload of that name; somebody who is gone began it.

        Raises:
            NotFound: there is none.
        """
        ...

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Delete one object.

        Raises:
            NotFound: there is none.
        """
        ...

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Copy an object, with its custom metadata, and describe the copy.

        Raises:
            NotFound: no such object.
            ValueError: source and destination are the same: the caller's bug.
        """
        ...

    async def rename(
        self, bucket: Bucket, key: str, new_key: str, *, expected: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Rename an object within its bucket; it keeps its custom metadata.

        Not atomic everywhere: both names may be there for a while, and after a failure, but
        never none of them. With `expected` it is renamed only if it is that version.

        Raises:
            Stale: it is another version by now.
            NotFound: no such object.
            ValueError: both names are the same: the caller's bug.
        """
        ...

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Replace the custom metadata of the content `expected` and describe the object.

        Raises:
            Stale: it has other bytes by now.
            NotFound: no such object.
            Unsupported: the store or the bucket keeps none.
        """
        ...


PIECE = 512 << 10
"""Bytes handled at once: within a send timeout also over a slow link."""


class BytesContent:
    """Bytes in memory."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.view = memoryview(data)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.view)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See `Content`."""
        buffer[:] = self.view[start : start + len(buffer)]


@dataclass(frozen=True, slots=True)
class FileContent:
    """The first `size` bytes of an open file, wherever its position is."""

    descriptor: int
    """Stays the caller's to close, after the call that was given the content."""
    size: int
    name: str = "the file"
    """What messages call it."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See `Content`."""
        done = 0
        while done < len(buffer):
            try:
                got = os.preadv(self.descriptor, [buffer[done:]], start + done)
            except OSError as error:
                raise ContentUnreadable(f"{self.name}: {error.strerror}") from error
            if not got:
                raise ContentUnreadable(
                    f"{self.name}: ends after {start + done} of {self.size} bytes"
                )
            done += got


@dataclass(frozen=True, slots=True)
class PartOfContent:
    """The bytes `[start, start + size)` of another content."""

    whole: Content
    start: int
    size: int

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See `Content`."""
        self.whole.read_into(self.start + start, buffer)


def in_memory(content: Content) -> Content:
    """Read a small content, which would be read twice otherwise: for its checksum, and to be sent."""
    buffer = memoryview(bytearray(content.size))
    content.read_into(0, buffer)
    return BytesContent(buffer)


def pieces_of(content: Content, progress: Progress | None = None) -> Iterator[memoryview]:
    """Yield all bytes, in order; each piece is valid until the next one is asked for.

    Args:
        content: What to read.
        progress: Told when the next piece is asked for.
    """
    if isinstance(content, BytesContent) and content.size <= PIECE:
        if content.size:
            yield content.view
            if progress:
                progress(content.size)
        return
    buffer = memoryview(bytearray(min(PIECE, content.size)))
    for start in range(0, content.size, PIECE):
        piece = buffer[: content.size - start]
        content.read_into(start, piece)
        yield piece
        if progress:
            progress(start + len(piece))


def checksum_of(content: Content, kind: str, go_on: Callable[[], bool] = lambda: True) -> str:
    """Compute the checksum of a content, as `<type>:<hex>`.

    Args:
        content: Read from its beginning to its end.
        kind: A known type.
        go_on: Asked before each piece; the result is of no use once it returned False.
    """
    hasher = hasher_of(kind)
    for piece in pieces_of(content):
        if not go_on():
            break
        hasher.update(piece)
    return f"{kind}:{hasher.hexdigest()}"


async def pages_of(store: ObjectStore, bucket: Bucket, prefix: str) -> AsyncIterator[Page]:
    """Yield the pages of a directory, one without entries if there is none; an entry may come twice.

    Raises:
        ProtocolError: the listing has no end.
    """
    bounds = ListingBounds(f"{bucket}/{prefix}")
    token = ""
    while True:
        try:
            page = await store.list_page(bucket, prefix, token=token)
        except BucketNotFound:
            raise
        except NotFound:  # of a store that has directories of its own
            page = Page([], [], "")
        token = page.next_token
        bounds.check(page.names, token)
        yield page
        if not token:
            return


def check_expected(subject: str, expected: ObjectInfo | None, there: ObjectInfo) -> None:
    """Make sure that an object is the version that is meant, if one is.

    Raises:
        Stale: it is another one.
    """
    if expected is not None and not there.same_content(expected):
        raise Stale(f"{subject}: another client has changed it meanwhile")


class _Listed(Protocol):
    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page: ...


class PlainStore:
    """The parts of `WritableStore` that send ahead, and that read several objects at once: for a store that does neither."""

    ahead_above = sys.maxsize

    async def peek_page(self: "_Listed", bucket: Bucket, prefix: str) -> Page:
        """See `ObjectStore`; nothing is ever moved here."""
        return await self.list_page(bucket, prefix)

    async def sized(self, bucket: Bucket, info: ObjectInfo) -> ObjectInfo:
        """See `ObjectStore`; sizes are known here."""
        return info

    async def begin_upload(self, bucket: Bucket, key: str) -> UploadAhead | None:
        """See `WritableStore`."""
        return None

    async def abandon_upload(self, bucket: Bucket, key: str, name: str) -> None:
        """See `WritableStore`."""
        raise NotFound(f"{bucket}/{key}: nothing was sent ahead")

    async def read_many(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, memoryview]]
    ) -> list[bool]:
        """Refuse."""
        raise Unsupported(f"{bucket}: objects are read one by one")

    async def read_ranges(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, int, memoryview]]
    ) -> list[bool]:
        """Refuse."""
        raise Unsupported(f"{bucket}: ranges are read one by one")


class ReadOnlyStore(PlainStore):
    """The part of `WritableStore` that changes anything: all of it is refused."""

    async def create_bucket(self, bucket: Bucket) -> None:
        """Refuse."""
        raise _refusal(bucket)

    async def upload(self, upload: Upload) -> ObjectInfo:
        """Refuse."""
        raise _refusal(upload.bucket)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Refuse."""
        raise _refusal(bucket)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Refuse."""
        raise _refusal(to_bucket)

    async def rename(
        self, bucket: Bucket, key: str, new_key: str, *, expected: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Refuse."""
        raise _refusal(bucket)

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Refuse."""
        raise _refusal(bucket)


def _refusal(bucket: Bucket) -> ReadOnly:
    return ReadOnly(f"{bucket}: can only be read")
