"""`aisfs plan`: turns what a user has of an order of reading into inode numbers, and says it to a mount."""

import ast
import errno
import json
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import error as StructError
from struct import unpack_from
from typing import Any

from aisfs import order
from aisfs.errors import ConfigError, MountError
from aisfs.filesystem.plans import HEADING
from aisfs.fuse.mountpoint import our_mount
from aisfs.work.mounts import ask

_NUMPY = b"\x93NUMPY"
_TYPES = {"<u8": "Q", "<i8": "q", "<u4": "I", "<i4": "i", "<u2": "H", "<i2": "h"}
"""Those of Python's arrays by numpy's name."""
PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""What torchvision takes for an image."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What came of it."""

    files: int
    missing: list[str]
    """Lines for which there is no file."""


def announce(mountpoint: Path, file: str, name: str) -> Announced:
    """Have a mount fetch ahead in the order that a file has.

    Args:
        mountpoint: The mount, or a directory in it, to which relative paths and the numbers of a permutation refer.
        file: Lines of paths or of keys of samples; a permutation that numpy has saved; or what `--record` has written.
        name: Of the plan.

    Raises:
        ConfigError: the file cannot be read, or is none of these.
        MountError: there is no mount of aisfs, or it takes no order.
    """
    mount = _mount_of(mountpoint)
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    missing: list[str] = []
    if data.startswith(HEADING):
        with open(file, "rb") as recorded:
            return Announced(_send(mount, recorded.fileno(), name), missing)
    try:
        if data.startswith(_NUMPY):
            numbers = _permuted(_permutation(file, data), _pictures(mountpoint), file)
        else:
            lines = os.fsdecode(data).splitlines()
            numbers = _of_lines(mountpoint, filter(None, lines), missing)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error
    if not numbers:
        raise ConfigError(f"{file}: it names no file in {mountpoint}")
    descriptor = order.in_memory(numbers)
    try:
        return Announced(_send(mount, descriptor, name), missing)
    finally:
        os.close(descriptor)


def plans(mountpoint: Path) -> list[dict[str, Any]]:
    """Return how far the readers of each plan are.

    Raises:
        MountError: there is no mount of aisfs, or it takes no order.
    """
    found: list[dict[str, Any]] = json.loads(_ask(_mount_of(mountpoint), order.ATTRIBUTE))
    return found


def drop(mountpoint: Path, name: str) -> int:
    """End a plan, or all without a name; return how many there were.

    Raises:
        MountError: there is no mount of aisfs, or it takes no order.
    """
    wanted = f"{order.ATTRIBUTE}.drop.{name}" if name else f"{order.ATTRIBUTE}.drop"
    return int(json.loads(_ask(_mount_of(mountpoint), wanted))["plans"])


def _mount_of(place: Path) -> Path:
    """Return the mount that a directory is in."""
    for above in (place, *place.absolute().parents):
        if os.path.ismount(above):
            return our_mount(above)
    return our_mount(place)


def _send(mount: Path, descriptor: int, name: str) -> int:
    try:
        return order.taken(_ask(mount, order.attribute(descriptor, name)))
    except order.NotAnnounced as error:
        raise MountError(f"{mount}: {error}") from error


def _ask(mount: Path, attribute: str) -> bytes:
    try:
        return ask(mount, attribute, None)
    except OSError as error:
        if error.errno == errno.ENODATA:
            text = (
                "its daemon follows no order: it is of an older aisfs, or runs with --no-fastpath"
            )
            raise MountError(f"{mount}: {text}") from error
        if error.errno == errno.EPERM:
            text = "only the user who mounted it, and root, may announce an order"
            raise MountError(f"{mount}: {text}") from error
        raise MountError(f"{mount}: {error.strerror}") from error


def _of_lines(place: Path, lines: Iterable[str], missing: list[str]) -> "array[int]":
    """Return the numbers of paths; what is no file may be the key of a sample, and stands for its files."""
    paths = [os.path.join(place, line) for line in lines]
    numbers = order.numbers_of(paths, missing)
    if not missing:
        return numbers
    absent, samples = set(missing), dict[str, dict[str, list[str]]]()
    missing.clear()
    return order.numbers_of(_files(paths, absent, samples), missing)


def _files(
    paths: Iterable[str], absent: set[str], samples: dict[str, dict[str, list[str]]]
) -> Iterator[str]:
    for path in paths:
        if path not in absent:
            yield path
            continue
        directory, key = os.path.split(path)
        if directory not in samples:
            samples[directory] = _samples(directory)
        yield from samples[directory].get(key, [path])


def _samples(directory: str) -> dict[str, list[str]]:
    """Return the files of a directory by the keys of their samples, as webdataset has them."""
    found: dict[str, list[str]] = {}
    if os.path.isdir(directory):
        for name in sorted(os.listdir(directory)):
            found.setdefault(name.partition(".")[0], []).append(os.path.join(directory, name))
    return found


def _pictures(place: Path) -> list[str]:
    """Return the pictures below a directory as torchvision's ImageFolder numbers them; if there are none, all files."""
    walked = [
        os.path.join(directory, name)
        for directory, _, names in sorted(os.walk(place))
        for name in sorted(names)
    ]
    return [path for path in walked if path.lower().endswith(PICTURES)] or walked


def _permutation(file: str, data: bytes) -> "array[int]":
    """Return the numbers that numpy has saved."""
    wrong = ConfigError(f"{file}: not one row of whole numbers, as numpy.save writes it")
    long = data[6:7] > b"\x01"
    try:
        (length,) = unpack_from("<I" if long else "<H", data, 8)
        start = (12 if long else 10) + length
        about = ast.literal_eval(data[start - length : start].decode())
        numbers = array(_TYPES[about["descr"]])
        if len(about["shape"]) != 1:
            raise wrong
        numbers.frombytes(data[start : start + about["shape"][0] * numbers.itemsize])
    except (LookupError, ValueError, SyntaxError, TypeError, StructError) as error:
        raise wrong from error
    return numbers


def _permuted(numbers: "array[int]", files: list[str], file: str) -> "array[int]":
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(files):
        raise ConfigError(
            f"{file}: it numbers files up to {max(numbers):,}, and there are {len(files):,}, counted from 0"
        )
    found = order.numbers_of(files)
    return array("Q", [found[number] for number in numbers])
