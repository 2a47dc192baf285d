"""The help names every option."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.mounts import aisfs, environment, run

pytestmark = pytest.mark.mount

WORDS = {
    (): ["mount", "umount", "serve"],
    ("mount",): [
        "SOURCE", "--endpoint", "--shards", "file", "dir", "both", "--attr-ttl", "--list-ttl",
        "--negative-ttl", "--io-timeout", "--allow-other", "--uid", "--gid", "--file-mode",
        "--dir-mode", "--foreground", "--log-level", "--log-file", "-o",
    ],
    ("serve",): ["--host", "--port", "127.0.0.1", "8080"],
    ("umount",): ["--lazy"],
}  # fmt: skip


@pytest.mark.parametrize("command", WORDS, ids=" ".join)
def test_help(command: tuple[str, ...]):
    done = aisfs(*command, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    for word in WORDS[command]:
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", done.stdout.decode()), word


def test_every_option_is_explained():
    lines = aisfs("mount", "--help").stdout.decode().splitlines()
    options = [line for line in lines if re.match(r"\s+-", line)]
    assert len(options) >= 15
    for number, line in enumerate(lines):
        if re.match(r"\s+-", line) and not re.search(r"\S\s{2,}\S", line):
            assert re.match(r"\s{8,}\S", lines[number + 1]), f"no explanation: {line}"


def test_options_of_a_mount_are_in_groups():
    text = aisfs("mount", "--help").stdout.decode()
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


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str):
    done = aisfs("completion", shell)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"_AISFS_COMPLETE=" + shell.encode() in done.stdout


def test_version():
    done = aisfs("--version")
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search(r"\d+\.\d+\.\d+", done.stdout.decode())


@pytest.mark.parametrize("arguments", [("nonsense",), ("--nonsense",), ("umount",), ("serve",)])
def test_wrong_usage(arguments: tuple[str, ...]):
    done = aisfs(*arguments)
    assert done.returncode == 2
    assert re.fullmatch(r"aisfs: [^\n]+\n", done.stderr.decode())
