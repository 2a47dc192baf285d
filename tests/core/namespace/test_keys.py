"""Keys to names and back."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.namespace import keys
from aisfs.core.namespace.keys import Refusal
from aisfs.errors import NameTooLong
from aisfs.model import Bucket, Provider


@given(st.binary(min_size=1, max_size=300).filter(lambda b: b"/" not in b))
def test_every_name_is_refused_or_comes_back(raw):
    key = "dir/" + os.fsdecode(raw)
    name = keys.entry_name("dir/", key)
    if keys.refusal(name) is None:
        assert keys.child_key("dir/", name) == key
        assert name == raw


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"", Refusal.EMPTY_COMPONENT),
        (b".", Refusal.DOTS),
        (b"..", Refusal.DOTS),
        (b"n" * 256, Refusal.TOO_LONG),
        (b"a\0b", Refusal.NUL),
        (b"n" * 255, None),
        (b"...", None),
        (b"\xff", None),
        (b"new\nline", None),
    ],
)
def test_refusal(name, reason):
    assert keys.refusal(name) is reason


def test_directory_name_has_no_slash():
    assert keys.entry_name("a/", "a/b/") == b"b"
    assert keys.child_prefix("a/", b"b") == "a/b/"


@pytest.mark.parametrize(
    ("name", "shard"), [(b"x.tar.d", b"x.tar"), (b"x.d", None), (b".tar.d", None), (b"x.tar", None)]
)
def test_folder_of_a_shard(name, shard):
    assert keys.shard_of_directory(name) == shard


@pytest.mark.parametrize(("name", "shard"), [(b"x.tar.raw", b"x.tar"), (b"x.raw", None)])
def test_bytes_of_a_shard(name, shard):
    assert keys.shard_of_bytes(name) == shard


@pytest.mark.parametrize("space", ["", "#ns", "@uuid#", "@uuid#ns"])
def test_bucket_name_round_trip(space):
    bucket = Bucket("pets-1.0", Provider.AWS, space)
    assert keys.parse_bucket_name(Provider.AWS, keys.bucket_name(bucket)) == bucket


@pytest.mark.parametrize("name", [b"\xff", b"a b", b"", b"a/b", b"@ns", "ü".encode()])
def test_what_no_bucket_is_called(name):
    assert not keys.is_bucket_name(name)


@pytest.mark.parametrize(
    ("bucket", "most"),
    [
        (Bucket("b"), 4096 - 1 - 256),
        (Bucket("b", path="/data/b"), 4096 - 1 - len("/data/b/")),
        (Bucket("b", path="/dätä"), 4096 - 1 - len("/dätä/".encode())),
    ],
)
def test_a_new_key_can_be_the_path_of_a_file(bucket: Bucket, most: int):
    longest = "ä/" * (most // 3) + "x" * (most % 3) if most % 3 else "ä/" * (most // 3 - 1) + "xyz"
    assert len(longest.encode()) == most
    keys.check_new_key(bucket, longest)
    with pytest.raises(NameTooLong, match=f"at most {most} bytes"):
        keys.check_new_key(bucket, f"{longest}x")
