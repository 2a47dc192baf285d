"""`aisfs config`: the values of options, and where each comes from."""

import json
from pathlib import Path

import click
from rich.table import Table

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
    from aisfs.mount.plan import load
    from aisfs.settings import ViewSettings, WriteSettings, use_file

    read = use_file(config)
    effective(None)
    if load(ViewSettings, {}).view is not None and load(WriteSettings, {}).writable:
        raise ConfigError(f"{ViewSettings.origin('view')}: view: not with writable = true")
    for profile in read.profiles:
        effective(f"@{profile}")
        _check_plan(f"@{profile}")
    if not read.files:
        click.echo("no configuration file")
    for path in read.files:
        click.echo(f"{path}: no error")


def _check_plan(profile: str) -> None:
    """Make sure that `aisfs mount @NAME` could begin, as far as that can be known before."""
    from aisfs.commands.profiles import expand_profile
    from aisfs.mount.plan import plan_mount
    from aisfs.settings.values import KNOWN

    # A profile may leave the mountpoint to the command line.
    (*sources, mountpoint), _, described = expand_profile((profile, "/"), ())
    given = {name: value for name, value in described.items() if name in KNOWN}
    if given.get("files_from") == "-":
        return
    try:
        plan_mount(sources, Path(mountpoint), (), given)
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
