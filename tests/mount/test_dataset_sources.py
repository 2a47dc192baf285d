"""Which shards a dataset mount finds: braces, globs, lists, filters; on a server and in a directory."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from tests.mount.content import put
from tests.mount.datasets import encode, sample, tree
from tests.support.mounts import COMMAND, MountFailedError, aisfs, environment, mounted, run
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

KEYS = (
    "train/s-00.tar", "train/s-01.tar", "train/s-03.tar", "train/deep/s-04.tar", "val/s-00.tar",
    "other.tar",
)  # fmt: skip
MISSING = r"WARNING.* missing: "


def shard_of(key: str) -> bytes:
    return encode([sample(f"{key.replace('/', '-')}-{n}", n) for n in range(2)])


ODD = {"odd/A.TAR": bytes, "odd/plain": bytes, "odd/B.Tar.GZ": gzip.compress,
       "odd/model.bin": gzip.compress, "odd/wrong.tar": gzip.compress}  # fmt: skip
"""Keys of shards that do not say what they are, and what makes them of a tar."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket's directory, which is a local source too."""
    root = tmp_path_factory.mktemp("sources").resolve() / "pets"
    for key in KEYS:
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(shard_of(key))
    (root / "train" / "readme.txt").write_bytes(b"hello")
    for key, pack in ODD.items():
        path = root / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pack(shard_of(key)))
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with running_server(folder.parent) as server:
        yield server


@pytest.fixture(params=["ais", "local"])
def place(request: pytest.FixtureRequest, folder: Path) -> str:
    return "ais://pets" if request.param == "ais" else str(folder)


@pytest.mark.parametrize(
    ("words", "options", "shown"),
    [
        (["{}/train/s-{{00..03}}.tar"], [], ["s-00", "s-01", "s-03"]),
        (["{}/train/*.tar"], [], ["s-00", "s-01", "s-03"]),
        (["{}/**/s-0[04].tar"], [], ["train~s-00", "s-04", "val~s-00"]),
        (["{}/{{train,val}}/s-00.tar"], [], ["train~s-00", "val~s-00"]),
        (["{}/val/s-00.tar", "{}/other.tar"], [], ["s-00", "other"]),
        (["{}/other.tar", "{}/*.tar"], [], ["other"]),
        (["{}/train"], ["--view", "members"], ["s-00", "s-01", "s-03", "s-04"]),
        (["{}/odd/A.TAR"], [], ["A"]),
        (["{}/odd/B.Tar.GZ", "{}/odd/plain"], [], ["B", "plain"]),
        (["{}/odd/plain"], ["--view", "members"], ["plain"]),
        (["{}/odd/model.bin"], ["--view", "members"], ["model.bin"]),
        (["{}/odd"], ["--view", "members", "--exclude", "wrong.tar"], ["A", "B"]),
        (["{}/odd/*.[Tt]*"], ["--exclude", "wrong.tar"], ["A", "B"]),
        (["{}/*/[mp]*[ln]*"], ["--magic"], ["model.bin", "plain"]),
        (["{}/odd/wrong.tar"], ["--magic"], ["wrong"]),
        (["{}"], ["--view", "members", "--include", "train/*"], ["s-00", "s-01", "s-03", "s-04"]),
        (
            ["{}"],
            ["--view", "members", "--include", "s-*", "--exclude", "deep", "--exclude", "/val"],
            ["s-00", "s-01", "s-03"],
        ),
    ],
)
def test_shards_that_are_found(
    place: str,
    words: list[str],
    options: list[str],
    shown: list[str],
    server: RunningServer,
    mountpoint: Path,
):
    sources = [word.format(place) for word in words]
    with mounted(
        sources, mountpoint, endpoint=server.endpoint, options=options, expected_log=[MISSING]
    ) as mount:
        assert os.listdir(mount.path) == shown
        for name in shown:
            files = sorted(os.listdir(mount.path / name))
            assert [file.rpartition(".")[2] for file in files] == ["cls", "jpg"] * 2


def test_a_suffix_that_is_wrong_is_warned_of(place: str, server: RunningServer, mountpoint: Path):
    source = f"{place}/odd/wrong.tar"
    with mounted(
        [source], mountpoint, endpoint=server.endpoint, expected_log=["WARNING.*not a tar"]
    ):
        assert os.listdir(mountpoint / "wrong") == []
        said = os.getxattr(mountpoint / "wrong", "user.aisfs.warnings")
        assert b"but like a tar.gz: --magic goes by content" in said


def test_holes_are_skipped_and_counted(server: RunningServer, mountpoint: Path):
    source = "ais://pets/train/s-{00..09}.tar"
    with mounted(source, mountpoint, endpoint=server.endpoint, expected_log=[MISSING]) as mount:
        assert os.listdir(mount.path) == ["s-00", "s-01", "s-03"]
        assert os.getxattr(mount.path, "user.aisfs.skipped") == b"missing shard: 7"
        assert "7 missing: ais://pets/train/s-02.tar, ais://pets/train/s-04.tar" in mount.log()
        assert b'aisfs_dataset_shards{state="missing"} 7.0' in os.getxattr(
            mount.path, "user.aisfs.stats"
        )
        said = json.loads(aisfs("status", mount.path, "--json").stdout)
        assert said["dataset_shards"] == {"missing": 7, "shown": 3}


def test_what_is_excluded_or_no_shard_is_counted(server: RunningServer, mountpoint: Path):
    options = ["--exclude", "s-01.*"]
    with mounted(
        "ais://pets/train/*", mountpoint, endpoint=server.endpoint, options=options
    ) as mount:
        assert os.listdir(mount.path) == ["s-00", "s-03"]
        skipped = os.getxattr(mount.path, "user.aisfs.skipped")
        assert skipped == b"excluded shard: 1\nnot a shard: 1"


def test_a_list_file(place: str, server: RunningServer, mountpoint: Path, tmp_path: Path):
    listed = tmp_path / "list.txt"
    listed.write_text("# a subset\n\ntrain/s-0{1,3}.tar\nval/s-00.tar\nval/s-77.tar\n")
    options = ["--files-from", str(listed)]
    with mounted(
        place, mountpoint, endpoint=server.endpoint, options=options, expected_log=[MISSING]
    ) as mount:
        assert os.listdir(mount.path) == ["s-01", "s-03", "s-00"]
    listed.write_text(f"{place}/other.tar\n")
    with mounted(None, mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert os.listdir(mount.path) == ["other"]


def test_each_line_that_leads_to_nothing_is_told(
    place: str, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    listed = tmp_path / "list.txt"
    listed.write_text("train/s-00.tar\ntrain/s-03.tar \ntrain/s-01\nnodir/\nval/z*.tar\n")
    lines = [r"4 missing: .*/s-03.tar /, .*/s-01/, .*/nodir/, .*/val/z\*.tar$"]
    options = ["--files-from", str(listed)]
    with mounted(
        place, mountpoint, endpoint=server.endpoint, options=options, expected_log=lines
    ) as mount:
        assert os.listdir(mount.path) == ["s-00"]
        assert os.getxattr(mount.path, "user.aisfs.skipped") == b"missing shard: 4"


def test_a_list_as_wids_writes_it(
    place: str, folder: Path, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    shards = [{"url": name, "nsamples": 2} for name in ("train/s-03.tar", "./val/s-00.tar")]
    text = json.dumps({"wids_version": 1, "shardlist": shards})
    listed = tmp_path / "elsewhere.json"
    listed.write_text(text)
    options = ["--files-from", str(listed)]
    with mounted(place, mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert os.listdir(mount.path) == ["s-03", "s-00"]
    # Beside the shards, and together with another source.
    (folder / "shards.json").write_text(text)
    try:
        sources = [f"{place}/shards.json", f"{place}/other.tar"]
        with mounted(sources, mountpoint, endpoint=server.endpoint) as mount:
            assert os.listdir(mount.path) == ["s-03", "s-00", "other"]
            assert len(os.listdir(mount.path / "s-03")) == 4
    finally:
        (folder / "shards.json").unlink()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "names no shard"),
        ('{"shardlist": [{"url": 7}]}', "is not a wids shard list"),
        (
            '{"shardlist": [{"url": "f_p://x/y.tar"}]}',
            "shard 1: f_p://: unknown provider",
        ),
        ('{"shardlist": [{"url": "readme.txt"}]}', "no shard (X.tar) there: 1 missing shard"),
        ('{"wids_version": 2}', "only version 1"),
        ("not JSON", "is not a wids shard list"),
    ],
)
def test_a_list_that_is_none_is_one_clear_line(
    text: str, reason: str, folder: Path, server: RunningServer, mountpoint: Path
):
    (folder / "bad.json").write_text(text)
    try:
        for source in ("ais://pets/bad.json", str(folder / "bad.json")):
            with (
                pytest.raises(MountFailedError, match=re.escape(reason)) as caught,
                mounted(source, mountpoint, endpoint=server.endpoint),
            ):
                pass
            assert "Traceback" not in caught.value.stderr
            assert caught.value.returncode in (Exit.USAGE, Exit.NO_SOURCE)
    finally:
        (folder / "bad.json").unlink()


def test_a_list_in_a_bucket_names_no_file_of_this_machine(
    folder: Path, server: RunningServer, mountpoint: Path
):
    for url in (str(folder / "other.tar"), f"file://{folder}/other.tar"):
        (folder / "files.json").write_text(json.dumps({"shardlist": [{"url": url}]}))
        try:
            with (
                pytest.raises(MountFailedError, match="it is a file of this machine") as caught,
                mounted("ais://pets/files.json", mountpoint, endpoint=server.endpoint),
            ):
                pass
            assert caught.value.returncode == Exit.USAGE
        finally:
            (folder / "files.json").unlink()


def test_a_list_from_standard_input(folder: Path, mountpoint: Path, tmp_path: Path):
    listed = tmp_path / "list.txt"
    listed.write_text(f"{folder}/val/*.tar\n")
    command = f"exec {' '.join(COMMAND)} mount --files-from - {mountpoint} < {listed}"
    try:
        unlogged = environment({"AISFS_LOG_FILE": os.devnull}, home=tmp_path)
        done = run("bash", "-c", command, env=unlogged)
        assert (done.returncode, done.stderr) == (0, b"")
        assert run("ls", mountpoint).stdout == b"s-00\n"
    finally:
        assert aisfs("umount", mountpoint).returncode == 0


def test_relative_local_shards(folder: Path, mountpoint: Path):
    with mounted(["s-00.tar", "../val/*.tar"], mountpoint, cwd=folder / "train") as mount:
        assert os.listdir(mount.path) == ["train~s-00", "val~s-00"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["ais://pets/train/x-{0..3}.tar"], Exit.NO_SOURCE, "4 missing shards"),
        (["ais://pets/none/*.tar"], Exit.NO_SOURCE, "no shard"),
        (["ais://pets/train/*.txt"], Exit.NO_SOURCE, "; --magic takes archives of any name"),
        (["ais://pets/train/*.txt", "--magic"], Exit.NO_SOURCE, "there: 1 not a shard"),
        (["ais://pets/train/readme.txt", "--view", "flat"], Exit.NO_SOURCE, "1 not a shard"),
        (["ais://pets/other.tar", "ais://pets/gone.tar"], Exit.NO_SOURCE, "gone.tar: no shard"),
        (["ais://nobucket/x-{0..3}.tar"], Exit.NO_SOURCE, "nobucket does not exist"),
        (["/nowhere/*.tar"], Exit.NO_SOURCE, "/nowhere: no such directory"),
        (["ais://pets/{0..1.tar"], Exit.USAGE, "braces do not match"),
        (["ais://pets/other.tar", "./x.tar"], Exit.USAGE, "not both"),
        (["--view", "members"], Exit.USAGE, "--view needs a SOURCE"),
        (["--label", "cls", "ais://pets/*.tar"], Exit.USAGE, "--label needs --view class"),
        (["--require", "jpg", "ais://pets/*.tar"], Exit.USAGE, "--require needs --view samples"),
        (["--shards", "dir", "ais://pets/*.tar"], Exit.USAGE, "--shards: a dataset shows"),
        (["--include", "x"], Exit.USAGE, "--include needs --view"),
        (["--key-rule", "wds", "ais://pets"], Exit.USAGE, "--key-rule needs"),
        (["--files-from", "/nowhere"], Exit.USAGE, "--files-from /nowhere: No such file"),
        (["--view", "class", "--label", "re:(", "ais://pets"], Exit.USAGE, "--label re:("),
        (["--view", "class", "--image", "", "ais://pets"], Exit.USAGE, "--image ''"),
        (["--writable", "ais://pets/*.tar"], Exit.USAGE, "--writable: a dataset cannot"),
        (
            ["--writable", "--view", "flat", "ais://pets"],
            Exit.USAGE,
            "--writable: a dataset cannot",
        ),
        (["--writable", "--include", "*.tar", "ais://pets"], Exit.USAGE, "--writable: not with"),
        (["--writable", "--exclude", "*.tar", "ais://pets"], Exit.USAGE, "--writable: not with"),
    ],
)
def test_what_makes_no_dataset_is_one_clear_line(
    words: list[str], code: Exit, message: str, server: RunningServer, mountpoint: Path
):
    done = aisfs("mount", *words, mountpoint, "--endpoint", server.endpoint)
    assert done.returncode == code, done.stderr
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert not os.path.ismount(mountpoint)


def test_plain_sources_are_shown_as_before(server: RunningServer, mountpoint: Path):
    with mounted("ais://pets/train/", mountpoint, endpoint=server.endpoint) as mount:
        assert sorted(os.listdir(mount.path)) == [
            "deep", "readme.txt", "s-00.tar", "s-01.tar", "s-03.tar",
        ]  # fmt: skip
    done = aisfs("mount", "ais://pets/other.tar/", mountpoint, "--endpoint", server.endpoint)
    assert done.returncode == Exit.NO_SOURCE
    assert b"ais://pets/other.tar is an object" in done.stderr


def test_a_plain_source_shows_what_the_filters_let_through(
    place: str, server: RunningServer, mountpoint: Path
):
    options = ["--include", "/train/**", "--exclude", "*-0[13].tar"]
    with mounted(place, mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert tree(mount.path) == ["train/deep/s-04.tar", "train/readme.txt", "train/s-00.tar"]
        assert os.listdir(mount.path) == ["train"]
        assert b"excluded: 2" in os.getxattr(mount.path / "train", "user.aisfs.skipped")
        for hidden in ("train/s-01.tar", "train/s-01.tar.d", "val", "other.tar"):
            with pytest.raises(FileNotFoundError):
                os.stat(mount.path / hidden)


def test_a_dataset_is_warmed(server: RunningServer, mountpoint: Path, tmp_path: Path):
    source = "ais://pets/train/s-0{0,1}.tar"
    options = ["--cache-dir", str(tmp_path / "cache"), "--cache-size", "50MiB"]
    with mounted(source, mountpoint, endpoint=server.endpoint, options=options) as mount:
        done = aisfs("warm", "--index-only", mount.path)
        assert (done.returncode, done.stdout.split()[:2]) == (0, [b"2", b"shards,"]), done
        done = aisfs("warm", mount.path)
        assert done.returncode == 0, done
        before = server.requests()
        assert [(mount.path / name).read_bytes() for name in tree(mount.path)]
        assert server.requests() == before


def test_options_of_a_view_in_fstab(folder: Path, mountpoint: Path):
    options = ["-o", "view=samples,key_rule=last-dot,include=other.tar"]
    with mounted(str(folder), mountpoint, options=options) as mount:
        assert os.listdir(mount.path) == ["other"]
        assert os.listdir(mount.path / "other") == ["other.tar-0", "other.tar-1"]


def test_a_shard_that_changes_is_shown_anew(server: RunningServer, mountpoint: Path):
    put(server.endpoint, "pets", "changing/a.tar", encode([sample("old", 1)]))
    put(server.endpoint, "pets", "changing/b.tar", encode([sample("same", 1)]))
    with mounted(
        "ais://pets/changing/*.tar",
        mountpoint,
        endpoint=server.endpoint,
        options=["--cache-size", "0", "--list-ttl", "0", "--attr-ttl", "0"],
        expected_log=["changed|Stale|is now"],
    ) as mount:
        before = os.stat(mount.path / "a").st_ino
        put(server.endpoint, "pets", "changing/a.tar", encode([sample("new", 2)]))
        assert sorted(os.listdir(mount.path / "a")) == ["new.cls", "new.jpg"]
        assert os.stat(mount.path / "a").st_ino != before
        assert (mount.path / "a" / "new.cls").read_bytes() == b"2"
        assert sorted(os.listdir(mount.path / "b")) == ["same.cls", "same.jpg"]


def test_no_shard_at_all_in_a_directory(tmp_path: Path, mountpoint: Path):
    (tmp_path / "data").mkdir()
    with (
        pytest.raises(MountFailedError, match="no shard") as caught,
        mounted(str(tmp_path / "data"), mountpoint, options=["--view", "members"]),
    ):
        pass
    assert caught.value.returncode == Exit.NO_SOURCE


def test_local_shards_need_no_disk_cache(folder: Path, mountpoint: Path, tmp_path: Path):
    """What is on this disk is not copied to it."""
    cache, source = tmp_path / "cache", f"{folder}/train/s-{{00,01}}.tar"
    options = ["--cache-dir", str(cache), "--cache-size", "1GiB"]
    with mounted(source, mountpoint, options=options) as mount:
        for path in mount.path.rglob("*.cls"):
            assert path.read_bytes()
    assert not [path for path in (cache / "v1" / "data").iterdir() if path.stat().st_blocks]
    (tmp_path / "file").write_bytes(b"")
    options = ["--cache-dir", str(tmp_path / "file"), "--cache-size", "1GiB"]
    with mounted(
        source, mountpoint, options=options, expected_log=["no disk cache: .*File exists"]
    ) as mount:
        assert [path for path in mount.path.rglob("*.cls") if path.read_bytes()]
