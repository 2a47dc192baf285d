"""`aisfs mount @NAME` and `aisfs config`, as a user has them."""

import json
import os
from pathlib import Path

import pytest

from tests.support.mounts import aisfs, environment

pytestmark = pytest.mark.mount


@pytest.fixture
def shell(tmp_path: Path):
    """Runs aisfs with a configuration of its own."""
    config = tmp_path / "config.toml"
    source, mnt = tmp_path / "source", tmp_path / "mnt"
    (source / "below").mkdir(parents=True)
    (source / "a.txt").write_text("a")
    mnt.mkdir()
    config.write_text(
        f"""\
attr-ttl = 7
[profiles.here]
source = "{source}"
mountpoint = "{mnt}"
cache-size = 0
exclude = ["below/"]
[profiles.bad]
source = "{source}"
file-mode = "99"
"""
    )

    def call(*words: str, **variables: str):
        given = {"AISFS_CONFIG": str(config), "AISFS_LOG_FILE": os.devnull, **variables}
        return aisfs(*words, env=environment(given))

    yield call, config, mnt
    call("umount", "--lazy", str(mnt))


def test_no_row_is_wrapped_where_there_is_no_terminal(shell):
    call, _, _ = shell
    long = f"/{'long-' * 30}"
    lines = call("config", "show", AISFS_CACHE_DIR=long).stdout.decode().splitlines()
    assert [line for line in lines if line.split() == ["cache-dir", long, "AISFS_CACHE_DIR"]]


def test_a_profile_is_mounted_and_typed_words_win(shell):
    call, _, mnt = shell
    done = call("mount", "@here")
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(os.listdir(mnt)) == ["a.txt"]
    assert call("umount", str(mnt)).returncode == 0
    done = call("@here", str(mnt), "-o", "file_mode=0400,ro", AISFS_DIR_MODE="0500")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (mnt / "a.txt").stat().st_mode & 0o777 == 0o400
    assert mnt.stat().st_mode & 0o777 == 0o500
    assert call("umount", str(mnt)).returncode == 0
    other = mnt.parent / "other"
    other.mkdir()
    (other / "b.txt").write_text("b")
    assert call("mount", "@here", str(other), str(mnt)).returncode == 0
    assert os.listdir(mnt) == ["b.txt"]
    assert call("umount", str(mnt)).returncode == 0


def test_show_says_where_each_value_is_from(shell):
    call, config, mnt = shell
    secret = {"AIS_AUTHN_TOKEN": "very-secret", "AISFS_LIST_TTL": "3"}
    done = call("config", "show", "@here", "--json", **secret)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows["attr-ttl"] == {"value": "7.0", "from": f"{config}, line 1"}
    assert rows["mountpoint"] == {"value": str(mnt), "from": f"{config}, line 4"}
    assert rows["list-ttl"] == {"value": "3.0", "from": "AISFS_LIST_TTL"}
    assert rows["file-mode"] == {"value": "0444", "from": "default"}
    assert rows["token"] == {"value": "********", "from": "AIS_AUTHN_TOKEN"}
    table = call("config", "show", **secret).stdout
    assert b"AISFS_LIST_TTL" in table
    assert b"very-secret" not in table


def test_mistakes_are_told_in_one_line(shell):
    call, config, _ = shell
    done = call("config", "check")
    assert done.returncode == 2
    assert b"@bad" in done.stderr
    assert b"file-mode" in done.stderr
    config.write_text("attr-tll = 7\n")
    for words in (("config", "check"), ("mount", "/tmp", "/nowhere"), ("mount", "@here")):
        done = call(*words)
        assert done.returncode == 2
        assert done.stderr.decode().splitlines() == [
            f"aisfs: {config}, line 1: unknown option 'attr-tll'; did you mean attr-ttl?"
        ]
    config.write_text("")
    done = call("mount", "@here")
    assert done.returncode == 2
    assert b"@here: no such profile" in done.stderr
    done = call("config", "check")
    assert (done.returncode, done.stdout.decode()) == (0, f"{config}: no error\n")
