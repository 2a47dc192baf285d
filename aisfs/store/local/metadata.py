"""Versions and custom metadata of files, and the mode and time among it, which the file itself is given.

So other programs that use the directory see what `chmod` and `utime` did in a mount.

A version is the modification time and the inode number. Where the time is a chosen one, another content
may come to have both: a tag is kept beside the custom metadata, as part of the version.

Everything here blocks; files raise OSError as the system does.
"""

import errno
import logging
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress

from msgspec import structs

from aisfs.core.staged.posix_metadata import LINK, mode_of, mtime_of
from aisfs.errors import Unsupported
from aisfs.model import ObjectInfo
from aisfs.store.custom import decode_tagged, encode_custom, stamp_of
from aisfs.store.local import writes

log = logging.getLogger(__name__)


def described(key: str, result: os.stat_result, file: int | bytes) -> ObjectInfo:
    """Describe a file as an object, custom metadata and all."""
    info = _untagged(key, result)
    text = writes.read_attribute(file)
    if not text:
        return info
    custom, tag = decode_tagged(text, info)
    return structs.replace(
        info, custom=custom, version=f"{info.version}-{tag}" if tag else info.version
    )


def begin(descriptor: int, subject: str, custom: Mapping[str, str]) -> None:
    """Give a new file its custom metadata, as far as the file system keeps it."""
    try:
        _apply(descriptor, subject, custom)
        _keep(descriptor, subject, custom, _new_tag())
    except Unsupported as error:
        log.debug("%s", error)
        with suppress(OSError):  # without a tag, only the time tells this content from others
            os.utime(descriptor)


def change(descriptor: int, subject: str, custom: Mapping[str, str]) -> None:
    """Replace the custom metadata of a file.

    Raises:
        Unsupported: the file system keeps none, or the file belongs to somebody else. Nothing was changed.
    """
    before, old = os.fstat(descriptor), writes.read_attribute(descriptor)
    _, tag = decode_tagged(old, _untagged("", before))
    _keep(descriptor, subject, custom, tag)  # fails before anything else has changed
    try:
        _apply(descriptor, subject, custom)
    except BaseException:
        writes.write_attribute(descriptor, subject, old)
        raise
    if os.fstat(descriptor).st_mtime_ns != before.st_mtime_ns:
        _keep(descriptor, subject, custom, tag or _new_tag())


def _untagged(key: str, result: os.stat_result) -> ObjectInfo:
    version = f"{result.st_mtime_ns}-{result.st_ino}"
    return ObjectInfo(key, result.st_size, version, mtime_ns=result.st_mtime_ns)


def _new_tag() -> str:
    return uuid.uuid4().hex[:8]


def _keep(descriptor: int, subject: str, custom: Mapping[str, str], tag: str) -> None:
    """Keep custom metadata with a file for as long as it has the size and the time that it has now."""
    stamp = stamp_of(_untagged("", os.fstat(descriptor)))
    writes.write_attribute(descriptor, subject, encode_custom(custom, stamp, tag))


def _apply(descriptor: int, subject: str, custom: Mapping[str, str]) -> None:
    """Give a file the mode and the time that `custom` has, if any.

    Raises:
        Unsupported: the file belongs to somebody else, or its file system keeps neither.
    """
    old = os.fstat(descriptor)
    wanted = ObjectInfo("", 0, mtime_ns=old.st_mtime_ns, custom=custom)
    mode, mtime_ns = mode_of(wanted), mtime_of(wanted)
    if mode == LINK:  # others, to which it is a plain file, are not to change it
        mode = None
    try:
        if mode is not None and mode != old.st_mode & 0o777:
            os.fchmod(descriptor, old.st_mode & 0o7000 | mode)
        if mtime_ns != old.st_mtime_ns:
            os.utime(descriptor, ns=(old.st_atime_ns, mtime_ns))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise Unsupported(f"{subject}: mode or time: {error.strerror}") from error
