"""What a value of an option may look like, wherever it is written; and what is said of one that is wrong."""

import re
from pathlib import Path

import pytest

from aisfs.choices import Join, LogLevel, ShardIndex, View
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


@pytest.mark.parametrize(
    ("settings", "name", "written", "value"),
    [
        (WriteSettings, "writable", "Yes", True),
        (WriteSettings, "writable", "off", False),
        (WriteSettings, "writable", 1, True),
        (ClusterSettings, "direct", "whatever", False),
        (ClusterSettings, "direct", "T", True),
        (ViewSettings, "shuffle", "10", 10),
        (ViewSettings, "shuffle", 10.0, 10),
        (ViewSettings, "include", "a*", ("a*",)),
        (ViewSettings, "include", ["a*", "b*"], ("a*", "b*")),
        (ViewSettings, "view", "class", View.CLASS),
        (ViewSettings, "join", Join.OUTER, Join.OUTER),
        (TreeSettings, "shard_index", "yes", ShardIndex.ALWAYS),
        (TreeSettings, "file_mode", "0640", 0o640),
        (TreeSettings, "file_mode", 0o640, 0o640),
        (TreeSettings, "list_ttl", "1.5", 1.5),
        (TreeSettings, "list_ttl", "inf", float("inf")),
        (LogSettings, "log_level", "DEBUG", LogLevel.DEBUG),
        (LogSettings, "log_file", "/a/b", Path("/a/b")),
        (MonitoringSettings, "metrics_addr", 9000, "127.0.0.1:9000"),
        (CacheSettings, "read_ahead_max", "8Mbit", 1_000_000),
    ],
)  # fmt: skip
def test_values_are_read(settings, name, written, value):
    assert getattr(settings.load({name: written}), name) == value


@pytest.mark.parametrize(
    ("settings", "name", "written", "said"),
    [
        (WriteSettings, "writable", "perhaps", "give yes or no"),
        (WriteSettings, "write_back", "inf", "give a finite number from 0"),
        (ViewSettings, "shuffle", "1.5", "give a whole number from 0"),
        (ViewSettings, "shuffle", -1, "give a whole number from 0"),
        (ViewSettings, "samples_per_shard", "0", "give a whole number from 1"),
        (ViewSettings, "include", [1], "give a text or a list of texts"),
        (ViewSettings, "view", "x", "give 'members', 'samples', 'class', 'flat' or 'shards'"),
        (ViewSettings, "label", 5, "give a text"),
        (ViewSettings, "classes", 5, "give a path"),
        (TreeSettings, "list_ttl", "nan", "give a number from 0"),
        (TreeSettings, "dir_mode", 0o1777, "permissions are written in octal, such as 0644"),
        (ClusterSettings, "io_timeout", 0, "give a number above 0"),
        (ClusterSettings, "part_size", "1MiB", "give at least 5MiB"),
        (CacheSettings, "cache_size", -1, "a size is a number"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(settings, name, written, said):
    option = name.replace("_", "-")
    with pytest.raises(ConfigError, match=f"^--{option}: {re.escape(said)}.*got "):
        settings.load({name: written})


def test_settings_do_not_change_and_hide_their_token():
    settings = ClusterSettings(token="s3cret", endpoint="http://a")
    with pytest.raises(AttributeError):
        settings.endpoint = "http://b"
    other = settings.changed(endpoint="http://b")
    assert (settings.endpoint, other.endpoint, other.token) == ("http://a", "http://b", "s3cret")
    assert other != settings
    assert "endpoint=http://a" in repr(settings)
    assert "s3cret" not in repr(settings)
