"""The ledger that several processes share."""

import threading

import pytest

from aisfs.cache.ledger import Ledger

NOW = 1_700_000_000


@pytest.fixture
def ledgers(tmp_path):
    both = [Ledger.open(tmp_path / "ledger.db", "boot") for _ in range(2)]
    yield both
    for ledger in both:
        ledger.close()


def new_segment(ledger, owner, key=b"k" * 20, size=8192):
    with ledger.transaction():
        ledger.grant(owner, size)
        row, _ = ledger.lease(owner, key, NOW)
        assert ledger.book(row.id, size, [(0, 10, b"12345678")]) == size
        ledger.grant(owner, -size)
    return row.id


def enter(ledger, limit):
    with ledger.transaction():
        return ledger.enter(f"token {limit}", limit)


def test_what_is_booked_is_counted_until_it_is_removed(ledgers):
    a, b = ledgers
    owner = enter(a, 100)
    with a.transaction():
        a.grant(owner, 20_000)
    segment = new_segment(a, owner)
    assert b.used() == (8192, 20_000)
    assert b.granted(owner) == 20_000
    assert b.pieces(segment) == [(0, 10, b"12345678")]
    with b.transaction():
        assert b.remove(segment)
        assert not b.remove(segment)
    assert a.used() == (0, 20_000)
    assert a.pieces(segment) == []
    with a.transaction():
        assert a.book(segment, 4096, [(10, 20, b"12345678")]) is None
    assert a.used() == (0, 20_000)


def test_booking_never_lowers_what_another_process_booked(ledgers):
    a, b = ledgers
    segment = new_segment(a, enter(a, 100))
    with b.transaction():
        assert b.book(segment, 4096, []) == 8192
        assert b.book(segment, 12_288, []) == 12_288
    assert a.used()[0] == 12_288
    with b.transaction():
        b.set_bytes(segment, 10_000)
    assert a.used()[0] == 10_000


def test_failed_transaction_changes_nothing(ledgers):
    a, b = ledgers
    owner = enter(a, 100)

    def fail():
        with a.transaction():
            a.grant(owner, 5)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert b.used() == (0, 0)
    with a.transaction():
        a.grant(owner, 7)
    assert b.used() == (0, 7)


def test_who_slept_too_long_loads_everything(ledgers, monkeypatch):
    monkeypatch.setattr("aisfs.cache.ledger._TOMBSTONES", 10)
    a, b = ledgers
    owner = enter(a, 100)
    since = b.changes(-1).until
    kept = new_segment(a, owner, b"kept")
    for number in range(10):
        segment = new_segment(a, owner, bytes([number]))
        with a.transaction():
            a.remove(segment)
    changes = b.changes(since)
    assert changes.gone is None
    assert [row.id for row in changes.rows] == [kept]


def test_numbers_of_segments_are_never_used_again(ledgers):
    a, _ = ledgers
    owner = enter(a, 100)
    first = new_segment(a, owner)
    with a.transaction():
        a.remove(first)
    assert new_segment(a, owner) > first


def test_readers_wait_for_no_transaction(ledgers):
    a, b = ledgers
    segment = new_segment(a, enter(a, 100))
    done = threading.Event()

    def look():
        assert b.pieces(segment)
        assert b.exists(segment)
        assert b.count() == (1, 1)
        done.set()

    with a.transaction():
        thread = threading.Thread(target=look)
        thread.start()
        assert done.wait(2)
    thread.join()


def test_ledger_is_checked_after_the_machine_went_down(tmp_path, monkeypatch):
    checked = []
    monkeypatch.setattr(Ledger, "check", lambda self: checked.append(True))
    path = tmp_path / "ledger.db"
    for boot, checks in (("one", 1), ("one", 1), ("two", 2), ("two", 2)):
        Ledger.open(path, boot).close()
        assert len(checked) == checks


def test_wal_stays_small(tmp_path):
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(path, "boot")
    owner = enter(ledger, 100)
    for number in range(3000):
        new_segment(ledger, owner, number.to_bytes(20, "big"))
    wal = path.with_name("ledger.db-wal")
    assert wal.stat().st_size < 2**20
    ledger.tidy(wal, 1000)
    assert wal.stat().st_size == 0
    ledger.close()
