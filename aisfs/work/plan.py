"""`aisfs plan` and `aisfs warm --plan`: what a user has of an order of reading, as inode numbers for a mount, or as paths."""

import ast
import errno
import json
import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from struct import error as StructError
from struct import unpack_from
from typing import Any

from aisfs import order
from aisfs.core.names.inodes import slot_of
from aisfs.errors import ConfigError, MountError
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
    mount = mount_of(mountpoint)
    data = _read(file)
    if data.startswith(order.HEADING):
        with open(file, "rb") as recorded:
            return Announced(_send(mount, recorded.fileno(), name), [])
    named = _named(mountpoint, file, data)
    descriptor = order.in_memory(named.numbers)
    try:
        return Announced(_send(mount, descriptor, name), named.missing)
    finally:
        os.close(descriptor)


def paths_of(place: Path, file: str) -> tuple[list[str], int]:
    """Return the paths of the files that an order names, and how many others it names that are not there.

    Args:
        place: A directory in a mount, as for `announce`. Of a recorded order, the files that are in it.
        file: As for `announce`.

    Raises:
        ConfigError: the file cannot be read, is none of these, or names nothing.
    """
    data = _read(file)
    if not data.startswith(order.HEADING):
        named = _named(place, file, data)
        return named.paths, len(named.missing)
    from aisfs.filesystem.plans import recorded_numbers  # imports what a daemon consists of

    numbers = recorded_numbers(data)
    try:
        known = _files_by_number(place, set(numbers))
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error
    paths = [known[number] for number in numbers if number in known]
    if not paths:
        raise ConfigError(f"{file}: it names no file in {place}")
    return paths, len(set(numbers) - known.keys())


def plans(mountpoint: Path) -> list[dict[str, Any]]:
    """Return how far the readers of each plan are.

    Raises:
        MountError: there is no mount of aisfs, or it takes no order.
    """
    found: list[dict[str, Any]] = json.loads(_ask(mount_of(mountpoint), order.ATTRIBUTE))
    return found


def drop(mountpoint: Path, name: str) -> int:
    """End a plan, or all without a name; return how many there were.

    Raises:
        MountError: there is no mount of aisfs, or it takes no order.
    """
    wanted = f"{order.ATTRIBUTE}.drop.{name}" if name else f"{order.ATTRIBUTE}.drop"
    return int(json.loads(_ask(mount_of(mountpoint), wanted))["plans"])


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Named:
    """What an order names that is not recorded."""

    paths: list[str]
    numbers: "array[int]"
    missing: list[str]


def _named(place: Path, file: str, data: bytes) -> _Named:
    missing: list[str] = []
    try:
        if data.startswith(_NUMPY):
            paths = _permuted(_permutation(file, data), _pictures(place), file)
            numbers = order.numbers_of(paths)
        else:
            if b"\0" in data:
                raise ConfigError(f"{file}: neither lines nor a permutation nor a recorded order")
            lines = filter(None, os.fsdecode(data).splitlines())
            paths = [os.path.join(place, line) for line in lines]
            numbers = order.numbers_of(paths, missing)
            if missing:
                paths = _with_samples(paths, set(missing))
                missing.clear()
                numbers = order.numbers_of(paths, missing)
                absent = set(missing)
                paths = [path for path in paths if path not in absent]
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error
    if not numbers:
        raise ConfigError(f"{file}: it names no file in {place}")
    return _Named(paths, numbers, missing)


def mount_of(place: Path) -> Path:
    """Return the mount that a directory is in."""
    place = place.resolve()
    for above in (place, *place.parents):
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


def _with_samples(paths: Iterable[str], absent: set[str]) -> list[str]:
    """Return paths, with all its files for each that is no file and may be the key of a sample."""
    samples: dict[str, dict[str, list[str]]] = {}
    found: list[str] = []
    for path in paths:
        if path not in absent:
            found.append(path)
            continue
        directory, key = os.path.split(path)
        if directory not in samples:
            samples[directory] = _samples(directory)
        found += samples[directory].get(key, [path])
    return found


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


def _permuted(numbers: "array[int]", files: list[str], file: str) -> list[str]:
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(files):
        raise ConfigError(
            f"{file}: it numbers files up to {max(numbers):,}, and there are {len(files):,}, counted from 0"
        )
    return [files[number] for number in numbers]


def _files_by_number(place: Path, wanted: set[int]) -> dict[int, str]:
    """Return the paths of files in a directory by their inode numbers; only shards that have some are listed."""
    from aisfs.core.names.listing import SHARD_DIRECTORY_SUFFIX, is_shard

    shards = {slot_of(number) for number in wanted}
    found: dict[int, str] = {}
    left = [os.fspath(place)]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                number = entry.inode()
                folder = entry.path + os.fsdecode(SHARD_DIRECTORY_SUFFIX)
                if entry.is_dir(follow_symlinks=False):
                    if slot_of(number) == number or slot_of(number) in shards:
                        left.append(entry.path)
                    continue
                if number in wanted:
                    found[number] = entry.path
                if is_shard(os.fsencode(entry.name)) and _slot_of(folder) in shards:
                    left.append(folder)
    return found


def _slot_of(folder: str) -> int | None:
    try:
        return slot_of(os.stat(folder).st_ino)
    except FileNotFoundError:
        return None
