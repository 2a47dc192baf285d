"""The one error tree. An error says what went wrong in the project's words.

No errno here (filesystem/ maps to errno) and no HTTP status as identity (ais/ maps from it).
`transient` answers the only question a retry asks: may the same request succeed a little later?
Every message names the thing that failed and, where there is one, what the user can do.
"""

from typing import Any, cast

from aisfs.redaction import shown


class AisfsError(Exception):
    """Anything aisfs reports on purpose."""

    transient = False

    def __init__(self, text: str = "") -> None:
        super().__init__(shown(text))


# What a store can report ------------------------------------------------------------------------


class NotFound(AisfsError):
    """No such object, member or directory."""


class BucketNotFound(NotFound):
    """The bucket itself does not exist."""


class AccessDenied(AisfsError):
    """The token is missing, expired, or does not permit this."""


class Archived(AccessDenied):
    """The object lies in an archive (S3 Glacier, Azure's archive tier) and must be restored first."""


class Stale(AisfsError):
    """The object changed since its version was first seen."""


class NameGone(Stale):
    """The name was removed while it was being opened; the kernel looks it up again."""


class Unavailable(AisfsError):
    """The cluster did not serve the request: overload, restart, reset, timeout."""

    transient = True
    pause = 0.0
    """Seconds that the server wants to be left alone."""


class Unproven(Unavailable):
    """The cluster answered, but what it did not find, or did not list, may be there all the same."""


class DeadlineExceeded(AisfsError):
    """No retry succeeded before the deadline."""


class OutOfSpace(AisfsError):
    """The cluster or the staging directory is full."""


class FileTooLarge(AisfsError):
    """A file is to become larger than a mount could ever store."""


class Unsupported(AisfsError):
    """The cluster, this bucket or this installation does not support it."""


class NoRanges(Unsupported):
    """The server sends objects only whole."""


class InvalidName(AisfsError):
    """A name that the store refuses."""


class ContentUnreadable(AisfsError):
    """The bytes to be written cannot be read, or have changed."""


class TransformFailed(AisfsError):
    """An object could not be transformed, so there is no content of it."""


class TransformBroken(TransformFailed):
    """A transformation broke off, which may be different next time."""

    transient = True


class ProtocolError(AisfsError):
    """The reply is neither a success nor a known error."""


# What the tree and the shards can report --------------------------------------------------------


class ShardDamaged(AisfsError):
    """These bytes of a shard are missing or broken."""


class ArchiveTooLarge(AisfsError):
    """Decompressing the archive or member needs more disk cache or memory than allowed."""


class ReadOnly(AisfsError):
    """A change to something that cannot be changed."""


class NameTooLong(AisfsError):
    """A name component over 255 bytes."""


class NotADirectory(AisfsError):
    """A directory operation on something that is not a directory."""


class IsADirectory(AisfsError):
    """A file operation on a directory."""


class NoSuchAttribute(AisfsError):
    """The extended attribute does not exist."""


class AlreadyExists(AisfsError):
    """The name is taken."""


class NotEmpty(AisfsError):
    """A directory that still has entries."""


class CrossDevice(AisfsError):
    """A rename that only a copy can do: to another bucket, into a shard, of too many objects."""


class NotPermitted(AisfsError):
    """A change that objects cannot store (links, devices, owners), or the end of a bucket."""


# What a command can report ----------------------------------------------------------------------


class IndexRefused(AisfsError):
    """A published index that is damaged, of another version of its shard, or cannot be true."""


class IndexOutdated(IndexRefused):
    """A published index of another version of its shard, of aisfs, or of other options."""


class ConfigError(AisfsError):
    """An option or environment variable has an unusable value."""


class NoEndpoint(ConfigError):
    """No option or variable names the cluster."""


class MountError(AisfsError):
    """The mountpoint or the machine does not permit the mount."""


class DaemonSilent(MountError):
    """The daemon of a mount does not answer."""


class FuseUnavailable(AisfsError):
    """This machine lacks what any FUSE mount needs."""


class JobNotFound(AisfsError):
    """The cluster knows no such job, or the job has ended already."""


class JobFailed(AisfsError):
    """A job of the cluster ended before its work was done."""


class SourceMissing(AisfsError):
    """The source to mount does not exist."""


def untraced(error: Exception) -> Exception:
    """Return a copy of an error without its traceback.

    That keeps all frames it passed, and with them the buffers they filled. And one object that several
    waiters raise gets the frames of all of them. An error that only an extension can make is not copied.
    """
    kind = type(error)
    # Not through the constructor of its class, as copy.copy does: that may take other arguments.
    built_in: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    _, arguments, *state = built_in.__reduce__(error)
    try:
        made = built_in.__new__(kind, *arguments)
    except TypeError:  # a class of an extension that only makes its errors itself
        return error.with_traceback(None)
    built_in.__init__(made, *arguments)
    if state:
        made.__setstate__(*state)
    return cast("Exception", made)
