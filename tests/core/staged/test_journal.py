"""The journal of acknowledged files: what is whole comes back, whatever is damaged beside it, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.staged.journal import Frame, content_at, decode, encode, live, session_seed
from aisfs.core.staged.record import StagedRecord
from aisfs.model import Bucket
from tests.support.old_journal import old_frame

SEED = session_seed("0123456789ab")
CAPACITY = 1 << 14
RECORDS = [StagedRecord("http://x", Bucket("b"), key) for key in ("k0", "k1", "k\udcff")]
contents = st.binary(max_size=40)
Made = list[tuple[StagedRecord | None, bytes, list[int]]]
steps = st.lists(
    st.tuples(st.sampled_from(RECORDS) | st.none(), contents, st.lists(st.integers(0, 9))),
    max_size=10,
)


def journal(made: Made, seed: int = SEED) -> list[bytes]:
    return [
        encode(
            serial, serial * 7, ended, record.encode() if record else b"", content,
            written_ns=serial * 5, seed=seed, capacity=CAPACITY,
        )
        for serial, (record, content, ended) in enumerate(made)
    ]  # fmt: skip


def filled(frames: list[bytes]) -> bytes:
    return b"".join(frames).ljust(CAPACITY, b"\0")


def told(data: bytes, found: list[Frame]) -> Made:
    return [(f.record, data[f.start : f.start + f.size], list(f.ended)) for f in found]


@given(steps)
def test_frames_come_back(made: Made):
    frames = journal(made)
    data = filled(frames)
    found, gaps = decode(data, SEED)
    assert (told(data, found), gaps) == (made, [])
    assert [(f.serial, f.mtime_ns, f.written_ns) for f in found] == [
        (n, n * 7, n * 5) for n in range(len(made))
    ]
    assert not any(f.damaged or f.repaired for f in found)
    start = 0
    for frame, found_frame in zip(frames, found, strict=True):
        assert start + content_at(frame, found_frame.size) == found_frame.start
        start += len(frame)


@given(steps, st.integers(1, 30))
def test_older_frames_come_back(made: Made, zeros: int):
    frames = [
        old_frame(serial, serial * 7, ended, record.encode() if record else b"", content)
        for serial, (record, content, ended) in enumerate(made)
    ]
    data = b"".join(frames) + bytes(zeros)
    found, gaps = decode(data, SEED)
    assert (told(data, found), gaps) == (made, [])
    assert [f.mtime_ns for f in found] == [n * 7 for n in range(len(made))]
    for damaged in range(len(frames)):
        start = sum(map(len, frames[:damaged]))
        for at in (start, start + 20, start + 30, start + len(frames[damaged]) - 1):
            flipped = bytearray(data)
            flipped[at] ^= 1
            found, gaps = decode(bytes(flipped), SEED)
            assert told(data, found) == made[:damaged] + made[damaged + 1 :]
            assert [g.start for g in gaps] == [start]


@given(st.integers(-(1 << 70), 1 << 70))
def test_a_time_that_does_not_fit_is_the_nearest_that_does(mtime_ns: int):
    frame = encode(1, mtime_ns, [], written_ns=0, seed=SEED, capacity=CAPACITY)
    ((found,), _) = decode(filled([frame]), SEED)
    most = (1 << 63) - 1
    assert found.mtime_ns == min(max(mtime_ns, -most), most)


@given(steps.filter(bool), st.data())
def test_one_damaged_byte_costs_one_content_at_most(made: Made, data: st.DataObject):
    whole = filled(journal(made))
    at = data.draw(st.integers(0, len(whole.rstrip(b"\0")) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    found, gaps = decode(bytes(damaged), SEED)
    assert gaps == []
    assert told(whole, found) == made, "whose it is and what it ends is known"
    for frame in found:
        in_content = frame.start <= at < frame.start + frame.size
        assert frame.damaged == in_content
    assert sum(f.damaged or f.repaired for f in found) == 1


@given(steps, st.data())
def test_what_is_cut_off_is_missed(made: Made, data: st.DataObject):
    frames = journal(made)
    at = data.draw(st.integers(0, sum(map(len, frames)) + 10))
    found, gaps = decode(filled(frames)[:at], SEED)
    complete = 0
    while sum(map(len, frames[: complete + 1])) <= at and complete < len(frames):
        complete += 1
    whole = [frame for frame in found if not frame.damaged]
    assert told(filled(frames), whole)[:complete] == made[:complete]
    assert bool(gaps) == (bool(found) or at == 0 or bool(filled(frames)[:at].strip(b"\0")))


@given(steps.filter(bool), st.data())
def test_a_frame_that_was_only_begun_was_acknowledged_to_nobody(made: Made, data: st.DataObject):
    """As a process leaves it that is killed while it writes."""
    frames = journal(made)
    begun = len(frames[-1]) - content_at(frames[-1], len(made[-1][1]))  # up to the second block
    at = data.draw(st.integers(content_at(frames[-1], len(made[-1][1])), begun))
    found, gaps = decode(filled([*frames[:-1], frames[-1][:at]]), SEED)
    assert gaps == []
    assert not any(frame.damaged or frame.repaired for frame in found)
    assert told(filled(frames), found) in (made, made[:-1])


@given(steps, st.data())
def test_whatever_is_damaged_nothing_wrong_comes_back(made: Made, data: st.DataObject):
    frames = journal(made)
    whole = filled(frames)
    used = sum(map(len, frames)) + 20
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 5))):
        start, size = data.draw(st.integers(0, used)), data.draw(st.integers(1, 200))
        damaged[start : start + size] = data.draw(st.binary(min_size=size, max_size=size))
    found, gaps = decode(bytes(damaged), SEED)
    known = {frame.serial: frame for frame in found}
    start = 0
    for serial, frame in enumerate(frames):
        here = known.pop(serial, None)
        stop = start + len(frame)
        if here is None:
            if any(damaged[start:stop]):
                assert any(g.start < stop and start < g.start + g.size for g in gaps)
        else:
            content = bytes(damaged[here.start : here.start + here.size])
            assert here.damaged == (content != made[serial][1])
            assert (here.record, list(here.ended)) == (made[serial][0], made[serial][2])
        start = stop
    assert not known


@given(steps.filter(bool), steps)
def test_frames_that_a_file_contains_are_no_frames(inner: Made, made: Made):
    """Somebody keeps a copy of another journal in the mount, and whose copy it is is damaged."""
    copied = b"".join(journal(inner, session_seed("another")))
    frames = journal([(RECORDS[0], copied, []), *made])
    damaged = bytearray(filled(frames))
    head = content_at(frames[0], len(copied))
    damaged[10] ^= 1
    damaged[head + len(copied) + 10] ^= 1
    found, gaps = decode(bytes(damaged), SEED)
    assert told(filled(frames), found) == made
    assert [(gap.start, gap.size) for gap in gaps] == [(0, len(frames[0]))]


def test_an_empty_journal_has_lost_what_it_had():
    assert len(decode(b"", SEED)[1]) == 1
    assert decode(bytes(100), SEED) == ([], []), "none was written to it yet"


@given(steps)
def test_what_is_live(made: Made):
    frames, _ = decode(filled(journal(made)), SEED)
    model: dict[str, int] = {}
    for serial, (record, _, ended) in enumerate(made):
        model = {key: s for key, s in model.items() if s not in ended}
        if record is not None:
            model[record.key] = serial
    assert {f.record.key: f.serial for f in live(reversed(frames)) if f.record} == model
