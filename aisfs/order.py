"""Says to a mount in which order its files will be read. Needs Python's library only, and no service of the package.

A mount knows files by their inode numbers, which one listing of a directory has for all files in it, unless they are still
to be transformed. They go there in a file
in memory: the daemon reads what the process that asks for an extended attribute has open.
"""

import json
import os
from array import array
from collections.abc import Iterable

ATTRIBUTE = "user.aisfs.plan"
HEADING = b"aisfs order 1\n"
"""The first line of an order that a mount has recorded (`aisfs.filesystem.plans`)."""
_FEW = 16
"""Files of one directory that are looked up one by one: it may have millions."""
_COMPARED = 4
"""Files of a larger directory that are looked up to see whether the listing has their numbers. It has not where objects are
transformed and not made yet; some may be."""


class NotAnnounced(Exception):
    """A mount does not take an order."""


def numbers_of(paths: Iterable[str], missing: list[str] | None = None) -> "array[int]":
    """Return the inode numbers of files, in the order of their paths.

    Where objects are transformed, all of them are made for that.

    Args:
        paths: Of files in one mount.
        missing: Given those that do not exist, which are left out; without it, they are an error.

    Raises:
        OSError: a file does not exist, or a directory cannot be listed.
    """
    names: dict[str, list[tuple[int, str]]] = {}
    count = 0
    for count, path in enumerate(paths, 1):
        directory, name = os.path.split(path)
        names.setdefault(directory, []).append((count - 1, name))
    found = array("Q", bytes(8 * count))
    for directory, files in names.items():
        numbers: dict[str, int] = {}
        if len(files) > _FEW and (missing is None or os.path.isdir(directory or ".")):
            with os.scandir(directory or ".") as entries:
                numbers = {entry.name: entry.inode() for entry in entries}
            some = files[:: len(files) // _COMPARED]
            if any(_is_another(os.path.join(directory, n), numbers.get(n)) for _, n in some):
                numbers.clear()
                files.sort(key=lambda file: file[1])  # then the mount makes the next ones meanwhile
        for at, name in files:
            number = numbers.get(name)
            if number is None:  # a name that exists without being listed, or is missing
                path = os.path.join(directory, name)
                try:
                    number = os.stat(path).st_ino
                except (FileNotFoundError, NotADirectoryError):
                    if missing is None:
                        raise
                    missing.append(path)
                    continue
            found[at] = number
    return array("Q", filter(None, found)) if missing else found


def _is_another(path: str, listed: int | None) -> bool:
    """Return whether a listed file has another number than the listing says."""
    try:
        return listed is not None and os.lstat(path).st_ino != listed
    except FileNotFoundError:
        return False


def in_memory(order: "array[int]") -> int:
    """Return the descriptor of a file in memory that has the numbers."""
    descriptor = os.memfd_create("aisfs order", os.MFD_CLOEXEC)
    try:
        left = memoryview(order).cast("B")
        while left:
            left = left[os.write(descriptor, left) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def attribute(descriptor: int, name: str) -> str:
    """Return the attribute to ask for, so that the daemon reads what is open with a descriptor."""
    return f"{ATTRIBUTE}.{descriptor}.{name}" if name else f"{ATTRIBUTE}.{descriptor}"


def taken(answer: bytes) -> int:
    """Return how many files a mount says that it expects.

    Raises:
        NotAnnounced: it says why it does not.
    """
    told = json.loads(answer)
    if "failed" in told:
        raise NotAnnounced(told["failed"])
    return int(told["files"])


def announce(place: str, order: "array[int]", name: str) -> int:
    """Have a mount expect its files to be read in an order; return how many.

    Args:
        place: A path in the mount.
        order: The inode numbers, of type `Q`.
        name: Of the plan. If the mount has one of this name, the order comes after what is left of that.

    Raises:
        NotAnnounced: it does not, and the message says why.
    """
    descriptor = in_memory(order)
    try:
        return taken(os.getxattr(place, attribute(descriptor, name)))
    except OSError as error:
        raise NotAnnounced(f"{place}: {error.strerror}; is it in a mount of aisfs?") from error
    finally:
        os.close(descriptor)
