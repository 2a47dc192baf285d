"""Where a run plays: a temporary directory, a server, mounts and caches, always taken down."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from copy import copy
from itertools import count
from pathlib import Path
from typing import TypeVar

from bench import mounts
from bench.data import ClusterStore, EmbeddedStore, Samples, Store
from bench.interruptions import Interrupts
from bench.link import Link
from bench.mounts import Mount
from bench.processes import isolated
from bench.server import Endpoint, running_server
from bench.settings import Settings

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_PIECE = 1 << 20
T = TypeVar("T")


class Stage:
    """What every group works with; get one from `stage()`."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        endpoint: Endpoint,
        store: Store,
        interruptions: Interrupts,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.endpoint = endpoint
        self.store = store
        self.interruptions = interruptions
        # It is the whole machine's: tests must not slow down whatever else runs.
        self.can_drop = settings.size != "tiny" and os.access(DROP_CACHES, os.W_OK)
        self.log = directory / "readers.log"
        self._numbers = count()
        self._run = os.getpid()

    @property
    def embedded(self) -> bool:
        """Whether the server is ours."""
        return self.endpoint.counted

    def fresh(self, name: str) -> Path:
        """Make an empty directory of its own."""
        path = self.directory / f"{name}-{next(self._numbers)}"
        path.mkdir()
        return path

    @contextmanager
    def bucket(self, name: str) -> Iterator[str]:
        """Give the name of a bucket of this run; it is emptied and gone afterwards."""
        full = f"bench-{name}-{self._run}"
        try:
            yield full
        finally:
            self.store.remove(full)

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """Give a directory that is gone afterwards."""
        path = self.fresh(name)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def measure(self, work: Callable[[], T], mount: Mount | None = None) -> T:
        """Run a function in a process of its own; see `bench.processes.isolated`."""
        return isolated(
            work,
            interruptions=self.interruptions,
            limit=self.settings.limit,
            log=self.log,
            unblock=mount.kill if mount is not None else lambda: None,
        )

    @contextmanager
    def mounted(
        self,
        bucket: str,
        *,
        cache: Path,
        options: Sequence[str] = (),
        endpoint: Endpoint | None = None,
    ) -> Iterator[Mount]:
        """Mount a bucket with aisfs."""
        with self.folder("mnt") as path:
            command = mounts.aisfs_command(
                f"ais://{bucket}",
                path,
                endpoint=(endpoint or self.endpoint).url,
                cache_dir=cache,
                log=self.directory / "mount.log",
                options=options,
            )
            with self.mounted_by(command, path, home=cache) as mount:
                yield mount

    def mounted_by(
        self, command: Sequence[str], path: Path, *, home: Path
    ) -> AbstractContextManager[Mount]:
        """Run any command that stays and mounts at a path."""
        log = self.directory / "mount.err"
        return mounts.mounted(command, path, home=home, log=log, interruptions=self.interruptions)

    def far_server(
        self, root: Path, *, delay: float, bandwidth: float | None = None, link: Link | None = None
    ) -> AbstractContextManager[Endpoint]:
        """Serve a directory of its own over the modelled link, or at the other end of a real one."""
        return running_server(
            root,
            interruptions=self.interruptions,
            log=self.directory / "far-server.log",
            delay=delay,
            bandwidth=bandwidth,
            link=link,
        )

    @contextmanager
    def trapped(self) -> Iterator["Stage"]:
        """Give a stage whose server is empty, and destroys and hides what a real AIStore would.

        A real one is used as it is.
        """
        if not self.embedded:
            yield self
            return
        log = self.directory / "trapped-server.log"
        with (
            self.folder("trapped-store") as root,
            running_server(root, interruptions=self.interruptions, log=log, traps=True) as endpoint,
        ):
            stage = copy(self)
            stage.endpoint, stage.store = endpoint, EmbeddedStore(root)
            yield stage

    def cool(self, *served: Samples) -> None:
        """Empty what the reading side remembers; what the server sends stays in its memory.

        Otherwise a cold row would measure this machine's disk, which all contenders read through
        the same server. Without the right to empty the page cache, the files we know are dropped
        one by one; names and attributes then stay.
        """
        if self.can_drop:
            # Only clean pages can be dropped. Syncing every file system waits for any that hangs.
            subprocess.run(["sync", "--file-system", self.directory], check=True)
            DROP_CACHES.write_text("3")
        else:
            for samples in served:
                forget(samples.extracted.rglob("*") if samples.extracted else ())
        for samples in served:
            for path in self.store.files(samples.bucket):
                _read(path)


def forget(paths: Iterable[Path]) -> None:
    """Drop the pages of files; those that are not on the disk yet stay."""
    for path in paths:
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _read(path: Path) -> None:
    buffer = bytearray(_PIECE)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


@contextmanager
def stage(settings: Settings, endpoint: str | None, interruptions: Interrupts) -> Iterator[Stage]:
    """Open a temporary directory and a server; whatever happens, nothing is left behind."""
    stack = ExitStack()
    try:
        with interruptions.held():
            directory = Path(tempfile.mkdtemp(prefix="aisfs-bench-")).resolve()
            stack.callback(_remove, directory)
        (directory / "tmp").mkdir()
        tempfile.tempdir = str(directory / "tmp")  # what peers forget there goes too
        os.environ["TMPDIR"] = tempfile.tempdir
        root = directory / "store"
        root.mkdir()
        store: Store
        if endpoint is None:
            where = stack.enter_context(
                running_server(root, interruptions=interruptions, log=directory / "server.log")
            )
            store = EmbeddedStore(root)
        else:
            where = Endpoint(endpoint.rstrip("/"), counted=False)
            store = ClusterStore(where.url)
        yield Stage(directory, settings, where, store, interruptions)
    finally:
        try:
            interruptions.end()
        finally:  # an interruption at the very last moment changes nothing
            stack.close()


def _remove(directory: Path) -> None:
    deadline = time.monotonic() + 5
    while any(mounts.is_mounted(path) for path in directory.glob("mnt-*")):
        if time.monotonic() > deadline:  # never delete through a mount
            print(
                f"bench: a mount below {directory} cannot be unmounted: it stays", file=sys.stderr
            )
            return
        time.sleep(0.1)
    with suppress(OSError):
        shutil.rmtree(directory)
