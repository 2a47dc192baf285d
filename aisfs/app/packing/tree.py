"""What there is to pack, wherever it lies."""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from aisfs.core.names.listing import INDEX_DIRECTORY, shard_of_published
from aisfs.core.names.sources import EVERY_KEY, BucketSource, DirectorySource, KeyFilter
from aisfs.core.views.shuffled_tar import File, ShardNames

Place = BucketSource | DirectorySource
"""Where shards are written to."""

ReadFile = Callable[[File, int, memoryview], None]
"""Fills a view, which is not empty, with the content of a file from an offset on. Called in threads.

Raises:
    ContentUnreadable: it cannot be read, or has changed.
"""


_LITTER = re.compile(
    "|".join(
        fnmatch.translate(name.lower())
        for name in (
            ".DS_Store",
            "._*",
            "__MACOSX",
            ".AppleDouble",
            ".Spotlight-V100",
            ".Trashes",
            ".fseventsd",
            ".TemporaryItems",
            "Thumbs.db",
            "ehthumbs.db",
            "desktop.ini",
            "$RECYCLE.BIN",
            "System Volume Information",
            ".ipynb_checkpoints",
            "__pycache__",
            ".Trash-*",
            ".directory",
            ".nfs*",
            ".fuse_hidden*",
            "@eaDir",
            "lost+found",
            INDEX_DIRECTORY,
        )
    )
)
"""Names in lower case of what macOS, Windows, Jupyter, Python, desktops, file systems and aisfs leave behind."""
HIDDEN = "hidden, which --hidden packs"
LITTER = "litter of other programs"
EXCLUDED = "excluded"


class Choice:
    """Which files are packed, and how many are not, by reason."""

    def __init__(self, keys: KeyFilter = EVERY_KEY, *, hidden: bool = False) -> None:
        """Leave out what `keys` do not want, and names that start with a dot unless they are packed."""
        self._keys = keys
        self._hidden = hidden
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def wants(self, path: str) -> bool:
        """Return whether a file is packed; a path that ends in a slash is a directory that may have some."""
        parts = path.removesuffix("/").split("/")
        for end, part in enumerate(parts, start=1):
            reason = self._odd(part)
            if reason:
                self._count(reason, "/".join(parts[:end]))
                return False
        wanted = self._keys.enters(path) if path.endswith("/") else self._keys.wants(path)
        if not wanted:
            self._count(EXCLUDED, path)
        return wanted

    def _odd(self, name: str) -> str:
        if _LITTER.fullmatch(name.lower()):
            return LITTER
        return HIDDEN if name.startswith(".") and not self._hidden else ""

    def _count(self, reason: str, path: str) -> None:
        if path not in self._seen:
            self._seen.add(path)
            self._counts[reason] += 1
            self._examples.setdefault(reason, path)

    @property
    def left_out(self) -> list[str]:
        """A line for each reason."""
        return [
            f"{count} {reason}, such as {self._examples[reason]}"
            for reason, count in sorted(self._counts.items())
        ]


class Tree(Protocol):
    """Files to be packed."""

    @property
    def files(self) -> list[File]:
        """All of them."""
        ...

    @property
    def left_out(self) -> list[str]:
        """A line for each thing that cannot be packed."""
        ...

    def reading(self) -> AbstractAsyncContextManager[ReadFile]:
        """Open what they lie in, while they are packed."""
        ...


def is_own(key: str, names: ShardNames) -> bool:
    """Return whether a key is that of a shard with one of these names, of its index, or of the names of classes."""
    return key == names.classes_key or names.index(shard_of_published(key) or key) is not None
