"""The unit calls commands that exist, and systemd understands it."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from aisfs.commands.main import cli
from aisfs.system import daemon
from tests.docs.documents import ROOT

UNIT = ROOT / "systemd" / "aisfs@.service"
SAMPLE = ROOT / "systemd" / "sample.env"
VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read(UNIT)
    return parser["Service"]


def test_the_unit_calls_commands_that_exist(service: configparser.SectionProxy):
    commands = {"ExecStart": "mount", "ExecReload": "upgrade", "ExecStop": "umount"}
    for key, command in commands.items():
        program, word, *_ = service[key].split()
        assert program == "aisfs", "systemd looks where it may be installed"
        assert word == command
        assert command in cli.list_commands(click.Context(cli))


def test_the_cache_is_where_systemd_makes_room_for_it(service: configparser.SectionProxy):
    words = service["ExecStart"].split()
    directory = words[words.index("--cache-dir") + 1]
    assert directory == f"/var/cache/{service['CacheDirectory']}"
    assert words.index("--cache-dir") < words.index("$OPTIONS"), "what OPTIONS says comes last"
    assert directory in (UNIT.parent / "README.md").read_text()


def test_what_is_not_uploaded_is_where_systemd_keeps_state(service: configparser.SectionProxy):
    words = service["ExecStart"].split()
    directory = words[words.index("--staging-dir") + 1]
    assert directory == f"/var/lib/{service['StateDirectory']}/staging"
    assert words.index("--staging-dir") < words.index("$OPTIONS"), "what OPTIONS says comes last"
    assert directory in (UNIT.parent / "README.md").read_text()


def test_the_keeper_outlives_the_daemon(service: configparser.SectionProxy):
    assert service["OOMPolicy"] == "continue"
    assert service["KillMode"] == "mixed"


def test_many_files_may_be_open(service: configparser.SectionProxy):
    assert int(service["LimitNOFILE"]) == daemon.WANTED


def test_the_sample_sets_what_the_unit_uses(service: configparser.SectionProxy):
    used = set(VARIABLE.findall(service["ExecStart"])) | set(VARIABLE.findall(service["ExecStop"]))
    lines = [line for line in SAMPLE.read_text().splitlines() if line and not line.startswith("#")]
    given = dict(line.split("=", 1) for line in lines)
    assert used <= set(given)
    mount = cli.get_command(click.Context(cli), "mount")
    assert mount is not None
    known = {name for option in mount.params for name in option.opts}
    assert {word.partition("=")[0] for word in given["OPTIONS"].split()} <= known


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_understands_the_unit(tmp_path: Path):
    text = UNIT.read_text().replace("=aisfs ", "=/bin/true ")
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", "aisfs@pets.service"],
        cwd=tmp_path,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "aisfs@" in line]
    assert not complaints
    assert done.returncode == 0, done.stderr
