"""Labels of shards whose index is known: what is fetched for them, and whom the reader believes."""

import io
import logging
import tarfile
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.cache.files import IndexCache
from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.spec import LabelRule, LabelSource
from aisfs.engine import labels
from aisfs.engine.labels import FAILURES, LEAST, MOST, SPAN, LabelReader
from aisfs.engine.scanning import ShardScanner
from aisfs.engine.shards import ArchiveForms, Indexer
from aisfs.engine.unpacker import Unpacker
from aisfs.errors import ProtocolError, Stale, Unavailable, Unsupported
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.memory import MemoryStore
from tests.core.views.test_labels import scan
from tests.engine.fetchers import fetcher_of

BUCKET = Bucket("b")
CLS = LabelRule(LabelSource.CONTENT, "cls")
PICTURE = 70_000
"""More than the gap that is fetched between two labels."""


def tar_of(members: list[tuple[str, bytes | str]], form: int = tarfile.GNU_FORMAT) -> bytes:
    """Pack contents and, where there is a text in their place, hard links to it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.mtime = 0.25 if form == tarfile.PAX_FORMAT else 0
            if isinstance(data, str):
                info.type, info.linkname = tarfile.LNKTYPE, data
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def pictures(count: int, form: int = tarfile.GNU_FORMAT) -> bytes:
    return tar_of(
        [
            member
            for n in range(count)
            for member in ((f"{n:04}.jpg", bytes(PICTURE)), (f"{n:04}.cls", b"%d" % (n % 10)))
        ],
        form,
    )


class Store(MemoryStore):
    """A store whose batches may say anything."""

    def __init__(self) -> None:
        super().__init__(sink_in_thread=False, batches=True)
        self.add_bucket(BUCKET)
        self.answer = lambda wanted, filled: filled
        self.asked: list[int] = []

    def content(self, shard: ObjectInfo) -> bytes:
        return self._object(BUCKET, shard.key)[1]

    async def read_ranges(self, bucket, wanted):
        self.asked.append(len(wanted))
        filled = await super().read_ranges(bucket, wanted)
        return self.answer([buffer for _, _, buffer in wanted], filled)


@asynccontextmanager
async def indexing(store: MemoryStore, **options):
    async with fetcher_of(store) as (fetcher, services):
        scanner = ShardScanner(fetcher, Unpacker(fetcher, services, cache=None))
        labels = LabelReader(store, fetcher)
        yield Indexer(scanner, ArchiveForms(fetcher), services, labels=labels, **options)


def known(directory, store: "Store", shards: list[ObjectInfo]) -> IndexCache:
    """A cache that has the indexes of some shards."""
    kept = IndexCache(directory, 1 << 24)
    for shard in shards:
        kept.put(BUCKET, shard, scan(store.content(shard), [])[0])
    return kept


async def no_member(bucket, shard, index, row):
    raise AssertionError("members of tars are not read one by one")


async def labels_of(indexer: Indexer, shard) -> dict[bytes, bytes]:
    index, column = await indexer.labels(BUCKET, shard, CLS, no_member)
    return {index.name(row): label for row, label in column.by_row().items()}


def expected(count: int) -> dict[bytes, bytes]:
    return {b"%04d.cls" % n: b"%d" % (n % 10) for n in range(count)}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
async def test_one_batch_brings_the_labels_and_nothing_else(form: int, caplog, tmp_path):
    store = Store()
    shards = [store.put(BUCKET, f"{n}.tar", pictures(100, form)) for n in range(2)]
    async with indexing(store, indexes=known(tmp_path, store, shards)) as indexer:
        for shard in shards:
            before, calls = store.bytes_read, store.calls["read_range"]
            assert await labels_of(indexer, shard) == expected(100)
            assert store.bytes_read - before < shard.size // 100
            assert store.calls["read_range"] == calls
    assert store.asked == [LEAST, 100 - LEAST, 100], "the first one shows whether ranges come"
    assert not warnings(caplog)


async def test_labels_side_by_side_need_no_batch(tmp_path):
    store = Store()
    count = 2500
    shard = store.put(BUCKET, "x.tar", tar_of([(f"{n:04}.cls", b"7") for n in range(count)]))
    async with indexing(store, indexes=known(tmp_path, store, [shard])) as indexer:
        assert len(await labels_of(indexer, shard)) == count
    assert (store.asked, store.calls["read_range"]) == ([], -(-shard.size // SPAN))


async def test_thousands_of_labels_are_a_few_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(labels, "GAP", 0)
    store = Store()
    count = MOST + LEAST + 500
    members = [m for n in range(count) for m in ((f"{n:04}.jpg", b"x"), (f"{n:04}.cls", b"7"))]
    shard = store.put(BUCKET, "x.tar", tar_of(members))
    async with indexing(store, indexes=known(tmp_path, store, [shard])) as indexer:
        assert len(await labels_of(indexer, shard)) == count
    assert (store.asked, store.calls["read_range"]) == ([LEAST, MOST, 500], 0)


async def test_many_labels_by_ranges_bring_no_picture_whatever_the_link_is_like(tmp_path):
    store = Store()
    store.batches = False
    count = 192
    shard = store.put(BUCKET, "x.tar", pictures(count))
    async with indexing(store, indexes=known(tmp_path, store, [shard])) as indexer:
        before = store.bytes_read
        assert await labels_of(indexer, shard) == expected(count)
    assert store.bytes_read - before < shard.size // 50


@pytest.mark.parametrize("error", [Unsupported("501"), ProtocolError("whole objects came")])
async def test_without_batches_ranges_are_read_and_it_is_said_once(error, caplog, tmp_path):
    caplog.set_level(logging.INFO)
    store = Store()

    def refuse(buffers, filled):
        raise error

    store.answer = refuse
    shards = [store.put(BUCKET, f"{n}.tar", pictures(50)) for n in range(2)]
    async with indexing(store, indexes=known(tmp_path, store, shards)) as indexer:
        for shard in shards:
            before = store.bytes_read
            assert await labels_of(indexer, shard) == expected(50)
            assert store.bytes_read - before < shard.size // 50
    assert len(store.asked) == 1
    said = [r for r in caplog.records if "range by range" in r.getMessage()]
    assert len(said) == 1
    assert (said[0].levelno == logging.WARNING) == isinstance(error, ProtocolError)


def swapped(buffers, filled):
    """Two members in another order: of the same length, and each one whole."""
    first, second = bytes(buffers[3]), bytes(buffers[4])
    buffers[3][:], buffers[4][:] = second, first
    return filled


def invented(buffers, filled):
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))
    return filled


@pytest.mark.parametrize("lie", [swapped, invented])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
async def test_a_batch_that_lies_is_not_believed(lie, form: int, caplog, tmp_path):
    store = Store()
    store.answer = lie
    shard = store.put(BUCKET, "x.tar", pictures(50, form))
    async with indexing(store, indexes=known(tmp_path, store, [shard])) as indexer:
        assert await labels_of(indexer, shard) == expected(50)
    quiet = lie is swapped and form == tarfile.PAX_FORMAT
    assert len(warnings(caplog)) == (0 if quiet else 1)


async def test_batches_that_go_on_failing_are_not_tried_for_a_while(tmp_path, monkeypatch):
    store = Store()

    def fail(buffers, filled):
        raise Unavailable("429")

    store.answer = fail
    shards = [store.put(BUCKET, f"{n}.tar", pictures(20)) for n in range(FAILURES + 2)]
    async with indexing(store, indexes=known(tmp_path, store, shards)) as indexer:
        for shard in shards:
            assert await labels_of(indexer, shard) == expected(20)
    assert len(store.asked) == FAILURES
    monkeypatch.setattr(labels, "PAUSE_SECONDS", 0.0)
    async with indexing(store, indexes=known(tmp_path / "again", store, shards)) as indexer:
        for shard in shards:
            assert await labels_of(indexer, shard) == expected(20)
    assert len(store.asked) == FAILURES + len(shards)


async def test_a_changed_shard_is_stale(tmp_path):
    store = Store()
    shard = store.put(BUCKET, "x.tar", pictures(50))
    async with indexing(store, indexes=known(tmp_path, store, [shard])) as indexer:
        store.put(BUCKET, "x.tar", pictures(50).replace(b"0001.cls", b"000x.cls"))
        with pytest.raises(Stale):
            await labels_of(indexer, shard)


def moved(index: MemberIndex, only: bytes = b"") -> MemberIndex:
    """An index of the same members, all or one of them a block behind where they are."""
    rows, columns = MemberIndexBuilder(index.object_size), index.columns
    rows.extend(
        index.names(),
        [
            offset + 512 * (not only or name == only)
            for name, offset in zip(index.names(), columns.offsets, strict=True)
        ],
        list(columns.leads),
        list(columns.sizes),
        list(columns.mtimes),
        bytes(columns.flags),
    )
    return rows.build()


@pytest.mark.parametrize("batches", [True, False])
async def test_a_shard_is_scanned_whose_index_lies(batches: bool, tmp_path, caplog):
    store = Store()
    store.batches = batches
    shard = store.put(BUCKET, "x.tar", pictures(20))
    kept = IndexCache(tmp_path, 1 << 20)
    truth = scan(store.content(shard), [])[0]
    kept.put(BUCKET, shard, moved(truth))
    async with indexing(store, indexes=kept) as indexer:
        assert await labels_of(indexer, shard) == expected(20)
    assert kept.get(BUCKET, shard).index.columns.offsets == truth.columns.offsets
    assert any("does not fit" in line for line in warnings(caplog))


async def test_one_wrong_place_is_enough_whatever_is_read_meanwhile(tmp_path):
    store = Store()
    store.batches = False
    kept = IndexCache(tmp_path, 1 << 24)
    shards = [store.put(BUCKET, f"{n}.tar", pictures(20)) for n in range(8)]
    for shard in shards:
        kept.put(BUCKET, shard, moved(scan(store.content(shard), [])[0], b"0000.cls"))
    async with indexing(store, indexes=kept) as indexer:
        for shard in shards:  # each with another chance that the wrong place is not the last read
            assert await labels_of(indexer, shard) == expected(20)


NAMES = st.sampled_from(
    ["a.cls", "b.CLS", "./c.cls", "d/e.cls", "é.cls", "f" * 130 + ".cls", "g.jpg", "h.cls.jpg"]
)
MEMBERS = st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=30)


@settings(max_examples=40, deadline=None)
@given(MEMBERS, st.booleans(), st.booleans(), st.sampled_from([0, 70_000]))
def test_labels_are_those_of_a_scan(members, batches: bool, pax: bool, gap: int):
    form = tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT
    spread = [m for n, m in enumerate(members) for m in (m, (f"{n}.bin", bytes(gap)))]
    linked: list[tuple[str, bytes | str]] = [
        *spread,
        *((f"l{n}.cls", m[0]) for n, m in enumerate(members[:3])),
    ]
    content = tar_of(linked, form)
    _, column = scan(content, [])

    async def read() -> None:
        store = Store()
        store.batches = batches
        shard = store.put(BUCKET, "x.tar", content)
        with tempfile.TemporaryDirectory() as kept:
            async with indexing(store, indexes=known(Path(kept), store, [shard])) as indexer:
                _, found = await indexer.labels(BUCKET, shard, CLS, no_member)
        assert found.by_row() == column.by_row()

    trio.run(read)
