"""Announced orders of reading: fetches what is about to be read, and records in which order files are read.

A plan (`aisfs.core.policy.plan`) has inode numbers. What they stand for is known of what the kernel knows; for a recorded
order, the file that has it says so, as the log of another daemon does (`aisfs.filesystem.takeover`). What cannot be found is
left for its reader to find, and so is every error.

A recorded order is a file with a first line and records, each second some more; the last one may be cut off.
"""

import json
import logging
import os
import stat
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from struct import error as StructError

import trio

from aisfs.core.names.inodes import slot_of, split_member
from aisfs.core.policy.plan import Plan
from aisfs.engine.batches import MOST, SIZE_MAX
from aisfs.engine.disk import unattended
from aisfs.engine.fetcher import Fetcher
from aisfs.engine.parts import OpenObject, Part
from aisfs.engine.reader import Reader
from aisfs.errors import AisfsError, ConfigError
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.nodes import Node, ObjectNode, ShardNode
from aisfs.filesystem.takeover import EarlierNumbers, FileName, order_record, records, split_order
from aisfs.model import ByteRange
from aisfs.order import HEADING
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

RECORD_SECONDS = 1.0
AHEAD_MAX = 64 << 20
"""Bytes ahead of the readers of a plan: half a second at 1 Gbit/s, and all that 20 ms of latency can use."""
AHEAD_SHARE = 4
"""At most one part in so many of the limit on memory, for all plans together."""
AT_ONCE = 32
"""Requests under way for plans: fewer than there may be in all, so that other readers need not wait for theirs."""
CHUNK_FILES, CHUNK_BYTES = 1024, 4 << 20
"""Files that are looked at together: those of one shard that lie side by side are fetched together."""
NEAR, NEAR_MAX = 16 << 10, 512 << 10
"""Bytes between two files of a shard that are fetched for nothing rather than with a second request, at least and at most."""
IDLE_SECONDS = 600.0
"""How long a plan waits for a read: as long as a trainer may evaluate."""
FETCHED_SECONDS = 30.0
"""How long once all of it was fetched: nothing is left to do for it."""
SPAN_MAX = 4 << 20
"""Bytes of files that are fetched together; of a larger file the first ones, behind which read-ahead begins."""
ORDER_MAX = 1 << 30
"""Bytes of one announced order."""


class Plans:
    """The plans of one mount. For the trio thread, but for `was_read`."""

    def __init__(
        self, filesystem: FileSystem, reader: Reader, fetcher: Fetcher, services: trio.Nursery
    ) -> None:
        """Find files in `filesystem`, and fetch in tasks of `services`."""
        self._filesystem = filesystem
        self._reader = reader
        self._fetcher = fetcher
        self._services = services
        self._token = trio.lowlevel.current_trio_token()
        self._plans: dict[str, _Followed] = {}
        self._reads: deque[int] = deque()
        self._news = trio.Event()
        self._told = False
        """Whether the trio thread is about to look at the reads."""
        self._turns = trio.Semaphore(AT_ONCE)

    @any_thread
    def was_read(self, ino: int) -> None:
        """The start of a file was read."""
        if not self._plans:
            return
        self._reads.append(ino)
        if not self._told:
            self._told = True
            try:
                self._token.run_sync_soon(self._take_reads)
            except trio.RunFinishedError:
                return

    def announce(self, name: str, order: "array[int]", names: EarlierNumbers | None = None) -> None:
        """Expect files to be read in an order of their numbers, after what is left of the plan of this name.

        `names` says what those numbers stand for that the kernel does not know.
        """
        known = self._plans.get(name)
        followed = self._plans[name] = known or _Followed(Plan(name))
        followed.plan.add(order)
        followed.names += [names] if names is not None else []
        if known is not None:
            self._tell()
            return
        work = partial(self._follow, followed)
        self._services.start_soon(unattended, f"the plan {name}", work)

    def drop(self, name: str = "") -> int:
        """End a plan, or all of them; return how many there were."""
        found = [each for each in self._plans if not name or each == name]
        for each in found:
            self._plans.pop(each).scope.cancel()
        return len(found)

    async def report(self) -> bytes:
        """Return as JSON how far the readers of each plan are."""
        told = [
            {
                "name": plan.name,
                "files": len(plan),
                "position": plan.position,
                "followed": plan.followed,
                "ahead_bytes": plan.ahead_bytes,
            }
            for plan in self._all()
        ]
        return json.dumps(told).encode()

    async def control(self, words: Sequence[str], pid: int) -> bytes:
        """Do what is asked for through the attributes of the root, and return as JSON what came of it.

        Args:
            words: Nothing: say how far the plans are. `drop` and perhaps a name: end it, or all. A number and perhaps a name:
                announce the order in the file that process `pid` has open with this descriptor.
            pid: The process that asks.
        """
        word, name = (*words, "", "")[:2]
        if not word:
            return await self.report()
        if word == "drop":
            return json.dumps({"plans": self.drop(name)}).encode()
        try:
            order, names = await trio.to_thread.run_sync(_order_of, pid, word)
        except ConfigError as error:  # an errno would not say it
            return json.dumps({"failed": str(error)}).encode()
        self.announce(name or "default", order, names)
        return json.dumps({"files": len(order)}).encode()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _take_reads(self) -> None:
        self._told = False
        plans = self._all()
        while self._reads:
            number = self._reads.popleft()
            expected = False
            for plan in plans:
                expected |= plan.read(number)
            for plan in plans if not expected else ():
                if plan.stray(number):
                    what = f"looking for the readers of the plan {plan.name}"
                    self._services.start_soon(unattended, what, partial(self._look_for, plan))
        self._tell()

    async def _look_for(self, plan: Plan) -> None:
        """Go on where the readers are, if they are anywhere in the plan; end it if nobody follows."""
        for place in plan.search():
            if place is not None:
                log.info("plan %s: its readers are at file %d", plan.name, place)
                plan.move_to(place)
                self._tell()
                return
            await trio.lowlevel.checkpoint()
        if plan.lost and self._is_there(plan):
            log.warning(
                "plan %s ends: what is read is not in it, or not where it has it", plan.name
            )
            self.drop(plan.name)

    def _all(self) -> list[Plan]:
        return [followed.plan for followed in self._plans.values()]

    def _is_there(self, plan: Plan) -> bool:
        return any(each is plan for each in self._all())

    async def _follow(self, followed: "_Followed") -> None:
        """Fetch what is next until the plan ends."""
        plan = followed.plan
        try:
            with followed.scope:
                while not plan.ended:
                    while plan.ahead_bytes < self._room() and (numbers := plan.take(CHUNK_FILES)):
                        await self._fetch_all(followed, numbers)
                    # The rest may be in the page cache, or nobody wants it.
                    await self._news_of(followed, FETCHED_SECONDS if plan.taken else IDLE_SECONDS)
            said = "plan %s: %d of %d files were read in its order"
            log.info(said, plan.name, plan.followed, len(plan))
        finally:
            if self._is_there(plan):
                del self._plans[plan.name]

    async def _news_of(self, followed: "_Followed", patience: float) -> None:
        """Wait until a plan is read on or made longer; end it if that takes longer than some seconds."""
        plan = followed.plan
        before = plan.followed, plan.position, len(plan)
        with trio.move_on_after(patience) as waiting:
            while (plan.followed, plan.position, len(plan)) == before and not plan.ended:
                await self._news.wait()
        if waiting.cancelled_caught:
            followed.scope.cancel()
            await trio.lowlevel.checkpoint()

    def _room(self) -> int:
        share = self._fetcher.memory_limit // AHEAD_SHARE // max(1, len(self._plans))
        return min(AHEAD_MAX, share)

    async def _fetch_all(self, followed: "_Followed", numbers: Sequence[int]) -> None:
        """Fetch files, those beside each other together, in the order of the first of them."""
        plan = followed.plan
        wanted: dict[OpenObject, list[ByteRange]] = {}
        size = 0
        for at, number in enumerate(numbers, 1):
            place = await self._place(number, followed.names) if number in plan else None
            if place is not None and not place[1]:
                plan.skip(number)
            elif place is not None:
                opened, lies = place
                plan.begin(number, len(lies))
                if not opened.will_be_read(lies):
                    wanted.setdefault(opened, []).append(lies)
                    size += len(lies)
            if size >= CHUNK_BYTES or at == len(numbers):
                await self._fetch_chunk(wanted)
                wanted, size = {}, 0
                while plan.ahead_bytes >= self._room() and at < len(numbers):
                    await self._news_of(followed, IDLE_SECONDS)

    async def _fetch_chunk(self, wanted: Mapping[OpenObject, Sequence[ByteRange]]) -> None:
        near = self._near()
        spans = [(opened, span) for opened, all_ in wanted.items() for span in joined(all_, near)]
        small = [each for each in spans if len(each[1]) == each[0].info.size <= SIZE_MAX]
        for start in range(0, len(small), MOST):
            await self._turns.acquire()
            with self._fetcher.gathering() as together:
                begun = [
                    self._fetcher.bring(*each, together) for each in small[start : start + MOST]
                ]
            self._wait_for(chain.from_iterable(begun))
        for opened, span in spans:
            if len(span) != opened.info.size or len(span) > SIZE_MAX:
                await self._turns.acquire()
                self._wait_for(self._fetcher.bring(opened, span))

    def _wait_for(self, parts: Iterable[Part]) -> None:
        """Give a turn back once parts are here, or have failed."""
        awaited = list(parts)

        async def wait() -> None:
            try:
                for part in awaited:
                    await part.done.wait()
            finally:
                self._turns.release()

        self._services.start_soon(unattended, "fetching for a plan", wait)

    def _near(self) -> int:
        """Return how many bytes take as long as the next request does."""
        link = self._fetcher.link
        if link.latency is None or link.rate is None:
            return NEAR
        return int(min(max(link.latency * link.rate / AT_ONCE, NEAR), NEAR_MAX))

    async def _place(
        self, number: int, names: Sequence[EarlierNumbers]
    ) -> tuple[OpenObject, ByteRange] | None:
        """Return where the bytes of a file lie; None if that is not known, or if they come with a whole shard."""
        try:
            node = await self._node(number, names)
            if isinstance(node, ObjectNode):
                if number in self._filesystem.inodes.files.by_ino:
                    return None
                lies = ByteRange(0, min(node.info.size, SPAN_MAX))
                return self._fetcher.open(node.bucket, node.info), lies
            if not isinstance(node, ShardNode):
                return None
            _, is_directory, row = split_member(number) or (0, True, 0)
            view = self._filesystem.folders.try_view(node) or await self._filesystem.view(node)
            if is_directory or row >= len(view.index):
                return None
            lies = view.index.data_range(row)
            stop = min(lies.stop, view.index.end_of(row), lies.start + SPAN_MAX)
            lies = ByteRange(lies.start, max(stop, lies.start))
            reads = self._reader.open_shard(node.bucket, node.info, view.index)
            return None if lies and self._reader.brings_whole(reads) else (reads.opened, lies)
        except AisfsError:
            return None

    async def _node(self, number: int, names: Sequence[EarlierNumbers]) -> Node | None:
        inodes = self._filesystem.inodes
        node = inodes.get(number)
        if node is not None:
            return node
        slot = slot_of(number)
        said = next((each for each in reversed(names) if slot in each), None)
        if said is None:
            return None
        known = said.get(slot)
        if not isinstance(known, FileName):
            return known
        above = inodes.get(known.parent) or said.get(known.parent)
        if above is None or isinstance(above, FileName):
            return None
        found = await self._filesystem.tree.find(above, known.parent, known.name)
        return found.node if found is not None and inodes.number(found.node) == number else None


@dataclass(slots=True)
class _Followed:
    """A plan, and what follows it."""

    plan: Plan
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    names: list[EarlierNumbers] = field(default_factory=list)
    """What the numbers of recorded orders stand for."""


Order = tuple["array[int]", EarlierNumbers | None]
"""Numbers, and what those stand for that the kernel need not know."""


def _order_of(pid: int, descriptor: str) -> Order:
    """Read the numbers, or the recorded order, in a file which a process has open, whatever its offset."""
    if not pid:
        raise ConfigError("the process is in a container whose processes the daemon does not see")
    if not descriptor.isdecimal():
        raise ConfigError(f"{descriptor!r} is no descriptor of an open file")
    try:
        with open(f"/proc/{pid}/fd/{descriptor}", "rb", opener=_opener) as file:
            about = os.fstat(file.fileno())
            data = file.read(ORDER_MAX + 1) if stat.S_ISREG(about.st_mode) else b""
            if not data.startswith(HEADING) and (len(data) % 8 or not 0 < len(data) <= ORDER_MAX):
                most = ORDER_MAX // 8
                raise ConfigError(f"no file of at most {most:,} inode numbers, 8 bytes each")
            return _parsed(data)
    except OSError as error:
        raise ConfigError(f"the daemon cannot read what is open: {error.strerror}") from error


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def joined(ranges: Sequence[ByteRange], near: int) -> Iterator[ByteRange]:
    """Yield ranges that cover all of `ranges` of one object, which have at most `near` other bytes between them."""
    left = sorted(ranges, key=lambda each: each.start)
    start, stop = left[0].start, left[0].stop
    for each in left[1:]:
        if each.start - stop > near or max(each.stop, stop) - start > SPAN_MAX:
            yield ByteRange(start, stop)
            start, stop = each.start, each.stop
        stop = max(stop, each.stop)
    yield ByteRange(start, stop)


# Recorded orders ------------------------------------------------------------------------------------


class Recorder:
    """Writes down in which order files are read for the first time."""

    def __init__(self, filesystem: FileSystem, path: Path, *, go_on: bool) -> None:
        """Begin with a new file, or go on with that of the daemon before.

        Raises:
            ConfigError: it cannot be written.
        """
        self._inodes = filesystem.inodes
        self._path = path
        self._seen: set[int] = set()
        self._noted: set[int] = set()
        """What the file says of what numbers stand for."""
        self._reads: deque[tuple[int, Node | None]] = deque()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if go_on else os.O_TRUNC)
        try:
            self._file = os.open(path, flags, 0o666)
            self._end = _whole(path.read_bytes()) if go_on else 0
            if not self._end:
                self._append(HEADING)
        except OSError as error:
            raise ConfigError(f"--record {path}: {error.strerror}") from error

    @any_thread
    def was_read(self, ino: int) -> None:
        """The start of a file was read."""
        if ino not in self._seen:
            self._seen.add(ino)
            self._reads.append((ino, self._inodes.get(ino)))  # the kernel may forget it soon

    async def record(self) -> None:
        """Write every second what came since, as long as that works."""
        try:
            while self._file >= 0:
                await trio.sleep(RECORD_SECONDS)
                await trio.to_thread.run_sync(self._write)
        finally:
            self._write()
            self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, data: bytes) -> None:
        os.ftruncate(self._file, self._end)  # what was not written whole
        left = memoryview(data)
        while left:
            left = left[os.pwrite(self._file, left, self._end + len(data) - len(left)) :]
        self._end += len(data)

    def _write(self) -> None:
        numbers = array("Q")
        known: list[tuple[int, Node]] = []
        while self._reads:
            number, node = self._reads.popleft()
            numbers.append(number)
            if isinstance(node, ShardNode | ObjectNode):
                self._note(slot_of(number), node, known)
                if isinstance(node, ObjectNode):
                    self._note(node.parent, self._inodes.get(node.parent), known)
        if numbers and self._file >= 0:
            try:
                self._append(b"".join([*records(known), order_record(numbers)]))
            except OSError as error:
                log.warning("--record %s: %s: no more is recorded", self._path, error.strerror)
                self._close()

    def _note(self, number: int, node: Node | None, known: list[tuple[int, Node]]) -> None:
        if node is not None and number not in self._noted:
            self._noted.add(number)
            known.append((number, node))


def read_recorded(path: Path) -> Order:
    """Return a recorded order, and what its numbers stand for.

    Raises:
        ConfigError: it cannot be read, or is no recorded order.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--replay {path}: {error.strerror}") from error
    if not data.startswith(HEADING):
        raise ConfigError(f"--replay {path}: this is no order that --record has written")
    return _parsed(data)


def recorded_numbers(data: bytes) -> "array[int]":
    """Return the numbers of a recorded order.

    Raises:
        ConfigError: it is damaged.
    """
    return _parsed(data)[0]


def _parsed(data: bytes) -> Order:
    if not data.startswith(HEADING):
        order = array("Q")
        order.frombytes(data)
        return order, None
    try:
        order, names, _ = split_order(data[len(HEADING) :])
        return order, EarlierNumbers(names)
    except (ValueError, TypeError, LookupError, StructError) as error:
        raise ConfigError(f"the recorded order is damaged: {error}") from error


def _whole(data: bytes) -> int:
    """Return how many of the bytes of a recorded order are whole records."""
    if not data.startswith(HEADING):
        return 0
    return len(HEADING) + split_order(data[len(HEADING) :])[2]
