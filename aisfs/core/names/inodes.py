"""Inode numbers and lookup counts.

A number is computed from its identity (bucket, key and version, or directory), so it is the same in
every process and after every remount. A new version of an object has a new number (invariant I2), so
the kernel never mixes two versions in one page cache.

    bit 63   25..62           24          0..23
    0        hash of an object or a directory of a bucket
    1        hash of a shard  directory?  row of the member index, or directory of the view

The table holds what the kernel knows: `lookup count = lookups + readdirplus entries - forgets`
(invariant I4). Members and directories of one shard share one slot, keyed by the shard's part of
the number, because a shard of a million members must not cost a million slots. A directory of a
million objects does, so a slot is only its node: the identity is computed again when needed, and the
usual count of one is not stored.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

ROOT = 1
_SHARD = 1 << 63
_DIRECTORY = 1 << 24
SLOT_BITS = 25
"""Bits of a member's number that say which of its shard it is."""
_LOW = (1 << 24) - 1
MAX_MEMBERS = 1 << 24
"""Rows and directories of one shard that can be numbered; AIStore's own index stops at 2^20."""

NodeT = TypeVar("NodeT")
AnyT = TypeVar("AnyT")


def member_number(shard: int, row: int) -> int:
    """Return the number of the member `row` of the shard whose first number is `shard`."""
    return shard | row


def directory_number(shard: int, directory: int) -> int:
    """Return the number of a directory of the shard whose first number is `shard`."""
    return shard | _DIRECTORY | directory


def split_member(number: int) -> tuple[int, bool, int] | None:
    """Return (shard, is a directory, row or directory) of a number; None for any other inode."""
    if not number & _SHARD:
        return None
    return number >> SLOT_BITS << SLOT_BITS, bool(number & _DIRECTORY), number & _LOW


def slot_of(number: int) -> int:
    """Return the inode that counts the lookups of an inode: itself, or its shard."""
    return number >> SLOT_BITS << SLOT_BITS if number & _SHARD else number


def _hash(identity: bytes, salt: int = 0, *, shard: bool = False) -> int:
    digest = blake2b(identity, digest_size=8, salt=salt.to_bytes(16, "little")).digest()
    value = int.from_bytes(digest, "little")
    return (value >> SLOT_BITS << SLOT_BITS) | _SHARD if shard else value & ~_SHARD


def numbers_of(identities: Iterable[bytes]) -> list[int]:
    """Return the numbers that identities have unless they are taken."""
    return [
        int.from_bytes(blake2b(identity, digest_size=8).digest(), "little") & ~_SHARD
        for identity in identities
    ]


class InodeTable(Generic[NodeT]):
    """The nodes of the inode numbers that the kernel knows."""

    def __init__(self, root: NodeT, spell: Callable[[NodeT], bytes]) -> None:
        """Start with the root, which is never forgotten; `spell` returns the identity of a node."""
        self._spell = spell
        self._nodes: dict[int, NodeT] = {ROOT: root}
        self._counts: dict[int, int] = {}
        """Counts other than one."""
        self._identities: dict[int, bytes] = {}
        """Identities that may differ from the node's."""
        self._moved: dict[bytes, int] = {}
        """Numbers of identities that they were not computed from."""
        self._deserted: dict[int, int] = {}
        """By number: how many of these identities it would have been computed from."""

    def __len__(self) -> int:
        return len(self._nodes)

    def number(self, identity: bytes, *, shard: bool = False) -> int:
        """Return the number of an identity.

        Where the kernel knows that number for something else, of which this is another version, or
        which has the same hash, the identity is hashed again with a salt. So a number with a positive
        count never changes its meaning, and an identity that the kernel knows keeps its number.
        """
        moved = self._moved.get(identity)
        if moved is not None:
            return moved
        salt = 0
        while True:
            number = _hash(identity, salt, shard=shard)
            if number > ROOT and self._identity(number) in (None, identity):
                return number
            salt += 1

    def _identity(self, number: int) -> bytes | None:
        """Return the identity that has a number; None when it is free."""
        node = self._nodes.get(number)
        if node is None:
            return None
        known = self._identities.get(number)
        return self._spell(node) if known is None else known

    def free(self, numbers: Sequence[int], identities: Sequence[bytes]) -> int:
        """Return for how many of the first identities `number` agrees with `numbers_of`."""
        nodes, deserted = self._nodes, self._deserted
        if nodes.keys().isdisjoint(numbers) and not deserted:
            return len(numbers)
        for at, number in enumerate(numbers):
            if number in deserted or self._identity(number) not in (None, identities[at]):
                return at
        return len(numbers)

    def remember(self, number: int, identity: bytes, node: NodeT, count: int = 1) -> None:
        """Count lookups of `number`, which came from `number(identity)`.

        The numbers of members are counted on their shard.
        """
        slot = slot_of(number)
        if slot in self._nodes:
            self._counts[slot] = self._counts.get(slot, 1) + count
            return
        if count != 1:
            self._counts[slot] = count
        self._nodes[slot] = node
        self._identities[slot] = identity
        if slot != _hash(identity, shard=bool(slot & _SHARD)):
            self._settle_on(
                slot, identity
            )  # also when the number it was computed from is free again

    def unknown(
        self, numbers: Sequence[int], nodes: Sequence[AnyT]
    ) -> tuple[Sequence[int], Sequence[AnyT]]:
        """Return those of some numbers that the kernel does not know, with their nodes."""
        if self._nodes.keys().isdisjoint(numbers):
            return numbers, nodes
        at = [at for at, number in enumerate(numbers) if number not in self._nodes]
        return [numbers[each] for each in at], [nodes[each] for each in at]

    def remember_all(self, numbers: Sequence[int], nodes: Sequence[NodeT]) -> None:
        """Count one lookup of each of some `numbers`, which are `free` for what `nodes` spell."""
        if self._nodes.keys().isdisjoint(numbers):
            self._nodes.update(zip(numbers, nodes, strict=True))
            return
        for number, node in zip(numbers, nodes, strict=True):
            if number in self._nodes:
                self._counts[number] = self._counts.get(number, 1) + 1
            else:
                self._nodes[number] = node

    def forget(self, number: int, count: int) -> bool:
        """Subtract `count` lookups; at zero, drop the node and return True. Never raises."""
        slot = slot_of(number)
        if slot == ROOT or slot not in self._nodes:
            return False
        left = self._counts.pop(slot, 1) - count
        if left > 0:
            if left != 1:
                self._counts[slot] = left
            return False
        del self._nodes[slot]
        identity = self._identities.pop(slot, None)
        if identity is not None:
            self._settle(identity, slot)
        return True

    def move(self, number: int, identity: bytes, node: NodeT) -> None:
        """Change what a known number stands for: it was renamed, or removed.

        If the old identity reappears, it gets another number.
        """
        before = self._identity(number)
        if before is None or number == ROOT:
            return
        self._settle(before, number)
        self._settle_on(number, identity)
        self._identities[number] = identity
        self._nodes[number] = node

    def _settle_on(self, number: int, identity: bytes) -> None:
        """Have an identity keep a number that it was not computed from."""
        if identity not in self._moved:
            natural = _hash(identity)
            self._deserted[natural] = self._deserted.get(natural, 0) + 1
        self._moved[identity] = number

    def _settle(self, identity: bytes, number: int) -> None:
        """Free an identity that has a number to have the one computed from it again."""
        if self._moved.get(identity) != number:
            return
        del self._moved[identity]
        natural = _hash(identity)
        self._deserted[natural] -= 1
        if not self._deserted[natural]:
            del self._deserted[natural]

    def moved(self) -> set[int]:
        """Return the numbers that are no hash of what they stand for."""
        return set(self._moved.values())

    def known(self) -> list[tuple[int, NodeT]]:
        """Return every inode the kernel knows; a shard has only its slot."""
        return list(self._nodes.items())

    def lookup_count(self, number: int) -> int:
        """Return the lookups not yet forgotten, of the inode or of all inodes of its shard."""
        slot = slot_of(number)
        return self._counts.get(slot, 1) if slot in self._nodes else 0

    def get(self, number: int) -> NodeT | None:
        """Return the node of an inode, or of its shard."""
        return self._nodes.get(slot_of(number))
