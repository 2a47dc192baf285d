"""The journal of acknowledged files: what is whole comes back, and only what nothing has ended."""

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.staged.journal import content_at, decode, encode, live
from aisfs.core.staged.record import StagedRecord
from aisfs.model import Bucket

RECORDS = [StagedRecord("http://x", Bucket("b"), key) for key in ("k0", "k1", "k\udcff")]
contents = st.binary(max_size=40)
steps = st.lists(
    st.tuples(st.sampled_from(RECORDS) | st.none(), contents, st.lists(st.integers(0, 9))),
    max_size=10,
)


def journal(made: list[tuple[StagedRecord | None, bytes, list[int]]]) -> list[bytes]:
    return [
        encode(serial, serial * 7, ended, record.encode() if record else b"", content)
        for serial, (record, content, ended) in enumerate(made)
    ]


@given(steps, st.integers(0, 30))
def test_frames_come_back(made: list, zeros: int):
    frames = journal(made)
    data = b"".join(frames) + bytes(zeros)
    found = list(decode(memoryview(data)))
    assert [(f.record, data[f.start : f.start + f.size], list(f.ended)) for f in found] == made
    assert [f.serial for f in found] == list(range(len(made)))
    start = 0
    for frame, found_frame in zip(frames, found, strict=True):
        assert start + content_at(frame, found_frame.size) == found_frame.start
        start += len(frame)


@given(st.integers(-(1 << 70), 1 << 70))
def test_a_time_that_does_not_fit_is_the_nearest_that_does(mtime_ns: int):
    (found,) = decode(memoryview(encode(1, mtime_ns, [])))
    most = (1 << 63) - 1
    assert found.mtime_ns == min(max(mtime_ns, -most), most)


@given(steps, st.data())
def test_what_was_cut_off_or_damaged_ends_it(made: list, data: st.DataObject):
    frames = journal(made)
    whole = b"".join(frames)
    at = data.draw(st.integers(0, len(whole)))
    cut = whole[:at] + bytes(data.draw(st.integers(0, 50)))
    expected, start = 0, 0
    for frame in frames:
        start += len(frame)
        # A cut in zeros that are zeros again is none.
        expected += cut[:start] == whole[:start]
    assert len(list(decode(memoryview(cut)))) == expected
    if whole:
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = bytearray(whole)
        damaged[at] ^= data.draw(st.integers(1, 255))
        before = sum(at >= sum(map(len, frames[: n + 1])) for n in range(len(frames)))
        assert len(list(decode(memoryview(damaged)))) == before


@given(steps)
def test_what_is_live(made: list):
    frames = list(decode(memoryview(b"".join(journal(made)))))
    model: dict[str, int] = {}
    for serial, (record, _, ended) in enumerate(made):
        model = {key: s for key, s in model.items() if s not in ended}
        if record is not None:
            model[record.key] = serial
    assert {f.record.key: f.serial for f in live(reversed(frames))} == model
