"""The check of object names, before a name reaches the disk."""

from aisfs.server import failures
from aisfs.server.failures import Failure


def check_key(key: bytes) -> None:
    """Check that AIStore accepts a name, and that a file can have it.

    Raises:
        Failure: 400.
    """
    parts = key.split(b"/")
    # AIStore stores empty components but never lists them; as files they cannot exist.
    home = parts[0] == b"~" and len(parts) > 1
    if b"" in parts or b"." in parts or b".." in parts or home or b"\0" in key:
        raise failures.bad_name(failures.text_of(key))
    if max(map(len, parts)) > 255:
        raise Failure(400, "file name too long", "errInvalidPath")
