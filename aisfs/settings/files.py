"""Configuration files: defaults of options for all commands, and named profiles for mounts.

    endpoint = "http://ais:8080"          # for every command

    [profiles.pets]                       # aisfs mount @pets
    source = "ais://pets/train-{000..099}.tar"
    mountpoint = "/mnt/pets"
    view = "class"

The user's file wins over the system's; a file that is named replaces both.
"""

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_config_dir

from aisfs.errors import ConfigError

SYSTEM_FILE = Path("/etc/aisfs/config.toml")
OF_MOUNTS = frozenset({"source", "mountpoint", "options", "allow_other"})
"""What a profile may say besides the settings."""
_PROFILES = "profiles"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file a value is."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True, slots=True)
class FileValues:
    """Values by name of the option, with `_` for `-`, and where each is."""

    values: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the configuration files say."""

    defaults: FileValues = FileValues()
    profiles: Mapping[str, FileValues] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    named: Path | None = None
    """The one file that was named, if one was."""

    def profile(self, name: str) -> FileValues:
        """Return a profile.

        Raises:
            ConfigError: there is none of this name.
        """
        if name not in self.profiles:
            known = ", ".join(f"@{one}" for one in sorted(self.profiles)) or "none"
            where = ", ".join(map(str, self.files))
            if not where:
                raise ConfigError(f"@{name}: there is no {user_file()}, nor {SYSTEM_FILE}")
            raise ConfigError(f"@{name}: no such profile in {where}; there are: {known}")
        return self.profiles[name]


def user_file() -> Path:
    """Return where the user's configuration is."""
    return Path(user_config_dir("aisfs")) / "config.toml"


def read_files(named: Path | None, known: Collection[str]) -> Configuration:
    """Read the file that was named, else the system's and the user's as far as they exist.

    Args:
        named: The file of `--config`.
        known: Names of the settings.

    Raises:
        ConfigError: a file cannot be read, is no TOML or has an unknown option; the line is named.
    """
    named = named.absolute() if named is not None else None  # a daemon reads it again from /
    paths = (named,) if named is not None else (SYSTEM_FILE, user_file())
    together = Configuration(named=named)
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError) as error:
            if named is not None:
                raise ConfigError(f"--config {named}: no such file") from error
            continue
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"{path}: {reason}") from error
        found = _parse(path, text, known)
        together = Configuration(
            FileValues(
                {**together.defaults.values, **found.defaults.values},
                {**together.defaults.places, **found.defaults.places},
            ),
            {**together.profiles, **found.profiles},
            (*together.files, path),
            named,
        )
    return together


def _parse(path: Path, text: str, known: Collection[str]) -> Configuration:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    profiles = table.pop(_PROFILES, {})
    if not isinstance(profiles, dict) or not all(isinstance(p, dict) for p in profiles.values()):
        raise ConfigError(f"{path}: profiles are tables, such as [profiles.pets]")
    return Configuration(
        _values(path, text, "", table, known),
        {
            name: _values(path, text, name, values, {*known, *OF_MOUNTS})
            for name, values in profiles.items()
        },
    )


def _values(
    path: Path, text: str, profile: str, table: Mapping[str, Any], known: Collection[str]
) -> FileValues:
    values, places = {}, {}
    for key, value in table.items():
        name = key.replace("-", "_")
        place = Place(path, _line_of(text, profile, key))
        if isinstance(value, dict):
            raise ConfigError(f"{place}: [{key}]: unknown table; profiles are [profiles.NAME]")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
            if name in OF_MOUNTS:
                hint = "; it belongs into a profile, [profiles.NAME]"
            raise ConfigError(f"{place}: unknown option {key!r}{hint}")
        if name in values:
            raise ConfigError(f"{place}: {key!r} is given twice, with - and _")
        values[name], places[name] = value, place
    return FileValues(values, places)


def _line_of(text: str, profile: str, key: str) -> int:
    """Return the line on which a key is set, in the table of a profile or before all tables."""
    setting = re.compile(rf"""\s*(["']?){re.escape(key)}\1\s*=""")
    heading = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
    inside = ""
    for number, line in enumerate(text.splitlines(), start=1):
        head = heading.match(line)
        if head is not None:
            inside = head[1].rpartition(".")[2].strip("\"' ")
            if not profile and inside == key:  # a table that should not be there
                return number
        elif inside == profile and setting.match(line):
            return number
    return 1
