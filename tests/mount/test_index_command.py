"""`aisfs index` publishes the indexes of shards, for mounts elsewhere and for other programs."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from aisfs.core.names.listing import published_key
from tests.mount.content import fill, put
from tests.mount.datasets import encode, sample, tree
from tests.support.archives import make
from tests.support.mounts import COMMAND, aisfs, environment, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SAMPLES = 40
KEYS = [f"train/s-{n}.tar" for n in range(3)]
EVERY_PUT = {"method": "PUT", "path_contains": "/aisfs-index/"}


def shard(number: int, images: bytes = b"x" * 900) -> bytes:
    samples = [
        sample(f"s{number}-{n:03}", n % 4, images, json=b'{"a": {"b": "%d"}}' % (n % 3))
        for n in range(SAMPLES)
    ]
    return encode(samples)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    root = tmp_path / "store"
    fill(root / "b", {key: shard(number) for number, key in enumerate(KEYS)})
    with running_server(root, faulty=True) as running:
        yield running
        assert "Traceback" not in running.log()


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def index(server: RunningServer, tmp_path: Path) -> Run:
    """Runs the command, each time as on another machine, with nothing in its cache."""
    machines = 0

    def run(*words: str | Path, code: int = 0):
        nonlocal machines
        machines += 1
        place = ["--endpoint", server.endpoint, "--cache-dir", tmp_path / f"machine-{machines}"]
        done = aisfs("index", *words, *place)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert b"Traceback" not in done.stderr
        return done

    return run


def index_of(key: str) -> str:
    """The key of the index of a shard in the bucket of indexes."""
    return f"ais/b/{key}.idx"


def published(server: RunningServer) -> dict[str, bytes]:
    """All published indexes, by the shard's key."""
    paths = {key: server.root / "aisfs-index" / index_of(key) for key in KEYS}
    return {key: path.read_bytes() for key, path in paths.items() if path.exists()}


def files(server: RunningServer) -> dict[str, bytes]:
    root = server.root / "b"
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def summary(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stdout.decode().splitlines()[-1]


def test_publish(index: Run, server: RunningServer):
    before = files(server)
    said = index("ais://b", "--publish", "--dry-run")
    assert said.stdout.decode().splitlines() == [
        *(f"ais://b/{key}: missing" for key in KEYS),
        "3 shards: 3 indexes would be published, 0 were current",
    ]
    assert files(server) == before

    assert summary(index("ais://b", "--check", code=1)).endswith("0 indexes are current, 3 are not")
    said = index("ais://b/train/*.tar", "--publish")
    assert summary(said) == "3 shards: 3 indexes published, 0 were current"
    first = published(server)
    assert set(first) == set(KEYS)
    assert max(map(len, first.values())) < 30 * 3 * SAMPLES

    puts = server.requests()["put"]
    assert summary(index("ais://b", "--publish")) == "3 shards: 0 indexes published, 3 were current"
    assert server.requests()["put"] == puts
    assert summary(index("ais://b", "--check")) == "3 shards: 3 indexes are current, 0 are not"
    index("ais://b", "--publish", "--force")
    assert published(server) == first, "the same bytes again"
    assert server.requests()["put"] == puts + 3


def test_what_is_not_current_is_named_and_published_anew(index: Run, server: RunningServer):
    index("ais://b", "--publish")
    first = published(server)
    # A shard is replaced, an index is removed, an index is damaged.
    put(server.endpoint, "b", KEYS[0], shard(0, b"y" * 901))
    (server.root / "aisfs-index" / index_of(KEYS[1])).unlink()
    put(server.endpoint, "aisfs-index", index_of(KEYS[2]), first[KEYS[2]][:-1] + b"!")
    said = index("ais://b", "--check", code=1).stdout.decode().splitlines()
    assert [line.partition(": ")[0] for line in said[:-1]] == [f"ais://b/{key}" for key in KEYS]
    reasons = [line.partition(": ")[2].partition(":")[0] for line in said[:-1]]
    assert reasons == ["stale", "missing", "damaged"]
    assert summary(index("ais://b", "--publish")) == "3 shards: 3 indexes published, 0 were current"
    again = published(server)
    assert again[KEYS[0]] != first[KEYS[0]]
    assert (again[KEYS[1]], again[KEYS[2]]) == (first[KEYS[1]], first[KEYS[2]])
    index("ais://b", "--check")


def test_a_mount_elsewhere_sees_the_same(index: Run, server: RunningServer, mountpoint: Path):
    def look(*options: str) -> tuple[dict[str, tuple[int, float, bytes]], int]:
        """Return all files, and the bytes fetched until they were listed."""
        view = ["--view", "class", *options]
        before = server.requests().get("get_bytes", 0)
        with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=view) as mount:
            found = {name: (mount.path / name).stat() for name in tree(mount.path)}
            fetched = server.requests().get("get_bytes", 0) - before
            return {
                name: (facts.st_size, facts.st_mtime, (mount.path / name).read_bytes())
                for name, facts in found.items()
            }, fetched

    scanned, data = look()
    assert len(scanned) == 3 * SAMPLES
    index("ais://b", "--publish")
    seen, fetched = look()
    assert seen == scanned
    assert fetched < data // 20
    assert look("--no-published-index")[0] == scanned


def test_what_this_machine_knows_need_not_be_scanned(server: RunningServer, tmp_path: Path):
    place = ("--endpoint", server.endpoint, "--cache-dir", tmp_path / "cache")

    def fetched(*options: str) -> int:
        before = server.requests().get("get_bytes", 0)
        done = aisfs("index", "ais://b", "--publish", *options, *place)
        assert (done.returncode, done.stderr) == (0, b"")
        return server.requests().get("get_bytes", 0) - before

    size = (server.root / "b" / KEYS[2]).stat().st_size
    assert fetched() > 2 * size
    shutil.rmtree(server.root / "aisfs-index" / "ais" / "b" / "train")
    put(server.endpoint, "b", KEYS[2], shard(2, b"new" * 300))
    assert size // 2 < fetched() < 2 * size
    assert fetched("--force") > 2 * size
    # Nothing but indexes went into the disk cache.
    said = aisfs("cache", "status", *place[2:]).stdout.decode()
    assert "object versions 0" in " ".join(said.split())


def test_labels_are_added(index: Run, server: RunningServer):
    index("ais://b", "--publish")
    plain = published(server)
    said = index("ais://b", "--check", "--label", "cls", "--label", "json:a.b", code=1)
    assert f"ais://b/{KEYS[0]}: no labels of json:a.b" in said.stdout.decode()
    index("ais://b", "--publish", "--label", "json:a.b")
    index("ais://b", "--check", "--label", "cls", "--label", "json:a.b")
    with_both = published(server)
    assert all(len(with_both[key]) > len(plain[key]) for key in KEYS)
    index("ais://b", "--publish")
    assert published(server) == with_both
    # The other way round, and of a shard without labels.
    index("ais://b", "--publish", "--force", "--label", "json:a.b")
    assert published(server) != with_both
    put(server.endpoint, "b", "none.tar", make("tar", {"a.jpg": b"1", "a.txt": b"2"}))
    assert summary(index("ais://b", "--publish")) == "4 shards: 4 indexes published, 0 were current"
    assert published(server) == with_both
    assert summary(index("ais://b", "--publish")) == "4 shards: 0 indexes published, 4 were current"


@contextmanager
def running(
    server: RunningServer, tmp_path: Path, *words: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process that can be disturbed."""
    process = subprocess.Popen(
        [*COMMAND, "index", "ais://b", *words, "--endpoint", server.endpoint,
         "--cache-dir", tmp_path / "cache"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
        # A test run in the background ignores SIGINT, and what it starts would do so too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_goes_on_where_it_was_ended(
    number: signal.Signals, index: Run, server: RunningServer, tmp_path: Path
):
    refused = {"match": {"path_contains": index_of(KEYS[2]), "method": "PUT"}}
    server.faults([{**refused, "action": "status", "status": 503, "times": -1}])
    with running(server, tmp_path, "--publish", "--jobs", "1") as process:
        assert eventually(lambda: set(published(server)) == set(KEYS[:2]), 60)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == (130 if number is signal.SIGINT else -signal.SIGKILL)
        assert (b"Traceback" in err, out) == (False, b"")
    server.faults([])
    assert set(published(server)) == set(KEYS[:2])
    assert summary(index("ais://b", "--publish")) == "3 shards: 1 index published, 2 were current"
    index("ais://b", "--check")


def test_a_shard_that_changes_meanwhile_is_told(index: Run, server: RunningServer, tmp_path: Path):
    unread = {"match": {"path_contains": KEYS[1], "method": "GET", "marked": True}}
    server.faults([{**unread, "action": "status", "status": 503, "times": -1}])
    with running(server, tmp_path, "--publish", "--jobs", "1") as process:
        # By then the versions of all shards are known.
        assert eventually(lambda: KEYS[0] in published(server), 60)
        put(server.endpoint, "b", KEYS[1], shard(1, b"z" * 1500))
        server.faults([])
        out, err = process.communicate(timeout=90)
    assert process.returncode == Exit.FAILURE
    assert KEYS[1] in err.decode()
    assert b"3 shards: 2 indexes published" in out
    assert set(published(server)) == {KEYS[0], KEYS[2]}
    assert summary(index("ais://b", "--publish")) == "3 shards: 1 index published, 2 were current"
    index("ais://b", "--check")


def test_what_cannot_be_written_ends_it_with_one_line(index: Run, server: RunningServer):
    before = files(server)
    for status, code in ((403, Exit.DENIED), (507, Exit.FAILURE)):
        server.faults([{"match": EVERY_PUT, "action": "status", "status": status, "times": -1}])
        said = index("ais://b", "--publish", "--jobs", "1", code=code)
        (line,) = said.stderr.decode().splitlines()
        assert index_of(KEYS[0]) in line
        assert ("--index-bucket" in line) is (code == Exit.DENIED)
    server.faults([])
    assert files(server) == before


NONSENSE = [
    (["ais://nowhere", "--publish"], Exit.NO_SOURCE, "bucket ais://nowhere does not exist"),
    (["ais://b/nothing/", "--check"], Exit.NO_SOURCE, "no shard (X.tar) there"),
    (["/nowhere/at/all", "--check"], Exit.NO_SOURCE, "nowhere"),
    (["ais://b"], Exit.USAGE, "say what to do"),
    (["--publish"], Exit.USAGE, "give a SOURCE"),
    (["ais://b", "--publish", "--check"], Exit.USAGE, "--check only looks"),
    (["ais://b", "--check", "--force"], Exit.USAGE, "--check only looks"),
    (["ais://b", "--write-idx", "dali", "--force"], Exit.USAGE, "--force needs --publish"),
    (["ais://b", "--move", "--publish"], Exit.USAGE, "--move takes only"),
    (["ais://b", "--move", "--check"], Exit.USAGE, "--move takes only"),
    (["ais://b", "--check", "--index-bucket", "s3://x"], Exit.USAGE, "a bucket of AIStore"),
    (["ais://b", "--check", "--index-bucket", "a/b"], Exit.USAGE, "--index-bucket: a bucket of"),
    (["ais://b", "--write-idx", "tf"], Exit.USAGE, "expected wids[=PATH] or dali[=PATH]"),
    (["ais://b", "--write-idx", "dali="], Exit.USAGE, "expected wids[=PATH]"),
    (["ais://b", "--write-idx", "wids", "--recursive"], Exit.USAGE, "not with --recursive"),
    (["ais://b", "--publish", "--label", "dir"], Exit.USAGE, "not read from shards"),
    (["ais://b", "--publish", "--label", "a:b"], Exit.USAGE, "--label 'a:b'"),
    (["ais://b", "--write-idx", "wids=/dev/null/x.json"], Exit.USAGE, "/dev/null is no directory"),
]


def test_what_makes_no_sense_is_one_clear_line(index: Run, server: RunningServer):
    before = files(server)
    for words, code, reason in NONSENSE:
        (line,) = index(*words, code=code).stderr.decode().splitlines()
        assert reason in line
    assert files(server) == before


def test_without_a_cluster(tmp_path: Path):
    assert aisfs("index", "ais://b", "--publish").returncode == Exit.NO_ENDPOINT
    folder = fill(tmp_path / "d", {key: shard(n) for n, key in enumerate(KEYS)})
    options = ("--cache-dir", tmp_path / "cache")
    assert aisfs("index", folder, "--publish", *options).returncode == 0
    first = (folder / published_key(KEYS[0])).read_bytes()
    # As `cp -a` and rsync do: what tells versions apart there does not change.
    shutil.copytree(folder, tmp_path / "copy")
    assert aisfs("index", tmp_path / "copy", "--check", *options).returncode == 0
    os.utime(folder / KEYS[0], ns=(0, 0))
    said = aisfs("index", folder, "--check", *options)
    assert (said.returncode, said.stdout.count(b"\n")) == (1, 2)
    assert aisfs("index", folder / "train", "--publish", *options).returncode == 0
    assert (folder / published_key(KEYS[0])).read_bytes() != first


def test_names_of_others_are_shown_as_text(tmp_path: Path):
    (folder := tmp_path / "d").mkdir()
    Path(os.fsdecode(bytes(folder) + b"/\x1b[31m\n\xff.tar")).write_bytes(shard(0))
    dry_run = ["--publish", "--write-idx", "dali", "--dry-run"]
    for action, code, count in ((dry_run, 0, 3), (["--check"], 1, 2)):
        done = aisfs("index", folder, *action, "--cache-dir", tmp_path / "cache")
        assert (done.returncode, done.stderr) == (code, b"")
        assert len(done.stdout.splitlines()) == count
        assert b"\x1b" not in done.stdout


def test_all_forms_of_shards(index: Run, server: RunningServer):
    members = {f"{n}.{part}": b"%d" % n for n in range(5) for part in ("cls", "txt")}
    forms = {f"x.{suffix}": make(suffix, members) for suffix in ("tgz", "tar.zst", "zip")}
    cut = shard(9)[:20_000]
    fill(server.root / "b" / "forms", {**forms, "cut.tar": cut})
    said = index("ais://b/forms", "--publish", code=Exit.DAMAGED)
    (line,) = said.stderr.decode().splitlines()
    assert line.startswith("aisfs: ais://b/forms/cut.tar: damaged: ")
    assert summary(said) == "4 shards: 4 indexes published, 0 were current"
    index("ais://b/forms", "--check", "--label", "cls")
    said = index("ais://b/forms/x.{tgz,zip,nothing.tar}", "--write-idx", "wids", code=1)
    assert said.stderr.decode().splitlines() == [
        "aisfs: ais://b/forms/x.nothing.tar: missing",
        "aisfs: ais://b/forms/x.zip: left out: webdataset reads no zips",
    ]
    listed = json.loads((server.root / "b" / "forms" / "shards.json").read_bytes())
    assert listed["shardlist"] == [{"url": "x.tgz", "nsamples": 5, "filesize": len(forms["x.tgz"])}]


# What other programs read ---------------------------------------------------------------------


def dali_by_tarfile(data: bytes) -> str:
    """What DALI's wds2idx writes, from the offsets that tarfile says."""
    samples: dict[str, list[str]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            key, _, extension = member.name.partition(".")
            place = f"{extension} {member.offset_data} {member.size} {member.name}"
            samples.setdefault(key, []).append(place)
    return "\n".join([f"v1.2 {len(samples)}", *map(" ".join, samples.values()), ""])


def test_indexes_of_other_programs(
    index: Run, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    both = ("--write-idx", "wids", "--write-idx", "dali")
    before = files(server)
    said = index("ais://b", *both, "--dry-run").stdout.decode().splitlines()
    names = [f"ais://b/{key.removesuffix('.tar')}.idx" for key in KEYS]
    assert said[:-1] == [f"would write {n}" for n in ["ais://b/train/shards.json", *names]]
    assert files(server) == before

    assert summary(index("ais://b", *both)) == "3 shards: 4 files written for other programs"
    assert published(server) == {}
    folder = server.root / "b" / "train"
    for key in KEYS:
        written = (server.root / "b" / key).with_suffix(".idx").read_text()
        assert written == dali_by_tarfile(before[key])
    listed = json.loads((folder / "shards.json").read_bytes())
    assert listed["wids_version"] == 1
    assert listed["shardlist"] == [
        {"url": key.removeprefix("train/"), "nsamples": SAMPLES, "filesize": len(before[key])}
        for key in KEYS
    ]
    with mounted("ais://b/train/shards.json", mountpoint, endpoint=server.endpoint) as mount:
        assert os.listdir(mount.path) == ["s-0", "s-1", "s-2"]

    found = aisfs("inspect", "ais://b/train/shards.json", "--json", "--endpoint", server.endpoint,
                  "--cache-dir", tmp_path / "cache")  # fmt: skip
    assert json.loads(found.stdout)["samples"] == 3 * SAMPLES

    # To this machine, of what is published, and twice the same.
    index("ais://b", "--publish")
    index("ais://b/train/s-{0,2}.tar", "--write-idx", f"wids={tmp_path}/out/list.json",
          "--write-idx", f"dali={tmp_path}/out")  # fmt: skip
    assert sorted(os.listdir(tmp_path / "out")) == ["list.json", "s-0.idx", "s-2.idx"]
    assert (tmp_path / "out" / "s-2.idx").read_bytes() == (folder / "s-2.idx").read_bytes()
    listed = json.loads((tmp_path / "out" / "list.json").read_bytes())
    assert [s["url"] for s in listed["shardlist"]] == [f"ais://b/{KEYS[0]}", f"ais://b/{KEYS[2]}"]
    options = ["--files-from", f"{tmp_path}/out/list.json"]
    with mounted(None, mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert os.listdir(mount.path) == ["s-0", "s-2"]
    found = aisfs("inspect", tmp_path / "out" / "list.json", "--json", "--endpoint",
                  server.endpoint, "--cache-dir", tmp_path / "cache")  # fmt: skip
    assert json.loads(found.stdout)["shards"] == 2


def test_wids_reads_its_list(tmp_path: Path):
    pytest.importorskip("wids")
    folder = fill(tmp_path / "d", {key: shard(n) for n, key in enumerate(KEYS)})
    said = aisfs("index", folder, "--write-idx", "wids", "--cache-dir", tmp_path / "cache")
    assert said.returncode == 0
    script = (
        "import sys, wids\n"
        "data = wids.ShardListDataset(sys.argv[1], cache_dir=sys.argv[2], transformations=[])\n"
        "keys = [data[n]['__key__'] for n in range(len(data))]\n"
        "print(len(keys), len(set(keys)))\n"
    )
    words = [str(folder / "train" / "shards.json"), str(tmp_path / "wids")]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, check=True)
    assert done.stdout.split()[-2:] == [str(3 * SAMPLES).encode()] * 2
