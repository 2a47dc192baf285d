"""What the dispatcher answers: requests to which `InstantAnswers` has the answer.

In a mount that is only read `open`, `opendir` and `flush` are answered with ENOSYS once; from then on
the kernel opens and closes without a request, and keeps listings. A handle is then no more than the
inode. What is different in a mount that can be written is in `WriteHandlers`.
"""

import errno
from collections.abc import Callable
from functools import partial

from aisfs.cache.names import WOULD_WAIT
from aisfs.filesystem.filesystem import FileSystem, InstantAnswers
from aisfs.filesystem.xattrs import PREFIX
from aisfs.fuse import abi
from aisfs.fuse.abi import InitFlag, Opcode, OpenFlag
from aisfs.fuse.dispatcher import FORWARD, LIST_BYTES_MAX, SILENCE, Handler, Interrupts, Reply
from aisfs.fuse.listing_pages import ListingPages
from aisfs.fuse.requests import CHANGEABLE, WaitingReads, WriteHandlers
from aisfs.system.threads import any_thread

_BY_NUMBER = (b".", b"..")
"""Names by which the kernel asks what a number stands for, and what is above it."""


class Handlers:
    """The handlers of a mount. All methods run in the dispatcher, but `undo`."""

    def __init__(
        self,
        answers: InstantAnswers,
        filesystem: FileSystem,
        reads: WaitingReads,
        interruptions: Interrupts,
        *,
        negative_timeout: Callable[[], float],
        writes: WriteHandlers | None = None,
    ) -> None:
        """Answer from `answers`; hand READs that must wait to `reads`.

        Args:
            answers: What can be answered at once.
            filesystem: The tree of it.
            reads: Answers READs that must wait.
            interruptions: Told of INTERRUPTs.
            negative_timeout: Returns the seconds the kernel may keep a missing name.
            writes: What is different in a mount that can be written.
        """
        self._answers = answers
        self._snapshots = filesystem.snapshots
        self._inodes = filesystem.inodes
        self._validity = filesystem.inodes.validity
        self._reads = reads
        self._interruptions = interruptions
        self._negative_timeout = negative_timeout
        self._writes = writes
        self._flags = InitFlag(0)
        # A page packed ahead stays good only where nothing changes but by what the store says.
        self._pages = ListingPages(answers, filesystem, ahead=writes is None)
        self._forget = filesystem.forget if writes is None else writes.forget
        """Takes back lookups; for any thread."""
        self.wanted = InitFlag.PARALLEL_DIROPS | InitFlag.EXPORT_SUPPORT
        """What the kernel is to do if it can."""
        self.without = InitFlag.ATOMIC_O_TRUNC
        """What it is not to do."""
        if writes is not None:  # O_TRUNC comes with the OPEN: no empty object is stored before
            self.wanted, self.without = self.wanted | writes.wanted, InitFlag(0)

    @property
    def handlers(self) -> dict[int, Handler]:
        """The handler of each request that is answered here."""
        handlers: dict[int, Handler] = {
            Opcode.LOOKUP: self.lookup,
            Opcode.GETATTR: self.getattr,
            Opcode.READ: self.read,
            Opcode.READDIRPLUS: self.readdirplus,
            Opcode.FORGET: self.forget,
            Opcode.BATCH_FORGET: self.batch_forget,
            Opcode.OPEN: self.open,
            Opcode.OPENDIR: self.opendir,
            Opcode.RELEASEDIR: self.releasedir,
            Opcode.FLUSH: self.flush,
            Opcode.GETXATTR: self.getxattr,
            Opcode.IOCTL: self.ioctl,
            Opcode.INTERRUPT: self.interrupt,
        }
        if self._writes is None:
            return handlers
        handlers |= self._writes.handlers
        guarded = self._writes.unless_changing
        return handlers | {code: partial(guarded, handlers[code]) for code in CHANGEABLE}

    def initialise(self, flags: InitFlag) -> None:
        """Remember what the kernel can."""
        self._flags = flags
        if self._writes is not None:
            self._writes.initialise(flags)

    def before_sleep(self) -> None:
        """Do what was put off."""
        if self._writes is not None:
            self._writes.before_sleep()

    # names ---------------------------------------------------------------------------------------

    def lookup(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Look up a name; a missing one is an answer too, which the kernel may keep."""
        name = abi.name_of(message)
        if name in _BY_NUMBER:
            return FORWARD
        entry = self._answers.try_lookup(nodeid, name)
        if entry is WOULD_WAIT:
            return FORWARD
        if entry is None:
            timeout = self._validity.missing(nodeid, name, self._negative_timeout())
            return (abi.missing_reply(unique, timeout),)
        return (abi.entry_reply(unique, entry.attr, entry.entry_timeout),)

    def getattr(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Describe an inode."""
        attr = self._answers.try_getattr(nodeid)
        return (abi.attr_reply(unique, attr),) if attr is not None else FORWARD

    def forget(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Take back lookups of one inode."""
        self._forget(nodeid, abi.forgotten(message))
        return SILENCE

    def batch_forget(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Take back lookups of many."""
        for ino, count in abi.batch_forgotten(message):
            self._forget(ino, count)
        return SILENCE

    # files ---------------------------------------------------------------------------------------

    def read(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Return bytes that are there, from where they are; hand on what must be waited for."""
        _, offset, size, *_ = abi.READ.unpack_from(message, abi.BODY)
        data = self._answers.try_read(nodeid, offset, size)
        if data is None:
            when_here = partial(self._answers.when_here, nodeid, offset, size)
            self._reads.hand_over(unique, nodeid, offset, size, pid, when_here)
            return SILENCE
        return (abi.data_header(unique, len(data)), data)

    def open(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Make the kernel open files by itself. It refuses to write, the mount being read-only."""
        return self._unless_needed(unique, InitFlag.NO_OPEN_SUPPORT)

    def _unless_needed(self, unique: int, flag: InitFlag) -> Reply | None:
        return (abi.error_reply(unique, errno.ENOSYS),) if self._flags & flag else FORWARD

    def flush(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """There is nothing to write: the kernel need not ask at every close."""
        return (abi.error_reply(unique, errno.ENOSYS),)

    # directories ---------------------------------------------------------------------------------

    def opendir(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Open a directory whose listing is in memory; any other one is listed first, which READDIR
        must not wait for (`ReaddirSnapshots`).

        In a mount that is only read, make the kernel open directories by itself and keep what they list.
        """
        if self._writes is None and self._flags & InitFlag.NO_OPENDIR_SUPPORT:
            return self._unless_needed(unique, InitFlag.NO_OPENDIR_SUPPORT)
        if not self._answers.knows_directory(nodeid):
            return FORWARD
        flags = OpenFlag.CACHE_DIR | OpenFlag.KEEP_CACHE
        # In a mount that is only read, the mtime tells the kernel when to list again.
        if self._writes is not None and self._inodes.opens_anew(nodeid):
            flags = OpenFlag.CACHE_DIR
        return (abi.open_reply(unique, 0, flags),)

    @property
    def listed_flags(self) -> OpenFlag:
        """What the kernel may do with a directory that was listed while being opened."""
        keep = OpenFlag.KEEP_CACHE if self._writes is None else OpenFlag(0)
        return OpenFlag.CACHE_DIR | keep

    def releasedir(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Close a directory."""
        self._snapshots.take(abi.handle(message))
        return (abi.error_reply(unique, 0),)

    def readdirplus(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Return entries until the kernel's buffer is full."""
        handle, offset, size, *_ = abi.READ.unpack_from(message, abi.BODY)
        opened = self._snapshots.take(handle) if not offset else None
        page = self._pages.give(nodeid, offset, min(size, LIST_BYTES_MAX), opened)
        if page is None:
            if opened is not None:
                self._snapshots.hand_on(nodeid, opened)
            return FORWARD
        if not page.data:
            if not offset and self._writes is not None:
                # Of a listing without entries the kernel keeps no pages, and could drop none.
                dot = abi.dot_entry(nodeid)
                return (abi.data_header(unique, len(dot)), dot)
            self._snapshots.end(nodeid)
        return (abi.data_header(unique, len(page.data)), page.data)

    def prepare(self) -> None:
        """Do what is worth doing before the next request."""
        self._pages.prepare()

    # the rest ------------------------------------------------------------------------------------

    def getxattr(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Refuse all attributes but ours: `ls -l` asks for security labels of every file."""
        if abi.xattr_name(message).startswith(PREFIX):
            return FORWARD
        return (abi.error_reply(unique, errno.ENODATA),)

    def ioctl(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Refuse, since this is no terminal: until 3.14, Python asks that of every file it opens."""
        return (abi.error_reply(unique, errno.ENOTTY),)

    def interrupt(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Perhaps end a request early."""
        self._interruptions.interrupt(abi.interrupted(message))
        return SILENCE

    @any_thread
    def undo(self, opcode: int, reply: memoryview) -> None:
        """Take back what a reply counted or opened which the kernel did not take."""
        _, code = abi.reply_header(reply)
        if code:
            return
        if opcode == Opcode.OPENDIR:
            self._snapshots.take(abi.opened_handle(reply))
        elif opcode == Opcode.READDIRPLUS:
            for ino in abi.listed_nodeids(reply):
                self._forget(ino, 1)
        elif ino := abi.entry_nodeid(reply):
            self._forget(ino, 1)
