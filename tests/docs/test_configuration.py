"""CONFIGURATION names every option and variable there is, with the default the code has."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from aisfs.commands.mount import _IGNORED, _KERNEL
from aisfs.commands.options import Described
from aisfs.errors import ConfigError
from aisfs.settings import (
    ALL_SETTINGS,
    CacheSettings,
    ClusterSettings,
    WriteSettings,
)
from aisfs.settings.values import KNOWN
from tests.docs.documents import CONFIGURATION, rows, section
from tests.docs.tables import COMMANDS
from tests.support.for_each import for_each


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


@for_each("command", COMMANDS)
def test_options(command: str):
    actual = options(command)
    table = documented(command)
    assert set(table) == set(actual)
    for name, option in actual.items():
        named = set(re.findall(r"`(--?[\w-]+)", table[name][0]))
        assert named == set(option.opts), name


@for_each("command", COMMANDS)
def test_options_of_settings_have_no_default_of_their_own(command: str):
    for name, option in options(command).items():
        if isinstance(option, Described) and option.setting is not None:
            assert option.default in (None, click.core.UNSET), name


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


def test_every_setting_can_be_set_somehow():
    typed = {option.name for option in options("mount").values()}
    for option in KNOWN.values():
        assert option.parameter in typed if option.typed else option.variable in variables()


def test_variables_are_in_the_help_of_mount():
    for variable in variables():
        assert variable in COMMANDS["mount"].epilog


def test_no_other_variable_changes_anything(monkeypatch: pytest.MonkeyPatch):
    for name in KNOWN:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    before = [cls.load({}) for cls in ALL_SETTINGS]
    for name, option in KNOWN.items():
        if option.variable != name.upper():
            monkeypatch.setenv(name.upper(), "1")
    assert [cls.load({}) for cls in ALL_SETTINGS] == before


def test_words_that_mean_yes():
    said = variables()["AIS_SKIP_VERIFY_CRT"][2]
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
        ("first", {"authn_token_file": named, "token": "first"}),
    ):
        settings = ClusterSettings.load(value)
        assert Credentials.load(settings).authorization() == f"Bearer {name}"
