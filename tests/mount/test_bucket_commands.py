"""`aisfs ls`, `aisfs mb` and `aisfs rm`: buckets without a mount."""

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support.mounts import COMMAND, aisfs, check_refused, environment, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

OBJECTS = {
    "samples-00.tar": b"0" * 1000,
    "samples-01.tar": b"1",
    "samples-03.tar": b"3",
    ".aisfs-index/samples-00.tar.idx": b"index",
    "notes.txt": b"hi",
    "a-b": b"",
    "a/x": b"x",
    "ü b": b"",
    "train/s.tar": b"s",
    "train/.aisfs-index/s.tar.idx": b"index",
    "train/deep/t.tgz": b"t",
    "val/s.tar": b"v",
}
WIDS = {"wids_version": 1, "shardlist": [{"url": "samples-00.tar"}, {"url": "train/s.tar"}]}
TOP = ["a-b", "a/", "notes.txt", *(f"samples-0{n}.tar" for n in (0, 1, 3)), "shards.json"]
TOP += ["train/", "val/", "ü b"]
LONG_NAMES = [f"{n:04}-{'x' * 200}" for n in range(1000)]
"""More of them than a pipe holds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("buckets") / "store"
    fill(root / "pets", {**OBJECTS, "shards.json": json.dumps(WIDS).encode()})
    fill(root / "long", dict.fromkeys(LONG_NAMES, b""))
    (root / "empty").mkdir()
    with running_server(root) as server:
        yield server


@pytest.fixture
def without_buckets(tmp_path: Path) -> Iterator[RunningServer]:
    (tmp_path / "store").mkdir()
    with running_server(tmp_path / "store", faulty=True) as server:
        yield server


def runner(server: RunningServer):
    def run(*arguments: str, endpoint: str = server.endpoint):
        return aisfs(*arguments, env={"AIS_ENDPOINT": endpoint} if endpoint else {})

    return run


@pytest.fixture
def run(server: RunningServer):
    return runner(server)


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().splitlines()


def keys(*names: str) -> list[str]:
    return [f"ais://pets/{name}" for name in names]


def test_ls(run, server: RunningServer, mountpoint: Path):
    buckets = ["ais://empty", "ais://long", "ais://pets"]
    assert lines(run("ls")) == lines(run("ls", "ais://")) == buckets
    assert lines(run("ls", "ais://empty")) == []
    assert lines(run("ls", "ais://long")) == LONG_NAMES
    assert lines(run("ls", "ais://pets")) == TOP
    with mounted("ais://pets", mountpoint, endpoint=server.endpoint):
        assert sorted(os.listdir(mountpoint)) == sorted(name.rstrip("/") for name in TOP)
    for prefix in ("ais://pets/train", "ais://pets/train/"):
        assert lines(run("ls", prefix)) == ["deep/", "s.tar"]
    hidden = ".aisfs-index"
    everything = sorted([name for name in OBJECTS if hidden not in name] + ["shards.json"])
    assert lines(run("ls", "-R", "ais://pets")) == everything


def test_ls_of_keys(run):
    shards = [f"samples-0{n}.tar" for n in (0, 1, 3)]
    assert lines(run("ls", "ais://pets/samples-{00..05}.tar")) == keys(*shards)
    many = run("ls", "ais://pets/samples-{00..99}.tar", "ais://pets/notes.txt")
    assert lines(many) == keys(*shards, "notes.txt")
    assert lines(run("ls", "ais://pets/*.tar")) == keys(*shards)
    deep = keys(*shards, "train/s.tar", "val/s.tar", "train/deep/t.tgz")
    assert lines(run("ls", "ais://pets/**/*.t{ar,gz}")) == deep
    both = lines(run("ls", "ais://pets/{train,val}"))
    assert both == keys("train/deep/", "train/s.tar", "val/s.tar")
    assert lines(run("ls", "ais://pets/shards.json")) == keys("samples-00.tar", "train/s.tar")
    assert lines(run("ls", "ais://pets/notes.txt")) == keys("notes.txt")


def test_ls_long_and_json(run):
    long = [line.split() for line in lines(run("ls", "-l", "ais://pets/"))]
    found = {words[-1]: (words[0], words[-2]) for words in long}
    assert found["samples-00.tar"] == ("1000", "shard")
    assert found["notes.txt"] == ("2", "object")
    assert found["train/"] == ("-", "dir")
    told = json.loads(run("ls", "--json", "ais://pets/train").stdout)
    assert [(each["name"], each["kind"]) for each in told] == [
        ("ais://pets/train/deep/", "directory"),
        ("ais://pets/train/s.tar", "shard"),
    ]
    assert told[1]["size"] == 1
    assert told[1]["mtime"].endswith("Z")
    assert json.loads(run("ls", "--json", "ais://empty").stdout) == []
    assert {"name": "ais://pets", "kind": "bucket"} in json.loads(run("ls", "--json").stdout)


def test_ls_of_a_local_directory(run, server: RunningServer):
    root = server.root / "pets"
    assert lines(run("ls", str(root), endpoint="")) == TOP
    shards = [str(root / f"samples-0{n}.tar") for n in (0, 1, 3)]
    assert lines(run("ls", f"{root}/*.tar", endpoint="")) == shards
    assert lines(run("ls", f"{root}/notes.txt", endpoint="")) == [f"{root}/notes.txt"]
    check(run("ls", f"{root}/missing", endpoint=""), 5, "no such file")


def test_ls_refusals(run):
    check(run("ls", "ais://missing"), 5, "does not exist")
    check(run("ls", "ais://pets/missing"), 5, "no such object or directory")
    check(run("ls", "ais://pets/*.zip"), 5, "nothing")
    check(run("ls", "f_p://pets"), 2, "unknown provider")
    check(run("ls", endpoint=""), 3, "AIS_ENDPOINT")
    check(run("ls", endpoint="http://127.0.0.1:1"), 4, "does not answer")
    both = run("ls", "ais://missing", "ais://pets/val")
    assert both.returncode == 5
    assert both.stdout == b"ais://pets/val:\ns.tar\n"


def check(done: subprocess.CompletedProcess[bytes], code: int, reason: str) -> None:
    assert (done.returncode, done.stderr.count(b"\n")) == (code, 1), done.stderr
    assert reason in done.stderr.decode()


def test_ls_before_head(server: RunningServer):
    env = environment({"AIS_ENDPOINT": server.endpoint})
    pipe = subprocess.PIPE
    command = [*COMMAND, "ls", "ais://long"]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().decode() == f"{LONG_NAMES[0]}\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_mb(without_buckets: RunningServer):
    run = runner(without_buckets)
    assert lines(run("mb", "ais://one", "ais://two")) == ["created ais://one", "created ais://two"]
    check(run("mb", "ais://one"), 1, "ais://one exists")
    assert lines(run("mb", "-p", "ais://one", "ais://three")) == ["created ais://three"]
    assert lines(run("ls", "ais://three")) == []
    for name in ("ais://four/x", "ais://a..b", "ais://" + "x" * 65, "s3://four"):
        check(run("mb", "ais://four", name), 2, name)
    check(run("ls", "ais://four"), 5, "does not exist")
    lost = {"method": "POST", "path_contains": "/v1/buckets/lost"}
    without_buckets.faults([{"match": lost, "action": "reset", "stage": "done", "times": 1}])
    assert lines(run("mb", "ais://lost")) == ["created ais://lost"]
    assert lines(run("ls", "ais://lost")) == []


def left(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture(params=["ais", "local"])
def doomed(
    request: pytest.FixtureRequest, without_buckets: RunningServer, tmp_path: Path
) -> tuple[str, Path]:
    """What to call a bucket or a directory, and where its files are."""
    root = without_buckets.root / "b" if request.param == "ais" else tmp_path / "files"
    names = ["a/x.tar", "a/y.tar", "a/deep/z", "ab", "n-0", "n-1", "n-3", "shards.json", "list"]
    fill(root, dict.fromkeys(names, b"12") | {"shards.json": json.dumps(WIDS).encode()})
    return ("ais://b" if request.param == "ais" else str(root)), root


def test_rm(without_buckets: RunningServer, doomed: tuple[str, Path]):
    run, (place, root) = runner(without_buckets), doomed
    before = left(root)
    for words, code, said in (
        ([f"{place}/a"], 2, "is a directory: --recursive"),
        ([f"{place}/{{a,ab}}"], 2, "is a directory: --recursive"),
        ([f"{place}/ab", f"{place}/missing"], 5, "no such"),
        ([f"{place}/n-{{7..9}}"], 5, "nothing there has such a name"),
        ([f"{place}/*.gif"], 5, "nothing there has such a name"),
    ):
        check(run("rm", *words), code, said)
        assert left(root) == before, "nothing is removed before all was found"
    found = lines(run("rm", "-n", f"{place}/n-{{0..3}}"))
    assert [line.rpartition("/")[2] for line in found] == ["n-0", "n-1", "n-3"]
    assert left(root) == before
    assert lines(run("rm", f"{place}/n-{{0..3}}", f"{place}/ab")) == ["removed 4 objects, 8 bytes"]
    # A list of shards is an object here, and removes no shard.
    lines(run("rm", f"{place}/shards.json"))
    assert left(root) == ["a/deep/z", "a/x.tar", "a/y.tar", "list"]
    lines(run("rm", f"{place}/a/*.tar"))
    assert left(root) == ["a/deep/z", "list"]
    lines(run("rm", "-r", f"{place}/a/"))
    assert left(root) == ["list"]
    assert lines(run("rm", "--recursive", place)) == ["removed 1 object, 2 bytes"]
    assert left(root) == []
    assert root.is_dir()


def test_rm_removes_published_indexes(without_buckets: RunningServer, tmp_path: Path):
    run = runner(without_buckets)
    # As a release published it that had no bucket for indexes.
    fill(without_buckets.root / "b/.aisfs-index", {"s-2.tar.idx": b"older"})
    fill(tmp_path / "tree", {"1.jpg": b"1", "2.jpg": b"2", "3.jpg": b"3"})
    served, out = without_buckets.root, tmp_path / "out"
    for place, indexes in (
        ("ais://b/s-{0..}.tar", served / "aisfs-index/ais/b"),
        (f"{out}/s-{{0..}}.tar", out / ".aisfs-index"),
    ):
        packed = run("pack", str(tmp_path / "tree"), place, "--max-count", "1")
        assert packed.returncode == 0
        lines(run("rm", place.replace("{0..}", "{0..1}")))
        assert left(indexes) == ["s-2.tar.idx"]
        lines(run("rm", place.replace("{0..}", "2")))
        assert left(indexes) == left(served / "b") == []


def test_rm_names_what_cannot_be_removed(without_buckets: RunningServer):
    run = runner(without_buckets)
    for words, code, said in (
        (["rm", "https://host/x.tar"], 2, "can only be read"),
        (["rm", "-r", "ais://"], 2, "name objects"),
        (["rm", "ais://none/x"], 5, "does not exist"),
    ):
        check(run(*words), code, said)
    fill(without_buckets.root / "b", {"x": b"", "y": b""})
    refuse = {"path_contains": "/b/y", "method": "DELETE", "marked": True}
    without_buckets.faults([{"match": refuse, "action": "status", "status": 403, "times": -1}])
    check(run("rm", "-r", "ais://b", "--jobs", "1"), 6, "b/y")
    assert left(without_buckets.root / "b") == ["y"]


def test_mount_makes_the_bucket(without_buckets: RunningServer, mountpoint: Path, tmp_path: Path):
    create, endpoint = ["--create-bucket"], without_buckets.endpoint
    refused = [(["ais://made"], 5, "does not exist"), (["ais://made", *create], 2, "--writable")]
    for arguments, code, said in refused:
        check_refused(arguments, mountpoint, endpoint=endpoint, code=code, said=said)
    assert not (without_buckets.root / "made").exists()
    options = ["--writable", *create, "--staging-dir", str(tmp_path / "staging")]
    for n in range(2):  # it is made once, and then it is there
        with mounted("ais://made", mountpoint, endpoint=endpoint, options=options):
            (mountpoint / str(n)).write_bytes(b"new")
    assert (without_buckets.root / "made" / "0").read_bytes() == b"new"
    assert (without_buckets.root / "made" / "1").read_bytes() == b"new"


def test_mkdir_makes_a_bucket(without_buckets: RunningServer, mountpoint: Path, tmp_path: Path):
    allow, endpoint = ["--allow-bucket-changes"], without_buckets.endpoint
    refused = [([], allow, "--writable"), (["ais://b"], ["--writable", *allow], "all buckets")]
    for source, options, said in refused:
        check_refused([*source, *options], mountpoint, endpoint=endpoint, code=2, said=said)
    options = ["--writable", *allow, "--staging-dir", str(tmp_path / "staging")]
    log = ["a bucket's name", "is a bucket: remove it"]
    with mounted(None, mountpoint, endpoint=endpoint, options=options, expected_log=log):
        buckets = mountpoint / "ais"
        before = buckets.stat().st_mtime_ns
        assert os.listdir(buckets) == []
        (buckets / "new").mkdir()
        assert buckets.stat().st_mtime_ns > before
        (buckets / "new" / "file").write_bytes(b"new")
        assert (without_buckets.root / "new" / "file").read_bytes() == b"new"
        # As if another client had made it after the kernel looked it up.
        raced = {"method": "POST", "path_contains": "/v1/buckets/raced"}
        body = {"tcode": "ErrBucketAlreadyExists", "message": "injected", "status": 409}
        answer = {"action": "status", "status": 409, "stage": "done", "times": 1, "body": body}
        without_buckets.faults([{"match": raced, **answer}])
        with pytest.raises(FileExistsError):
            (buckets / "raced").mkdir()
        aisfs("mb", "ais://other", env={"AIS_ENDPOINT": endpoint})
        for name, code in [
            ("new", errno.EEXIST),
            ("other", errno.EEXIST),
            ("a..b", errno.EINVAL),
            ("x" * 65, errno.EINVAL),
            ("a b", errno.EINVAL),
        ]:
            with pytest.raises(OSError, match=name) as error:
                (buckets / name).mkdir()
            assert error.value.errno == code, name
        assert sorted(os.listdir(buckets)) == ["new", "other", "raced"]
        with pytest.raises(PermissionError):
            (buckets / "other").rmdir()
        assert (without_buckets.root / "other").is_dir()


def test_mkdir_makes_no_bucket_unasked(
    without_buckets: RunningServer, mountpoint: Path, tmp_path: Path
):
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]
    endpoint, log = without_buckets.endpoint, ["mount with --allow-bucket-changes"]
    with mounted(None, mountpoint, endpoint=endpoint, options=options, expected_log=log):
        with pytest.raises(OSError, match="new") as error:
            (mountpoint / "ais" / "new").mkdir()
        assert error.value.errno == errno.EROFS
    assert not (without_buckets.root / "new").exists()
