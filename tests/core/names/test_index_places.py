"""Where published indexes lie: no two shards share a place, and every place is one that AIStore can store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.names.listing import (
    IndexPlace,
    check_new_key,
    place_in,
    published_key,
    shard_of_published,
)
from aisfs.errors import InvalidName, NameTooLong
from aisfs.model import SERVED, Bucket

OWN = Bucket("aisfs-index")
BUCKETS = st.builds(
    Bucket,
    st.sampled_from(["b", "ais", "s3", "a-b.c"]),
    st.sampled_from(SERVED),
    st.sampled_from(["", "@far#", "@uuid#", "@uuid#ns", "#ns"]),
)
PARTS = st.sampled_from(
    [
        "a",
        "b",
        "x.tar",
        "x.tar.idx",
        "~",
        "\n",
        "#1",
        "@far#b",
        "?",
        "%41",
        "\udcff",
        ".aisfs-index",
    ]
)
KEYS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


@given(BUCKETS, KEYS, BUCKETS, KEYS)
def test_no_two_shards_share_a_place(bucket: Bucket, key: str, other: Bucket, other_key: str):
    same = place_in(OWN, bucket).key(key) == place_in(OWN, other).key(other_key)
    assert same == ((bucket, key) == (other, other_key))


@given(BUCKETS, KEYS)
def test_what_can_be_stored_has_a_place(bucket: Bucket, key: str):
    try:
        check_new_key(bucket, key)
    except InvalidName:
        return
    place = place_in(OWN, bucket)
    check_new_key(OWN, place.key(key))
    directory = key[: key.rfind("/") + 1]
    assert place.key(key).startswith(place.directory(directory))
    assert "/" not in place.key(key).removeprefix(place.directory(directory))


@given(KEYS)
def test_beside(key: str):
    place = IndexPlace(OWN)
    assert place.key(key) == published_key(key)
    assert shard_of_published(place.key(key)) == key


def test_examples():
    assert place_in(OWN, Bucket("pets")).key("train/0.tar") == "ais/pets/train/0.tar.idx"
    far = Bucket("pets", namespace="@uuid#")
    assert place_in(OWN, far).key("0.tar") == "ais/pets@uuid#/0.tar.idx"
    assert place_in(OWN, far).directory("") == "ais/pets@uuid#/"
    with pytest.raises(NameTooLong):
        check_new_key(OWN, place_in(OWN, far).key("x" * 252))
