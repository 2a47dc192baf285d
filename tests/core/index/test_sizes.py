"""The published table of sizes of transformed objects."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.index.sizes import BYTES_MOST, ROWS_MOST, decode_sizes, encode_sizes
from aisfs.errors import IndexRefused

DIGESTS = st.binary(min_size=16, max_size=16)
TABLES = st.dictionaries(DIGESTS, st.tuples(st.integers(0, 2**63 - 1), DIGESTS))


@given(TABLES)
def test_what_is_encoded_is_decoded(rows):
    assert decode_sizes(encode_sizes(rows)) == rows


@given(TABLES, st.data())
def test_damage_is_noticed(rows, data):
    whole = encode_sizes(rows)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for damaged in (changed, whole[:at], whole + b"x"):
        with pytest.raises(IndexRefused):
            decode_sizes(damaged)


def test_bytes_behind_the_table_are_refused():
    """Also where the checksum is right."""
    data = encode_sizes({b"d" * 16: (1, b"c" * 16)})[:-32] + b"more"
    with pytest.raises(IndexRefused, match="length"):
        decode_sizes(data + sha256(data).digest())


def test_no_table_is_larger_than_is_read():
    rows = {at.to_bytes(16, "little"): (at, at.to_bytes(16, "big")) for at in range(1000)}
    each = len(encode_sizes(rows)) / 1000
    assert each < 10  # these are alike; of real ones 32 bytes are as good as random
    assert ROWS_MOST * 40 < BYTES_MOST
