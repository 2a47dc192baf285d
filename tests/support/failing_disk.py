"""A real file system on a disk that fails when told to: ext4 on a loop device on a file of ours.

The file is that of a tiny FUSE file system, which answers EIO from then on. So what is above it is
the kernel's own: pages that are still in memory can be read, writes fail long after they were
acknowledged, a mapped page that cannot be read is SIGBUS, and ext4 gives up at its journal. A shim
around the calls of the C library would show none of that.

The process that answers runs this module as `__main__`: a word on its standard input says what
fails, and it answers when that holds. It ends with its input.
"""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyfuse3
import trio

_REPOSITORY = Path(__file__).resolve().parents[2]
_NAME = b"disk"
_FILE = pyfuse3.ROOT_INODE + 1
FAILURES = {"nothing": (), "reads": ("read",), "writes": ("write",), "all": ("read", "write")}


class FailingDisk:
    """A mounted ext4."""

    def __init__(self, path: Path, process: "subprocess.Popen[str]") -> None:
        self.path = path
        self._process = process

    def fail(self, what: str) -> None:
        """Have `reads`, `writes`, `all` or `nothing` fail from now on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{what}\n"

    def forget_pages(self) -> None:
        """Have files read from the disk again, as when memory was short."""
        for folder, _, names in os.walk(self.path):
            for name in names:
                # What cannot be opened any more is on the disk only.
                with suppress(OSError), open(os.path.join(folder, name), "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def failing_disk(place: Path, size: int) -> Iterator[FailingDisk]:
    """Mount a disk of `size` bytes somewhere below the directory `place`."""
    below, above, image = place / "below", place / "above", place / "image"
    below.mkdir(parents=True)
    above.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", image)
    with ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(image), str(below)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY,
        )  # fmt: skip
        stack.enter_context(process)  # closes its input, and waits for it
        disk = FailingDisk(above, process)
        disk.fail("nothing")  # it is mounted when that is answered
        _run("mount", "-o", "loop", below / os.fsdecode(_NAME), above)
        stack.callback(_run, "umount", above)
        yield disk


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, timeout=60)


class _OneFile(pyfuse3.Operations):
    """Directory with one file, which is as long as the image."""

    def __init__(self, image: int) -> None:
        super().__init__()
        self.failing: Sequence[str] = ()
        self._image = image

    def _check(self, call: str) -> None:
        if call in self.failing:
            raise pyfuse3.FUSEError(errno.EIO)

    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name != _NAME:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(pyfuse3.InodeT(_FILE), ctx)

    async def getattr(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        await trio.lowlevel.checkpoint()
        attributes = pyfuse3.EntryAttributes()
        attributes.st_ino = inode
        attributes.st_mode = pyfuse3.ModeT(0o100600 if inode == _FILE else 0o040700)
        attributes.st_size = os.fstat(self._image).st_size
        return attributes

    async def open(
        self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileInfo:
        await trio.lowlevel.checkpoint()
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(0), direct_io=True)

    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self._check("read")
        return os.pread(self._image, size, off)

    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        await trio.lowlevel.checkpoint()
        self._check("write")
        return os.pwrite(self._image, buf, off)

    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        await trio.lowlevel.checkpoint()
        self._check("write")


def _main() -> None:
    image, below = sys.argv[1:]
    operations = _OneFile(os.open(image, os.O_RDWR))
    pyfuse3.init(operations, below, {*pyfuse3.default_options, "fsname=failing-disk"})

    def listen(token: trio.lowlevel.TrioToken) -> None:
        for word in sys.stdin:
            operations.failing = FAILURES[word.strip()]
            print(word, end="", flush=True)
        trio.from_thread.run_sync(pyfuse3.terminate, trio_token=token)

    async def serve() -> None:
        token = trio.lowlevel.current_trio_token()
        threading.Thread(target=listen, args=(token,), daemon=True).start()
        await pyfuse3.main()

    try:
        trio.run(serve)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    _main()
