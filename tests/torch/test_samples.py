"""ShardSamples: the samples are those of webdataset, from a directory, a server or a mount, in any process."""

import gzip
import multiprocessing
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from aisfs.errors import AisfsError, ConfigError, SourceMissing, Stale
from aisfs.torch import ShardSamples, reading
from tests.mount.cache_tools import Meter, big_directory
from tests.support.clouds import moto
from tests.support.for_each import for_each
from tests.support.mounts import aisfs, mounted
from tests.support.servers import RunningServer, running_server
from tests.support.tars import END, entry

SHARDS, SAMPLES, SIZE = 4, 30, 20_000
ODD = [
    (b"one.JPG", b"1"), (b"one.cls", b"2"), (b"folder.v1/two.seg.png", b"3"), (b"folder.v1/two.txt", b""),
    (b"README", b"no part of a sample"), (b"three.json", b"{}"),
]  # fmt: skip


def tar(*members: tuple[bytes, bytes]) -> bytes:
    return b"".join(entry(name, data) for name, data in members) + END


def content(shard: int, sample: int) -> bytes:
    return f"{shard}/{sample} ".encode() * (SIZE // 6 + sample)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with big_directory() as directory:
        bucket = directory / "store" / "pets"
        bucket.mkdir(parents=True)
        (directory / "mnt").mkdir()
        for shard in range(SHARDS):
            members = [
                (f"{shard}-{sample:03}.{kind}".encode(), data)
                for sample in range(SAMPLES)
                for kind, data in (("cls", b"%d" % sample), ("jpg", content(shard, sample)))
            ]
            (bucket / f"s-{shard}.tar").write_bytes(tar(*members))
        yield directory


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[RunningServer]:
    with running_server(base / "store") as server:
        yield server


@pytest.fixture
def options(tmp_path: Path, server: RunningServer) -> dict[str, object]:
    return {"endpoint": server.endpoint, "cache_dir": tmp_path / "cache"}


def as_webdataset_reads(*paths: Path) -> list[dict[str, object]]:
    from webdataset import tariterators  # here, since it imports torch, and all workers collect

    samples = []
    for path in paths:
        with path.open("rb") as stream:
            members = tariterators.tar_file_iterator(stream)
            parts = ({**member, "__url__": str(path)} for member in members)
            samples += tariterators.group_by_keys(parts)
    return [{k: v for k, v in sample.items() if k != "__local_path__"} for sample in samples]


def everything(dataset: ShardSamples) -> list[dict[str, object]]:
    return [dataset[number] for number in range(len(dataset))]


def without_urls(samples: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{k: v for k, v in sample.items() if k != "__url__"} for sample in samples]


def test_a_directory(base: Path, tmp_path: Path):
    pets = base / "store" / "pets"
    dataset = ShardSamples(pets, cache_dir=tmp_path)
    assert len(dataset) == SHARDS * SAMPLES
    assert everything(dataset) == as_webdataset_reads(*sorted(pets.glob("*.tar")))
    numbers = [5, 100, 5, -1]
    assert dataset.__getitems__(numbers) == [dataset[number] for number in numbers]
    assert dataset[-1] == dataset[SHARDS * SAMPLES - 1]
    assert dataset.shard_numbers().tolist() == [at // SAMPLES for at in range(SHARDS * SAMPLES)]


@for_each("name", ["odd.tar", "odd.tar.gz", "odd.zip"])
def test_odd_members(name: str):
    """Upper case, folders, dots and empty files as in webdataset, which also leaves out names without a dot."""
    with big_directory() as directory:
        (directory / "odd.tar").write_bytes(tar(*ODD))
        expected = without_urls(as_webdataset_reads(directory / "odd.tar"))
        if name == "odd.tar.gz":
            (directory / name).write_bytes(gzip.compress(tar(*ODD)))
        elif name == "odd.zip":
            with zipfile.ZipFile(directory / name, "w") as archive:
                for member, data in ODD:
                    archive.writestr(member.decode(), data)
        dataset = ShardSamples(directory / name, cache_dir=directory / "cache")
        assert without_urls(everything(dataset)) == expected


def test_shards_without_samples_have_no_numbers(tmp_path: Path):
    (tmp_path / "a.tar").write_bytes(tar((b"README", b"")))
    (tmp_path / "b.tar").write_bytes(tar((b"x.txt", b"1")))
    (tmp_path / "c.tar").write_bytes(tar())
    (tmp_path / "d.tar").write_bytes(tar((b"y.txt", b"2"), (b"z.txt", b"3")))
    dataset = ShardSamples(tmp_path, cache_dir=tmp_path / "cache")
    assert [sample["txt"] for sample in everything(dataset)] == [b"1", b"2", b"3"]
    assert dataset.shard_numbers().tolist() == [0, 1, 1]


@pytest.mark.mount
def test_a_mount_and_a_server_have_the_same_samples(
    base: Path, server: RunningServer, options: dict[str, object]
):
    """In the same order, so that a state of one is good for the other."""
    expected = without_urls(as_webdataset_reads(*sorted((base / "store" / "pets").glob("*.tar"))))
    remote = ShardSamples("ais://pets/s-{0..3}.tar", **options)
    assert without_urls(everything(remote)) == expected
    assert remote[0]["__url__"] == "ais://pets/s-0.tar"
    (base / "store" / "odd").mkdir()
    (base / "store" / "odd" / "odd.tar").write_bytes(tar(*ODD))
    with mounted("ais://pets", base / "mnt", endpoint=server.endpoint) as mount:
        dataset = ShardSamples(mount.path, cache_dir=options["cache_dir"])
        assert without_urls(everything(dataset)) == expected
        assert dataset[SAMPLES]["__url__"] == f"{mount.path}/s-1.tar"
        assert (dataset.shard_numbers() == remote.shard_numbers()).all()
        some = ShardSamples(f"{mount.path}/s-{{1..2}}.tar", cache_dir=options["cache_dir"])
        assert without_urls(everything(some)) == expected[SAMPLES : 3 * SAMPLES]
    with mounted("ais://odd", base / "mnt", endpoint=server.endpoint) as mount:
        odd = ShardSamples(mount.path, cache_dir=options["cache_dir"])
        direct = ShardSamples("ais://odd", **options)
        assert without_urls(everything(odd)) == without_urls(everything(direct))


def test_published_indexes_are_used(
    base: Path, server: RunningServer, options: dict[str, object], tmp_path: Path
):
    """Nothing is scanned, and each sample is fetched with one request, which brings both members."""
    done = aisfs(
        "index", "--publish", "ais://pets", "--endpoint", server.endpoint,
        "--cache-dir", tmp_path / "other",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    meter = Meter(server)
    dataset = ShardSamples("ais://pets/s-{0..3}.tar", **options, cache_size=0)
    taken = meter.take()
    assert taken["get_bytes"] < SHARDS * SAMPLES * SIZE / 20, "the indexes only"
    dataset[SAMPLES]
    meter.take()
    wanted = [SAMPLES + at for at in range(1, SAMPLES, 2)]
    assert len(dataset.__getitems__(wanted)) == len(wanted)
    taken = meter.take()
    assert taken["get_bytes"] < 1.5 * SIZE * len(wanted), "of others nothing"


def _key(dataset: ShardSamples, number: int, queue) -> None:
    queue.put((os.getpid(), dataset[number]["__key__"]))


@pytest.mark.parametrize("way", ["fork", "spawn"])
@pytest.mark.parametrize("used", [False, True])
def test_each_process_opens_its_own(options: dict[str, object], way: str, used: bool):
    """Also if the parent has read already, and reads on."""
    dataset = ShardSamples("ais://pets/s-{0..3}.tar", **options)
    if used:
        assert dataset[0]["__key__"] == "0-000"
    context = multiprocessing.get_context(way)
    queue = context.Queue()
    children = [context.Process(target=_key, args=(dataset, at, queue)) for at in (1, SAMPLES)]
    for child in children:
        child.start()
    found = dict(queue.get(timeout=60) for _ in children)
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert [found[child.pid] for child in children] == ["0-001", "1-000"]
    assert dataset[2]["__key__"] == "0-002"


def _fail() -> None:
    raise MemoryError("no room")


@pytest.mark.parametrize("how", ["at rest", "reading", "its main task"])
def test_another_thread_reads_after_one_that_has_failed(
    options: dict[str, object], how: str, monkeypatch: pytest.MonkeyPatch
):
    dataset = ShardSamples("ais://pets/s-{0..3}.tar", **options)
    assert dataset[0]["__key__"] == "0-000"
    first = dataset._reader._started
    if how == "at rest":
        first.token.run_sync_soon(_fail)
        first.thread.join(60)
    else:

        async def read(*_: object) -> None:
            if how == "reading":
                trio.lowlevel.current_trio_token().run_sync_soon(_fail)
            else:
                first.end.set()
            await trio.sleep_forever()

        with monkeypatch.context() as patched:
            patched.setattr(reading._Reads, "read", read)
            said = r": MemoryError\('no room'\)" if how == "reading" else "$"
            with pytest.raises(AisfsError, match=f"thread that reads samples has ended{said}"):
                dataset[1]
    assert dataset[1]["__key__"] == "0-001"
    assert dataset._reader._started is not first


CLOUD = """
import multiprocessing, sys
from aisfs.errors import AisfsError
from aisfs.torch import ShardSamples

def key(dataset, queue):
    try:
        queue.put(dataset[1]["__key__"])
    except AisfsError as error:
        queue.put(error)

if __name__ == "__main__":
    for number in range(2):
        dataset = ShardSamples(sys.argv[1], cache_size=0)
        for way in ("fork", "spawn"):
            context = multiprocessing.get_context(way)
            queue = context.Queue()
            context.Process(target=key, args=(dataset, queue), daemon=True).start()
            print(queue.get(timeout=60))
        print(dataset[0]["__key__"])
"""


def test_forked_and_spawned_processes_read_a_cloud(tmp_path: Path):
    """Unless the parent of a forked one has read it before: obstore would wait forever. Another data set is no harm."""
    program = tmp_path / "program.py"
    program.write_text(CLOUD)
    with moto() as cloud:
        bucket = cloud.make_bucket()
        cloud.put(bucket, "s.tar", tar((b"x.txt", b"1"), (b"y.txt", b"2")))
        done = subprocess.run(
            [sys.executable, program, f"s3://{bucket}"],
            env={**os.environ, **cloud.environment},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["y", "y", "x"]
    refused, *others = done.stdout.splitlines()[3:]
    assert "this process was forked from one that had read a cloud" in refused
    assert others == ["y", "x"]


def test_a_transformation_is_called_where_samples_are_read(base: Path, tmp_path: Path):
    dataset = ShardSamples(base / "store" / "pets", transform=_label, cache_dir=tmp_path)
    assert [dataset[number] for number in range(3)] == [0, 1, 2]
    assert pickle.loads(pickle.dumps(dataset))[SAMPLES + 1] == 1


def _label(sample: dict[str, bytes]) -> int:
    return int(sample["cls"])


def test_few_shards_are_open(options: dict[str, object]):
    dataset = ShardSamples("ais://pets/s-{0..3}.tar", open_shards=1, **options)
    for number in (0, SAMPLES, 0, 3 * SAMPLES, SAMPLES):
        assert dataset[number]["__key__"] == f"{number // SAMPLES}-000"


@pytest.mark.mount
def test_a_shard_that_changes_is_an_error(tmp_path: Path):
    bucket = tmp_path / "store" / "b"
    bucket.mkdir(parents=True)
    (tmp_path / "mnt").mkdir()
    (bucket / "s.tar").write_bytes(tar((b"x.txt", b"1"), (b"y.txt", b"2")))
    with running_server(tmp_path / "store") as server:
        ttl = ("--attr-ttl", "0", "--list-ttl", "0")
        endpoint = server.endpoint
        with mounted("ais://b", tmp_path / "mnt", endpoint=endpoint, options=ttl) as mount:
            remote = ShardSamples("ais://b", endpoint=endpoint, cache_size=0)
            through, again = (
                ShardSamples(mount.path, cache_dir=tmp_path / "cache") for _ in range(2)
            )
            assert again[0]["txt"] == b"1"
            (bucket / "s.tar").write_bytes(tar((b"x.txt", b"3"), (b"y.txt", b"4")))
            for dataset in (remote, through, again):
                with pytest.raises(Stale, match=r"s\.tar"):
                    dataset[0]


def test_what_is_not_there_is_an_error(base: Path, tmp_path: Path):
    dataset = ShardSamples(base / "store" / "pets", cache_dir=tmp_path)
    for number in (SHARDS * SAMPLES, -SHARDS * SAMPLES - 1):
        with pytest.raises(IndexError, match=f"there is no sample {number} of {SHARDS * SAMPLES}"):
            dataset[number]
    with pytest.raises(SourceMissing):
        ShardSamples(tmp_path / "none-{0..3}.tar", cache_dir=tmp_path)
    with pytest.raises(TypeError, match="no such options: chache_dir"):
        ShardSamples(base, chache_dir=tmp_path)
    with pytest.raises(TypeError, match="etl: give the shards of a mount that has this option"):
        ShardSamples(base, etl="resize")
    with pytest.raises(ValueError, match="at least one shard is open, not 0"):
        ShardSamples(base, open_shards=0)
    with pytest.raises(ConfigError, match="--cache-size"):
        ShardSamples(base, cache_size="lots")
