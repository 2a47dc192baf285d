"""What is read: samples as loose objects, in shards and as files, the same bytes on each run."""

import io
import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aisfs.server.storage.objects import STATE_DIRECTORY
from aisfs.server.storage.records import Record, Records, hash_file

KILOBYTE = 1000
IMAGE = 110_000
CHECKSUM_TYPE = "xxhash2"
_TIME = 1_700_000_000


@dataclass
class Samples:
    """A data set as it lies in a bucket: keys and how much a reader must find."""

    bucket: str
    keys: list[str] = field(default_factory=list)
    samples: int = 0
    size: int = 0
    """Bytes of all samples."""
    stored: int = 0
    """Bytes of all objects."""
    extracted: Path | None = None
    """The same samples as files on the local disk, one folder for each shard."""
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    """What `samples`, `size` and `stored` are of each key."""

    def first(self, number: int) -> "Samples":
        """Give the first so many shards."""
        return self.part(range(min(number, len(self.keys))))

    def part(self, numbers: Iterable[int]) -> "Samples":
        """Give some of the shards."""
        chosen = list(numbers)
        parts = [self.parts[at] for at in chosen]
        sums = [sum(each) for each in zip(*parts, strict=True)] or [0, 0, 0]
        return Samples(self.bucket, [self.keys[at] for at in chosen], *sums, parts=parts)


class Store:
    """Puts objects into buckets and takes the buckets away again."""

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Store an object."""
        raise NotImplementedError

    def take(self, bucket: str, key: str, path: Path) -> None:
        """Store a file as an object; the file is gone afterwards."""
        raise NotImplementedError

    def repeat(self, bucket: str, key: str, of: str) -> None:
        """Store the content of an object under one more key."""
        raise NotImplementedError

    def know_checksum(self, bucket: str, key: str) -> None:
        """See that an object has a checksum, as all of AIStore's have."""

    def put_empty(self, bucket: str, sizes: dict[str, int]) -> None:
        """Store objects that are listed and never read: zeros."""
        for key, size in sizes.items():
            self.put(bucket, key, bytes(size))

    def files(self, bucket: str) -> Iterable[Path]:
        """Give the files behind a bucket, where this machine can see them."""
        return ()

    def remove(self, bucket: str) -> None:
        """Forget a bucket."""
        raise NotImplementedError


class EmbeddedStore(Store):
    """The directory of the embedded server, which takes files as objects."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, bucket: str, key: str, data: bytes) -> None:
        path = self._root / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def take(self, bucket: str, key: str, path: Path) -> None:
        (self._root / bucket).mkdir(parents=True, exist_ok=True)
        shutil.move(path, self._root / bucket / key)

    def repeat(self, bucket: str, key: str, of: str) -> None:
        (self._root / bucket / key).hardlink_to(self._root / bucket / of)

    def know_checksum(self, bucket: str, key: str) -> None:
        path = self._root / bucket / key
        status = path.stat()
        record = Record("1", CHECKSUM_TYPE, hash_file(path, CHECKSUM_TYPE))
        records = Records(self._root / STATE_DIRECTORY / "records" / f"{bucket}.sqlite")
        records.store(os.fsencode(key), status.st_size, status.st_mtime_ns, record)
        records.close()

    def put_empty(self, bucket: str, sizes: dict[str, int]) -> None:
        folder = self._root / bucket
        folder.mkdir(parents=True)
        where = os.open(folder, os.O_RDONLY)
        try:
            for key, size in sizes.items():  # sparse: a million of them take no space
                file = os.open(key, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=where)
                os.ftruncate(file, size)
                os.close(file)
        finally:
            os.close(where)

    def files(self, bucket: str) -> Iterable[Path]:
        return (path for path in (self._root / bucket).rglob("*") if path.is_file())

    def remove(self, bucket: str) -> None:
        shutil.rmtree(self._root / bucket, ignore_errors=True)


class ClusterStore(Store):
    """A real cluster; the buckets carry the name of this run and are destroyed at its end."""

    def __init__(self, endpoint: str) -> None:
        from aistore.sdk import Client

        self._client = Client(endpoint)
        self._made: dict[str, Any] = {}

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self._bucket(bucket).object(key).get_writer().put_content(data)

    def take(self, bucket: str, key: str, path: Path) -> None:
        self._bucket(bucket).object(key).get_writer().put_file(path)
        path.unlink()

    def repeat(self, bucket: str, key: str, of: str) -> None:
        self.put(bucket, key, self._bucket(bucket).object(of).get_reader().read_all())

    def _bucket(self, name: str) -> Any:  # noqa: ANN401 (the SDK has no types)
        if name not in self._made:
            self._made[name] = self._client.bucket(name).create(exist_ok=True)
        return self._made[name]

    def remove(self, bucket: str) -> None:
        if self._made.pop(bucket, None) is not None:
            self._client.bucket(bucket).delete(missing_ok=True)


def write_shards(
    store: Store,
    bucket: str,
    *,
    samples: int,
    shards: int,
    size: int,
    extract_to: Path | None,
    classes: int = 0,
) -> Samples:
    """Write shards of `size`-byte samples, one member each, as tar and as files.

    With classes the members lie in class folders, as an ImageFolder wants them.
    """
    made = Samples(bucket, samples=samples, extracted=extract_to)
    source = random.Random(f"{bucket} {size}")
    extension = "bin" if size < IMAGE else "jpg"
    for number in range(shards):
        name, before = f"train-{number:04d}.tar", made.size
        descriptor, out = tempfile.mkstemp(suffix=".tar")
        with (
            open(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for at in range(number * samples // shards, (number + 1) * samples // shards):
                data = source.randbytes(_varied(source, size))
                folder = f"class_{at % classes:03d}/" if classes else ""
                member = f"{folder}sample_{at:07d}.{extension}"
                tar.addfile(_member(member, len(data)), io.BytesIO(data))
                made.size += len(data)
                if extract_to is not None:
                    copy = extract_to / name / member
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(data)
        stored = os.path.getsize(out)
        made.stored += stored
        store.take(bucket, name, Path(out))
        made.keys.append(name)
        members = (number + 1) * samples // shards - number * samples // shards
        made.parts.append((members, made.size - before, stored))
    return made


def write_labelled_shards(
    store: Store, bucket: str, *, shards: int, samples: int, size: int, at: Path
) -> Samples:
    """Write shards of samples with a label, one of a thousand, and an image of zeros.

    They are sparse, so 110 GB of them take a few; `at` is a directory on the store's disk.
    """
    made = Samples(bucket, samples=shards * samples)
    source = random.Random(bucket)
    path = at / "labelled.tar"
    for number in range(shards):
        with path.open("wb") as file:
            position = 0
            for sample in range(samples):
                key, length = f"{number * samples + sample:08d}", _varied(source, size)
                label = b"%03d" % ((number * samples + sample) % 1000)
                head = _member(f"{key}.cls", len(label)).tobuf(tarfile.USTAR_FORMAT)
                head += label.ljust(tarfile.BLOCKSIZE, b"\0")
                head += _member(f"{key}.jpg", length).tobuf(tarfile.USTAR_FORMAT)
                file.seek(position)
                file.write(head)
                position += len(head) + -(-length // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                made.size += length + len(label)
            file.truncate(position + 2 * tarfile.BLOCKSIZE)
        made.stored += path.stat().st_size
        made.keys.append(f"train-{number:06d}.tar")
        store.take(bucket, made.keys[-1], path)
        store.know_checksum(bucket, made.keys[-1])
    return made


def write_loose(store: Store, bucket: str, *, samples: int, size: int) -> Samples:
    """Write samples as objects of their own."""
    made = Samples(bucket, samples=samples)
    source = random.Random(f"{bucket} {size}")
    extension = "bin" if size < IMAGE else "jpg"
    for at in range(samples):
        data = source.randbytes(_varied(source, size))
        made.keys.append(f"sample_{at:07d}.{extension}")
        store.put(bucket, made.keys[-1], data)
        made.size += len(data)
    made.stored = made.size
    return made


def write_listing(store: Store, bucket: str, objects: int) -> Samples:
    """Write many objects in one directory; only their names and sizes matter."""
    source = random.Random(objects)
    sizes = {f"sample_{at:07d}.jpg": source.randint(1_000, 64_000) for at in range(objects)}
    store.put_empty(bucket, sizes)
    return Samples(bucket, list(sizes), objects, sum(sizes.values()))


def write_tar(path: Path, members: int, *, pax: bool) -> None:
    """Write a tar of 1 KB members: plain, or as webdataset writes it, a pax header for each."""
    form = tarfile.PAX_FORMAT if pax else tarfile.USTAR_FORMAT
    data = bytes(1024)
    with tarfile.open(path, "w", format=form) as tar:
        for at in range(members):
            info = _member(f"sample_{at // 2:07d}.{('cls', 'jpg')[at % 2]}", len(data))
            info.mtime = _TIME + at * 0.0123457 if pax else _TIME
            tar.addfile(info, io.BytesIO(data))


def _varied(source: random.Random, size: int) -> int:
    """Images differ in size, 1 KB samples do not."""
    return size if size < IMAGE else int(source.triangular(size * 0.5, size * 1.5))


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, _TIME
    return info
