"""The words of `aisfs mount`: what is to be mounted, and the options as of mount(8)."""

import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from aisfs.config import ViewSettings
from aisfs.core.namespace.patterns import KeyFilter
from aisfs.core.namespace.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Source,
    absolute,
    parse_list,
    parse_sources,
)
from aisfs.errors import ConfigError

# What fstab and mount(8) add and what says nothing to us; the second set goes to the kernel.
_IGNORED = frozenset(
    {"defaults", "ro", "auto", "noauto", "user", "nouser", "users", "_netdev", "nofail", "noatime"}
)
_COMMA = re.compile(r"(?<!\\),")
_KERNEL = frozenset(
    {"allow_other", "allow_root", "nonempty", "dev", "nodev", "suid", "nosuid", "exec", "noexec"}
)


def read_source(words: list[str], view: ViewSettings, given: Collection[str] = ()) -> Source:
    """Read what is to be mounted.

    Args:
        words: As typed.
        view: How it is to be shown.
        given: All settings that were given, by name.

    Raises:
        ConfigError: the words or the list file make no sense.
    """
    listed = None
    if view.files_from is not None:
        if len(words) > 1:
            raise ConfigError("--files-from: give one SOURCE that its lines lie below, or none")
        name = view.files_from
        try:
            text = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except OSError as error:
            raise ConfigError(f"--files-from {name}: {error.strerror}") from error
        base = words[0] if words else None
        listed = parse_list(name, os.fsdecode(text).splitlines(), base, is_directory=os.path.isdir)
    source = parse_sources(
        words,
        is_directory=os.path.isdir,
        view=view.view is not None,
        listed=listed,
        keys=key_filter(view),
    )
    options = sorted(view.model_fields_set)
    if isinstance(source, BucketSource | DirectorySource):
        options = [name for name in options if name not in ("include", "exclude")]
    if options and not isinstance(source, DatasetSource):
        raise ConfigError(f"--{options[0].replace('_', '-')} needs --view, or shards as the SOURCE")
    _check_tree(source, view, given)
    return absolute(source)


def key_filter(view: ViewSettings) -> KeyFilter:
    """Say which keys are shown."""
    return KeyFilter(view.include or (), view.exclude or ())


def read_lines(path: Path) -> list[bytes]:
    """Read the names of classes.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--classes {path}: {error.strerror}") from error


def _check_tree(source: Source, view: ViewSettings, given: Collection[str]) -> None:
    """Refuse options of single shards where they mean nothing."""
    if isinstance(source, DatasetSource) and "shards" in given:
        raise ConfigError("--shards: a dataset shows the members of shards only; see --view")
    if view.shuffle is not None and "shard_index" in given:
        raise ConfigError("--shard-index: not with --shuffle, since it knows no headers")


def check_writable(source: Source, view: ViewSettings) -> None:
    """Refuse to write where a change would reach what is not shown.

    Raises:
        ConfigError: with the option to leave out.
    """
    if isinstance(source, DatasetSource):
        raise ConfigError(
            "--writable: a dataset cannot be changed; mount its bucket or directory without --view"
        )
    if view.include or view.exclude:
        raise ConfigError(
            "--writable: not with --include or --exclude, since files that are left out could be "
            "overwritten unseen"
        )


def sort_options(
    given: tuple[str, ...],
    settings: Collection[str],
    flags: Collection[str] = (),
    lists: Collection[str] = (),
) -> tuple[set[str], dict[str, object]]:
    """Sort the words of -o: some are the kernel's, some our own options as fstab has to write them.

    A comma within a value is written `\\,`, as libfuse has it.

    Args:
        given: What was behind each -o.
        settings: Names of our options.
        flags: Those of them that need no value.
        lists: Those of them that may be given again.

    Returns:
        Words for the kernel, and values by name of our option.

    Raises:
        ConfigError: the option is unknown, or asks for something this version does not do.
    """
    kernel: set[str] = set()
    named: dict[str, object] = {}
    listed: dict[str, list[str]] = defaultdict(list)
    for option in _COMMA.split(",".join(given)):
        word, _, value = option.strip().replace("\\,", ",").partition("=")
        name = word.replace("-", "_")
        if word in _KERNEL:
            kernel.add(word)
        elif name in lists and value:
            listed[name].append(value)
        elif name in settings and value:
            named[name] = value
        elif name in flags:
            named[name] = True
        elif word == "rw":
            kernel.add(word)
        elif word and word not in _IGNORED and not word.startswith("x-"):
            raise ConfigError(f"-o {option.strip()}: unknown mount option")
    return kernel, {**named, **{name: tuple(values) for name, values in listed.items()}}
