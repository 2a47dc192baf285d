"""Records of staged files, and mode and time as custom metadata."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.engine.writing.on_disk import StagedRecord
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.stores.posix_metadata import MODE, MTIME, mode_of, mtime_of, with_posix_metadata
from tests.support.for_each import for_each

names = st.binary(max_size=30).map(lambda raw: raw.decode(errors="surrogateescape"))


@given(
    st.builds(
        StagedRecord,
        endpoint=names,
        bucket=st.builds(Bucket, names, st.sampled_from(Provider), names),
        key=names,
        member=names,
        base=names,
        mode=st.none() | st.integers(0, 0o777),
        reason=names,
        only_new=names,
    )
)
def test_a_record_comes_back_whole(record: StagedRecord):
    assert StagedRecord.decode(record.encode()) == record


@for_each("data", [b"", b"{", b"[]", b"1", b"{}", b'{"layout": 2}', b'{"layout": 1}', b"\xff"])
def test_what_is_no_record_is_told(data: bytes):
    with pytest.raises(ValueError, match=r"."):
        StagedRecord.decode(data)


@given(st.integers(0, 2**62), st.none() | st.integers(0, 0o777))
def test_a_stamp_comes_back(mtime_ns: int, mode: int | None):
    custom = with_posix_metadata(
        {"other": "kept", MODE: "777", MTIME: "1"}, mtime_ns=mtime_ns, mode=mode
    )
    info = ObjectInfo("k", 1, mtime_ns=5, custom=custom)
    assert (mtime_of(info), mode_of(info)) == (mtime_ns, mode)
    assert custom["other"] == "kept"


@given(st.text(), st.text())
def test_stamps_are_untrusted(mtime: str, mode: str):
    info = ObjectInfo("k", 1, mtime_ns=5, custom={MTIME: mtime, MODE: mode})
    assert 0 <= mtime_of(info) < 2**63
    assert mode_of(info) is None or 0 <= mode_of(info) <= 0o777
