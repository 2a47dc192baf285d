"""Whatever fsspec opens, as a store to be read.

Versions are those that a file system of fsspec tells: a tag, a checksum, or the time of the last
change. It is asked before and after bytes are read, since none of them reads a version.

Only this module imports fsspec, which is an extra.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import trio

from aisfs.core.names.urls import has_no_path
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    ConfigError,
    InvalidName,
    IsADirectory,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.redaction import remember_settings
from aisfs.stores.port import Arrived, Count, ReadOnlyStore, Sink, WritableStore, uncounted

T = TypeVar("T")

_PIECE = 4 << 20
"""Bytes asked for at once by a stream: costs little memory, hides some latency."""
_TAGS = ("etag", "ctag", "version_id", "versionid", "generation", "md5", "md5hash", "sha1", "checksum", "uid")  # fmt: skip
"""Names of what tells contents apart, in lower case, in the file systems of fsspec."""
_TIMES = ("mtime", "modified", "modify", "last_modified", "lastmodified", "updated", "created")
"""Names of times of changes there."""
_NS = 1_000_000_000
_AZURE = "az://CONTAINER or az+direct://ACCOUNT/CONTAINER"
_OWN = {"gcs": "gs://", "s3a": "s3://", "s3n": "s3://", "abfs": _AZURE, "abfss": _AZURE}
"""What other tools call clouds that have a store of their own here."""
_MOST_AT_ONCE = 8
"""Calls at once, each on a connection of its own: servers of files often permit ten for a client."""
_STAMP = re.compile(r"[0-9]{14}")
"""A time as FTP has it, in UTC."""


def open_fsspec(bucket: Bucket, most: int, count: Count = uncounted) -> WritableStore:
    """Return the store that has a bucket; nothing is sent.

    Args:
        bucket: Its name is the URL of a host.
        most: Calls at once.
        count: Told of each call of fsspec, as a request.

    Raises:
        ConfigError: what fsspec needs for the scheme is not installed.
    """
    import fsspec
    import fsspec.config

    scheme = bucket.store
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        own = _OWN.get(scheme)
        hint = f"; {own} is read without fsspec" if own else ""
        raise ConfigError(
            f"{bucket}: fsspec cannot open {scheme}:// here: {error}{hint}"
        ) from error
    remember_settings(fsspec.config.conf)
    return FsspecStore(fsspec.url_to_fs, bucket, most, count)


class FsspecStore(ReadOnlyStore):
    """Files of one host."""

    def __init__(
        self,
        connect: Callable[..., tuple[Any, str]],
        bucket: Bucket,
        most: int,
        count: Count = uncounted,
    ) -> None:
        """Connect to nothing yet; see `open_fsspec`."""
        self.bucket = bucket
        self._connect = connect
        self._count = count
        self._limiter = trio.CapacityLimiter(min(most, _MOST_AT_ONCE))
        self._idle: list[tuple[Any, str]] = []
        """File systems for one thread at a time: several of fsspec's talk over one connection. Worker
        threads change the list, in single steps."""
        self._closed = False

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """List the one bucket."""
        await trio.lowlevel.checkpoint()
        return [self.bucket] if provider in (None, self.bucket.provider) else []

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List the directory `prefix`, all of it on one page."""
        if prefix and not prefix.endswith("/"):
            raise InvalidName(f"{bucket}/{prefix}: a directory prefix ends in '/'")
        if has_no_path(prefix):
            return Page([], [], "")
        self._count("list", 1)
        return await self._run(bucket, prefix, partial(_list, bucket, prefix))

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Return `most` keys at most of files below the directory `prefix`."""
        found: list[str] = []
        folders = [prefix]
        while folders and len(found) <= most:
            page = await self.list_page(bucket, folders.pop())
            found += [info.key for info in page.objects]
            folders += page.directories
        return Keys(found[:most], len(found) <= most and not folders)

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe a file as it is now."""
        if not key or key.endswith("/") or has_no_path(f"{key}/"):
            raise NotFound(f"{bucket}/{key}: no name of a file")
        self._count("head", 1)
        return await self._run(bucket, key, partial(_head, bucket, key))

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        stop = start + len(buffer)
        if not 0 <= start < stop <= expected.size:
            raise ValueError(f"{len(buffer)} bytes from {start} on of {expected.size}")
        # Copied here: a thread that was left behind has no buffer of anybody's.
        buffer[:] = await self._read(bucket, expected, start, stop)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole file, version `expected`, to `sink`."""
        if not expected.size:
            self._count("head", 1)
            await self._run(bucket, expected.key, partial(_check, bucket, expected))
        for start in range(0, expected.size, _PIECE):
            stop = min(start + _PIECE, expected.size)
            piece = memoryview(await self._read(bucket, expected, start, stop))
            await trio.to_thread.run_sync(sink, piece)

    async def aclose(self) -> None:
        """Close connections that are not in use; what is under way ends by itself."""
        self._closed = True
        self._idle.clear()

    async def _read(self, bucket: Bucket, expected: ObjectInfo, start: int, stop: int) -> bytes:
        self._count("head", 2)  # before and after
        self._count("get", 1)
        return await self._run(bucket, expected.key, partial(_read, bucket, expected, start, stop))

    async def _run(self, bucket: Bucket, key: str, work: Callable[[Any, str], T]) -> T:
        """Run `work` with a file system, and the path of `key` there. What is cancelled is left behind."""
        if bucket != self.bucket:
            raise BucketNotFound(f"{bucket}: not what is mounted, which is {self.bucket}")

        def call() -> T:
            with _errors(f"{bucket}/{key}"):
                try:
                    fs, root = self._idle.pop()
                except IndexError:
                    fs, root = self._open()
                try:
                    found = work(fs, f"{root.rstrip('/')}/{key}")
                except (FileNotFoundError, NotADirectoryError, AisfsError):
                    self._put_back(fs, root)
                    raise
                # After any other error, nobody knows what the connection would say next.
                self._put_back(fs, root)
                return found

        return await trio.to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)

    def _open(self) -> tuple[Any, str]:
        # No instance and no listing of anybody else's: they may be of any age.
        fs, root = self._connect(
            f"{self.bucket.name}/", use_listings_cache=False, skip_instance_cache=True
        )
        return fs, str(root)

    def _put_back(self, fs: Any, root: str) -> None:  # noqa: ANN401 - of the extra
        if not self._closed:
            self._idle.append((fs, root))


# In worker threads -------------------------------------------------------------------------------


def _list(bucket: Bucket, prefix: str, fs: Any, path: str) -> Page:  # noqa: ANN401 - of the extra
    page = Page([], [], "")
    here = path.strip("/")
    fs.invalidate_cache()
    try:
        entries = fs.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return page
    for entry in entries:
        whole = str(entry["name"]).strip("/")
        if whole == here:  # a file, or the mark of a directory
            continue
        name = whole[len(here) + 1 :] if here else whole
        if (here and not whole.startswith(f"{here}/")) or not name or "/" in name:
            raise ProtocolError(f"{bucket}/{prefix}: fsspec lists what is not in the directory")
        if entry["type"] == "directory":
            page.directories.append(f"{prefix}{name}/")
        elif entry["type"] == "file":
            page.objects.append(_described(bucket, prefix + name, entry))
    page.directories.sort()
    page.objects.sort(key=lambda info: info.key)
    return page


def _head(bucket: Bucket, key: str, fs: Any, path: str) -> ObjectInfo:  # noqa: ANN401
    fs.invalidate_cache()
    entry = fs.info(path)
    if entry["type"] != "file":
        raise NotFound(f"{bucket}/{key}: no file")
    return _described(bucket, key, entry)


def _check(bucket: Bucket, expected: ObjectInfo, fs: Any, path: str) -> None:  # noqa: ANN401
    if not expected.same_content(_head(bucket, expected.key, fs, path)):
        raise Stale(f"{bucket}/{expected.key}: the file changed")


def _read(
    bucket: Bucket,
    expected: ObjectInfo,
    start: int,
    stop: int,
    fs: Any,  # noqa: ANN401
    path: str,
) -> bytes:
    _check(bucket, expected, fs, path)
    data: bytes = fs.cat_file(path, start=start, end=stop)
    _check(bucket, expected, fs, path)
    if len(data) != stop - start:
        raise Unavailable(f"{bucket}/{expected.key}: {len(data)} of {stop - start} bytes came")
    return data


def _described(bucket: Bucket, key: str, entry: Mapping[str, Any]) -> ObjectInfo:
    size = entry.get("size")
    if not isinstance(size, int):
        raise Unsupported(f"{bucket}/{key}: fsspec does not say how long it is")
    known = {str(name).lower(): value for name, value in entry.items() if value is not None}
    tags = [f"{name}={known[name]}" for name in _TAGS if name in known]
    times = [(name, _seconds(known[name])) for name in _TIMES if name in known]
    version = tags[0] if tags else f"{times[0][0]}={times[0][1]}" if times else ""
    seconds = times[0][1] if times else 0
    known_time = 0.0 if isinstance(seconds, str) or not 0 <= seconds < 1 << 33 else seconds
    mtime_ns = int(known_time * _NS)
    return ObjectInfo(key, size, version, mtime_ns=mtime_ns)


def _seconds(time: object) -> float | str:
    """Return a time in one form, whichever a file system gives it in."""
    if isinstance(time, datetime):
        return time.timestamp()
    if isinstance(time, str) and _STAMP.fullmatch(time):
        return datetime.strptime(time, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
    return float(time) if isinstance(time, int | float) else str(time)


@contextmanager
def _errors(subject: str) -> Iterator[None]:
    """Turn what file systems of fsspec raise into our errors."""
    try:
        yield
    except AisfsError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{subject}: no such file") from error
    except IsADirectoryError as error:
        raise IsADirectory(f"{subject}: a directory") from error
    except PermissionError as error:
        raise AccessDenied(f"{subject}: {_said(error)}") from error
    except NotImplementedError as error:
        raise Unsupported(f"{subject}: {_said(error)}") from error
    except (ValueError, TypeError, KeyError, ImportError) as error:
        raise ProtocolError(f"{subject}: {_said(error)}") from error
    except Exception as error:  # each has its own, of no common class
        raise Unavailable(f"{subject}: {_said(error)}") from error


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:300]
