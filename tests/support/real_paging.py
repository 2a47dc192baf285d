"""Pages as a real AIStore 5.0 cuts them: docs of trap T4, in `ais-protocol.md` 0.2.

A target walks a directory `X` where it meets it, before `X y` and `X-2`; cuts the page there; sorts it
as strings; and gives the last string as the token, from which it goes on by string comparison. The
proxy merges the pages of the targets as strings, and cuts again.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class RealPaging:
    """Targets with the names they hold."""

    targets: tuple[tuple[str, ...], ...]

    def page(self, prefix: str, token: str, size: int) -> tuple[list[str], str]:
        """Give one page of one level, and the token the server gives with it."""
        pages = [_page(_level(names, prefix), token, size) for names in self.targets]
        merged = sorted({name for names in pages for name in names}, key=str.encode)
        more = len(merged) > size or any(len(names) == size for names in pages)
        return merged[:size], merged[:size][-1] if more else ""


def _level(names: Iterable[str], prefix: str) -> set[str]:
    """Give the entries of one level; directories with their slash."""
    below = (name[len(prefix) :] for name in names if name.startswith(prefix))
    return {prefix + head + slash for head, slash, _ in (rest.partition("/") for rest in below)}


def _page(level: set[str], token: str, size: int) -> list[str]:
    walked = sorted(
        level, key=lambda name: (name.removesuffix("/").encode(), not name.endswith("/"))
    )
    behind = [name for name in walked if name.encode() > token.encode()]
    return sorted(behind[:size], key=str.encode)
