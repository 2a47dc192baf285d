"""Errors in AIStore's terms: HTTP status, `tcode` and message.

Only the server makes HTTP statuses, so they are attributes of the error.
"""

from aisfs.errors import AisfsError

Headers = list[tuple[str, str]]


class Failure(AisfsError):
    """A request that ends in an AIStore error document.

    `node` is the reporting node: `p` the proxy, `t` the target. `headers` are sent with the document.
    """

    def __init__(
        self,
        status: int,
        message: str,
        tcode: str = "",
        *,
        node: str = "",
        headers: Headers | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.tcode = tcode
        self.node = node
        self.headers = headers or []
        self.method, self.path = "", ""
        """The method and path AIStore names in the document, where they are not the client's."""


class NotAllowed(Exception):
    """A method that the path does not support; the reply is plain text, as in Go."""

    def __init__(self, allow: str) -> None:
        super().__init__(allow)
        self.allow = allow


def text_of(key: bytes) -> str:
    """Return a key as text; bytes that are not UTF-8 become lone surrogates."""
    return key.decode("utf-8", "surrogateescape")


def uri_of(bucket: str, key: bytes) -> str:
    """Return `ais://bucket/key` for messages."""
    return f"ais://{bucket}/{text_of(key)}"


def no_object(bucket: str, key: bytes, *, status: int = 404) -> Failure:
    """Return the error for an object that does not exist."""
    return Failure(status, f"t[{{node}}]: {uri_of(bucket, key)} does not exist", "ErrNotFound")


def no_object_to_delete(bucket: str, key: bytes) -> Failure:
    """Return the error for the removal of an object that does not exist."""
    return Failure(404, f"{uri_of(bucket, key)} doesn't exist")


def no_bucket(bucket: str) -> Failure:
    """Return the error for a bucket that does not exist."""
    return Failure(404, f'bucket "ais://{bucket}" does not exist', "ErrBckNotFound")


def not_remote(action: object, bucket: str) -> Failure:
    """Return the error for an action that only buckets of other backends have."""
    text = f"{action}: expecting remote bucket (have ais://{bucket})"
    return Failure(400, text, "ErrNotRemoteBck")


def is_directory(bucket: str, key: bytes, *, status: int = 500) -> Failure:
    """Return the error for reading a directory as an object."""
    return Failure(status, f"{uri_of(bucket, key)}, err: no data available", "ErrLmetaNotFound")


def virtual_directory() -> Failure:
    """Return the error for a directory in the place of a new object."""
    return Failure(400, "destination exists and is a virtual directory", "ErrMv")


def bad_name(name: str) -> Failure:
    """Return the error for a name that no object can have."""
    return Failure(400, f'invalid object name "{name}"', "errInvalidPath")


def unsupported(what: str) -> Failure:
    """Return the error for an operation that this server does not support."""
    return Failure(501, f"{what} - operation not supported", "ErrUnsupp")


def wrong_checksum(kind: str, given: str, computed: str, context: str = "") -> Failure:
    """Return the error for data that does not have the given checksum."""
    told = f" (context: {context})" if context else ""
    return Failure(500, f"BAD DATA CHECKSUM: {kind}({given} != {computed}){told}", "ErrBadCksum")
