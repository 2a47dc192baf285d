"""`aisfs config`: the values of options, and where each comes from; and the profiles of the configuration file, as `aisfs mount @NAME` takes them."""

import json
import os
from pathlib import Path

import click

from aisfs.commands.guide import Documented, complete_profile
from aisfs.commands.options import config_option, own_option, print_parts
from aisfs.errors import ConfigError, NoEndpoint
from aisfs.redaction import shown


@click.group("config")
def group() -> None:
    """Show what the configuration files and the environment set."""


@group.command(cls=Documented)
@click.argument("profile", metavar="[@NAME]", required=False, shell_complete=complete_profile)
@config_option
@own_option("--json", "Print one JSON object instead of a table.", "for scripts", name="as_json")
def show(profile: str | None, config: Path | None, as_json: bool) -> None:
    """Show the value of each option, and where it comes from; with @NAME, as that profile sets it."""
    from rich.table import Table  # here, since each mount imports this module, for its profile

    from aisfs.settings import use_file

    use_file(config)
    found = effective(profile)
    if as_json:
        rows = {name: {"value": value, "from": origin} for name, value, origin in found}
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    table = Table(box=None, header_style="bold")
    for title in ("option", "value", "from"):
        table.add_column(title, overflow="fold")
    for row in found:
        table.add_row(*row)
    print_parts(table)


@group.command(cls=Documented)
@config_option
def check(config: Path | None) -> None:
    """Check the names and values in the configuration files, and whether each profile fits together."""
    from aisfs.mount.setup import load
    from aisfs.settings import ViewSettings, WriteSettings, use_file

    read = use_file(config)
    effective(None)
    if load(ViewSettings, {}).view is not None and load(WriteSettings, {}).writable:
        raise ConfigError(f"{ViewSettings.origin('view')}: view: not with writable = true")
    for profile in read.profiles:
        effective(f"@{profile}")
        _check_setup(f"@{profile}")
    if not read.files:
        click.echo("no configuration file")
    for path in read.files:
        click.echo(f"{path}: no error")


def _check_setup(profile: str) -> None:
    """Make sure that `aisfs mount @NAME` could begin, as far as that can be known before."""
    from aisfs.mount.setup import mount_setup
    from aisfs.settings.values import KNOWN

    # A profile may leave the mountpoint to the command line.
    (*sources, mountpoint), _, described = expand_profile((profile, "/"), ())
    given = {name: value for name, value in described.items() if name in KNOWN}
    if given.get("files_from") == "-":
        return
    try:
        mount_setup(sources, Path(mountpoint), (), given)
    except NoEndpoint:  # a variable may name it by then
        pass
    except ConfigError as error:
        raise ConfigError(f"{profile}: {error}") from None


def effective(profile: str | None) -> list[tuple[str, str, str]]:
    """Return name, value and origin of each option, secrets masked.

    Raises:
        ConfigError: a value is unusable, or there is no such profile.
    """
    from aisfs.settings import ALL_SETTINGS, configuration, in_environment
    from aisfs.settings.files import OF_MOUNTS

    if profile is not None and not profile.startswith("@"):
        raise ConfigError(f"{profile}: a profile is written @{profile}")
    said = configuration().profile(profile[1:]) if profile is not None else None
    values = dict(said.values) if said is not None else {}
    rows = [
        (name.replace("_", "-"), _texts(values[name]), str(said.places[name]))
        for name in sorted(OF_MOUNTS & values.keys())
        if said is not None and not in_environment(name)
    ]
    for settings in ALL_SETTINGS:
        own = {n: v for n, v in values.items() if n in settings.options}
        own = {name: value for name, value in own.items() if not in_environment(name)}
        try:
            loaded = settings.load(own)
        except ConfigError as error:
            raise ConfigError(f"{profile}: {error}" if own else str(error)) from None
        for name, option in settings.options.items():
            value = getattr(loaded, name)
            origin = (
                said.places[name] if said is not None and name in own else settings.origin(name)
            )
            if origin == "default" and value != getattr(settings(), name):
                origin = "the ais CLI"
            rows.append((name.replace("_", "-"), shown(option.text_of(value)), str(origin)))
    return rows


def _texts(value: object) -> str:
    return shown(" ".join(map(str, value)) if isinstance(value, list) else str(value))


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
    from aisfs.settings import configuration, in_environment

    name, *words = where
    values = dict(configuration().profile(name[1:]).values)
    sources = _texts_of(name, "source", values.pop("source", []))
    mountpoint = _texts_of(name, "mountpoint", values.pop("mountpoint", []))
    own = _texts_of(name, "options", values.pop("options", []))
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
    from aisfs.settings import configuration  # most words are directories, and need no settings

    found = _texts_of(
        word, "mountpoint", configuration().profile(word[1:]).values.get("mountpoint", [])
    )
    if len(found) != 1:
        raise ConfigError(f"{word}: no mountpoint in the profile; give the directory itself")
    return Path(found[0]).expanduser()


def _texts_of(profile: str, name: str, value: object) -> list[str]:
    """Return a text, or a list of them."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{profile}: {name} is a text or a list of texts (got {value!r})")
    return found
