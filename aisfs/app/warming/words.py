"""What the arguments of `aisfs warm` mean: paths in mounts, and sources that need no mount."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aisfs.app.buckets.places import Place, find_place
from aisfs.app.warming.through_mount import is_in_mount
from aisfs.core.names.sources import (
    LIST_SUFFIX,
    DatasetSource,
    GlobPattern,
    ShardPattern,
    SourceArg,
    is_pattern,
)
from aisfs.errors import ConfigError, SourceMissing
from aisfs.mount.plan import is_local, read_shards


def parse_words(
    words: Sequence[str], settings: Mapping[str, object]
) -> tuple[list[Path], list[Place]]:
    """Return the paths and the sources that the arguments name.

    Raises:
        ConfigError: there is none, or one of them or the list file makes no sense.
        SourceMissing: a pattern over paths matches nothing.
    """
    if "files_from" not in settings and not words:
        raise ConfigError("give a PATH in a mount or a SOURCE, such as ais://BUCKET")
    paths: list[Path] = []
    places: list[Place] = []
    if "files_from" in settings:
        places.append(Place("", read_shards(words, settings)))
        words = ()
    for text in words:
        if os.path.lexists(text) and not _is_list(text):
            paths.append(Path(text))
        elif "://" in text or is_pattern(text) or _is_list(text):
            places.append(find_place(text, settings))
        else:
            paths.append(Path(text))
    local = [place.source for place in places if is_local(place.source)]
    for source in local:
        assert isinstance(source, DatasetSource), "patterns and lists are a dataset"
        paths += [path for word in source.words for path in _expand(word)]
    return paths, [place for place in places if not is_local(place.source)]


def _is_list(text: str) -> bool:
    """Return whether this is a list of shards on this machine, and no object of a mount."""
    return (
        text.endswith(LIST_SUFFIX)
        and os.path.isfile(text)
        and not is_in_mount(Path(text).resolve())
    )


def _expand(word: SourceArg) -> list[Path]:
    """Return what exists of the local files and directories that one argument or list names."""
    found = [path for pattern in word.patterns for path in _matching(pattern)]
    if not found:
        raise SourceMissing(f"{word.text}: nothing there has such a name")
    return found


def _matching(pattern: ShardPattern) -> Iterator[Path]:
    if pattern.one or not pattern.rest:
        path = Path(pattern.directory + pattern.rest)
        if path.exists():
            yield path
        return
    glob = GlobPattern(pattern.rest)

    def fail(error: OSError) -> None:
        raise SourceMissing(f"{error.filename}: {error.strerror}") from error

    for parent, directories, files in os.walk(pattern.directory or ".", onerror=fail):
        below = os.path.relpath(parent, pattern.directory or ".")
        start = "" if below == "." else f"{below}/"
        yield from (
            Path(parent, n) for n in sorted([*directories, *files]) if glob.matches(start + n)
        )
        directories[:] = sorted(name for name in directories if glob.enters(f"{start}{name}/"))
