"""What settings are made of: the types of their values, and where values come from.

The only reader of the environment. What was typed comes first, then the environment, then the
configuration files. The names of the variables that reach the cluster are also those of the `ais`
CLI and the Python SDK, so one setup serves all.
"""

import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum, StrEnum
from functools import cache, partial
from math import isinf
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar, overload

from aisfs.errors import ConfigError
from aisfs.redaction import remember_url
from aisfs.settings import files

MIB = 1 << 20
GIB = 1 << 30

_SIZE = re.compile(r"\s*(\d*\.?\d+(?:[eE]\d{1,2})?)\s*([A-Za-z]+)?\s*")
_UNITS: dict[str, float] = {
    f"{letter}{binary}{unit}": size * base**power
    for power, letter in enumerate(["", *"kmgtpe"])
    for binary, base in (("", 1000), ("i", 1024))
    for unit, size in (("b", 1), ("bit", 1 / 8))
    if letter or not binary
}
_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE = frozenset({"0", "f", "false", "n", "no", "off"})

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=Enum)


def flag_of(value: object) -> object:
    """Parse a flag as the SDK does: a few words mean yes, everything else means no."""
    return value.strip().lower() in _TRUE if isinstance(value, str) else value


def parse_size(value: object) -> int:
    """Return the number of bytes of a size such as `1.5GiB`.

    Raises:
        ValueError: it is not a size.
    """
    if isinstance(value, float) and value % 1:
        raise ValueError(f"bytes are whole: write a unit, such as {value}GiB")
    if isinstance(value, int | float) and value >= 0:
        return int(value)
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = (found[2] or "b").lower() if found is not None else ""
    unit += "b" if unit.endswith("i") or unit in tuple("kmgtpe") else ""  # 1Gi, as in Kubernetes
    if found is None or unit not in _UNITS:
        raise ValueError("a size is a number, with a unit or without: 1000, 1.5MiB, 10Gi, 50G")
    number = found[1]
    if found[2] is None and float(number) % 1:
        raise ValueError(f"bytes are whole: write a unit, such as {number}GiB")
    return int((int(number) if number.isdecimal() else float(number)) * _UNITS[unit])


def show_size(size: int) -> str:
    """Return a size as people write it, such as 1.5GiB."""
    power = min(max(size.bit_length() - 1, 0) // 10, 6)
    return f"{size / 1024**power:.1f}{'KMGTPE'[power - 1]}iB" if power else f"{size}B"


# The kinds of values --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """How the values of an option are written, read and shown."""

    read: Callable[[Any], T_co]
    """Reads a text, or a value of a TOML file.

    Raises:
        ValueError: it is no such value; the message says what is.
    """
    metavar: str = ""
    """What `--help` shows for the value; empty for a flag, which has none."""
    words: tuple[str, ...] = ()
    """All values, if they are words."""
    any_case: bool = False
    repeatable: bool = False
    show: Callable[[Any], str] = str
    """Shows a value."""


def _read_flag(value: object) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if word in (True, False):
        return bool(word)
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise ValueError("give yes or no")


def _read_number(above: bool, finite: bool, value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        number = None
    if number is None or not (number > 0 if above else number >= 0) or (finite and isinf(number)):
        word = "finite number" if finite else "number"
        raise ValueError(f"give a {word} {'above' if above else 'from'} 0")
    return number


def _read_whole(least: int, most: int | None, value: object) -> int:
    try:
        number = int(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or number < least or (isinstance(value, float) and value % 1):
        raise ValueError(f"give a whole number from {least}")
    if most is not None and number > most:
        raise ValueError(f"give a whole number from {least} to {most}")
    return number


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("give a text")
    return value


def _read_path(value: object) -> Path:
    """Return a path that stays valid when the daemon changes its working directory."""
    if not isinstance(value, str | Path):
        raise ValueError("give a path")
    return Path(value).expanduser().absolute()


def _read_globs(value: object) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value  # `-o name=value` cannot express more
    if not isinstance(found, tuple | list) or not all(isinstance(glob, str) for glob in found):
        raise ValueError("give a text or a list of texts")
    return tuple(found)


def _read_mode(value: object) -> int:
    try:
        mode = int(value, 8) if isinstance(value, str) else value
    except ValueError:
        mode = None
    if not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise ValueError("permissions are written in octal, such as 0644")
    return mode


def _read_word(words: type[E], value: object) -> E:
    try:
        return words(value)
    except ValueError:
        *others, last = (repr(word.value) for word in words)
        raise ValueError(f"give {', '.join(others)} or {last}") from None


def _read_sized(least: int, value: object) -> int:
    size = parse_size(value)
    if size < least:
        raise ValueError(f"give at least {show_size(least).replace('.0', '')}")
    return size


FLAG = Kind(_read_flag, show=lambda on: "yes" if on else "no")
SDK_FLAG = replace(FLAG, read=lambda value: _read_flag(flag_of(value)))
GLOBS = Kind(_read_globs, "GLOB", repeatable=True, show=" ".join)
MODE = Kind(_read_mode, "OCT", show="{:04o}".format)
SECRET = Kind(str, show=lambda _: "********")


def text(metavar: str, check: Callable[[str], str] = str) -> Kind[str]:
    """Return the kind of texts; `check` returns one as it is meant, or raises ValueError."""
    return Kind(lambda value: check(_read_text(value)), metavar)


def path(metavar: str) -> Kind[Path]:
    """Return the kind of paths."""
    return Kind(_read_path, metavar)


def size(least: int = 0, check: Callable[[int], int] = int) -> Kind[int]:
    """Return the kind of sizes; `check` returns one as it is meant, or raises ValueError."""
    return Kind(lambda value: check(_read_sized(least, value)), "SIZE", show=show_size)


def whole(metavar: str = "N", least: int = 0, most: int | None = None) -> Kind[int]:
    """Return the kind of whole numbers."""
    return Kind(partial(_read_whole, least, most), metavar)


def seconds(*, above: bool = False, finite: bool = False) -> Kind[float]:
    """Return the kind of times from 0, or above 0."""
    return Kind(partial(_read_number, above, finite), "S")


def words(
    values: type[E],
    metavar: str = "",
    *,
    any_case: bool = False,
    before: Callable[[object], object] = lambda value: value,
) -> Kind[E]:
    """Return the kind of the words of an enumeration; `before` returns the word that is meant."""

    def read(value: object) -> E:
        value = before(value)
        return _read_word(values, value.lower() if any_case and isinstance(value, str) else value)

    every = tuple(str(word.value) for word in values)
    return Kind(read, metavar or f"[{'|'.join(every)}]", every, any_case)


def optional(kind: Kind[T]) -> Kind[T | None]:
    """Return a kind of options that may have no value."""
    return kind


# Options --------------------------------------------------------------------------------------------


class Group(StrEnum):
    """The groups in which `--help`, the manual and docs/CONFIGURATION.md list options, in this order."""

    SOURCE = "Source"
    VIEWS = "Shards and views"
    CACHING = "Caching"
    NETWORK = "Network"
    PERMISSIONS = "Permissions"
    WRITING = "Writing"
    LOGGING = "Logging"
    MONITORING = "Monitoring"
    OTHER = "Other options"


@dataclass(eq=False)
class Option(Generic[T]):
    """All there is to say of an option, in the settings that have it as a field."""

    kind: Kind[T]
    initial: T | Callable[[], T]
    """The default, or a function that returns it."""
    summary: str
    """A sentence without its end: what it does. `--help` shows it, with the default."""
    why: str = ""
    """What docs/CONFIGURATION.md adds to this: limits, and why that is the default."""
    _: KW_ONLY
    details: str = ""
    """What `--help` adds to it: the meaning of each word. The document may leave it to `see`."""
    see: str = ""
    """Where the documents say more: a place in docs/SEMANTICS.md, or a file and a place."""
    shown: str = ""
    """The default in words, if it depends on the machine."""
    group: Group = Group.OTHER
    """Where `--help` lists it, if not with the others of its settings."""
    rare: bool = False
    """Whether only `--help-all` shows it."""
    tenants: bool = False
    """Whether volumes of Kubernetes may set it."""
    variable: str = ""
    """What the `ais` CLI and the SDK call it in the environment, besides `AISFS_` and its name."""
    bare: T | None = None
    """The value that is meant where the option is typed without one."""
    typed: bool = True
    """Whether it can be typed; else only variables and files set it."""
    name: str = field(init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, settings: None, owner: type) -> Self: ...
    @overload
    def __get__(self, settings: object, owner: type) -> T: ...
    def __get__(self, settings: object, owner: type) -> Self | T:
        # A value is in the __dict__ of the settings, which comes first.
        if settings is not None:
            raise AttributeError(self.name)
        return self

    @property
    def default(self) -> T:
        """The value of the option if it is not set."""
        return self.initial() if callable(self.initial) else self.initial

    @property
    def parameter(self) -> str:
        """What the command line calls it: a flag that is on can only be switched off."""
        return f"no_{self.name}" if self.initial is True else self.name

    @property
    def shown_default(self) -> str:
        """The default in words; empty if there is none."""
        if self.shown or self.initial in (None, "") or isinstance(self.initial, bool):
            return self.shown or self.variable
        return self.kind.show(self.initial).replace(".0", "")

    def text_of(self, value: T) -> str:
        """Return a value as people write it."""
        return "none" if value is None or value == "" else self.kind.show(value)

    def set_by(self) -> str | None:
        """Return the environment variable that is set for this option; None if none is."""
        names = (f"{PREFIX}{self.name.upper()}", self.variable)
        return next((name for name in names if os.environ.get(name)), None)


def existing_directory(directory: Path, option: str) -> Path:
    """Return the directory on whose disk `directory` is or will be.

    Raises:
        ConfigError: a directory above it cannot be entered.
    """
    try:
        return next(p for p in (directory, *directory.parents) if p.exists())
    except OSError as error:
        raise ConfigError(f"--{option} {directory}: {error.strerror}") from error


_used: ContextVar[files.Configuration] = ContextVar("configuration")


def configuration() -> files.Configuration:
    """Return what the configuration files say: those of the last `use_file`, else the usual ones."""
    used = _used.get(None)
    return used if used is not None else files.read_files(_named_file(), KNOWN)


def use_file(named: Path | None) -> files.Configuration:
    """Let settings that are loaded from now on take their defaults from a file, and return it.

    Args:
        named: The file of `--config`; None for that of `AISFS_CONFIG`, else the usual ones.

    Raises:
        ConfigError: as `read_files`.
    """
    found = files.read_files(named or _named_file(), KNOWN)
    _used.set(found)
    return found


def _named_file() -> Path | None:
    named = os.environ.get(f"{PREFIX}CONFIG")
    return Path(named).expanduser() if named else None


PREFIX = "AISFS_"
"""Every option has a variable of its name with this before it; some have that of the `ais` CLI too."""
KNOWN: dict[str, Option[Any]] = {}
"""All options by their names."""


def variable(*names: str) -> str:
    """Return the first of these environment variables that is set; empty if none is."""
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def drop_empty_variables(prefixes: tuple[str, ...]) -> None:
    """Unset the variables that are set to nothing, as compose files and CI do: libraries take them for values."""
    for name in [name for name, value in os.environ.items() if not value.strip()]:
        if name.startswith(prefixes):
            del os.environ[name]


def use_proxy(url: str) -> None:
    """Let everything in this process that asks the environment for a proxy find this one."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        os.environ[name] = os.environ[name.upper()] = url


def set_variables(wanted: Mapping[str, str], unwanted: Collection[str]) -> None:
    """Set some environment variables of this process, and unset others."""
    for name in unwanted:
        os.environ.pop(name, None)
    os.environ.update(wanted)


def token_exchange() -> str:
    """Return the URL of the token endpoint that `aisfs csi mounter` asks; empty for none."""
    url = variable(f"{PREFIX}TOKEN_EXCHANGE")
    remember_url(url)
    return url


def in_environment(name: str) -> bool:
    """Return whether the environment sets an option."""
    option = KNOWN.get(name)
    return bool(option.set_by() if option else os.environ.get(f"{PREFIX}{name.upper()}"))


_BESIDE = frozenset({"CONFIG", "ALLOW_OTHER", "TOKEN_EXCHANGE"})
"""Variables that are no settings."""


@cache
def check_variables() -> None:
    """Make sure that no variable is a misspelled one of ours; others that begin so are not ours.

    Raises:
        ConfigError: one is; the message says what was meant.
    """
    known = {name.upper() for name in KNOWN} | _BESIDE
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in known:
            continue
        if near := difflib.get_close_matches(name, known, 1):
            raise ConfigError(f"{variable}: unknown variable; did you mean {PREFIX}{near[0]}?")


class Settings:
    """Values of options: each class has some as its fields.

    What was typed wins over the environment, and that over the configuration files.
    """

    options: ClassVar[dict[str, Option[Any]]] = {}
    typed: frozenset[str]
    """Names of the options that were typed: only these can contradict something else that was typed."""

    def __init_subclass__(cls, group: Group = Group.OTHER) -> None:
        cls.options = {name: o for name, o in vars(cls).items() if isinstance(o, Option)}
        for option in cls.options.values():
            option.group = group if option.group is Group.OTHER else option.group
        KNOWN.update(cls.options)

    def __init__(self, **given: Any) -> None:  # noqa: ANN401
        """Take these values for what was typed; the rest is as the environment and the files say.

        Raises:
            ConfigError: a value is unusable; the message names it and where it is from.
        """
        from_files = configuration().defaults.values
        if unknown := given.keys() - self.options.keys():
            raise TypeError(f"no such options: {', '.join(sorted(unknown))}")
        self.__dict__["typed"] = frozenset(given)
        for name, option in self.options.items():
            value = option.default
            if name in given:
                value = self._read(option, given[name], given)
            elif variable := option.set_by():
                value = self._read(option, os.environ[variable])
            elif name in from_files:
                value = self._read(option, from_files[name])
            self.__dict__[name] = value

    def _read(self, option: Option[T], value: object, typed: Collection[str] = ()) -> T | None:
        if value is None:
            return None
        try:
            return option.kind.read(value)
        except ValueError as error:
            where: str | files.Place = self.origin(option.name, typed)
            word = option.name.replace("_", "-")
            place = f"{where}: {word}" if isinstance(where, files.Place) else where
            raise ConfigError(f"{place}: {error} (got {value!r})") from None

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("settings do not change")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        values = (f"{name}={o.text_of(vars(self)[name])}" for name, o in self.options.items())
        return f"{type(self).__name__}({', '.join(values)})"

    def changed(self, **values: object) -> Self:
        """Return these settings with other values."""
        made = object.__new__(type(self))
        made.__dict__.update({**self.__dict__, **values})
        return made

    @classmethod
    def load(cls, options: Mapping[str, object]) -> Self:
        """Combine what the user typed with the environment, the files and the defaults.

        Args:
            options: Values by name; None means the user said nothing.

        Raises:
            ConfigError: a value is unusable, or a variable misspelled; the message names it and where
                it is from.
        """
        check_variables()
        return cls(**{name: value for name, value in options.items() if value is not None})

    @classmethod
    def origin(cls, name: str, typed: Collection[str] = ()) -> str | files.Place:
        """Return where the value of a setting is from: an option, a variable, a line of a file."""
        if name in typed or name not in cls.options:
            return f"--{name.replace('_', '-')}"
        variable = cls.options[name].set_by()
        if variable is not None:
            return variable
        return configuration().defaults.places.get(name, "default")
