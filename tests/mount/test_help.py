"""The help names every option."""

import re

import pytest

from tests.support.mounts import aisfs

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


def test_version():
    done = aisfs("--version")
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search(r"\d+\.\d+\.\d+", done.stdout.decode())


@pytest.mark.parametrize("arguments", [("nonsense",), ("--nonsense",), ("umount",), ("serve",)])
def test_wrong_usage(arguments: tuple[str, ...]):
    done = aisfs(*arguments)
    assert done.returncode == 2
    assert re.fullmatch(r"aisfs: [^\n]+\n", done.stderr.decode())
