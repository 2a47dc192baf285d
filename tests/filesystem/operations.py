"""What may happen to a bucket and to a mount of it, as data that hypothesis can make and shrink."""

import os
import tarfile
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.filesystem.model import Member

LONG = "n" * 255
KEYS = (
    # many in one directory, so that it takes several pages
    *(f"many/{n}" for n in range(7)),
    "a", "many/deep/er", "ünï", "new\nline", "odd\udcff", "-rf *", LONG,
    # object and directory of one name
    "p", "p/q", "p/q/r", "p/", "p//q",
    # shards, and keys where their other names would be
    "x.tar", "x.tar.d", "x.tar.d/k", "x.tar.raw", "x.tar.raw/k", "x.tar/in", "x.tar.d.d",
    "d/y.tar", "d/y.tar.d", "d/y.tar.raw", "many/z.tar", "X.TAR", ".tar", "d/.tar",
    f"{'s' * 247}.tar", f"{'s' * 250}.tar",
    # names that no path has, names that stand for these, and real ones that are called so
    "e//f", "e//f/g", "e///h", "/g", "h/./i", "h/../j", ".", "..", "h/..", "aisfs-empty", "e/aisfs-empty/f",
    "e/aisfs-aisfs-empty", "h/aisfs-dot", "h/aisfs-dotdot/k", "aisfs-dots", "aisfs-", "//x.tar",
    # names that cannot be shown
    "d/", "e//", "/", "nul\0", "nul/\0/x",
    f"{LONG}n", f"{LONG}n/below", f"k/{LONG}n.tar",
)  # fmt: skip
FEW_KEYS = (
    *(f"many/{n}" for n in range(4)), "many/z.tar", "many/z.tar.d", "a", "p", "p/q", "x.tar",
    "x.tar.d", "x.tar.d/k", "x.tar.raw", "x.tar/in",
)  # fmt: skip
"""So few that the same name is met again and again."""
ODD = ("", ".", "..")
"""What no kernel asks for."""
NAMES = sorted(
    {part for key in KEYS for part in key.split("/") if part not in ODD and "\0" not in part}
)
"""Names to look for where they may not be."""


@dataclass(frozen=True)
class Put:
    """Write an object: bytes, or a tar of members."""

    key: str
    content: bytes | tuple[Member, ...]


@dataclass(frozen=True)
class Overwrite:
    index: int
    data: bytes


@dataclass(frozen=True)
class Delete:
    index: int


@dataclass(frozen=True)
class Lookup:
    index: int


@dataclass(frozen=True)
class Readdir:
    index: int
    step: int


@dataclass(frozen=True)
class Read:
    index: int
    offset: int
    length: int


@dataclass(frozen=True)
class OpenThenOverwriteThenRead:
    index: int
    data: bytes


@dataclass(frozen=True)
class Forget:
    index: int
    count: int


@dataclass(frozen=True)
class Wait:
    seconds: float


Change = Put | Overwrite | Delete
Use = Lookup | Readdir | Read | OpenThenOverwriteThenRead | Forget
Operation = Change | Use | Wait

FILES = (
    "a", "b", "./a", "/b", "c//d", "c/../b", "d/a", "d/b", "d/e/c", "a/b", "d/a/x", "a~file",
    "../up", "d/../../up", f"{'c' * 300}.bin", f"{'c' * 300}/a", f"{'d' * 100}/{'e' * 100}.txt",
    "1/" * 128 + "deep", "1/" * 127 + "deep", "odd\udcff", "ünï", ".",
)  # fmt: skip
ROOT_TARGETS = (
    "a", "./d/b", "d", "d/../b", "../x", "/abs", "nowhere", "l1", "l2", ".", "d/", "d/l3/c",
)  # fmt: skip
INNER_TARGETS = ("../a", "b", "e", "..", "../../x", "l3", "/d/b")


def _symlinks(names: tuple[str, ...], targets: tuple[str, ...]) -> st.SearchStrategy[Member]:
    return st.builds(
        Member,
        name=st.sampled_from(names),
        kind=st.just(tarfile.SYMTYPE),
        target=st.sampled_from(targets),
    )


def _files(names: tuple[str, ...]) -> st.SearchStrategy[Member]:
    return st.builds(Member, name=st.sampled_from(names), data=st.binary(max_size=8))


members = st.one_of(
    _files(FILES),
    _files(("a", "a/b", "d/a", "d/a/x", "a~file", "./a")),  # these clash
    st.builds(
        Member,
        name=st.sampled_from(("d", "d/e", "a", "empty", ".", "a~file")),
        kind=st.just(tarfile.DIRTYPE),
    ),
    st.builds(
        Member,
        name=st.sampled_from(("h1", "a", "d/h2")),
        kind=st.just(tarfile.LNKTYPE),
        target=st.sampled_from(("a", "./b", "d/a", "h1", "nowhere", "../a", "d")),
    ),
    st.builds(Member, name=st.sampled_from(("fifo", "a")), kind=st.just(tarfile.FIFOTYPE)),
    _symlinks(("l1", "l2"), ROOT_TARGETS),
    _symlinks(("d/l3",), INNER_TARGETS),
)


def _simple_symlinks(drawn: list[Member]) -> tuple[Member, ...]:
    """Two links of one name are left to tests/core: the reference keeps no table of refusals."""
    links = {member.name: member for member in drawn if member.kind == tarfile.SYMTYPE}
    return tuple(m for m in drawn if m.kind != tarfile.SYMTYPE or m is links[m.name])


shards = st.lists(members, max_size=10).map(_simple_symlinks)
indexes = st.integers(0, 1000)
data = st.binary(max_size=600)


def changes_of(keys: tuple[str, ...]) -> st.SearchStrategy[Operation]:
    """What another client may do to a bucket with these keys."""
    tars = st.builds(Put, st.sampled_from([key for key in keys if key.endswith(".tar")]), shards)
    return st.one_of(
        st.builds(Put, st.sampled_from(keys), data),
        tars,
        tars,
        st.builds(Overwrite, indexes, data),
        st.builds(Delete, indexes),
    )


changes = changes_of(KEYS)
all_changes = st.one_of(changes, changes_of(FEW_KEYS))
uses: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Lookup, indexes),
    st.builds(Readdir, indexes, st.integers(1, 3)),
    st.builds(Read, indexes, st.integers(0, 700), st.integers(1, 700)),
    st.builds(OpenThenOverwriteThenRead, indexes, data),
    st.builds(Forget, indexes, st.integers(1, 3)),
)
waits: st.SearchStrategy[Operation] = st.builds(
    Wait, st.sampled_from((1.0, 4.0, 6.0, 29.0, 33.0, 61.0))
)
"""Around the times to live: 5 s for a missing name, 60 s for the rest."""


def histories(
    *of: st.SearchStrategy[Operation], max_size: int = 12
) -> st.SearchStrategy[list[Operation]]:
    """Lists of operations on a bucket that is not empty at the start."""
    begin = st.lists(changes, min_size=3, max_size=8)
    return st.builds(list.__add__, begin, st.lists(st.one_of(*of), min_size=1, max_size=max_size))


DEEPER = int(os.environ.get("AISFS_TEST_DEEPER", "1"))
"""How many times as many examples: 1 gives the same ones each run, more gives ever new ones."""


def examples(count: int) -> settings:
    """Settings of a property test."""
    return settings(
        max_examples=count * DEEPER,
        derandomize=DEEPER == 1,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
