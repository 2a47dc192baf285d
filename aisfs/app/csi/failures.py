"""Why a volume cannot be published, as kubelet is told."""

from enum import IntEnum

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    ConfigError,
    DeadlineExceeded,
    FuseUnavailable,
    MountError,
    SourceMissing,
    Unavailable,
)


class Code(IntEnum):
    """Codes of gRPC, by the numbers that it sends."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


_CODES: list[tuple[type[AisfsError], Code]] = [
    (ConfigError, Code.INVALID_ARGUMENT),
    (BucketNotFound, Code.NOT_FOUND),
    (SourceMissing, Code.NOT_FOUND),
    (Unavailable, Code.UNAVAILABLE),
    (DeadlineExceeded, Code.UNAVAILABLE),
    (AccessDenied, Code.PERMISSION_DENIED),
    (FuseUnavailable, Code.FAILED_PRECONDITION),
    (MountError, Code.FAILED_PRECONDITION),
]


def code_of(error: AisfsError) -> Code:
    """Return the code of an error."""
    return next((code for cls, code in _CODES if isinstance(error, cls)), Code.INTERNAL)


class VolumeError(AisfsError):
    """A call that failed, with its code."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(" ".join(text.split()))
        self.code = code
