"""What the server refuses, in AIStore's terms: HTTP status, `tcode` and message.

The server is the one place below which HTTP statuses are made, so they live in the error itself.
"""

from aisfs.errors import AisfsError

Headers = list[tuple[str, str]]


class Failure(AisfsError):
    """A request that ends in an AIStore error document.

    `node` says who complains: `p` the proxy, `t` the target. `headers` go out beside the document.
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
    """A method that the path does not take; answered in plain text, as Go does."""

    def __init__(self, allow: str) -> None:
        super().__init__(allow)
        self.allow = allow


def text_of(key: bytes) -> str:
    """Show a key in a message; bytes that are not UTF-8 become lone surrogates."""
    return key.decode("utf-8", "surrogateescape")


def uri_of(bucket: str, key: bytes) -> str:
    """Return `ais://bucket/key` for messages."""
    return f"ais://{bucket}/{text_of(key)}"


def no_object(bucket: str, key: bytes) -> Failure:
    """Say that the target has no such object."""
    return Failure(404, f"t[{{node}}]: {uri_of(bucket, key)} does not exist", "ErrNotFound")


def no_bucket(bucket: str) -> Failure:
    """Say that the cluster has no such bucket."""
    return Failure(404, f'bucket "ais://{bucket}" does not exist', "ErrBckNotFound")


def is_directory(bucket: str, key: bytes) -> Failure:
    """Say that a directory was found where an object is to be read."""
    return Failure(500, f"{uri_of(bucket, key)}, err: no data available", "ErrLmetaNotFound")


def virtual_directory() -> Failure:
    """Say that there is a directory where the object would be."""
    return Failure(400, "destination exists and is a virtual directory", "ErrMv")


def bad_name(name: str) -> Failure:
    """Say that no object can have this name."""
    return Failure(400, f'invalid object name "{name}"', "errInvalidPath")


def unsupported(what: str) -> Failure:
    """Say that this server does not offer it."""
    return Failure(501, f"{what} - operation not supported", "ErrUnsupp")


def wrong_checksum(kind: str, given: str, computed: str, context: str = "") -> Failure:
    """Say that the data is not what its checksum promises."""
    told = f" (context: {context})" if context else ""
    return Failure(500, f"BAD DATA CHECKSUM: {kind}({given} != {computed}){told}", "ErrBadCksum")
