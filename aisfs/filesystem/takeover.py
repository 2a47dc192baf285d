"""What the kernel's inode numbers stand for, noted so that another daemon of the mount can find it out.

The keeper (`aisfs.system.keeper`) holds two files in memory. One of them is the log: a record whenever the kernel
learns of a number, before it does, and when it forgets one. A file is noted by its directory and name, 10 bytes and
the name; what else it is, the store says again when the number is used. Members need no record: their numbers say which
row of which shard they are. Once the log is twice as long as it need be, what counts is written to the other file.

In a mount that can be written there is more: numbers that were renamed or belong to what was removed, facts, such as a file
that is being written, by a key (`aisfs.filesystem.writing.restore`), and the handles of open files.

A header of 16 bytes says which file is the log, the one with the higher turn, and how long it was when it was written.
Each record is

    length of the rest (u32), kind (u8), and by kind
      files      number of the directory, how many; their numbers; lengths of their names (u16); names
      node       number, and what it is, as JSON
      forgotten  numbers
      fact       a pair in JSON: a key, and what is true of it now; null if nothing is any more
      handle     of an open file: handle, number, request, flags, and how many more of it there are
      order      only in the files of `aisfs.filesystem.plans`: numbers in the order in which they were read

Whoever changes how anything is noted, facts included, counts `aisfs.system.keeping.NOTES_FORMAT` up.
"""

import json
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import accumulate, repeat
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from aisfs.filesystem.nodes import (
    DirectoryNode,
    FileNode,
    MergedDirectoryNode,
    Node,
    ObjectNode,
    ProviderNode,
    RemovedDirectoryNode,
    ShardNode,
)
from aisfs.model import Bucket, ObjectInfo, Provider

_HEADER = Struct("=QQ")
_RECORD = Struct("=IB")
_RUN = Struct("=QI")
_NUMBER = Struct("=Q")
_HANDLE = Struct("=QQQBi")
_FILES, _NODE, _FORGOTTEN, _FACT, _HANDLES, _ORDER = range(6)
SLACK = 16 << 20
"""Bytes that a log may grow beyond twice its length, as small ones do all the time."""
FORGOTTEN_MAX = 512
"""Numbers forgotten that are noted together. Those that are lost with a daemon only take room."""
_READ_MAX = 1 << 30


class NumberLog:
    """The log of one daemon. For callers who hold a lock, but for `rewrite`."""

    def __init__(self, files: tuple[int, int]) -> None:
        """Go on with what the files have; begin if they are empty."""
        turns = [_turn(fd) for fd in files]
        self._turn, self._least = max(turns)
        at = turns.index(max(turns))
        self._log, self._other = files[at], files[1 - at]
        if not self._turn:
            self._turn = 1
            os.pwrite(self._log, _HEADER.pack(1, 0), 0)
        self._end = max(os.fstat(self._log).st_size, _HEADER.size)
        self._forgotten = array("Q")
        self._facts: dict[str, bytes] = {}
        """Their records, by key."""
        self.handles: dict[int, tuple[int, int, int, int]] = {}
        """Number, request that opened it, flags, and how often it is open, by handle."""

    def read(self) -> bytes:
        """Return all records, and cut off what a daemon that was killed did not finish."""
        data = _read(self._log, _HEADER.size)
        whole = 0
        while whole + _RECORD.size <= len(data):
            after = whole + _RECORD.size + _RECORD.unpack_from(data, whole)[0]
            if after > len(data):
                break
            whole = after
        self._end = _HEADER.size + whole
        os.ftruncate(self._log, self._end)
        return data[:whole]

    @property
    def is_long(self) -> bool:
        """Whether it is time to `rewrite` it."""
        return self._end > 2 * self._least + SLACK

    def node(self, number: int, node: Node) -> None:
        """Note what a number stands for."""
        self._append(_node_record(number, node))

    def files(self, numbers: Sequence[int], nodes: Sequence[FileNode]) -> None:
        """Note which files of one directory some numbers stand for."""
        if nodes:
            self._append(_files_record(nodes[0].parent, numbers, [node.name for node in nodes]))

    def fact(self, key: str, value: object) -> None:
        """Note what is true of something from now on; None if nothing is."""
        if value is None and self._facts.pop(key, None) is None:
            return
        record = _record(_FACT, _json([key, value]))
        if value is not None:
            if self._facts.get(key) == record:
                return
            self._facts.pop(key, None)  # the latest comes last
            self._facts[key] = record
        self._append(record)

    def facts(self, kind: str) -> Iterator[tuple[str, Any]]:
        """Return the facts whose keys begin with a word, and the rest of the keys."""
        for key, record in list(self._facts.items()):
            word, _, rest = key.partition(" ")
            if word == kind:
                yield rest, json.loads(record[_RECORD.size :])[1]

    def handle(self, handle: int, number: int, unique: int, flags: int, count: int) -> None:
        """Note that a file is open once more, or, with a negative count, once less."""
        self.count_handle(handle, number, unique, flags, count)
        self._append(_record(_HANDLES, _HANDLE.pack(handle, number, unique, flags, count)))

    def get(self, key: str) -> Any:  # noqa: ANN401 - any JSON
        """Return a fact; None if there is none."""
        record = self._facts.get(key)
        return json.loads(record[_RECORD.size :])[1] if record is not None else None

    def take_fact(self, record: bytes) -> None:
        """Know what a daemon before has noted."""
        key, value = json.loads(record[_RECORD.size :])
        self._facts.pop(key, None)
        if value is not None:
            self._facts[key] = record

    def count_handle(self, handle: int, number: int, unique: int, flags: int, count: int) -> None:
        """Know the same of handles."""
        count += self.handles.get(handle, (0, 0, 0, 0))[3]
        if count > 0:
            self.handles[handle] = number, unique, flags, count
        else:
            self.handles.pop(handle, None)

    def forgot(self, number: int) -> None:
        """Note that the kernel knows a number no more."""
        self._forgotten.append(number)
        if len(self._forgotten) >= FORGOTTEN_MAX:
            self._append(b"")

    def _append(self, record: bytes) -> None:
        if self._forgotten:  # first: the same numbers may be known again
            record = _record(_FORGOTTEN, self._forgotten.tobytes()) + record
            self._forgotten = array("Q")
        self._end = _write(self._log, record, self._end)

    def begin_rewrite(self) -> int:
        """Return where what follows is too new for a `rewrite`. The caller holds its lock."""
        return self._end

    def others(self) -> list[bytes]:
        """Return the records of facts and handles, for a `rewrite` that begins."""
        handles = (
            _record(_HANDLES, _HANDLE.pack(handle, *said)) for handle, said in self.handles.items()
        )
        return [*self._facts.values(), *handles]

    def rewrite(self, records: Iterable[bytes]) -> int:
        """Write records to the other file; return its length. For any thread, and at most one."""
        os.ftruncate(self._other, 0)
        at = _HEADER.size
        for record in records:
            at = _write(self._other, record, at)
        return at

    def end_rewrite(self, since: int, length: int) -> None:
        """Go on with the other file, and what was noted since `since`. The caller holds its lock."""
        news = _read(self._log, since)[: self._end - since]
        _write(self._other, news, length)
        self._turn += 1
        self._least = length
        os.pwrite(self._other, _HEADER.pack(self._turn, length), 0)
        self._log, self._other = self._other, self._log
        self._end = length + len(news)
        os.ftruncate(self._other, 0)


class Forgotten:
    """The numbers that the kernel knew: a file handle, as a client of NFS keeps it, has no more than the number."""

    def __init__(self, most: int, load: Callable[[], bytes]) -> None:
        """Keep so many bytes of records; `load` returns those of earlier mounts, and may wait for the disk."""
        self.most = most
        self._load = load
        self._records: deque[bytes] = deque()
        self._size = 0

    def add(self, number: int, node: Node) -> None:
        """Keep what a number stood for that the kernel forgets."""
        if isinstance(node, FileNode):
            record = _files_record(node.parent, [number], [node.name])
        else:
            record = _node_record(number, node)
        self._records.append(record)
        self._size += len(record)
        while self._size > self.most:
            self._size -= len(self._records.popleft())

    def records(self) -> Iterator[bytes]:
        """Return all of them, those of earlier mounts first. Waits for the disk."""
        return iter([self._load(), *self._records])

    def lasting(self, known: Iterable[tuple[int, Node]]) -> bytes:
        """Return what the next mount may be asked for: what is known now comes last, and is not cut."""
        data = b"".join((*self.records(), *records(known)))
        at = 0
        while len(data) - at > self.most:
            at += _RECORD.size + _RECORD.unpack_from(data, at)[0]
        return data[at:]


def records(known: Iterable[tuple[int, Node]], moved: Set[int] = frozenset()) -> Iterator[bytes]:
    """Return the records of numbers and what they stand for; those `moved` are no hash of it."""
    by_parent: dict[int, tuple[list[int], list[bytes]]] = {}
    for number, node in known:
        if isinstance(node, FileNode) and number not in moved:
            numbers, names = by_parent.setdefault(node.parent, ([], []))
            numbers.append(number)
            names.append(node.name)
        else:
            yield _node_record(number, node)
    for parent, (numbers, names) in by_parent.items():
        for at in range(0, len(numbers), 1024):
            yield _files_record(parent, numbers[at : at + 1024], names[at : at + 1024])


class FileName(NamedTuple):
    """An object or a virtual shard, as the log has it."""

    parent: int
    """Number of the directory."""
    name: bytes


class EarlierNumbers:
    """The numbers that the kernel knows from earlier daemons of the mount.

    They stay until the kernel forgets them. About 100 bytes of memory for each object.
    """

    def __init__(self, data: bytes, log: NumberLog | None = None) -> None:
        """Take the records of the log, which gets the facts and handles among them."""
        self._data = data
        self._runs: dict[int, int] = {}
        """Where the record of a file begins, by its number."""
        self._nodes: dict[int, Node] = {}
        """What is no file; shards by the number that their members' contain."""
        at = 0
        while at < len(data):
            length, kind = _RECORD.unpack_from(data, at)
            body = at + _RECORD.size
            if kind == _FACT and log is not None:
                log.take_fact(data[at : body + length])
            elif kind == _HANDLES and log is not None:
                log.count_handle(*_HANDLE.unpack_from(data, body))
            elif kind == _FILES:
                self._runs.update(zip(self._numbers(body), repeat(body), strict=False))
            elif kind == _NODE:
                [number] = _NUMBER.unpack_from(data, body)
                said = data[body + _NUMBER.size : body + length]
                self._nodes[number] = _node(json.loads(said))
                self._runs.pop(number, None)
            elif kind == _FORGOTTEN:
                for number in memoryview(data)[body : body + length].cast("Q"):
                    self.forget(number)
            at = body + length

    def __len__(self) -> int:
        return len(self._runs) + len(self._nodes)

    def __contains__(self, number: int) -> bool:
        return number in self._runs or number in self._nodes

    def forget(self, number: int) -> None:
        """The kernel knows this number no more, if it is not of a shard: that stands for all its members."""
        if self._runs.pop(number, None) is None and not isinstance(
            self._nodes.get(number), ShardNode
        ):
            self._nodes.pop(number, None)

    def get(self, number: int) -> Node | FileName | None:
        """Return what a number stands for."""
        at = self._runs.get(number)
        if at is None:
            return self._nodes.get(number)
        parent, _ = _RUN.unpack_from(self._data, at)
        return FileName(parent, self._name(at, number))

    def nodes(self) -> Iterator[tuple[int, Node]]:
        """Return what is no file."""
        return iter(list(self._nodes.items()))

    def files(self) -> Iterator[tuple[int, FileName]]:
        """Return the files."""
        runs: dict[int, tuple[int, dict[int, bytes]]] = {}
        for number, at in list(self._runs.items()):
            if at not in runs:
                parent, _ = _RUN.unpack_from(self._data, at)
                runs[at] = parent, dict(zip(self._numbers(at), self._names(at), strict=True))
            parent, names = runs[at]
            yield number, FileName(parent, names[number])

    def records(self) -> Iterator[bytes]:
        """Return all of it as records."""
        for number, node in self.nodes():
            yield _node_record(number, node)
        for number, (parent, name) in self.files():
            yield _files_record(parent, [number], [name])

    def _numbers(self, at: int) -> memoryview:
        _, count = _RUN.unpack_from(self._data, at)
        start = at + _RUN.size
        return memoryview(self._data)[start : start + 8 * count].cast("Q")

    def _names(self, at: int) -> Iterator[bytes]:
        _, count = _RUN.unpack_from(self._data, at)
        start = at + _RUN.size + 8 * count
        lengths = array("H", self._data[start : start + 2 * count])
        ends = accumulate(lengths, initial=start + 2 * count)
        for length, begin in zip(lengths, ends, strict=False):
            yield self._data[begin : begin + length]

    def _name(self, at: int, number: int) -> bytes:
        names = zip(self._numbers(at), self._names(at), strict=True)
        return next(name for each, name in names if each == number)


def order_record(numbers: "array[int]") -> bytes:
    """Return the record of numbers in an order."""
    return _record(_ORDER, numbers.tobytes())


def split_order(data: bytes) -> tuple["array[int]", bytes, int]:
    """Return the numbers of all records of an order, the other records, and how long the whole ones are together.

    The last one may be cut off; then the numbers in it count, if it has any.
    """
    order, others = array("Q"), []
    at = whole = 0
    while at + _RECORD.size <= len(data):
        length, kind = _RECORD.unpack_from(data, at)
        body, at = at + _RECORD.size, at + _RECORD.size + length
        if kind == _ORDER:
            there = min(at, len(data)) - body
            order.frombytes(data[body : body + there // order.itemsize * order.itemsize])
        elif at <= len(data):
            others.append(data[body - _RECORD.size : at])
        whole = at if at <= len(data) else whole
    return order, b"".join(others), whole


def _turn(fd: int) -> tuple[int, int]:
    header = os.pread(fd, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return 0, 0
    turn, least = _HEADER.unpack(header)
    return int(turn), int(least)


def _read(fd: int, offset: int) -> bytes:
    parts = []
    while part := os.pread(fd, _READ_MAX, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _write(fd: int, data: bytes, offset: int) -> int:
    """Write everything; return the offset behind it."""
    left = memoryview(data)
    while left:
        done = os.pwrite(fd, left, offset)
        left, offset = left[done:], offset + done
    return offset


def _record(kind: int, body: bytes) -> bytes:
    return _RECORD.pack(len(body), kind) + body


def _files_record(parent: int, numbers: Sequence[int], names: Sequence[bytes]) -> bytes:
    parts = [
        _RUN.pack(parent, len(numbers)),
        array("Q", numbers).tobytes(),
        array("H", map(len, names)).tobytes(),
        *names,
    ]
    return _record(_FILES, b"".join(parts))


def _node_record(number: int, node: Node) -> bytes:
    said = _spelled(node)
    return _record(_NODE, _NUMBER.pack(number) + _json(said)) if said else b""


def _spelled(node: Node) -> list[Any] | None:
    """Return a node as JSON, which escapes what is not UTF-8 in names; None for what needs no record."""
    match node:
        case ProviderNode(provider):
            return ["provider", provider.value]
        case DirectoryNode(bucket, prefix):
            return ["directory", spelled_bucket(bucket), prefix]
        case RemovedDirectoryNode(bucket, prefix, mode, mtime_ns, serial):
            return ["removed", spelled_bucket(bucket), prefix, mode, mtime_ns, serial]
        case MergedDirectoryNode(layout, path, generation):
            return ["merged", layout, os.fsdecode(path), generation]
        case ShardNode(bucket, info, parent, name) | ObjectNode(bucket, info, parent, name):
            kind = "shard" if isinstance(node, ShardNode) else "object"
            said = spelled_version(info)
            return [kind, spelled_bucket(bucket), said, parent, os.fsdecode(name)]
    return None  # the root, whose number is always the same


def _node(said: list[Any]) -> Node:
    match said:
        case ["provider", provider]:
            return ProviderNode(Provider(provider))
        case ["directory", bucket, prefix]:
            return DirectoryNode(to_bucket(bucket), prefix)
        case ["removed", bucket, *rest]:
            return RemovedDirectoryNode(to_bucket(bucket), *rest)
        case ["merged", layout, path, generation]:
            return MergedDirectoryNode(layout, os.fsencode(path), generation)
    kind, bucket, info, parent, name = said
    make = ShardNode if kind == "shard" else ObjectNode
    return make(to_bucket(bucket), ObjectInfo(*info), parent, os.fsencode(name))


def _json(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)  # in a tenth of the time
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def spelled_version(info: ObjectInfo) -> list[Any]:
    """Return a version of an object as JSON."""
    version = [info.key, info.size, info.version, info.checksum, info.mtime_ns]
    return [*version, dict(info.custom)]


def spelled_bucket(bucket: Bucket) -> list[str]:
    """Return a bucket as JSON."""
    return [bucket.name, bucket.provider.value, bucket.namespace, bucket.path]


def spelled_place(bucket: Bucket, prefix: str) -> str:
    """Return a directory of a bucket, for the key of a fact."""
    return json.dumps([spelled_bucket(bucket), prefix])


def to_place(said: str) -> tuple[Bucket, str]:
    """Return the directory that was spelled."""
    bucket, prefix = json.loads(said)
    return to_bucket(bucket), prefix


def to_bucket(said: list[str]) -> Bucket:
    """Return the bucket that was spelled."""
    name, provider, namespace, path = said
    return Bucket(name, Provider(provider), namespace, path)
