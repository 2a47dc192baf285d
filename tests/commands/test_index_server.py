"""`aisfs index --server` has the cluster build its own indexes of shards."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from tests.mount.content import fill, put
from tests.support.archives import make
from tests.support.mounts import COMMAND, aisfs, environment, eventually
from tests.support.servers import RunningServer, running_server

KEYS = [f"train/s-{n}.tar" for n in range(3)]
SHARD = make("tar", {f"{n}.{part}": b"%d" % n for n in range(5) for part in ("cls", "jpg")})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("indexing") / "store"
    (root / "b").mkdir(parents=True)
    with running_server(root) as running:
        for key in (*KEYS, "val/x.tar", "zip/x.tgz"):  # an upload has a checksum, a file has none
            put(running.endpoint, "b", key, SHARD)
        yield running
        assert "Traceback" not in running.log()


def index(server: RunningServer, *words: str, code: int = 0) -> tuple[list[str], str]:
    """Run the command; return the lines it prints, and what it says on stderr."""
    done = aisfs("index", "--server", *words, "--endpoint", server.endpoint)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert b"Traceback" not in done.stderr
    return done.stdout.decode().splitlines(), done.stderr.decode()


def test_all_shards_have_an_index_then(server: RunningServer):
    said, _ = index(server, "ais://b/train", "--check", code=1)
    assert said == [
        *(f"ais://b/{key}: missing" for key in KEYS),
        "3 shards: 0 of AIStore's indexes are current, 3 are not",
    ]
    said, told = index(server, "ais://b/train")
    assert said == ["3 shards: 3 of AIStore's indexes are current, 0 are not"]
    assert "started job" in told
    index(server, "ais://b/train/s-{0..2}.tar", "--check")
    put(server.endpoint, "b", KEYS[1], make("tar", {"a.cls": b"1"}))
    said, _ = index(server, "ais://b/train", "--check", code=1)
    assert said[0] == f"ais://b/{KEYS[1]}: of an earlier version"
    put(server.endpoint, "b", "all.json", b'{"shardlist": [{"url": "train/s-1.tar"}]}')
    index(server, "ais://b/all.json")
    index(server, "ais://b/train/*.tar", "--check")


def test_a_shard_without_a_checksum(tmp_path: Path):
    fill(tmp_path / "store" / "b", {"x.tar": SHARD})  # not by a PUT, which gives it one
    with running_server(tmp_path / "store") as server:
        said, _ = index(server, "ais://b", code=1)
    assert said[0] == "ais://b/x.tar: never used, since the shard has no checksum"


def test_ctrl_c_stops_the_job(server: RunningServer):
    server.hold_jobs(0)
    try:
        process = subprocess.Popen(
            [*COMMAND, "index", "--server", "ais://b/val", "--endpoint", server.endpoint],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
            # A test run in the background ignores SIGINT, and what it starts would do so too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        try:
            assert eventually(lambda: server.waiting_jobs() > 0, 60)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate(timeout=60)
    finally:
        server.hold_jobs(None)
    assert process.returncode == 130
    assert b"asking the cluster to stop job" in err
    assert b"Traceback" not in err
    assert out.splitlines()[-1].startswith(b"1 shard: 0 of AIStore's indexes")


NONSENSE = [
    (
        ["ais://b", "--publish"],
        Exit.USAGE,
        "--server takes only --check, --jobs, --endpoint, --files-from",
    ),
    (["ais://b", "--label", "cls"], Exit.USAGE, "--server takes only"),
    ([], Exit.USAGE, "give a SOURCE"),
    (["/tmp/x.tar"], Exit.USAGE, "use `aisfs index --publish`"),
    (["ais://b/zip"], Exit.USAGE, "x.tgz"),
    (["ais://nowhere"], Exit.NO_SOURCE, "does not exist"),
]


def test_what_makes_no_sense_is_one_clear_line(server: RunningServer):
    for words, code, reason in NONSENSE:
        said, told = index(server, *words, code=code)
        assert said == []
        assert reason in told
        assert len(told.splitlines()) == 1


def test_a_cluster_without_the_job(tmp_path: Path):
    fill(tmp_path / "store" / "b", {"x.tar": SHARD})
    with running_server(tmp_path / "store", without_jobs=["index-shard"]) as server:
        _, told = index(server, "ais://b", code=Exit.FAILURE)
        assert "aisfs index" in told
        assert "--publish" in told
