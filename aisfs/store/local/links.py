"""Which symbolic links of a local directory are followed: one rule for mounts, `aisfs ls` and `aisfs pack`.

A link that leads to a file below the directory is. One that leads out of it is followed if the user made it and
owns the file (the caches of Hugging Face and DVC consist of such links), if the user typed its name, or with
`--follow-links`. Only with that option is a link to a directory followed, unless that directory is one of those
above it, which would have no end.
"""

import os
import stat
from dataclasses import dataclass, field

from aisfs.openat2 import open_beneath


@dataclass(frozen=True, slots=True)
class Links:
    """The rule for one directory."""

    root: bytes
    """An absolute path without links."""
    follow: bool = False
    """Whether all links are followed."""
    named: frozenset[bytes] = field(default=frozenset())
    """Paths that the user typed."""

    def is_within(self, path: bytes) -> bool:
        """Return whether a path without links lies below the root."""
        return path.startswith(self.root.rstrip(b"/") + b"/")

    def target(self, path: bytes) -> tuple[bytes, os.stat_result] | None:
        """Return the file that a link leads to, as a path without links; None if it is not followed.

        Raises:
            OSError: it leads nowhere.
        """
        real = os.path.realpath(path)
        if not self._may_leave(path) and not self.is_within(real):
            link = os.lstat(path)
            # A directory above it may be a link by now: then this is none.
            if not stat.S_ISLNK(link.st_mode) or link.st_uid != os.geteuid():
                return None
            status = os.stat(real)
            return (real, status) if self._is_own(status) else None
        status = os.stat(real)
        return (real, status) if stat.S_ISREG(status.st_mode) else None

    def open(self, path: bytes, flags: int) -> int | None:
        """Return a descriptor of the file that a link leads to; None if it is not followed.

        What it leads to is opened without links, should it be swapped now.

        Raises:
            OSError: it leads nowhere.
        """
        found = self.target(path)
        if found is None:
            return None
        real, _ = found
        within = self.is_within(real)
        top = os.open(self.root if within else b"/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            start = self.root if within else b"/"
            descriptor = open_beneath(top, os.path.relpath(real, start), flags, links=False)
        finally:
            os.close(top)
        if within or self._may_leave(path) or self._is_own(os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)
        return None

    def enters(self, path: bytes) -> bool:
        """Return whether a directory is shown that may be, or lie below, a link."""
        real = os.path.realpath(path)
        if real == path:
            return True
        if not self.follow or not os.path.isdir(real):
            return False
        above, seen = path, {real}
        while above != self.root:
            above = os.path.dirname(above)
            passed = os.path.realpath(above)
            if passed in seen:
                return False
            seen.add(passed)
        return True

    def _may_leave(self, path: bytes) -> bool:
        return self.follow or path in self.named

    @staticmethod
    def _is_own(status: os.stat_result) -> bool:
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
