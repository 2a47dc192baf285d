"""Keys become names without loss, or are hidden; a directory wins over an object of its name."""

import os
import stat
from pathlib import Path

import pytest

from tests.mount.content import fill, tree_of
from tests.mount.odd_server import BUCKET, serving_keys
from tests.support.mounts import mounted, python, succeed
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

ODD = {
    "spa ce.txt": b"1",
    "percent%20%2F%.txt": b"2",
    "plus+hash#question?amp&eq=;,.txt": b"3",
    "ünïcode/文字/🐈.jpg": b"4",
    "new\nline.txt": b"5",
    "tab\tand\x01control.txt": b"6",
    "quote\"'`.txt": b"7",
    "back\\slash.txt": b"8",
    "brace{0..9}[a]*$HOME.txt": b"9",
    "-rf": b"10",
    "~tilde/~x": b"11",
    "decomposed-e\u0301.txt": b"12",
    "composed-\u00e9.txt": b"13",
    "trailing space ": b"14",
    "dots...": b"15",
    "...": b"16",
    "..data/x": b"17",
    "CASE": b"18",
    "case": b"19",
    "a" * 255: b"20",
    "colon:at@pipe|.txt": b"21",
    "<lt>&amp;.txt": b"22",
}
HIDDEN = {
    "a//b": b"empty component",
    "/lead": b"empty first component",
    "./dot": b"dot",
    "../up": b"dot dot",
    "x/./y": b"dot inside",
    "x/../z": b"dot dot inside",
    "clash": b"an object with the name of a directory",
    "L" * 256: b"too long",
    "trail/": b"",
}
SHOWN = {
    "plain.txt": b"plain",
    "a/ok": b"ok",
    "x/fine": b"fine",
    "clash/inner": b"inner",
    "L" * 255: b"just fits",
    "trail/real": b"real",
    "zz/1": b"1",
    "zz/2": b"2",
    "zz/3": b"3",
    "zz/4": b"4",
}
DIRECTORIES = {b"a", b"x", b"clash", b"trail", b"zz"}


def check_odd(root: Path, objects: dict[str, bytes]) -> None:
    wanted = {os.fsencode(key): data for key, data in objects.items()}
    base = os.fsencode(root)
    for key, data in wanted.items():  # by name first: nothing has been listed yet
        with open(os.path.join(base, key), "rb") as file:
            assert file.read() == data, key
    assert set(tree_of(root).files) == set(wanted)
    found = succeed("find", root, "-type", "f", "-print0").split(b"\0")
    assert {name.removeprefix(base + b"/") for name in found if name} == set(wanted)


def test_odd_names_of_objects(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "store" / "odd", ODD)
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://odd", mountpoint, endpoint=server.endpoint) as mount,
    ):
        check_odd(mount.path, ODD)


def test_names_that_need_quoting_do_not_reach_another_object(tmp_path: Path, mountpoint: Path):
    objects = {"a%2Fb": b"quoted", "a/b": b"nested", "c?d": b"question", "c": b"c", "e#f": b"hash"}
    fill(tmp_path / "store" / "odd", objects)
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://odd", mountpoint, endpoint=server.endpoint) as mount,
    ):
        check_odd(mount.path, objects)


def test_odd_names_in_a_local_directory(tmp_path: Path, mountpoint: Path):
    objects = {**ODD, os.fsdecode(b"not-utf8-\xff\xfe.txt"): b"a", os.fsdecode(b"\xe9/\xe8"): b"b"}
    fill(tmp_path / "local", objects)
    with mounted(str(tmp_path / "local"), mountpoint) as mount:
        check_odd(mount.path, objects)


def test_what_is_not_utf8_is_asked_for_and_written(tmp_path: Path, mountpoint: Path):
    odd = os.fsdecode(b"\xff\xfe")
    objects = {f"{odd}/{odd}": b"there"}
    store = fill(tmp_path / "store" / "odd", objects)
    options = ["--writable", "--list-ttl", "0", "--attr-ttl", "0", "--negative-ttl", "0"]
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://odd", mountpoint, endpoint=server.endpoint, options=options) as mount,
    ):
        assert not (mount.path / f"{odd}.missing").exists()
        assert (mount.path / odd / odd).read_bytes() == b"there"
        (mount.path / f"{odd}.new").write_bytes(b"new")
        assert (store / f"{odd}.new").read_bytes() == b"new"


def test_a_line_of_the_log_about_what_is_not_utf8(tmp_path: Path):
    file = tmp_path / "log"
    script = "import logging, pathlib, sys; from aisfs.system import logs\n"
    script += "logs.configure('info', pathlib.Path(sys.argv[1]), foreground=False)\n"
    script += "logging.getLogger('aisfs.x').warning('%s is lost', '\\udcff.jpg')\n"
    python(script, file)
    assert "\\udcff.jpg is lost" in file.read_text()


@pytest.mark.parametrize(
    ("reason", "logged"), [("No such file or directory", False), ("Invalid argument", True)]
)
def test_a_reply_that_came_too_late_is_no_error(tmp_path: Path, reason: str, logged: bool):
    """Who asked was killed, or the mount ended: that can happen at any time, and means nothing."""
    file = tmp_path / "log"
    script = "import logging, pathlib, sys; from aisfs.system import logs\n"
    script += "logs.configure('info', pathlib.Path(sys.argv[1]), foreground=False)\n"
    script += "log = logging.getLogger('pyfuse3')\n"
    script += "log.error('fuse_release(): fuse_reply_* failed with %s', sys.argv[2])\n"
    python(script, file, reason)
    assert (reason in file.read_text()) == logged


def test_a_shard_with_an_odd_name(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "in", {"m.txt": b"member"})
    name = "sh ard%41+#?ü.tar"
    store = fill(tmp_path / "store" / "odd", {})
    succeed("tar", "-C", tmp_path / "in", "-cf", store / name, "m.txt")
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://odd", mountpoint, endpoint=server.endpoint) as mount,
    ):
        assert (mount.path / f"{name}.d" / "m.txt").read_bytes() == b"member"
        shard = os.getxattr(mount.path / f"{name}.d" / "m.txt", "user.aisfs.shard")
        assert shard == os.fsencode(name)


def test_hidden_names(mountpoint: Path):
    with (
        serving_keys(HIDDEN | SHOWN) as endpoint,
        mounted(
            f"ais://{BUCKET}", mountpoint, endpoint=endpoint, expected_log=["WARNING"]
        ) as mount,
    ):
        tree = tree_of(mount.path)
        assert set(tree.files) == {os.fsencode(key) for key in SHOWN}
        assert tree.directories == DIRECTORIES
        for key, data in SHOWN.items():
            assert (mount.path / key).read_bytes() == data


def test_hidden_names_asked_for_before_any_listing(mountpoint: Path):
    with (
        serving_keys(HIDDEN | SHOWN) as endpoint,
        mounted(
            f"ais://{BUCKET}", mountpoint, endpoint=endpoint, expected_log=["WARNING"]
        ) as mount,
    ):
        assert stat.S_ISDIR(os.stat(mount.path / "clash").st_mode)
        assert (mount.path / "clash" / "inner").read_bytes() == b"inner"
        assert stat.S_ISDIR(os.stat(mount.path / "trail").st_mode)
        with pytest.raises(OSError, match="File name too long"):
            os.stat(mount.path / ("L" * 256))


def test_listings_of_many_small_pages_are_complete(mountpoint: Path):
    keys = {f"d/{number:03}": b"x" for number in range(100)}
    with (
        serving_keys(keys) as endpoint,
        mounted(f"ais://{BUCKET}", mountpoint, endpoint=endpoint) as mount,
    ):
        assert sorted(os.listdir(mount.path / "d")) == [f"{number:03}" for number in range(100)]
        assert os.listdir(mount.path) == ["d"]
