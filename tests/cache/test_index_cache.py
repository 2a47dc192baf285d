"""The store of indexes: identity, the limit, damage, and disks that do not work."""

import fcntl
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aisfs.cache import files as cache_files
from aisfs.cache.files import IndexCache
from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.member_index import MemberIndex
from aisfs.errors import ConfigError
from aisfs.model import Bucket, ObjectInfo, Provider

BUCKET = Bucket("pets")
INFO = ObjectInfo("train/0.tar", 2 << 20, "1", "xxhash2:0123456789abcdef")
LIMIT = 1 << 20


def some_index(size: int = INFO.size, name: bytes = b"a.jpg") -> MemberIndex:
    rows = MemberIndexBuilder(size)
    rows.add(name, 512, 1, 100, 0, 0)
    return rows.build()


def large_index(seed: int, size: int = INFO.size) -> MemberIndex:
    """Takes many blocks of the disk: the names do not deflate."""
    rows = MemberIndexBuilder(size)
    state = seed + 1
    for at in range(1000):
        state = state * 6364136223846793005 % 2**127
        rows.add(b"%032x" % state, 1024 * at + 512, 1, 100, 0, 0)
    return rows.build()


def info(number: int) -> ObjectInfo:
    return ObjectInfo(f"{number}.tar", INFO.size, "1")


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "lock")


def used(directory: Path) -> int:
    return sum(os.stat(path).st_blocks * 512 for path in files(directory))


# Keeping -------------------------------------------------------------------------------------


def test_what_is_put_is_got_even_by_another_daemon(tmp_path):
    IndexCache(tmp_path, LIMIT).put(BUCKET, INFO, some_index())
    again = IndexCache(tmp_path, LIMIT).get(BUCKET, INFO)
    assert again is not None
    assert again.index.names() == [b"a.jpg"]
    assert again.index.object_size == INFO.size


def test_nothing_is_made_before_something_is_kept(tmp_path):
    cache = IndexCache(tmp_path / "cache", LIMIT)
    assert cache.get(BUCKET, INFO) is None
    IndexCache(tmp_path / "cache", 0).put(BUCKET, INFO, some_index())
    assert cache.get(BUCKET, INFO) is None
    assert not (tmp_path / "cache").exists()


def test_only_the_owner_may_read(tmp_path):
    old = os.umask(0)
    try:
        IndexCache(tmp_path / "cache", LIMIT).put(BUCKET, INFO, some_index())
    finally:
        os.umask(old)
    (kept,) = files(tmp_path)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert kept.relative_to(tmp_path / "cache").parts[:2] == ("v1", "indexes")
    assert kept.suffix == ".aisx"
    assert kept.name.startswith(kept.parent.name)


@pytest.mark.parametrize(
    ("bucket", "other"),
    [
        (Bucket("pets2"), INFO),
        (Bucket("pets", Provider.AWS), INFO),
        (Bucket("pets", namespace="@a#b"), INFO),
        (BUCKET, ObjectInfo("train/1.tar", INFO.size, INFO.version, INFO.checksum)),
        (BUCKET, ObjectInfo(INFO.key, INFO.size + 1, INFO.version, INFO.checksum)),
        (BUCKET, ObjectInfo(INFO.key, INFO.size, "2", INFO.checksum)),
        (BUCKET, ObjectInfo(INFO.key, INFO.size, INFO.version, "xxhash2:0")),
        (BUCKET, ObjectInfo(INFO.key, INFO.size, INFO.version)),
        (BUCKET, ObjectInfo(INFO.key, INFO.size, "", INFO.checksum)),
    ],
)
def test_any_other_object_or_version_is_a_miss(tmp_path, bucket, other):
    cache = IndexCache(tmp_path, LIMIT)
    cache.put(BUCKET, INFO, some_index())
    assert cache.get(bucket, other) is None
    assert cache.get(BUCKET, INFO) is not None


def test_modification_time_is_no_part_of_the_version(tmp_path):
    cache = IndexCache(tmp_path, LIMIT)
    cache.put(BUCKET, INFO, some_index())
    assert cache.get(BUCKET, ObjectInfo(INFO.key, INFO.size, "1", INFO.checksum, 5)) is not None


def test_scopes_are_apart(tmp_path):
    IndexCache(tmp_path, LIMIT, scope="one cluster").put(BUCKET, INFO, some_index())
    assert IndexCache(tmp_path, LIMIT, scope="another").get(BUCKET, INFO) is None
    assert IndexCache(tmp_path, LIMIT, scope="one cluster").get(BUCKET, INFO) is not None


def test_new_scan_rules_make_old_indexes_count_no_more(tmp_path, monkeypatch):
    IndexCache(tmp_path, LIMIT).put(BUCKET, INFO, some_index())
    monkeypatch.setattr(cache_files, "SCAN_RULES", cache_files.SCAN_RULES + 1)
    assert IndexCache(tmp_path, LIMIT).get(BUCKET, INFO) is None


def test_object_without_version_and_checksum_is_not_kept(tmp_path):
    cache = IndexCache(tmp_path, LIMIT)
    unknown = ObjectInfo("a.tar", INFO.size)
    cache.put(BUCKET, unknown, some_index())
    assert cache.get(BUCKET, unknown) is None
    assert not files(tmp_path)


def test_names_that_are_not_utf_8(tmp_path):
    cache = IndexCache(tmp_path, LIMIT)
    odd = ObjectInfo("\udcff.tar", INFO.size, "1")
    cache.put(BUCKET, odd, some_index())
    assert cache.get(BUCKET, odd) is not None


def test_later_put_replaces(tmp_path):
    cache = IndexCache(tmp_path, LIMIT)
    cache.put(BUCKET, INFO, some_index(name=b"before"))
    cache.put(BUCKET, INFO, some_index(name=b"after"))
    assert cache.get(BUCKET, INFO).index.names() == [b"after"]
    assert len(files(tmp_path)) == 1


# Damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:-5] + b"x" + data[-4:],
        lambda data: b"\0" + data[1:],
        lambda data: bytes(len(data)),
    ],
)
def test_damaged_entry_is_a_miss_and_gone(tmp_path, damage):
    cache = IndexCache(tmp_path, LIMIT)
    cache.put(BUCKET, INFO, some_index())
    (kept,) = files(tmp_path)
    kept.write_bytes(damage(kept.read_bytes()))
    assert cache.get(BUCKET, INFO) is None
    assert not kept.exists()
    cache.put(BUCKET, INFO, some_index())
    assert cache.get(BUCKET, INFO) is not None


def test_entry_of_another_object_is_a_miss(tmp_path):
    cache = IndexCache(tmp_path, LIMIT)
    cache.put(BUCKET, info(0), some_index())
    (kept,) = files(tmp_path)
    strange = kept.read_bytes()
    kept.unlink()
    cache.put(BUCKET, info(1), some_index())
    (other,) = files(tmp_path)
    other.write_bytes(strange)
    assert cache.get(BUCKET, info(1)) is None


def test_index_of_an_object_of_another_size_is_a_miss(tmp_path):
    cache = IndexCache(tmp_path, LIMIT)
    cache.put(BUCKET, INFO, some_index(size=INFO.size + 1))
    assert cache.get(BUCKET, INFO) is None


def test_what_is_no_file_does_no_harm(tmp_path, caplog):
    cache = IndexCache(tmp_path, LIMIT)
    cache.put(BUCKET, INFO, some_index())
    (kept,) = files(tmp_path)
    kept.unlink()
    os.mkfifo(kept)
    assert cache.get(BUCKET, INFO) is None
    kept.unlink(missing_ok=True)
    kept.mkdir()
    (kept / "file").touch()
    assert cache.get(BUCKET, INFO) is None
    cache.put(BUCKET, INFO, some_index())
    assert cache.get(BUCKET, INFO) is not None
    kept.unlink()
    kept.symlink_to("/dev/zero")
    assert cache.get(BUCKET, INFO) is None
    cache.put(BUCKET, INFO, some_index())
    assert cache.get(BUCKET, INFO) is not None


def test_clear_removes_what_is_no_file_and_says_what_it_cannot(tmp_path):
    cache = IndexCache(tmp_path, LIMIT)
    for number in range(3):
        cache.put(BUCKET, info(number), some_index())
    first, *_ = files(tmp_path)
    first.unlink()
    first.mkdir()
    cache.clear()
    assert files(tmp_path) == []
    lock = tmp_path / "v1/indexes/lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(ConfigError, match=f"{tmp_path}.*directory"):
        cache.clear()


# The limit -----------------------------------------------------------------------------------


def test_limit_holds_after_every_put_of_daemons_that_share_it(tmp_path):
    limit = 200_000
    caches = [IndexCache(tmp_path, limit) for _ in range(3)]
    for number in range(30):
        cache = caches[number % 3]
        cache.put(BUCKET, info(number), large_index(number))
        assert used(tmp_path) <= limit
        assert cache.get(BUCKET, info(number)) is not None
    assert used(tmp_path) > limit // 2


def test_least_recently_used_goes_first(tmp_path):
    IndexCache(tmp_path, LIMIT).put(BUCKET, info(0), large_index(0))
    kept = files(tmp_path)
    cache = IndexCache(tmp_path, 8 * used(tmp_path))
    for number in range(8):
        cache.put(BUCKET, info(number), large_index(number))
        kept += set(files(tmp_path)) - set(kept)
        os.utime(kept[number], (1_000_000 + number, 1_000_000 + number))
    assert cache.get(BUCKET, info(0)) is not None
    cache.put(BUCKET, info(8), large_index(8))
    assert [path.exists() for path in kept] == [True, False, False, True, True, True, True, True]


def test_smaller_limit_is_met_by_the_next_put(tmp_path):
    for number in range(10):
        IndexCache(tmp_path, LIMIT).put(BUCKET, info(number), large_index(number))
    IndexCache(tmp_path, 100_000).put(BUCKET, INFO, some_index())
    assert used(tmp_path) <= 100_000


def test_index_larger_than_the_limit_evicts_nothing(tmp_path):
    cache = IndexCache(tmp_path, 8192)
    cache.put(BUCKET, INFO, some_index())
    cache.put(BUCKET, info(1), large_index(1))
    assert cache.get(BUCKET, info(1)) is None
    assert cache.get(BUCKET, INFO) is not None


def test_left_over_temporary_files_go(tmp_path):
    cache = IndexCache(tmp_path, 200_000)
    cache.put(BUCKET, INFO, some_index())
    left = files(tmp_path)[0].with_name("f" * 64 + ".tmp")
    left.write_bytes(bytes(150_000))
    for number in range(10):
        cache.put(BUCKET, info(number), large_index(number))
    assert not left.exists()
    assert used(tmp_path) <= 200_000


@pytest.mark.parametrize("count", [b"", b"nonsense", b"-5", b"9" * 32])
def test_lost_count_is_taken_again(tmp_path, count):
    limit = 100_000
    cache = IndexCache(tmp_path, limit)
    for number in range(5):
        cache.put(BUCKET, info(number), large_index(number))
        (tmp_path / "v1/indexes/lock").write_bytes(count)
        assert used(tmp_path) <= limit
    assert cache.get(BUCKET, info(4)) is not None


def test_clear_removes_everything(tmp_path):
    cache = IndexCache(tmp_path, LIMIT)
    for number in range(5):
        IndexCache(tmp_path, LIMIT, scope=str(number)).put(BUCKET, info(number), some_index())
    IndexCache(tmp_path, 0).clear()
    assert [path.name for path in (tmp_path / "v1/indexes").iterdir()] == ["lock"]
    cache.put(BUCKET, INFO, some_index())
    assert cache.get(BUCKET, INFO) is not None
    IndexCache(tmp_path / "nowhere", 0).clear()
    assert not (tmp_path / "nowhere").exists()


# Many at once --------------------------------------------------------------------------------


def test_threads(tmp_path):
    limit = 200_000
    cache = IndexCache(tmp_path, limit)
    wrong = []

    def work(thread: int) -> None:
        for number in range(12):
            cache.put(BUCKET, info(number), large_index(number))
            index = cache.get(BUCKET, info((number + thread) % 12))
            if index is not None and len(index.index) != 1000:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert used(tmp_path) <= limit
    assert not list(tmp_path.rglob("*.tmp"))


def test_processes(tmp_path):
    script = (
        "import sys; from pathlib import Path\n"
        "from aisfs.cache.files import IndexCache\n"
        "from tests.cache.test_index_cache import BUCKET, info, large_index\n"
        "cache = IndexCache(Path(sys.argv[1]), 200_000)\n"
        "for number in range(12):\n"
        "    cache.put(BUCKET, info(number), large_index(number))\n"
        "    index = cache.get(BUCKET, info(number))\n"
        "    assert index is None or len(index.index) == 1000\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    running = [subprocess.Popen(command) for _ in range(2)]
    while any(process.poll() is None for process in running):
        seen = 0
        for path in tmp_path.rglob("*.aisx"):
            try:
                seen += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
        # Looking takes time, in which an entry may go and another come.
        assert seen <= 2 * 200_000
    assert [process.wait() for process in running] == [0, 0]
    assert used(tmp_path) <= 200_000


# Disks that do not work ----------------------------------------------------------------------


def test_stopped_daemon_that_holds_the_lock_is_not_waited_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(cache_files, "_LOCK_SECONDS", 0.05)
    cache = IndexCache(tmp_path, LIMIT)
    cache.put(BUCKET, info(0), some_index())
    with open(tmp_path / "v1/indexes/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache.put(BUCKET, info(1), some_index())
        assert cache.get(BUCKET, info(1)) is None
        assert cache.get(BUCKET, info(0)) is not None
    assert "another daemon" in caplog.text
    cache.put(BUCKET, info(1), some_index())
    assert cache.get(BUCKET, info(1)) is not None


def test_trouble_is_told_once_and_is_no_error(tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    cache = IndexCache(tmp_path / "file", LIMIT)
    for _ in range(3):
        cache.put(BUCKET, INFO, some_index())
        assert cache.get(BUCKET, INFO) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(tmp_path / "file") in caplog.text


@pytest.mark.parametrize("broken", ["open", "write", "replace"])
def test_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, caplog, broken):
    cache = IndexCache(tmp_path, LIMIT)
    cache.put(BUCKET, info(0), some_index())
    before = (tmp_path / "v1/indexes/lock").read_bytes()

    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    real_open = os.open
    with monkeypatch.context() as patch:
        if broken == "open":
            patch.setattr(
                os,
                "open",
                lambda path, *rest: fail() if ".tmp" in str(path) else real_open(path, *rest),
            )
        elif broken == "write":
            full = os.open("/dev/full", os.O_WRONLY)
            patch.setattr(
                os,
                "open",
                lambda path, *rest: full if ".tmp" in str(path) else real_open(path, *rest),
            )
        else:
            patch.setattr(Path, "replace", fail)
        cache.put(BUCKET, info(1), some_index())
    assert caplog.text.count("No space left") == 1
    assert not list(tmp_path.rglob("*.tmp"))
    assert (tmp_path / "v1/indexes/lock").read_bytes() == before
    assert cache.get(BUCKET, info(0)) is not None
    assert cache.get(BUCKET, info(1)) is None
    cache.put(BUCKET, info(1), some_index())
    assert cache.get(BUCKET, info(1)) is not None
