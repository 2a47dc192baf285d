"""The help names every option."""

import re
import shlex
import sys
from pathlib import Path

import click
import pytest

from aisfs.commands.main import cli
from tests.support.for_each import for_each
from tests.support.mounts import aisfs, environment, run
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

WORDS = {
    (): ["mount", "umount", "serve"],
    ("mount",): [
        "SOURCE", "--endpoint", "--shards", "file", "dir", "both", "--io-timeout", "--allow-other",
        "--uid", "--gid", "--foreground", "--log-level", "--log-file", "-o", "--help-all",
    ],
    ("serve",): ["--host", "--port", "127.0.0.1", "8080"],
    ("umount",): ["--lazy"],
}  # fmt: skip


@for_each("command", WORDS)
def test_help(command: tuple[str, ...]):
    done = aisfs(*command, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    for word in WORDS[command]:
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", done.stdout.decode()), word


def test_commands_are_in_groups_with_a_line_each():
    text = aisfs("--help").stdout.decode()
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == [
        "Options",
        "Look",
        "Mount",
        "Shards",
        "Cluster",
        "Care",
    ]
    _, *groups = re.split(r"^\w+:$", text, flags=re.MULTILINE)[1:]
    lines = [line for group in groups for line in group.splitlines() if line]
    named = [line.split()[0] for line in lines]
    assert {"ls", "mount", "pack", "mb", "doctor"} <= set(named)
    assert sorted(named) == cli.list_commands(click.Context(cli))
    for line in lines:
        assert re.fullmatch(r"  [a-z]+ +[A-Z].*\.", line), (
            "each has its whole explanation in one line"
        )


def test_help_leaves_rare_options_to_help_all():
    rare = [
        "--attr-ttl",
        "--list-ttl",
        "--negative-ttl",
        "--file-mode",
        "--dir-mode",
        "--ignore-zeros",
    ]
    short, whole = (aisfs("mount", word).stdout.decode() for word in ("--help", "--help-all"))
    options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", whole, re.MULTILINE))
    hidden = {
        option for option in options if not re.search(rf"^ .*{option}\b", short, re.MULTILINE)
    }
    assert hidden >= set(rare)
    assert f"{len(hidden)} more options: aisfs mount --help-all" in short
    assert "more options" not in whole


def test_every_option_is_explained():
    lines = aisfs("mount", "--help-all").stdout.decode().splitlines()
    options = [line for line in lines if re.match(r"\s+-", line)]
    assert len(options) >= 15
    for number, line in enumerate(lines):
        if re.match(r"\s+-", line) and not re.search(r"\S\s{2,}\S", line):
            assert re.match(r"\s{8,}\S", lines[number + 1]), f"no explanation: {line}"


def test_options_of_a_mount_are_in_groups():
    text = aisfs("mount", "--help-all").stdout.decode()
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    groups = [
        "Source",
        "Shards and views",
        "Caching",
        "Network",
        "Permissions",
        "Writing",
        "Logging",
        "Monitoring",
    ]
    assert headings == [*groups, "Other options", "Examples"]
    inside = re.split(r"^\S.*:$", text, flags=re.MULTILINE)[1:]
    for group, option in zip(
        inside, ["--endpoint", "--view", "--cache-size", "--io-timeout", "--allow-other",
                 "--writable", "--log-file", "--metrics-addr", "--foreground", "aisfs mount "], strict=True,
    ):  # fmt: skip
        assert option in group


COMPLETED = {
    ("um",): {"umount"},
    ("mount", "--cache-s"): {"--cache-size"},
    ("mount", "--view", "c"): {"class"},
    ("cache", ""): {"status", "verify", "clear"},
    ("completion", ""): {"bash", "zsh", "fish"},
}


def test_bash_completes_commands_options_and_values(tmp_path: Path):
    shim = tmp_path / "aisfs"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m aisfs "$@"\n')
    shim.chmod(0o755)
    script = "source <(aisfs completion bash) || exit 1\ncomplete -p aisfs || exit 1\n"
    for words in COMPLETED:
        line = " ".join(f"'{word}'" for word in ("aisfs", *words))
        script += f"COMPREPLY=(); COMP_WORDS=({line}); COMP_CWORD={len(words)}\n"
        script += 'echo "$(_aisfs_completion aisfs; echo "${COMPREPLY[@]}")"\n'
    env = environment({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    done = run("bash", "--norc", "-c", script, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    _, *lines = done.stdout.decode().splitlines()
    assert [set(line.split()) for line in lines] == list(COMPLETED.values())


def typed(line: str, tmp_path: Path, **variables: str) -> list[str]:
    """Return what bash puts in place of the last word, when Tab follows this line."""
    shim = tmp_path / "aisfs"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m aisfs "$@"\n')
    shim.chmod(0o755)
    script = "source <(aisfs completion bash) || exit 1\n"
    script += f"COMP_WORDBREAKS=$' \\t\\n\"\\'@><=;|&(:'; COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}\n"
    script += (
        "_aisfs_completion aisfs 2> >(grep -v compopt >&2); printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    env = environment({"PATH": f"{tmp_path}:/usr/bin:/bin", **variables})
    done = run("bash", "--norc", "-c", script, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().split()


def test_bash_completes_profiles_and_buckets(tmp_path: Path):
    for bucket in ("pets", "pens", "cars"):
        (tmp_path / "store" / bucket).mkdir(parents=True)
    config = tmp_path / "aisfs.toml"
    config.write_text(
        '[profiles.here]\nsource="ais://pets"\n[profiles.there]\nsource="ais://cars"\n'
    )
    known = {"AISFS_CONFIG": str(config), "AIS_AUTHN_TOKEN": "secret"}
    with running_server(tmp_path / "store", token="secret") as server:
        known["AIS_ENDPOINT"] = server.endpoint
        # Bash takes what follows the last : or @ as the word that it replaces.
        assert typed("aisfs mount @", tmp_path, **known) == ["here", "there"]
        assert typed("aisfs mount @t", tmp_path, **known) == ["there"]
        assert typed("aisfs mount ais://pe", tmp_path, **known) == ["//pens", "//pets"]
        assert typed("aisfs mount --view=cl", tmp_path, **known) == ["class"]
        assert typed("aisfs mount ais://pets ais://ca", tmp_path, **known) == ["//cars"]
        line = f"aisfs ls --endpoint {server.endpoint} ais://"
        assert typed(line, tmp_path, AIS_AUTHN_TOKEN="secret") == ["//cars", "//pens", "//pets"]
        assert typed(line, tmp_path, AIS_AUTHN_TOKEN="wrong") == []
    assert typed("aisfs mount ais://pe", tmp_path, **known) == [], "the server has ended"
    config.write_text("nonsense")
    assert typed("aisfs mount @", tmp_path, **known) == []


SLOW = {"trio", "requests", "aisfs.mount.run"}
"""Modules that take longer to import than a person waits for a key."""


@for_each(
    "line, slow",
    [
        ("aisfs ", {*SLOW, "aisfs.settings"}),
        *((f"aisfs {name} --", SLOW) for name in cli.list_commands(click.Context(cli))),
        ("aisfs mount @", SLOW),
        ("aisfs mount ais://", SLOW),
    ],
)  # fmt: skip
def test_completion_imports_nothing_slow(line: str, slow: set[str]):
    words = {"COMP_WORDS": line, "COMP_CWORD": "9999" if line.endswith(" ") else "-1"}
    env = environment(
        {**words, "_AISFS_COMPLETE": "bash_complete", "AIS_ENDPOINT": "http://127.0.0.1:9"}
    )
    done = run(sys.executable, "-X", "importtime", "-m", "aisfs", env=env)
    imported = {row.rpartition("|")[2].strip() for row in done.stderr.decode().splitlines()}
    assert {"aisfs.commands.main", "click"} <= imported
    assert not imported & slow


@for_each("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str):
    done = aisfs("completion", shell)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"_AISFS_COMPLETE=" + shell.encode() in done.stdout


def test_version():
    done = aisfs("--version")
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search(r"\d+\.\d+\.\d+", done.stdout.decode())


@for_each(
    "arguments",
    [
        ("nonsense",),
        ("--nonsense",),
        ("umount",),
        ("serve",),
        ("jobs", "--watch"),
        ("ls", "--endpoint"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]):
    done = aisfs(*arguments)
    assert done.returncode == 2
    assert re.fullmatch(r"aisfs: [^\n]+\n", done.stderr.decode())
