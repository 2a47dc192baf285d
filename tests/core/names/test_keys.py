"""Keys to names and back."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.names import listing
from aisfs.core.names.listing import Refusal
from aisfs.errors import InvalidName, NameTooLong
from aisfs.model import Bucket, Provider
from tests.support.for_each import for_each

COMPONENTS = ["", ".", "..", "empty", "dot", "dotdot", "aisfs-", "aisfs-emptyx", "aisfs-.", "aisfs"]
COMPONENTS += ["aisfs-" * n + word for n in (1, 2, 3) for word in ("empty", "dot", "dotdot")]


@given(st.binary(max_size=300).filter(lambda b: b"/" not in b) | st.sampled_from(COMPONENTS))
def test_every_component_is_refused_or_comes_back(raw):
    component = raw if isinstance(raw, str) else os.fsdecode(raw)
    name = listing.entry_name("dir/", f"dir/{component}")
    assert name not in (b"", b".", b"..")
    if listing.refusal(name) is None:
        assert listing.child_key("dir/", name) == f"dir/{component}"
        assert listing.child_prefix("dir/", name) == f"dir/{component}/"
        assert listing.entry_name("dir/", f"dir/{component}/") == name


@given(st.binary(min_size=1, max_size=255).filter(lambda b: b"/" not in b and b"\0" not in b))
def test_every_name_of_a_path_stands_for_one_component(name):
    if name not in (b".", b".."):
        assert listing.entry_name("dir/", listing.child_key("dir/", name)) == name


def test_no_two_components_meet_under_one_name():
    names = {component: listing.entry_name("", component) for component in COMPONENTS}
    assert len(set(names.values())) == len(COMPONENTS)
    assert names[""] == b"aisfs-empty"
    assert names["."] == b"aisfs-dot"
    assert names[".."] == b"aisfs-dotdot"
    assert names["aisfs-empty"] == b"aisfs-aisfs-empty"
    assert all(names[usual] == usual.encode() for usual in ("empty", "aisfs-", "aisfs-emptyx"))


@for_each(
    "key, path",
    [
        ("a/b.jpg", "a/b.jpg"),
        ("a//b", "a/aisfs-empty/b"),
        ("/../x", "aisfs-empty/aisfs-dotdot/x"),
        ("a/.", "a/aisfs-dot"),
        ("a/aisfs-dot/x", "a/aisfs-aisfs-dot/x"),
        ("a/.../aisfs-dots", "a/.../aisfs-dots"),
    ],
)
def test_path_of_a_key(key, path):
    assert listing.path_of(key) == path


@for_each("key", ["", "/", "a/", "a//"])
def test_a_marker_of_a_directory_is_no_file(key):
    assert not listing.is_key(key)
    for provider in (Provider.AIS, Provider.S3):
        with pytest.raises(InvalidName):
            listing.check_new_key(Bucket("b", provider), key)


@for_each("key", ["a//b", "/a", "a/./b", "..", "//"])
def test_only_s3_takes_components_that_no_path_has(key):
    listing.check_new_key(Bucket("b", Provider.S3), key, directory=True)
    for provider in (Provider.AIS, Provider.AWS, Provider.GS, Provider.AZ):
        with pytest.raises(InvalidName, match="cannot be written"):
            listing.check_new_key(Bucket("b", provider), key, directory=True)


@for_each(
    "name, reason",
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
    assert listing.refusal(name) is reason


def test_directory_name_has_no_slash():
    assert listing.entry_name("a/", "a/b/") == b"b"
    assert listing.child_prefix("a/", b"b") == "a/b/"


@for_each(
    "name, shard", [(b"x.tar.d", b"x.tar"), (b"x.d", None), (b".tar.d", None), (b"x.tar", None)]
)
def test_folder_of_a_shard(name, shard):
    assert listing.shard_of_directory(name) == shard


@for_each("name, shard", [(b"x.tar.raw", b"x.tar"), (b"x.raw", None)])
def test_bytes_of_a_shard(name, shard):
    assert listing.shard_of_bytes(name) == shard


@for_each("space", ["", "#ns", "@uuid#", "@uuid#ns"])
def test_bucket_name_round_trip(space):
    bucket = Bucket("pets-1.0", Provider.AWS, space)
    assert listing.parse_bucket_name(Provider.AWS, listing.bucket_name(bucket)) == bucket


@for_each("name", [b"\xff", b"a b", b"", b"a/b", b"@ns", "ü".encode()])
def test_what_no_bucket_is_called(name):
    assert not listing.is_bucket_name(name)


@for_each(
    "bucket, most",
    [
        (Bucket("b"), 4096 - 1 - 256),
        (Bucket("b", path="/data/b"), 4096 - 1 - len("/data/b/")),
        (Bucket("b", path="/dätä"), 4096 - 1 - len("/dätä/".encode())),
    ],
)
def test_a_new_key_can_be_the_path_of_a_file(bucket: Bucket, most: int):
    longest = "ä/" * (most // 3) + "x" * (most % 3) if most % 3 else "ä/" * (most // 3 - 1) + "xyz"
    assert len(longest.encode()) == most
    listing.check_new_key(bucket, longest)
    with pytest.raises(NameTooLong, match=f"at most {most} bytes"):
        listing.check_new_key(bucket, f"{longest}x")
