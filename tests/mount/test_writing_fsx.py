"""Random reads, writes, truncations and mappings of one file, compared with a model after each.

As fsx of the Linux Test Project. `AISFS_FSX_OPERATIONS=50000` runs the long version.
"""

import os

import pytest

from tests.mount.writable import Writable, writable
from tests.support.mounts import python

pytestmark = [pytest.mark.mount, pytest.mark.timeout(1800)]
BOTH_WAYS = True

OPERATIONS = int(os.environ.get("AISFS_FSX_OPERATIONS", "700"))
LARGEST = 300_000

SCRIPT = """
import mmap, os, random, sys
path, count, largest, seed = sys.argv[1], *map(int, sys.argv[2:])
rng = random.Random(seed)
model = bytearray()
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

def where(end):
    start = rng.randrange(end)
    return start, min(rng.choice((1, 100, 4096, 5000, 70_000)), end - start)

for number in range(count):
    what = rng.choice(
        ("read", "read", "write", "write", "append", "cut", "map read", "map write", "fsync", "reopen", "stat")
    )
    if what in ("read", "map read", "map write", "cut") and not model:
        continue
    if what == "read":
        start, size = where(len(model))
        assert os.pread(fd, size, start) == model[start:start + size], (seed, number, what)
    elif what == "write":
        start, size = where(largest)
        data = rng.randbytes(size)
        assert os.pwrite(fd, data, start) == size
        model.extend(bytes(max(start + size - len(model), 0)))
        model[start:start + size] = data
    elif what == "append" and len(model) < largest:
        data = rng.randbytes(rng.randrange(1, 3000))
        other = os.open(path, os.O_WRONLY | os.O_APPEND)
        assert os.write(other, data) == len(data)
        os.close(other)
        model += data
    elif what == "cut":
        size = rng.randrange(largest) if rng.random() < 0.3 else rng.randrange(len(model) + 1)
        (os.ftruncate if rng.random() < 0.5 else lambda _, n: os.truncate(path, n))(fd, size)
        model = model[:size] + bytes(max(size - len(model), 0))
    elif what == "map read":
        start, size = where(len(model))
        with mmap.mmap(fd, len(model), prot=mmap.PROT_READ) as view:
            assert view[start:start + size] == model[start:start + size], (seed, number, what)
    elif what == "map write":
        start, size = where(len(model))
        data = rng.randbytes(size)
        with mmap.mmap(fd, len(model)) as view:
            view[start:start + size] = data
            if rng.random() < 0.5:
                view.flush()
        model[start:start + size] = data
    elif what == "fsync":
        os.fsync(fd)
    elif what == "reopen":
        os.close(fd)
        fd = os.open(path, os.O_RDWR)
    assert os.fstat(fd).st_size == os.stat(path).st_size == len(model), (seed, number, what)
os.close(fd)
with open(path, "rb") as file:
    assert file.read() == model, (seed, "at the end")
sys.stdout.buffer.write(bytes(model))
"""


@pytest.fixture(scope="module")
def place(fastpath: bool, tmp_path_factory: pytest.TempPathFactory):
    with writable(tmp_path_factory.mktemp("fsx"), backend="ais", deadline=1800) as place:
        yield place


@pytest.mark.parametrize("seed", [1, 2])
def test_one_file_like_a_model(seed: int, place: Writable):
    path = place.path / f"file{seed}"
    content = python(SCRIPT, path, OPERATIONS, LARGEST, seed, timeout=1700)
    assert place.stored(path.name) == content
