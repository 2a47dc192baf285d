"""Transformed objects as a store: what a transformer makes of the objects of another store, to be read.

To everything above, the results are plain objects. Each has the size of the result, never that of its source, and a
version that says of which source it was made, by what, and which bytes came of it. So an overwritten source, another
transformer and a result that came out differently the second time are other versions, and no reader gets bytes of two.

Results are made whole, at once, when their size or content is first needed, and kept as files (`aisfs.stores.results`).
Until then listings name them without a size. Only objects that the mount shows are transformed; what says something about them (labels, names of classes, lists of shards)
is read as it is. An object that cannot be transformed is listed with a size that means nothing and with the reason
(`FAILURE`), and reading it fails: with no bytes at all, the kernel would not ask for any and show an empty file.
"""

import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from resource import RLIMIT_FSIZE, prlimit
from typing import BinaryIO, Protocol

import trio
from cachetools import TTLCache

from aisfs.errors import (
    AisfsError,
    ConfigError,
    DeadlineExceeded,
    Stale,
    TransformBroken,
    TransformFailed,
    Unavailable,
)
from aisfs.metrics import Metrics
from aisfs.model import FAILURE, Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.stores.pipeline import Retrier
from aisfs.stores.port import (
    Arrived,
    FileContent,
    ObjectStore,
    ReadOnlyStore,
    Sink,
    WritableStore,
)
from aisfs.stores.posix_metadata import is_link, mtime_of
from aisfs.stores.results import Draft, Result, Results, on_disk

log = logging.getLogger(__name__)

FAILED_SIZE = 4096
"""Bytes that an object without content seems to have. Of a whole page or more, also `wc -c` reads before it says how many."""
_FAILED = "failed"
_FAILED_SECONDS = 60.0
"""How long an object that could not be transformed is not tried again: as long as listings are believed."""
_FAILED_MOST = 100_000
_SECONDS = 600.0
"""How long a transformation may take: as long as a target may be silent in one."""
_TRIES = 3
"""Of a transformation that breaks off, or whose source changes meanwhile."""
_PIECE = 1 << 20
_SAID = 4096
"""Bytes at the end of what a command says, of which the last line is shown."""


class Transformer(Protocol):
    """Makes another content of an object."""

    at_once: int
    """How many objects may be transformed at once."""

    async def definition(self) -> str:
        """Return a text that is another one if results may be others; the last one that is known."""
        ...

    async def transform(
        self, store: ObjectStore, bucket: Bucket, source: ObjectInfo, out: Draft
    ) -> str:
        """Write what becomes of exactly this version of an object, to the end; return the definition by which.

        Raises:
            Stale, NotFound: it is another version by now, or gone.
            TransformFailed: it cannot be transformed. `TransformBroken`: this time.
            ContentUnreadable: the disk has no place for it.
            Unavailable: whatever the object, nothing can be transformed at the moment.
        """
        ...

    def close(self) -> None:
        """Let go of what it has; may wait a moment. Nothing is being transformed."""
        ...


class TransformedStore(ReadOnlyStore):
    """The objects of a store as a transformer shows them.

    The result of a version that the source does not have any more can be read as long as its file is there.
    """

    def __init__(
        self,
        inner: WritableStore,
        transformer: Transformer,
        results: Results,
        *,
        wanted: Callable[[str], bool],
        deadline: float,
        metrics: Metrics,
    ) -> None:
        """Show the objects of `inner` whose keys are `wanted` as transformed, and all others as they are.

        Args:
            inner: What has the sources; it tries again by itself.
            transformer: What is done with them.
            results: Where results are kept.
            wanted: Which keys are transformed.
            deadline: Seconds until it is an error that nothing transforms.
            metrics: Count transformations.
        """
        self._inner = inner
        self._transformer = transformer
        self._results = results
        self._wanted = wanted
        self._retrier = Retrier(deadline=deadline, on_retry=metrics.store_retries.inc)
        self._metrics = metrics
        self._limiter = trio.CapacityLimiter(transformer.at_once)
        metrics.before_text.append(self._count)
        self._running: dict[bytes, _Running] = {}
        self._failures: TTLCache[bytes, str] = TTLCache(
            _FAILED_MOST, _FAILED_SECONDS, trio.current_time
        )
        self._unnamed = os.urandom(8).hex()
        """In place of a version that the source does not have: its results are of use to this mount only."""
        self._epoch = 0

    def of_epoch(self, epoch: int) -> "TransformedStore":
        """Return the same objects with results of their own. Those of epoch 0 are those of this store."""
        other = copy(self)
        other._epoch = epoch
        return other

    def _count(self) -> None:
        wanted = self._limiter.statistics()
        gauge = self._metrics.running_transformations
        gauge.labels("running").set(wanted.borrowed_tokens)
        gauge.labels("waiting").set(wanted.tasks_waiting)

    # Names ---------------------------------------------------------------------------------------

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """See `ObjectStore`."""
        return await self._inner.list_buckets(provider)

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """See `ObjectStore`."""
        return await self._inner.first_keys(bucket, prefix, most, sure=sure)

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """See `ObjectStore`; transforms nothing."""
        return await self._shown(bucket, await self._inner.list_page(bucket, prefix, token=token))

    async def peek_page(self, bucket: Bucket, prefix: str) -> Page:
        """See `ObjectStore`; transforms nothing."""
        return await self._shown(bucket, await self._inner.peek_page(bucket, prefix))

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """See `ObjectStore`; transforms nothing."""
        info = await self._inner.head(bucket, key, latest=latest)
        return (await self._known(bucket, [info])).get(key, info.unsized)

    async def sized(self, bucket: Bucket, info: ObjectInfo) -> ObjectInfo:
        """See `ObjectStore`; transforms what is not known."""
        if info.is_sized:
            return info
        made, _ = await self._make(bucket, info.source)
        return made

    @property
    def sources(self) -> WritableStore:
        """What has the objects as they are."""
        return self._inner

    async def digest(self, bucket: Bucket, info: ObjectInfo) -> bytes:
        """Return what stands for the source of an object and for how it is transformed at the moment."""
        if info.is_sized:
            return bytes.fromhex(info.version.partition("-")[0])
        return self._digest(bucket, info.source, await self._transformer.definition())

    async def learn(self, rows: Mapping[bytes, tuple[int, bytes]]) -> None:
        """Know sizes that somebody else has found out."""
        await trio.to_thread.run_sync(self._results.learn, rows)

    async def gives_again(self, bucket: Bucket, shown: ObjectInfo) -> bool:
        """Return whether an object gives the same bytes when it is transformed once more; that result is not kept.

        Raises:
            Stale, NotFound: it is another one by now, or gone, or is transformed in another way.
            TransformFailed, Unavailable: this time, it could not be; there is no second try.
        """
        source = await self._inner.head(bucket, shown.key)
        with self._results.begin() as draft:
            async with self._limiter:
                run = self._transformer.transform
                definition = await run(self._inner, bucket, source, draft)
            found = await trio.to_thread.run_sync(draft.checksum)
        result = result_of(shown)
        if result is None or result[0] != self._digest(bucket, source, definition):
            raise Stale(f"{bucket}/{shown.key}: is another one now")
        return result[1].content == found

    async def _shown(self, bucket: Bucket, page: Page) -> Page:
        known = await self._known(bucket, page.objects)
        return replace(page, objects=[known.get(i.key) or i.unsized for i in page.objects])

    def _is_plain(self, info: ObjectInfo) -> bool:
        return is_link(info) or not self._wanted(info.key)

    async def _known(self, bucket: Bucket, sources: Sequence[ObjectInfo]) -> dict[str, ObjectInfo]:
        """Describe, by key, those objects for which nothing has to be transformed."""
        found = {info.key: info for info in sources if self._is_plain(info)}
        rest = [info for info in sources if info.key not in found]
        if not rest:
            return found
        definition = await self._transformer.definition()

        def look() -> tuple[list[bytes], dict[bytes, Result]]:  # both take long for many
            digests = [self._digest(bucket, info, definition) for info in rest]
            return digests, self._results.find(digests)

        digests, known = await trio.to_thread.run_sync(look)
        for info, digest in zip(rest, digests, strict=True):
            if (result := known.get(digest)) is not None:
                found[info.key] = _object(info, digest, result)
            elif (reason := self._failures.get(digest)) is not None:
                found[info.key] = _failed(info, digest, reason)
        return found

    # Bytes ---------------------------------------------------------------------------------------

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """See `ObjectStore`; out of the file that the whole result is in."""
        if self._is_plain(expected):
            await self._inner.read_range(bucket, expected, start, buffer, arrived)
            return
        if not 0 <= start < start + len(buffer) <= expected.size:
            raise ValueError(f"{len(buffer)} bytes from {start} on of {expected.size}")

        def read(descriptor: int | None) -> bool:
            if descriptor is None:
                return False
            try:
                content = FileContent(descriptor, expected.size, f"the result of {expected.key}")
                content.read_into(start, buffer)
            finally:
                os.close(descriptor)
            return True

        if not await trio.to_thread.run_sync(lambda: read(self._find_file(expected))):
            descriptor = await self._open(bucket, expected)
            await trio.to_thread.run_sync(read, descriptor)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """See `ObjectStore`."""
        if self._is_plain(expected):
            return await self._inner.stream(bucket, expected, sink)
        descriptor = await self._open(bucket, expected)
        try:
            content = FileContent(descriptor, expected.size, f"the result of {expected.key}")
            buffer = memoryview(bytearray(min(_PIECE, expected.size)))
            for at in range(0, expected.size, _PIECE):
                piece = buffer[: expected.size - at]
                await trio.to_thread.run_sync(content.read_into, at, piece)
                await trio.to_thread.run_sync(sink, piece)
        finally:
            os.close(descriptor)

    async def aclose(self) -> None:
        """Close the transformer, the table of results, and the store below."""
        await trio.to_thread.run_sync(self._transformer.close)
        await trio.to_thread.run_sync(self._results.close)
        await self._inner.aclose()

    async def _open(self, bucket: Bucket, expected: ObjectInfo) -> int:
        """Open the file of exactly this result, which may have to be made again."""
        found = await trio.to_thread.run_sync(self._find_file, expected)
        if found is not None:
            return found
        source = await self._inner.head(bucket, expected.key)
        info, descriptor = await self._make(bucket, source, opens=True)
        if descriptor is None:
            raise TransformFailed(info.custom[FAILURE])
        if (info.version, info.size) != (expected.version, expected.size):
            os.close(descriptor)
            raise Stale(f"{bucket}/{expected.key}: its transformation gives another content now")
        return descriptor

    def _find_file(self, expected: ObjectInfo) -> int | None:
        """Open the file of a result, if it is there. In a thread."""
        found = result_of(expected)
        return self._results.open(*found) if found is not None else None

    # Transformations -----------------------------------------------------------------------------

    async def _make(self, bucket: Bucket, source: ObjectInfo, *, opens: bool = False) -> "_Made":
        """Return an object as transformed, and its file if that is to be opened; one caller has it made for all.

        Raises:
            Unavailable: nothing can, until the deadline.
        """
        changes = 0
        while changes < _TRIES:
            digest = self._digest(bucket, source, await self._transformer.definition())
            if (running := self._running.get(digest)) is not None:
                await running.done.wait()
                if running.failure is not None:
                    raise running.failure
                continue
            running = self._running[digest] = _Running()
            try:
                found = await self._made(source, digest, opens=opens)
                return found or await self._run(bucket, source, opens=opens)
            except TransformFailed as error:
                self._failures[digest] = reason = str(error)
                self._metrics.failed_transformations.inc()
                log.warning("%s", reason)
                return _failed(source, digest, reason), None
            except Unavailable as error:
                running.failure = Unavailable(str(error))
                raise
            except Stale:
                changes += 1
                source = await self._inner.head(bucket, source.key)
            finally:
                del self._running[digest]
                running.done.set()
        raise Unavailable(f"{bucket}/{source.key}: changes while it is transformed")

    async def _made(self, source: ObjectInfo, digest: bytes, *, opens: bool) -> "_Made | None":
        """Return what `_make` does if nothing has to be made."""
        if (reason := self._failures.get(digest)) is not None:
            return _failed(source, digest, reason), None

        def find() -> _Made | None:
            result = self._results.find([digest]).get(digest)
            descriptor = self._results.open(digest, result) if result and opens else None
            if result is None or (opens and descriptor is None):
                return None
            return _object(source, digest, result), descriptor

        return await trio.to_thread.run_sync(find)

    async def _run(self, bucket: Bucket, source: ObjectInfo, *, opens: bool) -> "_Made":
        """Transform an object, again if that breaks off, and keep the result."""
        subject = f"{bucket}/{source.key}"
        broken = 0

        async def attempt() -> _Made:
            nonlocal broken
            try:
                with self._results.begin() as draft, trio.fail_after(_SECONDS):
                    run = self._transformer.transform
                    definition = await run(self._inner, bucket, source, draft)
                    digest = self._digest(bucket, source, definition)
                    keep = partial(self._results.keep, digest, draft, opens=opens)
                    result, descriptor = await trio.to_thread.run_sync(keep)
                    return _object(source, digest, result), descriptor
            except trio.TooSlowError:
                text = f"{subject}: not transformed within {_SECONDS:.0f} s"
                raise TransformFailed(text) from None
            except TransformBroken:
                broken += 1
                raise

        async with self._limiter:
            try:
                made = await self._retrier.run(
                    subject, attempt, final=lambda: broken >= _TRIES, cut=False
                )
            except DeadlineExceeded as error:
                kind = TransformFailed if broken else Unavailable
                raise kind(str(error)) from error
        self._metrics.transformations.inc()
        return made

    def _digest(self, bucket: Bucket, source: ObjectInfo, definition: str) -> bytes:
        """Return what stands for a version of an object and a way to transform it."""
        version, checksum = source.version, source.checksum
        if not version and not checksum:
            version = str(source.mtime_ns) if source.mtime_ns else self._unnamed
        parts = [str(bucket), bucket.path, source.key, version, checksum, source.size, definition]
        parts += [self._epoch] if self._epoch else []
        text = json.dumps(parts).encode()
        return blake2b(text, digest_size=16).digest()


_Made = tuple[ObjectInfo, int | None]
"""An object as transformed, and its open file; none if it has no content, or was not to be opened."""


class _Running:
    """A transformation that others wait for."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.failure: AisfsError | None = None
        """Why it is of no use to start it again at once."""


def _object(source: ObjectInfo, digest: bytes, result: Result) -> ObjectInfo:
    version = f"{digest.hex()}-{result.content.hex()}"
    return ObjectInfo(source.key, result.size, version, mtime_ns=mtime_of(source))


def result_of(info: ObjectInfo) -> tuple[bytes, Result] | None:
    """Return the digest and the result of an object as transformed; None of what has none, or could not be."""
    digest, dash, content = info.version.partition("-")
    if not info.is_sized or not dash or content == _FAILED:
        return None
    return bytes.fromhex(digest), Result(info.size, bytes.fromhex(content))


def _failed(source: ObjectInfo, digest: bytes, reason: str) -> ObjectInfo:
    version, custom = f"{digest.hex()}-{_FAILED}", {FAILURE: reason}
    return ObjectInfo(source.key, FAILED_SIZE, version, mtime_ns=mtime_of(source), custom=custom)


# Local commands -------------------------------------------------------------------------------------

_END_TOGETHER = (
    'while read -r now; do groups=$now; done; [ -z "$groups" ] || kill -s KILL -- $groups'
)
"""Script of a shell that outlives the daemon for a moment, and then ends the process groups of its last line. (The kernel's
signal for that, PR_SET_PDEATHSIG, would come when a thread ends, and not reach what a command has started.)"""
_PYTHON = "python:"
_CALL = """
import importlib, sys
function = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
sys.stdout.buffer.write(function(sys.stdin.buffer.read()))
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A filter: the object on standard input, the result on standard output."""

    words: tuple[str, ...]
    directory: str
    """Where it runs."""

    @property
    def definition(self) -> str:
        """The words, and of those that are files their size and time, which another program would not have."""
        facts = []
        for word in self.words:
            with suppress(OSError, ValueError):
                found = os.stat(os.path.join(self.directory, word))
                facts.append((word, found.st_size, found.st_mtime_ns))
        return json.dumps(["command", self.words, facts])


def parse_command(text: str) -> Command:
    """Return the command that was typed, split as a shell would; none is run by a shell.

    `python:MODULE:FUNCTION` is a function that takes and returns bytes, in a process of its own for each object.

    Raises:
        ConfigError: there is no such program.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--transform {text}: {error}") from error
    if len(words) == 1 and words[0].startswith(_PYTHON):
        module, _, function = words[0].removeprefix(_PYTHON).partition(":")
        if not module or not function:
            raise ConfigError(f"--transform {text}: write python:MODULE:FUNCTION")
        words = [sys.executable, "-c", _CALL, module, function]
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise ConfigError(f"--transform {text}: there is no such program")
    return Command((os.path.abspath(program), *words[1:]), os.getcwd())


class CommandTransformer:
    """Transforms objects by a command of this machine, a process for each."""

    def __init__(self, command: Command, *, most: int, scratch: Path) -> None:
        """Run `command`, which may write `most` bytes; sources are in the directory `scratch` meanwhile."""
        self._command = command
        self._most = most
        self._scratch = scratch
        self._groups: set[int] = set()
        """Process groups of the commands that run."""
        self._watch: subprocess.Popen[bytes] | None = None
        """Ends them if this process is killed."""
        self.at_once = len(os.sched_getaffinity(0))

    async def definition(self) -> str:
        """See `Transformer`."""
        return await trio.to_thread.run_sync(lambda: self._command.definition)

    async def transform(
        self, store: ObjectStore, bucket: Bucket, source: ObjectInfo, out: Draft
    ) -> str:
        """See `Transformer`. Source and result are files, so no end waits for the other, and none holds a request."""
        before = await self.definition()
        with (
            on_disk(),
            tempfile.TemporaryFile(dir=self._scratch) as content,
            tempfile.TemporaryFile(dir=self._scratch) as said,
        ):
            if source.size:
                await store.stream(bucket, source, lambda piece: _write(content, piece))
            content.flush()
            os.lseek(content.fileno(), 0, os.SEEK_SET)
            code = await self._run(content, out.file, said)
            if code:
                said.seek(max(0, os.fstat(said.fileno()).st_size - _SAID))
                lines = said.read().decode(errors="replace").split("\n")
                last = next((line.strip() for line in reversed(lines) if line.strip()), "")
                how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
                if code == -signal.SIGXFSZ:
                    how = f"it writes more than {self._most} bytes"
                text = f"{bucket}/{source.key}: the transformation failed ({how})"
                raise TransformFailed(f"{text}: {last}" if last else text)
        if await self.definition() != before:
            raise TransformBroken(f"{bucket}/{source.key}: the program changed while it ran")
        return before

    def close(self) -> None:
        """See `Transformer`."""
        if self._watch is not None:
            self._watch.communicate()

    async def _run(self, source: BinaryIO, out: BinaryIO, said: BinaryIO) -> int:
        try:
            process = await trio.lowlevel.open_process(
                [*self._command.words],
                stdin=source.fileno(),
                stdout=out.fileno(),
                stderr=said.fileno(),
                cwd=self._command.directory,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{self._command.words[0]}: {error.strerror}") from error
        self._groups.add(process.pid)
        try:
            self._tell()
            with suppress(ProcessLookupError):
                prlimit(process.pid, RLIMIT_FSIZE, (self._most, self._most))
            return await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with trio.CancelScope(shield=True):
                    await process.wait()
            self._groups.remove(process.pid)
            self._tell()

    def _tell(self) -> None:
        """Say which process groups are to end with this process."""
        if self._watch is None:
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", _END_TOGETHER],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        assert self._watch.stdin is not None, "it was asked for"
        with suppress(BrokenPipeError):  # somebody has killed it
            self._watch.stdin.write(b"%s\n" % b" ".join(b"-%d" % each for each in self._groups))
            self._watch.stdin.flush()


def _write(file: BinaryIO, piece: memoryview) -> None:
    """Write a piece of a source; into the page cache, so that this hardly waits."""
    file.write(piece)
