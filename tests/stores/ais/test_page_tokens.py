"""Listings are complete, or an error, over pages as the real AIStore cuts them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.errors import ProtocolError
from aisfs.http.exchange import Reply
from aisfs.model import Bucket
from aisfs.stores.ais import replies
from aisfs.stores.ais.replies import resume_after
from aisfs.stores.ais.requests import BucketFacts
from tests.support.for_each import for_each
from tests.support.real_paging import RealPaging

B = Bucket("b")
LOOSE = ["top/m", "top/n y", "top/n-2", "top/n.tar", "top/n0", "top/o"]
DIRS = ["top/n-d/", "top/n/", "top/nn/"]
KIT = LOOSE + [f"{name}{n:02d}" for name in DIRS for n in range(16)]

names = st.text(alphabet="n-. /0", min_size=1, max_size=6).filter(
    lambda name: not {"", ".", ".."} & set(name.split("/"))
)
name_sets = st.sets(names, max_size=40)
ALWAYS = 16
"""Entries of a page that always gets on: six prefixes of a name, twice, and what comes again."""


def reply_of(entries: list[str], token: str) -> Reply:
    rows = [{"name": name, "flags": 256 if name.endswith("/") else 64} for name in entries]
    body = json.dumps({"uuid": "u", "continuation_token": token, "entries": rows}).encode()
    return Reply(200, {"content-type": "application/json"}, body)


def listed(server: RealPaging, prefix: str, size: int) -> set[str]:
    """List a directory as the client does it."""
    found: set[str] = set()
    token = ""
    for _ in range(2000):
        reply = reply_of(*server.page(prefix, token, size))
        page = replies.parse_page(reply, B, prefix, BucketFacts(), after=token)
        found |= {info.key for info in page.objects} | set(page.directories)
        token = page.next_token
        if not token:
            return found
    raise AssertionError("the listing has no end")


def level(server: RealPaging, prefix: str) -> set[str]:
    return set(server.page(prefix, "", 10**6)[0])


@for_each("size", [8, 10, 12])
def test_names_of_the_conformance_kit(size: int):
    server = RealPaging((tuple(KIT),))
    assert listed(server, "top/", size) == level(server, "top/") == set(LOOSE + DIRS)


def test_the_model_answers_as_a_real_cluster_did():
    """As recorded in the conformance kit: its own tokens lose four names here."""
    server = RealPaging((tuple(KIT),))
    assert server.page("top/", "", 3) == (["top/m", "top/n y", "top/n/"], "top/n/")
    assert server.page("top/", "top/n/", 3) == (["top/n0", "top/nn/", "top/o"], "top/o")
    assert server.page("top/", "top/o", 3) == ([], "")
    assert server.page("top/", "top/n-d", 5) == (
        ["top/n-d/", "top/n.tar", "top/n/", "top/n0", "top/nn/"],
        "top/nn/",
    )


def complete_or_an_error(server: RealPaging, size: int) -> None:
    try:
        found = listed(server, "", size)
    except ProtocolError:
        assert size < ALWAYS
    else:
        assert found == level(server, "")


@settings(max_examples=400)
@given(name_sets, st.integers(1, 24))
def test_one_target(names: set[str], size: int):
    complete_or_an_error(RealPaging((tuple(names),)), size)


@settings(max_examples=400)
@given(st.lists(name_sets, min_size=2, max_size=4), st.integers(1, 24))
def test_many_targets(held: list[set[str]], size: int):
    complete_or_an_error(RealPaging(tuple(map(tuple, held))), size)


def test_names_that_are_not_utf8_are_not_what_the_listing_goes_on_from():
    """The cluster reads the token as JSON, where such bytes become U+FFFD, a later name."""
    names = ["a", "b", "b\udc80", "b\udcee", "b\udcff"]
    assert resume_after(names, "", names[-1]) == "b"
    assert resume_after(names[2:], "", names[-1]) == ""
    below = [f"\udcff/{name}" for name in names]
    assert resume_after(below, "\udcff/", below[-1]) == "\udcff/b"


def test_token_that_does_not_move_is_an_error():
    for entries, token in ((["a", "b"], "c"), ([], "b"), ([], "a")):
        with pytest.raises(ProtocolError, match="stands still"):
            replies.parse_page(reply_of(entries, token), B, "", BucketFacts(), after="b")
