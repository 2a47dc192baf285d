"""Inode numbers and lookup counts.

A number is computed from what it stands for (bucket, key and version, or directory), so it is the
same in every process and after every remount, and a new version of an object is a new number
(invariant I2): the kernel never mixes two versions in one page cache.

    bit 63   25..62           24          0..23
    0        hash of an object or a directory of a bucket
    1        hash of a shard  directory?  row of the member index, or directory of the view

The table keeps what the kernel knows: `lookup count = lookups + readdirplus entries - forgets`
(invariant I4). Members and directories of one shard share one slot, keyed by the shard's part of
the number, since a shard of a million members must not cost a million slots.
"""

from hashlib import blake2b
from typing import Generic, TypeVar

ROOT = 1
_SHARD = 1 << 63
_DIRECTORY = 1 << 24
_SLOT_BITS = 25
_LOW = (1 << 24) - 1
MAX_MEMBERS = 1 << 24
"""Rows and directories of one shard that can be numbered; AIStore's own index stops at 2^20."""

NodeT = TypeVar("NodeT")


def member_number(shard: int, row: int) -> int:
    """Number the member `row` of the shard whose first number is `shard`."""
    return shard | row


def directory_number(shard: int, directory: int) -> int:
    """Number the directory `directory` of the shard whose first number is `shard`."""
    return shard | _DIRECTORY | directory


def split_member(number: int) -> tuple[int, bool, int] | None:
    """Take (shard, is a directory, row or directory) out of a number; None for any other inode."""
    if not number & _SHARD:
        return None
    return number >> _SLOT_BITS << _SLOT_BITS, bool(number & _DIRECTORY), number & _LOW


def slot_of(number: int) -> int:
    """Give what lookups of an inode are counted on: itself, or the shard it is in."""
    return number >> _SLOT_BITS << _SLOT_BITS if number & _SHARD else number


class InodeTable(Generic[NodeT]):
    """What the kernel's numbers stand for while the kernel knows them."""

    def __init__(self, root: NodeT) -> None:
        """Start with the root, which is never forgotten."""
        self._nodes: dict[int, NodeT] = {ROOT: root}
        self._counts: dict[int, int] = {ROOT: 1}
        self._identities: dict[int, bytes] = {ROOT: b""}
        self._moved: dict[bytes, int] = {}
        """Numbers that stand for another identity than the one they were computed from."""

    def __len__(self) -> int:
        return len(self._nodes)

    def number(self, identity: bytes, *, shard: bool = False) -> int:
        """Compute the number of an identity.

        Two identities may hash alike. The one the kernel knows keeps the number, the other is
        hashed again with a salt, so a number with a positive count never changes its meaning.
        """
        moved = self._moved.get(identity)
        if moved is not None:
            return moved
        salt = 0
        while True:
            digest = blake2b(identity, digest_size=8, salt=salt.to_bytes(16, "little")).digest()
            value = int.from_bytes(digest, "little")
            number = (value >> _SLOT_BITS << _SLOT_BITS) | _SHARD if shard else value & ~_SHARD
            if number > ROOT and self._identities.get(number, identity) == identity:
                return number
            salt += 1

    def remember(self, number: int, identity: bytes, node: NodeT, count: int = 1) -> None:
        """Count lookups of `number`, which came from `number(identity)`.

        The numbers of members are counted on their shard.
        """
        slot = slot_of(number)
        if slot in self._counts:
            self._counts[slot] += count
            return
        self._counts[slot] = count
        self._nodes[slot] = node
        self._identities[slot] = identity

    def forget(self, number: int, count: int) -> bool:
        """Take back `count` lookups; at zero the node is let go, and True returned. Never raises."""
        slot = slot_of(number)
        if slot == ROOT or slot not in self._counts:
            return False
        self._counts[slot] -= count
        if self._counts[slot] > 0:
            return False
        del self._counts[slot], self._nodes[slot]
        self._moved.pop(self._identities.pop(slot), None)
        return True

    def move(self, number: int, identity: bytes, node: NodeT) -> None:
        """Let a number the kernel knows stand for something else: it was renamed.

        The old identity gets another number from now on, should it come again.
        """
        if number not in self._counts or number == ROOT:
            return
        self._moved.pop(self._identities[number], None)
        self._moved[identity] = number
        self._identities[number] = identity
        self._nodes[number] = node

    def known(self) -> list[tuple[int, NodeT]]:
        """Give every inode the kernel knows; of a shard only its slot."""
        return list(self._nodes.items())

    def lookup_count(self, number: int) -> int:
        """Lookups not yet forgotten, of the inode or of all inodes of its shard."""
        return self._counts.get(slot_of(number), 0)

    def get(self, number: int) -> NodeT | None:
        """Give the node of an inode, or of its shard."""
        return self._nodes.get(slot_of(number))
