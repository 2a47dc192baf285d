"""Where a listing of an `ais://` bucket goes on, so that no name is lost between two pages.

AIStore's own token is the last name of the page, and loses names. A target visits the directory `X/`
where it meets `X`, before `X y` and `X-2`; it cuts the page there, sorts it afterwards, by strings, and
goes on by comparing strings. What lies between `X` and `X/` and was not on the page is never listed.
With several targets the proxy cuts once more.

So the next page is asked for from some names before the end of this one, and repeats those. How many
is bounded by how often a name can be sorted behind one that was visited later: once for each of its
prefixes that a character below `/` follows. `tests/ais/protocol/test_page_tokens.py` proves it against a model.
"""

from collections.abc import Sequence


def resume_after(names: Sequence[str], prefix: str, given: str) -> str:
    """Return the token behind which everything that was not on a page is found.

    Args:
        names: All names of the page, directories with their slash; not empty.
        prefix: The directory that is listed.
        given: The cluster's own token.

    Returns:
        The token; empty when the page is too short to have one.
    """
    ordered = sorted(_raw(name) for name in names)
    cut = len(_raw(prefix))
    directories = [name[:-1] for name in ordered if name.endswith(b"/")]
    moved = max((_prefixes(name[cut:]) + 1 for name in directories), default=0)
    at = len(ordered) - 1 - _prefixes(ordered[-1][cut:]) - moved
    # What held on real clusters: never behind the greatest name without its slash.
    objects = (name for name in reversed(ordered) if not name.endswith(b"/"))
    greatest = min(max([*directories, next(objects, b"")]), _raw(given))
    for name in reversed(ordered[: at + 1]):
        # Read as JSON, what is not UTF-8 becomes another name, which may be a later one.
        if name <= greatest and _is_utf8(name[cut:]):
            return name.decode("utf-8", "surrogateescape")
    return ""


def _prefixes(name: bytes) -> int:
    """Count the directories that may be sorted behind `name` and were visited before it."""
    return sum(byte < 0x2F for byte in name)


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
