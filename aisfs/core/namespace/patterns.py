"""Glob patterns over keys: which keys to show, and which directories need no listing.

The syntax is wcmatch's: `*` and `?` stop at a slash, `**` does not, `[...]` and `{a,b}` as in shells. `{000..}`
stands for the numbers from 0 on with at least three digits, as `aisfs pack` counts.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wcmatch import glob

from aisfs.core.namespace.urls import place_end

_FLAGS = glob.GLOBSTAR | glob.DOTGLOB | glob.BRACE | glob.FORCEUNIX
_OPEN_RANGE = re.compile(r"\{([0-9]+)\.\.\}")
_MAGIC = re.compile(r"[*?\[]|" + _OPEN_RANGE.pattern)
_MARKED_RANGE = re.compile("\0([0-9]+)\0")
"""An open range while wcmatch, which does not know them, translates a pattern; no key has such a character."""
_Compiled = tuple[re.Pattern[str], ...]


SPECIAL = "{}[]*?,\\"
"""Characters with a meaning in patterns. A backslash before one of them makes it stand for itself."""
_QUOTED = re.compile(r"\\([{}\[\]*?,\\]?)")
_ASIDE = 0xD800
"""What is added to a character that stands for itself: no argument has these code points, so nothing takes it for
part of a pattern until `literal` brings it back."""
_TO_ASIDE = {ord(c): chr(_ASIDE + ord(c)) for c in SPECIAL}
ASIDE_BRACKETS = "[]".translate(_TO_ASIDE)
_FROM_ASIDE = {_ASIDE + ord(c): c for c in SPECIAL}
_ADDRESS = re.compile(r"(?<=://)(?:[^/@\[\]]*@)?\[[0-9A-Fa-f:.]+\]")
"""The host of a URL as an IPv6 address: its brackets are part of it."""
_FROM_ASIDE_TO_GLOB = {_ASIDE + ord(c): f"\\{c}" for c in SPECIAL}


def marked(text: str, exists: Callable[[str], bool]) -> str:
    """Return an argument with the characters set aside that stand for themselves; see `literal`.

    These are the quoted ones, and those of each directory, and at last of the name, that exists as it is written.

    Args:
        text: As typed: a pattern over paths, or over what follows a bucket.
        exists: Returns whether there is a file, an object, or if it ends in a slash a directory, of this name.
    """
    text = _aside_address(text)
    start = place_end(text)
    if not any(c in text for c in SPECIAL):
        return text
    if any(c in text[:start] for c in SPECIAL):
        return _unquoted(text)
    while start < len(text):
        end = text.find("/", start) + 1 or len(text)
        if any(c in text[start:end] for c in SPECIAL) and not exists(text[:end]):
            break
        start = end
    return text[:start].translate(_TO_ASIDE) + _unquoted(text[start:])


def _aside_address(text: str) -> str:
    return _ADDRESS.sub(lambda found: found[0].translate(_TO_ASIDE), text)


def _unquoted(text: str) -> str:
    """Return a text with quoted characters set aside, and without their backslashes."""
    return _QUOTED.sub(lambda found: (found[1] or "\\").translate(_TO_ASIDE), text)


def literal(text: str) -> str:
    """Return a text that names one thing, with all characters that were set aside."""
    return text.translate(_FROM_ASIDE)


def as_glob(text: str) -> str:
    """Return a glob in which what was set aside is quoted."""
    return text.translate(_FROM_ASIDE_TO_GLOB)


def is_glob(text: str) -> bool:
    """Return whether a text has characters with a meaning in globs."""
    return _MAGIC.search(text) is not None


def is_pattern(text: str) -> bool:
    """Return whether a text may stand for several names: by braces, or as a glob."""
    return "{" in text or is_glob(_aside_address(text))


def _compile(patterns: Sequence[str]) -> _Compiled:
    marked = [_OPEN_RANGE.sub("\0\\1\0", pattern) for pattern in patterns]
    wanted, _ = glob.translate(marked, flags=_FLAGS) if marked else ([], [])
    return tuple(re.compile(_MARKED_RANGE.sub(lambda m: _at_least(m[1]), text)) for text in wanted)


def _at_least(first: str) -> str:
    """Return the expression for numbers from `first` on, with leading zeros up to its length."""
    width = len(first)
    ways = [first, f"[1-9][0-9]{{{width},}}"]
    for at, digit in enumerate(first):
        if digit != "9":
            ways.append(f"{first[:at]}[{int(digit) + 1}-9][0-9]{{{width - at - 1}}}")
    return f"(?:{'|'.join(ways)})"


def _matches(compiled: _Compiled, path: str) -> bool:
    return any(pattern.match(path) for pattern in compiled)


class GlobPattern:
    """One pattern over whole paths."""

    def __init__(self, text: str) -> None:
        self._whole = _compile([text])
        self._parts: list[_Compiled | None] = []
        """What each directory must match; None for `**`, below which anything may match."""
        *parts, name = text.split("/")
        for part in [*parts, name] if "**" in name else parts:
            self._parts.append(None if "**" in part else _compile([part]))

    def matches(self, path: str) -> bool:
        """Return whether a path matches."""
        return _matches(self._whole, path)

    def enters(self, directory: str) -> bool:
        """Return whether anything below a directory, written `a/b/`, can match."""
        names = directory.rstrip("/").split("/")
        for depth, name in enumerate(names):
            if depth >= len(self._parts):
                return False
            part = self._parts[depth]
            if part is None:
                return True
            if not _matches(part, name):
                return False
        return True


@dataclass(frozen=True)
class KeyFilter:
    """Which paths are wanted: those that match an `include`, if there are any, and no `exclude`.

    As in restic and rclone, a pattern matches at any depth, but one that starts with `/` only from
    the root, and a pattern that matches a directory includes everything below it.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    _included: _Compiled = field(init=False, repr=False, compare=False)
    _excluded: _Compiled = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_included", _compile([*map(_anchored, self.include)]))
        object.__setattr__(self, "_excluded", _compile([*map(_anchored, self.exclude)]))

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)

    def wants(self, path: str) -> bool:
        """Return whether an object is wanted."""
        ways = _with_parents(path)
        if self.include and not any(_matches(self._included, way) for way in ways):
            return False
        return not any(_matches(self._excluded, way) for way in ways)

    def below(self, prefix: str) -> Callable[[str], bool] | None:
        """Return the test for keys, and for prefixes that end in a slash; None when all are shown.

        Patterns apply to the part after `prefix`.
        """
        if not self:
            return None
        cut = len(prefix)
        return lambda key: self.enters(key[cut:]) if key.endswith("/") else self.wants(key[cut:])

    def enters(self, directory: str) -> bool:
        """Return whether something below a directory, written `a/b/`, may be wanted."""
        ways = _with_parents(directory.rstrip("/"))
        if any(_matches(self._excluded, way) for way in ways):
            return False
        if not self.include or any(_matches(self._included, way) for way in ways):
            return True
        return any(_may_match_below(pattern, directory) for pattern in self.include)


def _anchored(pattern: str) -> str:
    directory = pattern.rstrip("/")
    return directory[1:] if directory.startswith("/") else f"**/{directory}"


def _may_match_below(pattern: str, directory: str) -> bool:
    if not pattern.startswith("/") or "{" in pattern:  # braces may have a slash in them
        return True
    return GlobPattern(pattern.strip("/")).enters(directory)


def _with_parents(path: str) -> list[str]:
    """Return a path and the directories above it."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


EVERY_KEY = KeyFilter()
"""The filter that accepts every key."""
