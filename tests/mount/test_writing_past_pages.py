"""New files that are only written go past the kernel's page cache, and nobody sees a difference."""

import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.mount.content import payload
from tests.mount.writable import Writable, writable
from tests.support.mounts import eventually
from tests.support.pages import PAGE, cached_pages

pytestmark = pytest.mark.mount

CONTENT = payload(1 << 20, "past pages")
NEW = os.O_CREAT | os.O_EXCL
NUMBERS = count()
KERNEL = tuple(map(int, os.uname().release.split(".")[:2]))


@pytest.fixture(scope="module")
def place(fastpath: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writable]:
    with writable(tmp_path_factory.mktemp("pages")) as place:
        yield place


@pytest.fixture
def path(place: Writable, request: pytest.FixtureRequest) -> Path:
    """A file that is not there yet, nor when a test is tried once more."""
    return place.path / f"{request.node.name}-{next(NUMBERS)}"


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("flags", "bypasses"),
    [
        (os.O_WRONLY, True),
        (os.O_WRONLY | os.O_APPEND, True),
        (os.O_RDWR, False),
        (os.O_WRONLY | os.O_SYNC, False),
        (os.O_WRONLY | os.O_DSYNC, False),
    ],
)
@pytest.mark.skipif(KERNEL < (6, 6), reason="the kernel can neither do it nor tell")
def test_only_what_is_written_alone_takes_no_pages(
    place: Writable, path: Path, fastpath: bool, flags: int, bypasses: bool
):
    with opened(path, NEW | flags) as file:
        assert os.write(file, CONTENT) == len(CONTENT)
        assert cached_pages(file) == (0 if bypasses and fastpath else len(CONTENT) // PAGE)
    assert place.stored(path.name) == CONTENT
    with opened(path, os.O_RDONLY) as file:
        assert os.pread(file, len(CONTENT), 0) == CONTENT
        assert cached_pages(file) == len(CONTENT) // PAGE, "whoever reads it later has pages"


@pytest.mark.skipif(KERNEL < (6, 6), reason="the kernel can neither do it nor tell")
@pytest.mark.parametrize(
    ("flags", "beside", "bypasses"),
    [
        (os.O_WRONLY | os.O_TRUNC, None, True),
        (os.O_WRONLY | os.O_TRUNC, os.O_RDONLY, False),
        (os.O_WRONLY | os.O_TRUNC, os.O_RDWR, False),
        (os.O_WRONLY, None, False),
        (os.O_RDWR | os.O_TRUNC, None, False),
    ],
)
def test_so_does_what_is_emptied_unless_somebody_has_it_open(
    place: Writable, path: Path, fastpath: bool, flags: int, beside: int | None, bypasses: bool
):
    path.write_bytes(CONTENT[::-1])
    with ExitStack() as stack:
        if beside is not None:
            other = stack.enter_context(opened(path, beside))
            assert os.pread(other, 1, 0) == CONTENT[-1:]
        with opened(path, flags) as file:
            os.write(file, CONTENT)
            assert (cached_pages(file) == 0) == (bypasses and fastpath)
            assert beside is None or os.pread(other, len(CONTENT), 0) == CONTENT
    assert path.read_bytes() == CONTENT == place.stored(path.name)


@pytest.mark.skipif(KERNEL < (6, 6), reason="the kernel can neither do it nor tell")
def test_who_opens_it_meanwhile_takes_none_either(path: Path, fastpath: bool):
    def pages_after_reading() -> int:
        with opened(path, os.O_RDWR) as other:
            assert os.pread(other, len(CONTENT), 0) == CONTENT
            return cached_pages(other)

    with opened(path, NEW | os.O_WRONLY) as file:
        os.write(file, CONTENT)
        assert bool(pages_after_reading()) != fastpath
    assert pages_after_reading()


def test_readers_beside_a_writer_never_see_what_was_before(
    place: Writable, path: Path, fastpath: bool
):
    seen: list[str] = []
    ended = threading.Event()

    def read(seed: int) -> None:
        chance = random.Random(seed)
        while not ended.is_set():
            with opened(path, os.O_RDONLY) as file:
                for _ in range(chance.randrange(1, 5)):
                    size = os.fstat(file).st_size
                    start = chance.randrange(size + 1)
                    found = os.pread(file, size - start, start)
                    # Through its pages the kernel may not know the size yet that it has told.
                    short = fastpath and len(found) < size - start
                    if short or found != CONTENT[start : start + len(found)]:
                        seen.append(f"{len(found)} bytes at {start} of {size}")

    with opened(path, NEW | os.O_WRONLY) as file:
        readers = [threading.Thread(target=read, args=(seed,)) for seed in (1, 2)]
        for reader in readers:
            reader.start()
        try:
            chance, done = random.Random(0), 0
            while done < len(CONTENT):
                done += os.write(file, CONTENT[done : done + chance.randrange(1, 9000)])
        finally:
            ended.set()
            for reader in readers:
                reader.join()
    assert not seen
    assert path.read_bytes() == CONTENT == place.stored(path.name)


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY])
def test_a_mapping_beside_a_writer_shows_what_is_written(path: Path, access: int):
    """Somebody touches the page all the time, so it is brought anew while a write is on its way."""
    ended = threading.Event()

    def touch(view: mmap.mmap) -> None:
        while not ended.is_set():
            view[0]

    file = os.open(path, NEW | os.O_WRONLY)
    os.write(file, bytes(4))
    with opened(path, os.O_RDONLY) as other, mmap.mmap(other, 4, access=access) as view:
        toucher = threading.Thread(target=touch, args=(view,))
        toucher.start()
        try:
            for number in range(1, 301):
                os.pwrite(file, number.to_bytes(4, "big"), 0)
            os.close(file)
            assert eventually(lambda: view[:] == number.to_bytes(4, "big"))
        finally:
            ended.set()
            toucher.join()


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_SYNC])
def test_a_second_writer_joins(place: Writable, path: Path, flags: int):
    with opened(path, NEW | os.O_WRONLY) as file:
        os.write(file, CONTENT[:6000])
        with opened(path, flags) as other:
            os.pwrite(other, b"second", 3000)
            if flags & os.O_SYNC:
                assert place.stored(path.name) == CONTENT[:3000] + b"second" + CONTENT[3006:6000]
            os.pwrite(file, b"first", 3003)
            if flags == os.O_RDWR:
                assert (
                    os.pread(other, 10, 2999)
                    == CONTENT[2999:3000] + b"secfirst" + CONTENT[3008:3009]
                )
    expected = CONTENT[:3000] + b"secfirst" + CONTENT[3008:6000]
    assert path.read_bytes() == expected == place.stored(path.name)


def by_sendfile(source: int, target: int) -> int:
    return os.sendfile(target, source, None, 1 << 20)


def by_splice(source: int, target: int) -> int:
    reader, writer = os.pipe()
    try:
        count = os.splice(source, writer, 1 << 16)
        left = count
        while left:
            left -= os.splice(reader, target, left)
        return count
    finally:
        os.close(reader)
        os.close(writer)


def by_mapping(source: int, target: int) -> int:
    """Write out of pages that are not in memory yet."""
    with mmap.mmap(source, 0, access=mmap.ACCESS_READ) as view:
        start = os.lseek(source, 0, os.SEEK_CUR)
        return os.lseek(source, os.write(target, view[start:]), os.SEEK_CUR) - start


@pytest.mark.parametrize("copy", [by_sendfile, by_splice, by_mapping])
def test_ways_to_copy(place: Writable, path: Path, copy: Callable[[int, int], int]):
    source = place.path / f"{path.name}-source"
    source.write_bytes(CONTENT)
    with opened(source, os.O_RDONLY) as file, opened(path, NEW | os.O_WRONLY) as target:
        while copy(file, target):
            pass
    assert place.stored(path.name) == CONTENT
