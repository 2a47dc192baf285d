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


class LookupCounts(RuleBasedStateMachine):
    """Random lookups and forgets; the books must balance at every step."""

    def __init__(self):
        super().__init__()
        self.table = InodeTable(b"root", bytes)
        self.model = Counter()

    @rule(identity=st.sampled_from(IDENTITIES))
    def look_up(self, identity):
        number = self.table.number(identity)
        self.table.remember(number, identity, identity)
        self.model[number] += 1

    @rule(identities=st.lists(st.sampled_from(IDENTITIES), unique=True))
    def list_all(self, identities):
        numbers = numbers_of(identities)
        assert numbers == [self.table.number(identity) for identity in identities]
        assert self.table.free(numbers, identities) == len(numbers)
        self.table.remember_all(numbers, identities)
        self.model.update(numbers)

    @rule(identity=st.sampled_from(SHARDS), row=st.integers(0, 2**24 - 1))
    def look_up_member(self, identity, row):
        first = self.table.number(identity, shard=True)
        self.table.remember(member_number(first, row), identity, identity)
        self.model[first] += 1

    @rule(identity=st.sampled_from(IDENTITIES), count=st.integers(1, 4))
    def forget(self, identity, count):
        number = self.table.number(identity)
        count = min(count, self.model[number])
        self.table.forget(number, count)
        self.model[number] -= count

    @rule(identity=st.sampled_from(SHARDS), row=st.integers(0, 2**24 - 1))
    def forget_member(self, identity, row):
        first = self.table.number(identity, shard=True)
        if self.model[first]:
            self.table.forget(member_number(first, row), 1)
            self.model[first] -= 1

    @invariant()
    def books_balance(self):
        for identity in IDENTITIES:
            self.check(self.table.number(identity), identity)
        for identity in SHARDS:
            self.check(self.table.number(identity, shard=True), identity)
        assert len(self.table) == 1 + sum(1 for count in self.model.values() if count)

    def check(self, number, identity):
        assert self.table.lookup_count(number) == self.model[number]
        assert self.table.get(number) == (identity if self.model[number] else None)


TestLookupCounts = LookupCounts.TestCase


class Inodes(RuleBasedStateMachine):
    """Names that are looked up, renamed, removed and made again, and forgotten in any order.

    The model: what each number stands for that the kernel knows, and its count. A name that is known
    has one number until it is renamed or removed; no known number ever stands for something else.
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

    @rule(identities=st.lists(st.sampled_from(IDENTITIES), unique=True))
    def list_some(self, identities):
        numbers = numbers_of(identities)
        free = self.table.free(numbers, identities)
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
            self.known[number] = new
            self.table.move(number, new, new)

    @rule(identity=st.sampled_from(IDENTITIES))
    def remove_one(self, identity):
        number = self.number(identity)
        if number is not None:
            self.remove(number)

    @rule(data=st.data())
    def forget(self, data):
        if not self.known:
            return
        number = data.draw(st.sampled_from(sorted(self.known)))
        count = data.draw(st.integers(1, self.counts[number]))
        assert self.table.forget(number, count) == (count == self.counts[number])
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


def test_numbers_are_the_same_in_every_table():
    assert InodeTable(b"root", bytes).number(b"x") == InodeTable(b"root", bytes).number(b"x")


def test_known_inode_keeps_its_number_when_another_identity_hashes_alike():
    table = InodeTable(b"root", bytes)
    number = table.number(b"first")
    table.remember(number, b"another identity on the same number", b"node")
    assert table.number(b"first") != number


def test_root_is_never_forgotten():
    table = InodeTable(b"root", bytes)
    table.forget(ROOT, 100)
    assert table.get(ROOT) == b"root"


def test_what_was_moved_is_forgotten_under_both_names():
    table = InodeTable(b"root", bytes)
    number = table.number(b"old")
    table.remember(number, b"old", b"old", 2)
    table.move(number, b"new", b"new")
    assert table.number(b"new") == number
    assert table.number(b"old") != number
    assert not table.forget(number, 1)
    assert table.forget(number, 1)
    assert table.get(number) is None
    assert table.number(b"old") == number
    assert table.number(b"new") != number


def test_numbers_of_many_are_free_up_to_one_that_stands_for_something_else():
    table = InodeTable(b"root", bytes)
    identities = [b"a", b"b", b"c"]
    numbers = numbers_of(identities)
    assert table.free(numbers, identities) == 3
    table.remember(numbers[1], b"another identity", b"node")
    assert table.free(numbers, identities) == 1
    assert table.free(numbers[2:], identities[2:]) == 1


def test_numbers_of_many_are_free_up_to_one_that_was_moved():
    table = InodeTable(b"root", bytes)
    number = table.number(b"old")
    table.remember_all([number], [b"old"])
    table.move(number, b"b", b"b")
    identities = [b"a", b"b", b"old"]
    numbers = numbers_of(identities)
    assert table.free(numbers, identities) == 1, "b has the number of old"
    assert table.free(numbers[2:], identities[2:]) == 0, "the number of old is that of b"
    assert table.forget(number, 1)
    assert table.free(numbers, identities) == 3


def test_forgetting_the_unknown_is_harmless():
    InodeTable(b"root", bytes).forget(4711, 1)
