"""CONFIGURATION names every option and variable there is, with the default the code has."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from pydantic import ByteSize, SecretStr

from aisfs.commands.main import cli
from aisfs.commands.mount import _IGNORED, _KERNEL
from aisfs.errors import ConfigError
from aisfs.settings import (
    CacheSettings,
    ClusterSettings,
    LogSettings,
    MonitoringSettings,
    TreeSettings,
    ViewSettings,
    WriteSettings,
)
from tests.docs.documents import CONFIGURATION, rows, section
from tests.support.for_each import for_each

SETTINGS = (
    ClusterSettings,
    TreeSettings,
    CacheSettings,
    ViewSettings,
    WriteSettings,
    LogSettings,
    MonitoringSettings,
)
MODES = ("file_mode", "dir_mode")
COMPUTED = {
    "uid": "the mounting user",
    "gid": "the mounting user",
    "cache_dir": "the user's cache directory",
    "cache_size": "10GiB or a tenth of the free disk",
    "staging_dir": "the user's state directory",
    "staging_size": "half of the free disk",
    "memory_limit": "512MiB, or less",
}
"""Defaults that depend on the user and the machine."""
OWN = {"pack": ("key_rule",)}
"""Options of a command that a setting of mounts has the name of."""


def leaves(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """All commands that do something, by the words that call them."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found |= leaves(command, f"{before}{name} ")
        else:
            found[before + name] = command
    return found


COMMANDS = leaves(cli)


def options(command: str) -> dict[str, click.Option]:
    found = {}
    for parameter in COMMANDS[command].params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            long = [name for name in parameter.opts if name.startswith("--")]
            found[(long or parameter.opts)[0]] = parameter
    return found


def documented(command: str) -> dict[str, list[str]]:
    """Rows by the option they begin with."""
    return {
        re.match(r"`(--?[\w-]+)", row[0])[1]: row
        for row in rows(section(CONFIGURATION, f"aisfs {command}"))
    }


def variables() -> dict[str, list[str]]:
    return {row[0].strip("`"): row for row in rows(section(CONFIGURATION, "Environment"))}


def fields() -> dict[str, object]:
    return {name: field for cls in SETTINGS for name, field in cls.model_fields.items()}


@for_each("command", COMMANDS)
def test_options(command: str):
    actual = options(command)
    table = documented(command)
    assert set(table) == set(actual)
    for name, option in actual.items():
        named = set(re.findall(r"`(--?[\w-]+)", table[name][0]))
        assert named == set(option.opts), name


@for_each("command", COMMANDS)
def test_defaults_of_options(command: str):
    table = documented(command)
    for name, option in options(command).items():
        said = table[name][1].strip("`")
        if option.name in fields() and option.name not in OWN.get(command, ()):
            assert option.default in (None, click.core.UNSET), f"{name}: config has the default"
            assert said == default_in_words(option.name), name
        elif option.is_flag:
            assert said == "off", name
        elif option.default in (None, click.core.UNSET) or option.multiple:
            assert said == "none", name
        else:
            assert said == str(option.default), name


def default_in_words(name: str) -> str:
    field = fields()[name]
    if name in COMPUTED:
        return COMPUTED[name]
    if field.default in ("", None):
        return field.validation_alias or "none"
    if field.default is False:
        return "off"
    if name in MODES:
        return f"{field.default:04o}"
    if isinstance(field.default, ByteSize):
        return f"{field.default >> 20}MiB"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def test_defaults_that_depend_on_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert CacheSettings.load({}).cache_dir == tmp_path / ".cache" / "aisfs"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert CacheSettings.load({}).cache_dir == tmp_path / "elsewhere" / "aisfs"
    for free, limit in ((50 << 30, 5 << 30), (500 << 30, 10 << 30)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert CacheSettings.load({"cache_dir": tmp_path}).disk_limit() == limit
        kept = free // 11
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _, left=free - kept: SimpleNamespace(free=left)
        )
        assert CacheSettings.load({"cache_dir": tmp_path}).disk_limit(kept) == limit


def test_staging_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert WriteSettings.load({}).staging_dir == tmp_path / ".local/state/aisfs/staging"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    assert WriteSettings.load({"staging_dir": tmp_path / "new"}).staging_limit() == 50


def test_sizes_are_read_as_told():
    text = section(CONFIGURATION, "Sizes")
    told = re.findall(r"`([\d.]+ ?\w+)` is ([\d,]+)", text)
    assert len(told) >= 4
    for words, size in told:
        assert CacheSettings.load({"read_ahead_max": words}).read_ahead_max == int(
            size.replace(",", "")
        )


def test_least_memory_limit():
    table = documented("mount")
    (least,) = re.findall(r"at least (\w+)", table["--memory-limit"][2])
    assert CacheSettings.load({"memory_limit": least})
    below = CacheSettings.load({"memory_limit": least}).memory_limit - 1
    with pytest.raises(ConfigError):
        CacheSettings.load({"memory_limit": below})


def test_every_field_can_be_set_somehow():
    from_options = {option.name for option in options("mount").values()}
    for name, field in fields().items():
        by_option = not {name, f"no_{name}"}.isdisjoint(from_options)
        assert by_option or field.validation_alias in variables(), name


def test_variables():
    aliases = {field.validation_alias: name for name, field in fields().items()}
    aliases.pop(None)
    table = variables()
    assert set(table) == set(aliases)
    for variable, name in aliases.items():
        default = fields()[name].default
        words = {"": "none", None: "none", False: "off"}
        said = words.get(default) or f"{default:g}"
        assert table[variable][1] == said, variable


def test_variables_are_in_the_help_of_mount():
    for variable in variables():
        assert variable in COMMANDS["mount"].epilog


def test_no_other_variable_changes_anything(monkeypatch: pytest.MonkeyPatch):
    for name in fields():
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    before = [cls.load({}) for cls in SETTINGS]
    for name, field in fields().items():
        if field.validation_alias != name.upper():
            monkeypatch.setenv(name.upper(), "1")
    assert [cls.load({}) for cls in SETTINGS] == before


def test_words_that_mean_yes():
    said = variables()["AIS_SKIP_VERIFY_CRT"][2].partition(":")[0]
    words = re.findall(r"`(\w+)`", said)
    assert words
    for word in (*words, words[0].upper()):
        assert ClusterSettings.load({"skip_verify_crt": word}).skip_verify_crt
    assert not ClusterSettings.load({"skip_verify_crt": "no"}).skip_verify_crt


def test_mount_options_of_the_kernel():
    text = section(CONFIGURATION, "aisfs mount")
    named = set(re.findall(r"`([\w]+)`", text[text.index("`-o` takes") :]))
    assert named >= _KERNEL | _IGNORED


def test_the_token_chain_is_in_the_order_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from aisfs.stores.ais.auth import Credentials

    monkeypatch.setenv("HOME", str(tmp_path))
    chain = tmp_path / ".config" / "ais" / "cli" / "auth.token"
    chain.parent.mkdir(parents=True)
    chain.write_text('{"token": "third"}')
    named = tmp_path / "named"
    named.write_text('{"token": "second"}')
    for name, value in (
        ("third", {}),
        ("second", {"authn_token_file": named}),
        ("first", {"authn_token_file": named, "token": SecretStr("first")}),
    ):
        settings = ClusterSettings.load(value)
        assert Credentials.load(settings).authorization() == f"Bearer {name}"
