"""Damage on the disk is a miss (I9): dropped, said once, never an error."""

import errno
import logging
import os
import sqlite3
from contextlib import closing

import pytest

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import HEADER, SEGMENT, STEP, CacheDirectory
from aisfs.cache.ledger import Ledger
from aisfs.errors import ConfigError
from aisfs.model import ByteRange
from tests.cache.block_helpers import KIB, MIB, an_entry, check_accounts, data_files, du, fill, get

LIMIT = 64 * MIB


@pytest.fixture
def filled(tmp_path):
    """A closed cache with one entry of one file, and one of two."""
    entries = an_entry("one", size=MIB), an_entry("two", size=SEGMENT + MIB)
    cache = BlockCache.open(tmp_path, LIMIT)
    assert all(fill(cache, entry) for entry in entries)
    cache.close()
    return entries


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def a_directory(path):
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def a_link(path):
    elsewhere = path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(elsewhere)


DAMAGES = {
    "magic": lambda path: flip(path, 0),
    "layout": lambda path: flip(path, 7),
    "checksum of the header": lambda path: flip(path, 9),
    "identity": lambda path: flip(path, 40),
    "end of the header": lambda path: flip(path, HEADER - 1),
    "first byte": lambda path: flip(path, HEADER),
    "last byte": lambda path: flip(path, HEADER + MIB - 1),
    "short by a byte": cut,
    "empty": lambda path: os.truncate(path, 0),
    "too long": lambda path: os.truncate(path, path.stat().st_size + 1),
    "gone": lambda path: path.unlink(),
    "a directory": a_directory,
    "a pipe": a_pipe,
    "a link": a_link,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_a_miss(tmp_path, filled, caplog, damage):
    DAMAGES[damage](data_files(tmp_path)[0])
    one, two = filled
    cache = BlockCache.open(tmp_path, LIMIT)
    assert not get(cache, one)
    assert not get(cache, one)
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "dropped from the cache" in lines[0]
    assert get(cache, two)
    assert len(data_files(tmp_path)) == 2
    assert fill(cache, one)
    assert get(cache, one)
    check_accounts(cache)
    cache.close()


def test_file_cut_while_it_is_mapped_is_dropped_by_the_next_sync(tmp_path, filled, caplog):
    """Else all reads of it fail until the next mount; those of a view of it would end this process."""
    one, two = filled
    cache = BlockCache.open(tmp_path, LIMIT)
    assert get(cache, one)
    assert get(cache, two)
    os.truncate(data_files(tmp_path)[0], HEADER + 10)
    cache.sync()
    assert cache.missing(one, ByteRange(0, one.size)) == [ByteRange(0, one.size)]
    assert cache.hit(one, ByteRange(0, 1)) is None
    assert caplog.text.count("is damaged") == 1
    assert get(cache, two)
    assert fill(cache, one)
    assert get(cache, one)
    check_accounts(cache)
    cache.close()


@pytest.mark.parametrize("damage", DAMAGES)
def test_check_finds_the_damage(tmp_path, filled, damage):
    DAMAGES[damage](data_files(tmp_path)[1])
    one, two = filled
    cache = BlockCache.open(tmp_path, LIMIT)
    report = cache.check()
    assert report.damaged == (0 if damage == "gone" else 1)
    assert get(cache, one)
    assert not get(cache, two)
    assert get(cache, two, SEGMENT, SEGMENT + MIB)
    assert cache.check().damaged == 0
    cache.close()


def test_what_cannot_be_read_or_removed_is_told(tmp_path, filled, monkeypatch):
    def fail(*args, **options):
        raise OSError(errno.EPERM, "not permitted")

    cache = BlockCache.open(tmp_path, None)
    with monkeypatch.context() as patch:
        patch.setattr(CacheDirectory, "open_segment", fail)
        report = cache.check()
        assert (report.segments, report.damaged, report.unknown) == (3, 0, 3)
        patch.setattr(CacheDirectory, "unlink", fail)
        with pytest.raises(ConfigError, match=f"{tmp_path}.* not permitted"):
            cache.clear()
    assert cache.check().unknown == 0
    cache.clear()
    assert data_files(tmp_path) == []
    cache.close()


def test_damage_is_found_where_it_is_read(tmp_path, filled):
    one, _ = filled
    flip(data_files(tmp_path)[0], HEADER + 3 * STEP + 5)
    cache = BlockCache.open(tmp_path, LIMIT)
    assert get(cache, one, 0, 3 * STEP)
    assert not get(cache, one, 3 * STEP, 3 * STEP + 1)
    cache.close()


def test_file_of_another_entry_is_not_taken_for_ours(tmp_path, filled, caplog):
    first, second, _ = data_files(tmp_path)
    first.write_bytes(second.read_bytes())
    cache = BlockCache.open(tmp_path, LIMIT)
    assert not get(cache, filled[0])
    assert "belongs to another object" in caplog.text
    cache.close()


def test_damaged_file_is_replaced_when_written_to(tmp_path):
    entry = an_entry()
    cache = BlockCache.open(tmp_path, LIMIT)
    fill(cache, entry, 0, 1000)
    cache.close()
    data_files(tmp_path)[0].write_bytes(b"")
    cache = BlockCache.open(tmp_path, LIMIT)
    assert fill(cache, entry, 5000, 6000)
    assert get(cache, entry, 5000, 6000)
    assert not get(cache, entry, 0, 1000)
    check_accounts(cache)
    cache.close()


def garbage(path):
    path.write_bytes(os.urandom(100_000))


def zeros_within(path):
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    path.write_bytes(data)


def run_in(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)


TABLES = ("totals", "segments", "pieces", "gone", "owners", "writers", "pins")

LEDGERS = {
    **{
        f"without {table}": lambda path, table=table: run_in(path, f"DROP TABLE {table}")
        for table in TABLES
    },
    "without any table": lambda path: run_in(path, "; ".join(f"DROP TABLE {t}" for t in TABLES)),
    "without an index": lambda path: run_in(path, "DROP INDEX gone_changed"),
    "other columns": lambda path: run_in(
        path, "DROP TABLE pins; CREATE TABLE pins (owner INTEGER)"
    ),
    "nothing in totals": lambda path: run_in(path, "DELETE FROM totals"),
    "garbage": garbage,
    "zeros": zeros_within,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, 5000),
    "gone": lambda path: path.unlink(),
    "version": lambda path: run_in(path, "PRAGMA user_version = 99"),
}


@pytest.mark.parametrize("damage", LEDGERS)
def test_damaged_ledger_is_an_empty_cache(tmp_path, filled, caplog, damage):
    LEDGERS[damage](tmp_path / "v1" / "ledger.db")
    cache = BlockCache.open(tmp_path, LIMIT)
    assert not any(get(cache, entry) for entry in filled)
    assert not data_files(tmp_path)
    assert du(tmp_path) < MIB
    assert all(fill(cache, entry) for entry in filled)
    assert all(get(cache, entry) for entry in filled)
    lines = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(lines) == (0 if damage == "gone" else 1)
    check_accounts(cache)
    cache.close()
    cache = BlockCache.open(tmp_path, LIMIT)
    assert all(get(cache, entry) for entry in filled)
    cache.close()


def test_what_could_not_be_recorded_is_recorded_later(tmp_path, monkeypatch, caplog):
    cache = BlockCache.open(tmp_path, LIMIT)
    entry = an_entry()
    assert fill(cache, entry)

    def fail(*_):
        raise sqlite3.OperationalError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "book", fail)
        cache.sync()
    assert "cache bypassed" in caplog.text
    cache.sync()
    check_accounts(cache)
    cache.close()
    cache = BlockCache.open(tmp_path, LIMIT)
    assert get(cache, entry)
    cache.close()


def test_other_rooms_of_the_cache_outlive_the_ledger(tmp_path, filled):
    index = tmp_path / "v1" / "indexes" / "some"
    index.parent.mkdir()
    index.write_text("index")
    garbage(tmp_path / "v1" / "ledger.db")
    BlockCache.open(tmp_path, LIMIT).close()
    assert index.read_text() == "index"


def test_ledger_that_breaks_while_in_use_means_bypass(tmp_path, caplog):
    cache = BlockCache.open(tmp_path, LIMIT)
    entries = [an_entry(f"{n}", size=1000) for n in range(40)]
    for entry in entries:
        fill(cache, entry)
    cache.sync()
    for suffix in ("", "-wal"):
        garbage(tmp_path / "v1" / f"ledger.db{suffix}")
    for entry in entries:
        get(cache, entry)
        fill(cache, an_entry(f"new {entry.name}"))
        cache.sync()
    cache.missing(an_entry(), ByteRange(0, 5))
    cache.statistics()
    cache.close()
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) <= 3
    cache = BlockCache.open(tmp_path, LIMIT)
    assert fill(cache, entries[0])
    check_accounts(cache)
    cache.close()


@pytest.mark.parametrize("table", TABLES)
def test_ledger_that_loses_a_table_while_in_use_means_bypass(tmp_path, caplog, table):
    cache = BlockCache.open(tmp_path, LIMIT)
    assert fill(cache, an_entry("one"))
    cache.sync()
    run_in(tmp_path / "v1" / "ledger.db", f"DROP TABLE {table}")
    for name in ("two", "three"):
        fill(cache, an_entry(name))
        cache.sync()
    cache.drop(an_entry("one"))
    cache.close()
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1
    assert "cache not used until the next start" in caplog.text
    cache = BlockCache.open(tmp_path, LIMIT)
    assert fill(cache, an_entry("two"))
    check_accounts(cache)
    cache.close()


def test_directory_that_is_removed_while_in_use_means_bypass(tmp_path, caplog):
    import shutil

    cache = BlockCache.open(tmp_path, LIMIT)
    entry = an_entry()
    fill(cache, entry)
    shutil.rmtree(tmp_path / "v1")
    assert get(cache, entry)  # still mapped
    assert not fill(cache, an_entry("b"))
    cache.sync()
    cache.sync()
    assert not fill(cache, an_entry("c"))
    cache.close()
    assert caplog.text.count("v1 was removed") == 1


def test_discarded_cache_is_no_concern_of_those_who_use_it(tmp_path):
    """A process that still has the old ledger must not touch the files of the new one."""
    old = BlockCache.open(tmp_path, LIMIT)
    entries = [an_entry(f"{n}", size=1000) for n in range(4)]
    assert fill(old, entries[0])
    old.sync()
    root = tmp_path / "v1"
    for path in list(root.glob("ledger.db*")):
        path.rename(path.with_name(f"away {path.name}"))
    (root / "ledger.db").write_bytes(b"garbage" * 1000)
    new = BlockCache.open(tmp_path, LIMIT)
    assert all(fill(new, entry) for entry in entries[1:])
    assert not fill(old, entries[2])
    old.clear()
    old.sync()
    old.close()
    new.sync()
    assert all(get(new, entry) for entry in entries[1:])
    assert new.check().damaged == 0
    new.close()


def test_unusable_directory_is_a_config_error_not_a_traceback(tmp_path):
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "ledger.db").mkdir()
    with pytest.raises(ConfigError, match=str(tmp_path)):
        BlockCache.open(tmp_path, LIMIT)


def test_what_others_put_there_is_left_alone(tmp_path, filled):
    root = tmp_path / "v1"
    strange = [root / "data" / "notes.txt", root / "data" / "7", root / "owners" / "notes"]
    for path in strange:
        path.mkdir()
    cache = BlockCache.open(tmp_path, LIMIT)
    assert all(get(cache, entry) for entry in filled)
    cache.clear()
    cache.close()
    CacheDirectory(tmp_path).remove()
    assert all(path.is_dir() for path in strange)


def test_leftovers_are_swept_by_name(tmp_path, filled):
    root = tmp_path / "v1"
    orphan = root / "data" / "00ffff00"
    orphan.write_bytes(bytes(500 * KIB))
    (root / "owners" / "0011223344556677").touch()
    rubbish = root / "discarded.abc"
    rubbish.mkdir()
    (rubbish / "file").touch()
    cache = BlockCache.open(tmp_path, LIMIT)
    assert not orphan.exists()
    assert not rubbish.exists()
    assert len(list((root / "owners").iterdir())) == 1
    assert all(get(cache, entry) for entry in filled)
    cache.close()
