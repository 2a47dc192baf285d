"""Numbers and lookup counts (invariant I4), against the dumbest model: a multiset."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aisfs.core.names.inodes import (
    ROOT,
    InodeTable,
    directory_number,
    member_number,
    numbers_of,
    split_member,
)

IDENTITIES = [f"node {n}".encode() for n in range(8)]
SHARDS = [f"shard {n}".encode() for n in range(3)]


class Inodes(RuleBasedStateMachine):
    """Names that are looked up, renamed, removed and made again, and forgotten in any order.

    The model: what each number stands for that the kernel knows, and its count. A name that is known
    has one number until it is renamed or removed; no known number ever stands for something else.
    Members are counted on their shard.
    """

    def __init__(self):
        super().__init__()
        self.table = InodeTable(b"root", bytes)
        self.known: dict[int, bytes] = {}
        self.counts = Counter()
        self.removed = 0

    def number(self, identity):
        return next((n for n, known in self.known.items() if known == identity), None)

    def count(self, number, identity):
        assert self.known.setdefault(number, identity) == identity, "it stands for something else"
        self.counts[number] += 1

    def remove(self, number):
        self.removed += 1
        self.known[number] = b"removed %d" % self.removed
        self.table.move(number, self.known[number], self.known[number])

    @rule(identity=st.sampled_from(IDENTITIES))
    def look_up(self, identity):
        number = self.table.number(identity)
        assert self.number(identity) in (None, number)
        self.table.remember(number, identity, identity)
        self.count(number, identity)

    @rule(identity=st.sampled_from(SHARDS), row=st.integers(0, 2**24 - 1))
    def look_up_member(self, identity, row):
        first = self.table.number(identity, shard=True)
        self.table.remember(member_number(first, row), identity, identity)
        self.count(first, identity)

    @rule(identities=st.lists(st.sampled_from(IDENTITIES), unique=True))
    def list_some(self, identities):
        numbers = numbers_of(identities)
        free = self.table.free(numbers, identities)
        assert numbers[:free] == [self.table.number(identity) for identity in identities[:free]]
        assert free == len(numbers) or self.removed, "all are free until one was moved"
        self.table.remember_all(numbers[:free], identities[:free])
        for number, identity in zip(numbers[:free], identities[:free], strict=True):
            self.count(number, identity)
        for identity in identities[free:]:
            self.look_up(identity)

    @rule(old=st.sampled_from(IDENTITIES), new=st.sampled_from(IDENTITIES))
    def rename(self, old, new):
        number, victim = self.number(old), self.number(new)
        if old == new:
            return
        if victim is not None:
            self.remove(victim)
        if number is not None:
            self.removed += 1
            self.known[number] = new
            self.table.move(number, new, new)

    @rule(identity=st.sampled_from(IDENTITIES))
    def remove_one(self, identity):
        number = self.number(identity)
        if number is not None:
            self.remove(number)

    @rule(data=st.data(), row=st.integers(0, 2**24 - 1))
    def forget(self, data, row):
        if not self.known:
            return
        number = data.draw(st.sampled_from(sorted(self.known)))
        count = data.draw(st.integers(1, self.counts[number]))
        one = member_number(number, row) if self.known[number] in SHARDS else number
        assert self.table.forget(one, count) == (count == self.counts[number])
        self.counts[number] -= count
        if not self.counts[number]:
            del self.known[number]

    @invariant()
    def each_has_its_own(self):
        assert dict(self.table.known()) == {ROOT: b"root", **self.known}
        for identity in IDENTITIES:
            number, now = self.number(identity), self.table.number(identity)
            assert now == number if number is not None else now not in self.known
        for number in self.known:
            assert self.table.lookup_count(number) == self.counts[number]
            assert self.table.get(number) == self.known[number]

    @invariant()
    def nothing_is_kept_of_what_is_forgotten(self):
        if not self.known:
            assert [self.table.number(identity) for identity in IDENTITIES] == numbers_of(
                IDENTITIES
            )
            assert self.table.free(numbers_of(IDENTITIES), IDENTITIES) == len(IDENTITIES)


TestInodes = Inodes.TestCase


@given(st.binary(max_size=20), st.integers(0, 2**24 - 1), st.booleans())
def test_number_of_a_member_can_be_taken_apart(identity, low, is_directory):
    first = InodeTable(b"root", bytes).number(identity, shard=True)
    number = (directory_number if is_directory else member_number)(first, low)
    assert split_member(number) == (first, is_directory, low)
    assert 0 < number < 2**64


@given(st.binary(max_size=20))
def test_other_numbers_are_not_members(identity):
    number = InodeTable(b"root", bytes).number(identity)
    assert ROOT < number < 2**63
    assert split_member(number) is None


def test_known_inode_keeps_its_number_when_another_identity_hashes_alike():
    table = InodeTable(b"root", bytes)
    number = table.number(b"first")
    table.remember(number, b"another identity on the same number", b"node")
    assert table.number(b"first") != number


def test_root_is_never_forgotten_and_forgetting_the_unknown_is_harmless():
    table = InodeTable(b"root", bytes)
    table.forget(ROOT, 100)
    table.forget(4711, 1)
    assert table.get(ROOT) == b"root"


def test_numbers_of_many_are_free_up_to_one_that_stands_for_something_else():
    table = InodeTable(b"root", bytes)
    identities = [b"a", b"b", b"c"]
    numbers = numbers_of(identities)
    assert table.free(numbers, identities) == 3
    table.remember(numbers[1], b"another identity", b"node")
    assert table.free(numbers, identities) == 1
    assert table.free(numbers[2:], identities[2:]) == 1
