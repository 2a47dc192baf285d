"""Ways in which a real AIStore loses data or names, which the server can imitate.

Observed on AIStore 5.0. Handlers query the object that the server was made with: `Kindness` for use on
a laptop, `Traps` to test clients that have to be safe on a real cluster.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import xxhash

from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.moving import Moving

_PATH = "/$&+,:;=@~"
"""Characters that Go does not escape in the path of a redirect, besides letters, digits and `-._`."""
_CONTROL = re.compile(rb"[\x01-\x08\x0a-\x1f\x7f]")
_ASCII = "".join(map(chr, range(0x01, 0x80)))


class Kindness:
    """A server without traps."""

    loses_repeated_parts = False
    """A part number that is sent twice in one upload silently destroys the part."""
    appends_in_place = False
    """A member overwrites the end of its tar, whose file is not truncated, and half of a member stays
    when the client disconnects; a new shard needs an existing directory."""
    loses_names = False
    """Listings lose names as in `aisfs.server.api.paging`."""
    like_amazon = True
    """The S3 API answers as Amazon's does where AIStore's differs: the proxy serves objects itself, and
    listings lose nothing and have ETags and modification times."""
    holds_both = False
    """An object and a directory may have one name, where they are on different disks; a target whose
    disk has the object then gives up listing that directory, as often as not."""
    attaches = False
    """Other clusters can be attached, with what is wrong about that: see `aisfs.server.api.attached`."""
    moves_data = False
    """Data moves between targets on request."""
    moving = Moving()
    """What is hidden meanwhile."""
    targets = 1
    """The simulated number of targets, each with two disks."""

    def target_of(self, bucket: str, key: bytes) -> int:
        """Return the number of the target that has an object."""
        return 0

    def is_misplaced(self, bucket: str, key: bytes) -> bool:
        """Return whether an object is on another target than its name belongs to."""
        return False

    def disk_of(self, bucket: str, key: bytes) -> int:
        """Return the number of the disk that an object is on; those of a target are consecutive."""
        at = xxhash.xxh64_intdigest(bucket.encode() + b"/" + key) & 1
        return 2 * self.target_of(bucket, key) + at

    def location(self, path: bytes) -> str:
        """Return the path of a redirect for the path of a request, decoded; `%2B` comes back as `+`."""
        return quote(path, safe=_PATH)

    def keep_directory(self, bucket: str, key: bytes) -> None:
        """Keep the parent directories of an object that is deleted."""

    def drop_directory(self, bucket: str, key: bytes) -> None:
        """Remove an empty directory that was kept, if an object of this name would be on its disk."""

    def drop_bucket(self, bucket: str) -> None:
        """Remove what was kept of a bucket."""

    def has_directory(self, bucket: Bucket, key: bytes, disk: int) -> bool:
        """Return whether there is a directory of this name on a disk."""
        return bucket.has_folder(key)

    def kept(self, bucket: str, inside: bytes) -> set[bytes] | None:
        """Return the directories that were kept in this one, with their slash; None if it was not."""
        return None


class Traps(Kindness):
    """A server that loses data and names like a real target with two disks."""

    loses_repeated_parts = True
    appends_in_place = True
    loses_names = True
    like_amazon = False
    holds_both = True
    attaches = True
    moves_data = True

    def __init__(self, folder: Path) -> None:
        """Directories that outlive their objects are kept in `folder`."""
        self._folder = folder
        self.moving = Moving()

    def location(self, path: bytes) -> str:
        """Return the path of a redirect; one with control characters is not escaped.

        Line breaks in it become spaces, and the others stay.
        """
        if not _CONTROL.search(path):
            return super().location(path)
        return quote(path.replace(b"\n", b" ").replace(b"\r", b" "), safe=_ASCII)

    def keep_directory(self, bucket: str, key: bytes) -> None:
        """Keep the parent directories of an object on its disk, until `drop_directory`."""
        if b"/" in key:
            os.makedirs(os.path.dirname(self._place(bucket, key)), exist_ok=True)

    def drop_directory(self, bucket: str, key: bytes) -> None:
        """Remove a directory, as the DELETE of an object in its place does."""
        with suppress(OSError):
            os.rmdir(self._place(bucket, key))

    def drop_bucket(self, bucket: str) -> None:
        """Remove what was kept of a bucket."""
        self.moving.drop_bucket(bucket)
        for folder in self._disks(bucket):
            shutil.rmtree(folder, ignore_errors=True)

    def has_directory(self, bucket: Bucket, key: bytes, disk: int) -> bool:
        """Return whether there is a directory on a disk: one that was kept, or with an object of it."""
        if os.path.isdir(self._disks(bucket.name)[disk] + b"/" + key):
            return True
        return any(self.disk_of(bucket.name, name) == disk for name in bucket.below(key))

    def kept(self, bucket: str, inside: bytes) -> set[bytes] | None:
        """Return the directories in this one on any disk."""
        found = None
        for folder in self._disks(bucket):
            with suppress(OSError):
                found = {name + b"/" for name in os.listdir(folder + b"/" + inside)} | (
                    found or set()
                )
        return found

    def _disks(self, bucket: str) -> list[bytes]:
        return [os.fsencode(self._folder / str(disk) / bucket) for disk in range(2 * self.targets)]

    def _place(self, bucket: str, key: bytes) -> bytes:
        return self._disks(bucket)[self.disk_of(bucket, key)] + b"/" + key
