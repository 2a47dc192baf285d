"""What settings are made of: the types of their values, and where values come from.

The only reader of the environment. What was typed comes first, then the environment, then the
configuration files. The names of the variables that reach the cluster are also those of the `ais`
CLI and the Python SDK, so one setup serves all.
"""

import difflib
import os
import re
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo

from aisfs.errors import ConfigError
from aisfs.redaction import remember_url
from aisfs.settings import files

MIB = 1 << 20
GIB = 1 << 30

_SIZE = re.compile(r"\s*(\d*\.?\d+(?:[eE]\d{1,2})?)\s*([A-Za-z]+)?\s*")
_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})


def flag_of(value: object) -> object:
    """Parse a flag as the SDK does: a few words mean yes, everything else means no."""
    return value.strip().lower() in _TRUE if isinstance(value, str) else value


def _absolute(value: Path) -> Path:
    """Return a path that stays valid when the daemon changes its working directory."""
    return value.expanduser().absolute()


def _words(value: object) -> object:
    """Return a single value as a list of one: `-o name=value` cannot express more."""
    return (value,) if isinstance(value, str) else value


def _octal(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return int(value, 8)
    except ValueError:
        raise ValueError("permissions are written in octal, such as 0644") from None


def _size(value: object) -> object:
    if isinstance(value, float) and value % 1:
        raise ValueError(f"bytes are whole: write a unit, such as {value}GiB")
    if not isinstance(value, str):
        return value
    # pydantic's own pattern has no end: 1,5GiB would be one byte. It knows 1G, but neither Kubernetes' 1Gi nor 1e9.
    found = _SIZE.fullmatch(value)
    unit = (found[2] or "b").lower() if found is not None else ""
    unit += "b" if unit.endswith("i") else ""
    if found is None or unit not in ByteSize.byte_sizes:
        raise ValueError("a size is a number, with a unit or without: 1000, 1.5MiB, 10Gi, 50G")
    number = found[1]
    if found[2] is None and float(number) % 1:
        raise ValueError(f"bytes are whole: write a unit, such as {number}GiB")
    return f"{int(float(number)) if 'e' in number.lower() else number}{unit}"


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as `1.5GiB`.

    Raises:
        ValueError: it is not a size.
    """
    return int(TypeAdapter(Size).validate_python(text))


def existing_directory(directory: Path, option: str) -> Path:
    """Return the directory on whose disk `directory` is or will be.

    Raises:
        ConfigError: a directory above it cannot be entered.
    """
    try:
        return next(p for p in (directory, *directory.parents) if p.exists())
    except OSError as error:
        raise ConfigError(f"--{option} {directory}: {error.strerror}") from error


Flag = Annotated[bool, BeforeValidator(flag_of)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Size = Annotated[ByteSize, BeforeValidator(_size)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_words)]
FileMode = Annotated[int, BeforeValidator(_octal), Field(ge=0, le=0o777)]


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
KNOWN: dict[str, FieldInfo] = {}
"""All settings by their names."""


def variable_of(name: str, field: FieldInfo) -> str | None:
    """Return the environment variable that is set for an option; None if none is."""
    alias = field.validation_alias
    variables = (f"{PREFIX}{name.upper()}", alias if isinstance(alias, str) else "")
    return next((variable for variable in variables if os.environ.get(variable)), None)


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
    field = KNOWN.get(name)
    named = os.environ.get(f"{PREFIX}{name.upper()}")
    return bool(named if field is None else variable_of(name, field))


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


class Settings(BaseModel):
    """Options; the alias of a field is the variable that the `ais` CLI and the SDK have for it.

    What was typed wins over the environment, and that over the configuration files. Only what was
    typed is in `model_fields_set`, since only that can contradict something else that was typed.
    """

    # pydantic-settings would do this, and take longer to import than all the rest of the settings.
    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, validate_default=True, defer_build=True
    )

    def __init__(self, **given: Any) -> None:  # noqa: ANN401
        from_files, fields = configuration().defaults.values, type(self).model_fields
        said = {name: from_files[name] for name in fields if name in from_files}
        variables = {name: variable_of(name, field) for name, field in fields.items()}
        said |= {name: os.environ[variable] for name, variable in variables.items() if variable}
        super().__init__(**(said | given))

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        KNOWN.update(cls.model_fields)

    @classmethod
    def load(cls, options: Mapping[str, object]) -> Self:
        """Combine what the user typed with the environment, the files and the defaults.

        Args:
            options: Values by field name; None means the user said nothing.

        Raises:
            ConfigError: a value is unusable, or a variable misspelled; the message names it and where
                it is from.
        """
        check_variables()
        given: dict[str, Any] = {name: v for name, v in options.items() if v is not None}
        try:
            made = cls(**given)
        except ValidationError as error:
            first = error.errors()[0]
            alias = str(first["loc"][0])
            fields = cls.model_fields.items()
            name = next((n for n, f in fields if alias in (n, f.validation_alias)), alias)
            reason = first["msg"].removeprefix("Value error, ")
            where: str | files.Place = cls.origin(name, given)
            option = name.replace("_", "-")
            where = f"{where}: {option}" if isinstance(where, files.Place) else where
            raise ConfigError(f"{where}: {reason} (got {first['input']!r})") from None
        made.__pydantic_fields_set__.intersection_update(given)
        return made

    @classmethod
    def origin(cls, name: str, typed: Collection[str] = ()) -> str | files.Place:
        """Return where the value of a setting is from: an option, a variable, a line of a file."""
        option = name.replace("_", "-")
        if name in typed or name not in cls.model_fields:
            return f"--{option}"
        variable = variable_of(name, cls.model_fields[name])
        if variable is not None:
            return variable
        return configuration().defaults.places.get(name, "default")
