"""`aisfs mount @NAME`: a mount that a profile of the configuration file describes."""

import os
from pathlib import Path

from aisfs.errors import ConfigError
from aisfs.settings import configuration, in_environment


def expand_profile(
    where: tuple[str, ...], options: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, object]]:
    """Replace the profile among the words of a mount by what it says.

    Args:
        where: The words; the first may be `@NAME`, the others win over its source and mountpoint.
        options: The values of -o; they win over those of the profile.

    Returns:
        The words, the values of -o, and values by name of the option. What the environment has is
        not among those, since it wins over profiles.

    Raises:
        ConfigError: there is no such profile, or it says something else than it may.
    """
    if not where or not where[0].startswith("@"):
        return where, options, {}
    name, *words = where
    values = dict(configuration().profile(name[1:]).values)
    sources = _texts(name, "source", values.pop("source", []))
    mountpoint = _texts(name, "mountpoint", values.pop("mountpoint", []))
    own = _texts(name, "options", values.pop("options", []))
    if not words:
        if len(mountpoint) != 1:
            raise ConfigError(f"{name}: no mountpoint in the profile; give it: mount {name} MNT")
        words = [str(Path(mountpoint[0]).expanduser())]
    if len(words) == 1:
        words = [*sources, *words]
    kept = {option: value for option, value in values.items() if not in_environment(option)}
    return tuple(words), (*own, *options), kept


def mountpoint_of(word: str) -> Path:
    """Return the mountpoint that a word of the command line means: a path, or `@NAME` of a profile.

    Raises:
        ConfigError: it is a source, or there is no such profile, or it names no mountpoint.
    """
    if "://" in word and not os.path.lexists(word):
        from aisfs.work.mounts import mountpoints_of

        places = ", ".join(mountpoints_of(word))
        there = f"it is mounted on {places}" if places else "`aisfs status` lists the mounts"
        raise ConfigError(f"{word} is a SOURCE, and this takes the directory of a mount: {there}")
    if not word.startswith("@"):
        return Path(word)
    found = _texts(
        word, "mountpoint", configuration().profile(word[1:]).values.get("mountpoint", [])
    )
    if len(found) != 1:
        raise ConfigError(f"{word}: no mountpoint in the profile; give the directory itself")
    return Path(found[0]).expanduser()


def _texts(profile: str, name: str, value: object) -> list[str]:
    """Return a text, or a list of them."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{profile}: {name} is a text or a list of texts (got {value!r})")
    return found
