"""Listings on disk: what comes back is what was kept, young enough, whole, and nobody else's."""

import os
import stat
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.cache.files import ListingCache
from aisfs.core.names.listing import Listing, Refusal, child_key
from aisfs.model import Bucket, ObjectInfo

BUCKET = Bucket("b")


class Clock:
    now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def cache(path, clock, *, limit=1 << 20, max_age=60.0, **options):
    return ListingCache(path, limit, max_age=max_age, clock=clock, **options)


def listing(count=20, prefix="p/"):
    entries = {b"d%d" % n: None for n in range(3)}
    for n in range(count):
        info = ObjectInfo(f"{prefix}{n:04}", n, f"{n}", f"xxhash2:{n:016x}", 10**18 + n)
        entries[b"%04d" % n] = info
    return Listing(entries, Counter())


def rows(found):
    return [
        (offset, name, info, info and dict(info.custom)) for offset, name, info in found.after(0)
    ]


names = st.binary(min_size=1, max_size=20).filter(lambda n: not set(n) & set(b"/\0"))
objects = st.tuples(
    st.integers(0, 1 << 50),
    st.text(max_size=5),
    st.text(max_size=20),
    st.integers(0, 1 << 62),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
)


@settings(deadline=None)  # it waits for the disk
@given(st.dictionaries(names, st.none() | objects, max_size=20), st.integers(0, 5))
def test_what_is_kept_comes_back(tmp_path_factory, content, excluded):
    entries = {
        name: given and ObjectInfo(child_key("a/", name), *given) for name, given in content.items()
    }
    kept = Listing(entries, Counter({Refusal.EXCLUDED: excluded}))
    store = cache(tmp_path_factory.mktemp("c"), Clock())
    store.put(BUCKET, "a/", kept, 1.0)
    found, age = store.get(BUCKET, "a/")
    assert rows(found) == rows(kept)
    assert found.refused == kept.refused
    assert age == 1.0


def test_age_counts_from_the_first_request_and_ends_with_the_time_to_live(tmp_path, clock):
    store = cache(tmp_path, clock)
    store.put(BUCKET, "p/", listing(), 20.0)
    clock.now += 39
    assert store.get(BUCKET, "p/")[1] == 59
    assert cache(tmp_path, clock, max_age=50.0).get(BUCKET, "p/") is None, (
        "that mount wants younger"
    )
    store.put(BUCKET, "p/", listing(), 0.0)
    clock.now += 60
    assert store.get(BUCKET, "p/") is None
    store.put(BUCKET, "p/", listing(), 60.0)
    assert store.get(BUCKET, "p/") is None


def test_listing_of_the_future_is_not_believed(tmp_path, clock):
    store = cache(tmp_path, clock)
    store.put(BUCKET, "p/", listing(), 0.0)
    clock.now -= 10
    assert store.get(BUCKET, "p/") is None


def test_listing_belongs_to_its_cluster_bucket_directory_and_scope(tmp_path, clock):
    cache(tmp_path, clock, cluster="http://a", scope="x").put(BUCKET, "p/", listing(), 0.0)
    assert cache(tmp_path, clock, cluster="http://a").get(BUCKET, "p/") is None
    assert cache(tmp_path, clock, cluster="http://b", scope="x").get(BUCKET, "p/") is None
    same = cache(tmp_path, clock, cluster="http://a", scope="x")
    assert same.get(Bucket("c"), "p/") is None
    assert same.get(BUCKET, "") is None
    assert same.get(BUCKET, "p/") is not None
    cache(tmp_path, clock, cluster="http://b").forget()
    assert same.get(BUCKET, "p/") is not None
    cache(tmp_path, clock, cluster="http://a").forget()
    assert same.get(BUCKET, "p/") is None


def files(path):
    return sorted(p for p in path.rglob("*") if p.is_file() and p.suffix == ".aisl")


@settings(deadline=None)  # it waits for the disk
@given(st.data())
def test_damage_is_a_miss_and_removed(tmp_path_factory, data):
    path, clock = tmp_path_factory.mktemp("c"), Clock()
    store = cache(path, clock)
    store.put(BUCKET, "p/", listing(3), 0.0)
    (file,) = files(path)
    raw = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[at] ^= data.draw(st.integers(1, 255))
    else:
        del raw[at:]
    file.write_bytes(raw)
    assert store.get(BUCKET, "p/") is None
    assert files(path) == []


def test_only_the_owner_can_read_it(tmp_path, clock):
    old = os.umask(0)
    try:
        cache(tmp_path / "new", clock).put(BUCKET, "p/", listing(), 0.0)
    finally:
        os.umask(old)
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_what_another_user_has_put_there_is_a_miss(tmp_path, clock, monkeypatch):
    store = cache(tmp_path, clock)
    store.put(BUCKET, "p/", listing(), 0.0)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert store.get(BUCKET, "p/") is None


def test_link_or_pipe_in_its_place_is_a_miss(tmp_path, clock):
    store = cache(tmp_path, clock)
    store.put(BUCKET, "p/", listing(), 0.0)
    (file,) = files(tmp_path)
    other = tmp_path / "other"
    file.rename(other)
    file.symlink_to(other)
    assert store.get(BUCKET, "p/") is None
    os.mkfifo(file)
    assert store.get(BUCKET, "p/") is None


def test_clear_removes_all_and_a_disk_that_fails_is_no_error(tmp_path, clock):
    for cluster in "ab":
        cache(tmp_path, clock, cluster=cluster).put(BUCKET, "p/", listing(), 0.0)
    ListingCache(tmp_path, 0).clear()
    assert files(tmp_path) == []
    ListingCache(tmp_path / "none", 0).clear()
    (tmp_path / "file").write_bytes(b"")
    broken = cache(tmp_path / "file", clock)
    broken.put(BUCKET, "p/", listing(), 0.0)
    assert broken.get(BUCKET, "p/") is None
    broken.forget()
