"""The model of AIStore's pages: what a walk meets, what pages lose, and the way round it."""

from collections.abc import Callable, Iterator
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from aisfs.server.api.list_objects import as_met, cut_page, join_pages, walk_disk

COMPONENT = st.text("an-. 0~", min_size=1, max_size=3).map(str.encode)
"""Few characters, on both sides of the slash, so that names often begin alike."""
KEYS = st.sets(st.lists(COMPONENT, min_size=1, max_size=3).map(b"/".join), min_size=1, max_size=25)
PREFIX = st.one_of(st.just(b""), KEYS.map(min), KEYS.map(lambda keys: min(keys)[:-1]))


class Tree:
    """Objects as directories, where one key may be an object and a directory."""

    def __init__(self, keys: set[bytes]) -> None:
        self._names: dict[bytes, set[bytes]] = {}
        for key in keys:
            parts = key.split(b"/")
            for depth, part in enumerate(parts):
                inside = b"".join(p + b"/" for p in parts[:depth])
                name = part if depth == len(parts) - 1 else part + b"/"
                self._names.setdefault(inside, set()).add(name)

    def names(self, inside: bytes) -> list[bytes]:
        return sorted(self._names.get(inside, ()), key=as_met)

    @property
    def directories(self) -> set[bytes]:
        return self._names.keys() - {b""}


def listing(
    keys: set[bytes],
    size: int,
    recursive: bool,
    next_token: Callable[[bytes, list[bytes]], bytes] = lambda token, _: token,
) -> tuple[list[bytes], bool]:
    """Give all names that pages of this size show, and whether the token always moved on."""
    tree, token, found = Tree(keys), b"", list[bytes]()

    def walk_of(disk: int, after: bytes) -> Iterator[bytes]:
        for key in walk_disk(tree.names, b"", after, recursive):
            if key.endswith(b"/") or crc32(key) % 2 == disk:
                yield key

    for _ in range(5 * len(keys) + 5):
        of_target = cut_page([walk_of(0, token), walk_of(1, token)], token, b"", size)
        page, given_token = join_pages([of_target], size)
        assert page == sorted(set(page))
        assert len(page) <= size
        found += page
        if not given_token:
            return found, True
        following = next_token(given_token, page)
        if following == token:
            return found, False
        token = following
    raise AssertionError("no end")


def greatest_without_slash(_: bytes, page: list[bytes]) -> bytes:
    return max(name.removesuffix(b"/") for name in page)


def level(keys: set[bytes]) -> set[bytes]:
    return {key if b"/" not in key else key.partition(b"/")[0] + b"/" for key in keys}


@given(KEYS, PREFIX)
def test_a_walk_meets_every_object_once_and_directories_at_their_bare_names(
    keys: set[bytes], prefix: bytes
) -> None:
    met = list(walk_disk(Tree(keys).names, prefix, b"", recursive=True))
    assert met == sorted((k for k in keys if k.startswith(prefix)), key=lambda k: k.split(b"/"))


@given(KEYS, PREFIX, KEYS.map(max), st.booleans(), st.booleans())
def test_a_walk_from_a_name_is_the_walk_without_what_is_not_greater(
    keys: set[bytes], prefix: bytes, after: bytes, slash: bool, recursive: bool
) -> None:
    after += b"/" * slash
    names = Tree(keys).names
    whole = list(walk_disk(names, prefix, b"", recursive))
    assert list(walk_disk(names, prefix, after, recursive)) == [key for key in whole if key > after]


@given(KEYS, st.booleans())
def test_one_page_loses_nothing(keys: set[bytes], recursive: bool) -> None:
    found, _ = listing(keys, 10 * len(keys), recursive)
    assert found == sorted(keys if recursive else level(keys))


@given(KEYS, st.integers(1, 30), st.booleans())
def test_pages_lose_only_what_is_between_a_directory_and_its_slash(
    keys: set[bytes], size: int, recursive: bool
) -> None:
    found, moved = listing(keys, size, recursive)
    assert moved
    lost = (keys if recursive else level(keys)) - set(found)
    directories = Tree(keys).directories
    for name in lost:
        assert any(d.removesuffix(b"/") < name < d for d in directories)


@given(KEYS, st.integers(1, 30))
def test_the_greatest_bare_name_as_token_loses_nothing_where_pages_have_room(
    keys: set[bytes], size: int
) -> None:
    found, moved = listing(keys, size, False, greatest_without_slash)
    if size > len(Tree(keys).directories):
        assert moved
    if moved:
        assert set(found) == level(keys)


def test_the_pages_that_were_recorded() -> None:
    loose = {b"m", b"n y", b"n-2", b"n.tar", b"n0", b"o"}
    keys = loose | {b"%s/%d" % (name, n) for name in (b"n-d", b"n", b"nn") for n in range(16)}
    assert listing(keys, 3, False)[0] == [b"m", b"n y", b"n/", b"n0", b"nn/", b"o"]
    lost = keys - set(listing(keys, 1, True)[0])
    assert lost == {b"n y", b"n-2", b"n.tar", *(key for key in keys if key.startswith(b"n-d/"))}
    pages = listing(keys, 5, False, greatest_without_slash)[0]
    assert pages == [
        *(b"m", b"n y", b"n-2", b"n-d/", b"n/"),
        *(b"n-d/", b"n.tar", b"n/", b"n0", b"nn/"),
        *(b"nn/", b"o"),
    ]


def test_a_listing_ends_at_a_corrupted_object_wherever_it_began() -> None:
    tree = Tree({b"a", b"b", b"c"})
    for token, expected in ((b"", [b"a"]), (b"b", [])):
        pages = cut_page([walk_disk(tree.names, b"", b"", True)], token, b"", 9, frozenset({b"b"}))
        assert pages == expected
