"""The log of inode numbers says what the kernel knows, whatever was learnt, forgotten and rewritten."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.filesystem import takeover
from aisfs.filesystem.nodes import (
    DirectoryNode,
    MergedDirectoryNode,
    Node,
    ObjectNode,
    ProviderNode,
    RemovedDirectoryNode,
    ShardNode,
)
from aisfs.filesystem.takeover import EarlierNumbers, FileName, NumberLog, records
from aisfs.model import Bucket, ObjectInfo, Provider

BUCKET = Bucket("pets", Provider.AWS, "#ns")
names = st.binary(min_size=1, max_size=40).filter(
    lambda name: b"/" not in name and b"\0" not in name
)
numbers = st.integers(2, 30)


def an_object(number: int, name: bytes, parent: int = 5) -> ObjectNode:
    return ObjectNode(BUCKET, ObjectInfo(os.fsdecode(name), number), parent, name)


changes = st.lists(
    st.one_of(
        st.tuples(st.just("files"), st.lists(numbers, min_size=1, max_size=6, unique=True), names),
        st.tuples(st.just("node"), numbers, names),
        st.tuples(st.just("forget"), numbers, st.none()),
        st.tuples(st.just("rewrite"), st.none(), st.none()),
        st.tuples(st.just("next daemon"), st.none(), st.none()),
    ),
    max_size=40,
)


@pytest.fixture
def files() -> Iterator[tuple[int, int]]:
    pair = os.memfd_create("one"), os.memfd_create("other")
    yield pair
    for fd in pair:
        os.close(fd)


@given(changes)
def test_the_next_daemon_knows_what_the_kernel_knows(made: list) -> None:
    files = os.memfd_create("one"), os.memfd_create("other")
    try:
        log, known = NumberLog(files), dict[int, Node]()
        for kind, what, name in made:
            match kind:
                case "files":
                    nodes = [an_object(number, name) for number in what]
                    log.files(what, nodes)
                    known |= zip(what, nodes, strict=True)
                case "node":
                    node = DirectoryNode(BUCKET, os.fsdecode(name))
                    log.node(what, node)
                    known[what] = node
                case "forget" if what in known:
                    log.forgot(what)
                    del known[what]
                case "rewrite":
                    rewrite(log, known)
                case "next daemon":
                    check(EarlierNumbers(log.read()), known)
                    log = NumberLog(files)
        check(EarlierNumbers(NumberLog(files).read()), known)
    finally:
        for fd in files:
            os.close(fd)


def rewrite(log: NumberLog, known: dict[int, Node]) -> None:
    since = log.begin_rewrite()
    log.end_rewrite(since, log.rewrite(records(known.items())))


def check(earlier: EarlierNumbers, known: dict[int, Node]) -> None:
    """What was forgotten last may still be there; everything known is, and right."""
    for number, node in known.items():
        found = earlier.get(number)
        assert found == (FileName(5, node.name) if isinstance(node, ObjectNode) else node)
    assert {number for number, _ in earlier.files()} | {n for n, _ in earlier.nodes()} >= {*known}


@pytest.mark.parametrize(
    "node",
    [
        ProviderNode(Provider.GCP),
        DirectoryNode(BUCKET, "a/\udcff/"),
        MergedDirectoryNode("class", b"cats/\xff", 3),
        ShardNode(
            BUCKET, ObjectInfo("a/x.tar", 9, "1", "xxhash2:12", 7, {"a": "b"}), 5, b"x.tar.d"
        ),
    ],
)
def test_a_node_is_what_it_was(files: tuple[int, int], node: Node) -> None:
    NumberLog(files).node(9, node)
    assert EarlierNumbers(NumberLog(files).read()).get(9) == node


def test_a_record_that_was_not_finished_is_cut_off(files: tuple[int, int]) -> None:
    NumberLog(files).node(9, DirectoryNode(BUCKET, "a/"))
    whole = os.fstat(files[0]).st_size
    NumberLog(files).files([10, 11], [an_object(10, b"x"), an_object(11, b"y")])
    for size in range(whole, os.fstat(files[0]).st_size):
        os.ftruncate(files[0], size)
        log = NumberLog(files)
        assert [*dict(EarlierNumbers(log.read()).nodes())] == [9]
        log.files([12], [an_object(12, b"z")])
        found = EarlierNumbers(NumberLog(files).read())
        assert 12 in found
        assert 10 not in found


def test_what_is_noted_during_a_rewrite_is_kept(files: tuple[int, int]) -> None:
    log = NumberLog(files)
    log.node(2, DirectoryNode(BUCKET, "a/"))
    since = log.begin_rewrite()
    length = log.rewrite(records([(2, DirectoryNode(BUCKET, "a/"))]))
    log.files([3], [an_object(3, b"news")])
    log.end_rewrite(since, length)
    log.files([4], [an_object(4, b"later")])
    found = EarlierNumbers(NumberLog(files).read())
    assert (found.get(3), found.get(4)) == (FileName(5, b"news"), FileName(5, b"later"))
    assert os.fstat(files[0]).st_size == 0, "the room of the old one is free"


def test_a_log_stays_within_bounds(files: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names come and go for as long as the mount lasts."""
    monkeypatch.setattr(takeover, "SLACK", 4096)
    log = NumberLog(files)
    for turn in range(200):
        some = range(2 + 100 * turn, 102 + 100 * turn)
        log.files(some, [an_object(number, b"%d" % number) for number in some])
        for number in some:
            log.forgot(number)
        if log.is_long:
            rewrite(log, {})
    assert sum(os.fstat(fd).st_size for fd in files) < 20_000


def test_an_object_takes_at_most_64_bytes(files: tuple[int, int]) -> None:
    """With a name of usual length, listed or looked up alone."""
    name = b"n01440764_10026_and_more.JPEG"
    log = NumberLog(files)
    log.files([7], [an_object(7, name)])
    assert os.fstat(files[0]).st_size - 16 <= 64
    before = os.fstat(files[0]).st_size
    many = range(10, 1010)
    log.files(many, [an_object(number, name) for number in many])
    assert (os.fstat(files[0]).st_size - before) / 1000 <= len(name) + 11


def test_facts_handles_and_moved_numbers_outlast_a_rewrite(files: tuple[int, int]) -> None:
    log = NumberLog(files)
    moved = an_object(7, b"new name")
    gone = RemovedDirectoryNode(BUCKET, "gone/", 0o700, None, 3)
    log.files([7, 8], [an_object(1, b"old name"), an_object(8, b"same")])
    log.node(7, moved)
    log.node(9, gone)
    log.fact("file 7", ["surrogate \udcff", 1])
    log.fact("file 8", [2])
    log.fact("file 8", None)
    log.fact("place x", ["held", None])
    for count in (1, 1, -1):
        log.handle(1 << 63 | 7, 7, 0, 0, count)
    log.handle(2, 8, 44, 3, 1)
    log.handle(2, 8, 0, 0, -1)
    for _ in range(2):
        log = NumberLog(files)
        earlier = EarlierNumbers(log.read(), log)
        assert earlier.get(7) == moved
        assert earlier.get(8) == FileName(5, b"same")
        assert earlier.get(9) == gone
        assert list(log.facts("file")) == [("7", ["surrogate \udcff", 1])]
        assert log.get("place x") == ["held", None]
        assert log.get("file 8") is None
        assert log.handles == {1 << 63 | 7: (7, 0, 0, 1)}
        since, others = log.begin_rewrite(), log.others()
        known = [(7, moved), (8, an_object(8, b"same")), (9, gone)]
        log.end_rewrite(since, log.rewrite([*records(known, {7}), *others]))


def test_what_was_renamed_since_wins_over_what_earlier_daemons_noted(
    files: tuple[int, int],
) -> None:
    """In the order in which `Inodes.shorten_log` writes."""
    NumberLog(files).files([9], [an_object(9, b"before")])
    log = NumberLog(files)
    earlier = EarlierNumbers(log.read())
    now = records([(9, an_object(9, b"after"))], {9})
    log.end_rewrite(log.begin_rewrite(), log.rewrite([*earlier.records(), *now]))
    assert EarlierNumbers(NumberLog(files).read()).get(9) == an_object(9, b"after")
