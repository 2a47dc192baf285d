"""How handlers answer: failures as errno, attributes as pyfuse3 packs them."""

import functools
import logging
import stat
import time
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import pyfuse3

from aisfs.filesystem.nodes import BLOCK_SIZE, LONGEST_TIMEOUT, Attr, Entry
from aisfs.fuse.fastpath.failures import failure
from aisfs.metrics import Metrics
from aisfs.system.logs import request_log

log = logging.getLogger(__name__)


class _Answering(Protocol):
    """Whose handlers they are."""

    metrics: Metrics
    before_each: Callable[[], None]

    def describe(self, operation: str, *arguments: object) -> str:
        """Return what a request is about, for the log."""
        ...


P = ParamSpec("P")
ResultT = TypeVar("ResultT")
SelfT = TypeVar("SelfT", bound=_Answering)


def handler(
    operation: Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]]:
    """Count a request, and turn every failure into the errno the table says."""
    name = operation.__name__

    @functools.wraps(operation)
    async def answer(self: SelfT, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        self.metrics.operations.labels(name, "pyfuse3").inc()
        self.before_each()
        request_log.begin()
        started = time.monotonic()
        try:
            return await operation(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:  # noqa: BLE001 - logged there
            code = failure(self.metrics, name, error)
        finally:
            seconds = time.monotonic() - started
            self.metrics.pyfuse_times.observe(name, seconds)
            if seconds >= request_log.least:
                request_log.answered(log, name, self.describe(name, *args), seconds)
        raise pyfuse3.FUSEError(code)

    return cast("Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]]", answer)


def entry_attributes(entry: Entry) -> pyfuse3.EntryAttributes:
    """Pack what is said of a name."""
    found = attributes(entry.attr)
    found.entry_timeout = entry.entry_timeout
    return found


def give_dot(token: pyfuse3.ReaddirToken) -> bool:
    """List a directory in itself, at offset 1; return whether it fits. It counts no lookup."""
    dot = pyfuse3.EntryAttributes()
    dot.st_mode = pyfuse3.ModeT(stat.S_IFDIR)
    return bool(pyfuse3.readdir_reply(token, pyfuse3.FileNameT(b"."), dot, 1))


def attributes(attr: Attr) -> pyfuse3.EntryAttributes:
    """Pack what is said of an inode."""
    found = pyfuse3.EntryAttributes()
    found.st_ino = pyfuse3.InodeT(attr.ino)
    found.st_mode = pyfuse3.ModeT(attr.mode)
    found.st_nlink = attr.links
    found.st_uid = attr.uid
    found.st_gid = attr.gid
    found.st_size = attr.size
    found.st_blksize = BLOCK_SIZE
    found.st_blocks = 0 if stat.S_ISDIR(attr.mode) else -(-attr.size // 512)
    found.st_atime_ns = found.st_mtime_ns = found.st_ctime_ns = attr.mtime_ns
    found.attr_timeout = attr.timeout
    found.entry_timeout = LONGEST_TIMEOUT
    return found
