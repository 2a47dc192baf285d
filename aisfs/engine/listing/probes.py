"""Single questions about what a listing leaves open.

AIStore goes on listing a directory after its last object was removed, and it ends a listing silently at
an object whose metadata is corrupt. Both can be found out by asking for what is there.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

import trio
from cachetools import LRUCache

from aisfs.cache.names import DirectoryId
from aisfs.core.names.listing import Listed, child_key, child_prefix, entry_name, is_key
from aisfs.errors import AccessDenied, AisfsError, InvalidName, NotFound, ProtocolError
from aisfs.model import Bucket, ObjectInfo, Page, Provider
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import ObjectStore

log = logging.getLogger(__name__)

FEW = 8
"""Directories asked about one by one. For more of them, one page of all keys below their parent most
often tells it at once."""
KEYS = 10_000
"""Of such a page: what AIStore returns at most."""
BESIDE_MAX = 10_000
"""Directories remembered that have the name of an object."""
CHECKED = 8
"""Names asked for of those that a listing lacks. A cut listing lacks all behind the cut, so the first
and the last of them tell."""

SECOND_ANSWER_SECONDS = 1.0
"""How long to wait whether a name that stands for something stands for something else, too."""


class Probes:
    """Asks a store."""

    def __init__(self, store: ObjectStore) -> None:
        """Ask `store`."""
        self._store = store
        self._beside: LRUCache[DirectoryId, None] = LRUCache(BESIDE_MAX)
        """Directories that have the name of an object."""

    def is_beside(self, directory: DirectoryId) -> bool:
        """Return whether an object is known to have the name of a directory, or of one above it."""
        bucket, prefix = directory
        ends = (at + 1 for at, character in enumerate(prefix) if character == "/")
        return bool(self._beside) and any((bucket, prefix[:end]) in self._beside for end in ends)

    def note_beside(self, directory: DirectoryId, names: Iterable[bytes]) -> None:
        """Remember directories that have the name of an object."""
        bucket, prefix = directory
        if bucket.provider is Provider.AIS:
            self._beside.update({(bucket, child_prefix(prefix, name)): None for name in names})

    async def first_page(self, directory: DirectoryId) -> Page:
        """Return the first page of a directory's listing."""
        if self.is_beside(directory):
            return await self.page(directory)
        return await self._store.list_page(*directory)

    async def peek(self, directory: DirectoryId) -> Page:
        """Return the first page of a directory's listing, which need not be complete."""
        if self.is_beside(directory):
            return await self.page(directory)
        return await self._store.peek_page(*directory)

    async def is_occupied(
        self, bucket: Bucket, prefix: str, *, sure: bool = False, but_for_marker: bool = False
    ) -> bool:
        """Return whether there is any object below a directory; see `first_keys`."""
        keys = await self._store.first_keys(bucket, prefix, 1 + but_for_marker, sure=sure)
        return any(key != prefix or not but_for_marker for key in keys.found)

    async def occupied(self, directory: DirectoryId, names: Collection[bytes]) -> set[bytes]:
        """Return which directories in a directory have any object below them."""
        bucket, prefix = directory
        unclear, occupied = set(names), set[bytes]()
        if len(unclear) > FEW:
            keys = await self._store.first_keys(bucket, prefix, KEYS)
            ends = ((key, key.find("/", len(prefix))) for key in keys.found)
            heads = {entry_name(prefix, key[:end]) for key, end in ends if end >= 0}
            occupied = unclear & heads
            unclear = set() if keys.complete else unclear - heads

        async def ask(name: bytes) -> None:
            if await self.is_occupied(bucket, child_prefix(prefix, name), sure=True):
                occupied.add(name)

        await all_of(partial(ask, name) for name in unclear)
        return occupied

    async def find(
        self, directory: DirectoryId, name: bytes, shows: Callable[[str], bool]
    ) -> Listed:
        """Return what the store has under a name: an object, or None for a directory.

        Both are asked for at once. Once there is the one, the other is not waited for any longer: a store
        that moves objects can tell what is there, but not what is not.

        Args:
            directory: The directory.
            name: The name in it.
            shows: Whether a key, or the prefix of a directory, is of interest.

        Raises:
            NotFound, InvalidName: there is neither.
            AisfsError: the store cannot tell whether there is one.
        """
        bucket, prefix = directory
        below, key = child_prefix(prefix, name), child_key(prefix, name)
        sure = self.is_beside(directory)
        errors: list[AisfsError] = [NotFound(f"{bucket}/{key}: no such name")]
        is_directory, info = False, None

        async def ask(question: Callable[[], Awaitable[None]]) -> None:
            try:
                await question()
            except AisfsError as error:
                errors.append(error)
            if is_directory or info is not None:
                nursery.cancel_scope.deadline = trio.current_time() + SECOND_ANSWER_SECONDS

        async def look_below() -> None:
            nonlocal is_directory
            is_directory = await self.is_occupied(bucket, below, sure=sure)

        async def look() -> None:
            nonlocal info
            info = await self._store.head(bucket, key)

        async with trio.open_nursery() as nursery:
            for question in [look_below] * shows(below) + [look] * (is_key(key) and shows(key)):
                nursery.start_soon(ask, question)
        if is_directory and info is not None:
            self.note_beside(directory, [name])
        if is_directory or info is not None:
            return None if is_directory else info
        unclear = [error for error in errors if not isinstance(error, NotFound | InvalidName)]
        raise unclear[0] if unclear else errors[-1]

    async def page(self, directory: DirectoryId) -> Page:
        """List a directory that has the name of an object, or is below one that has.

        AIStore's own listing lacks names there, at random.

        Raises:
            ProtocolError: it is too large for that.
        """
        bucket, prefix = directory
        keys = await self._store.first_keys(bucket, prefix, KEYS, sure=True)
        if not keys.complete:
            raise ProtocolError(
                f"{bucket}/{prefix}: AIStore's listings lack names where an object has the name of a "
                f"directory, and here are more than {KEYS} keys: rename that object"
            )
        objects: list[ObjectInfo] = []
        directories = set[str]()
        for key in keys.found:
            end = key.find("/", len(prefix))
            if end >= 0:
                directories.add(key[: end + 1])
                continue
            with suppress(NotFound):
                objects.append(await self._store.head(bucket, key))
        return Page(objects, sorted(directories), "")

    async def check_gone(self, directory: DirectoryId, lacking: Mapping[bytes, Listed]) -> None:
        """Make sure that names which a listing lacks are gone indeed.

        Raises:
            ProtocolError: one of them is there.
        """
        bucket, prefix = directory
        names = sorted(lacking)
        if len(names) > CHECKED:
            names = names[: CHECKED // 2] + names[-(CHECKED // 2) :]
        for name in names:
            why = await self._why_there(bucket, prefix, name, lacking[name])
            if why is not None:
                raise ProtocolError(
                    f"{bucket}/{prefix}: the cluster's listing is cut short: it lacks {name!r}, {why}. "
                    "Most likely an object before it is corrupt (ErrLmetaCorrupted), where its target "
                    "ends every listing: look for the first name that only a listing of names shows "
                    "(`ais ls --name-only`), and put an object over it"
                )

    async def _why_there(
        self, bucket: Bucket, prefix: str, name: bytes, listed: Listed
    ) -> str | None:
        try:
            if listed is None:
                there = await self.is_occupied(bucket, child_prefix(prefix, name))
                return "below which there are objects" if there else None
            await self._store.head(bucket, child_key(prefix, name))
        except (NotFound, AccessDenied):
            return None
        except ProtocolError as error:
            return f"whose metadata the cluster cannot read ({error})"
        return "which exists"
