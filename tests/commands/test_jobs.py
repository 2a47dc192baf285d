"""`aisfs sort` and `aisfs jobs` as processes against the embedded server."""

import json
import os
import pty
import re
import signal
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.mount.datasets import webdataset
from tests.support.archives import make_tar
from tests.support.mounts import environment
from tests.support.preloaded import Preloader
from tests.support.servers import RunningServer, running_server, until

SHARDS, SAMPLES = 5, 6
DEADLINE = 60.0
INTERRUPTED = 130
ID = re.compile(r"srt-[A-Za-z0-9_-]+")


def tar_of(names: Sequence[str]) -> bytes:
    def content(name: str) -> bytes:
        stem = name.partition(".")[0].removeprefix("dir/")
        return stem.encode() if name.endswith(".cls") else os.urandom(500) + name.encode()

    return make_tar([(name, content(name)) for name in names])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("jobs") / "served"
    (root / "b" / "in").mkdir(parents=True)
    (root / "other").mkdir()
    number = 0
    for shard in range(SHARDS):
        names = []
        for _ in range(SAMPLES):
            stem = f"dir/{(number * 37) % 100:03}"  # in no order
            names += [f"{stem}.image.jpg", f"{stem}.cls"]
            number += 1
        (root / "b" / "in" / f"s-{shard:02}.tar").write_bytes(tar_of(names))
    (root / "b" / "odd.tgz").write_bytes(b"x")
    (root / "other" / "x.tar").write_bytes(tar_of(["a.txt"]))
    with running_server(root) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture(autouse=True)
def free(server: RunningServer) -> Iterator[None]:
    yield
    server.hold_jobs(None)


_preloader = Preloader(
    "aisfs",
    ("aisfs.commands.main", "aisfs.commands.sort", "aisfs.work.sort", "aisfs.work.jobs"),
    flags=("-W", "error"),
    env=environment(),
)


class Command:
    """A command that runs, and what it has printed so far."""

    def __init__(self, server: RunningServer, words: Sequence[str], terminal: int | None) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        env = environment({"AIS_ENDPOINT": server.endpoint})
        err = self._err if terminal is None else terminal
        self.process = _preloader.start(*words, stdout=self._out, stderr=err, env=env)

    def out(self) -> str:
        return os.pread(self._out.fileno(), 1 << 20, 0).decode()

    def err(self) -> str:
        return os.pread(self._err.fileno(), 1 << 20, 0).decode()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, code: int = 0) -> tuple[str, str]:
        ended = self.process.wait(100)
        assert ended == code, self.out() + self.err()
        assert "Traceback" not in self.err()
        return self.out(), self.err()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(100)
        self._out.close()
        self._err.close()


@contextmanager
def running(server: RunningServer, *words: str, terminal: int | None = None) -> Iterator[Command]:
    command = Command(server, words, terminal)
    try:
        yield command
    finally:
        command.close()


def run(server: RunningServer, *words: str, code: int = 0) -> tuple[str, str]:
    with running(server, *words) as command:
        return command.end(code)


def samples(path: Path) -> list[dict[str, Any]]:
    """Give the samples of a shard as webdataset groups its members."""
    with tarfile.open(path) as tar:
        members = [{"fname": m.name, "data": tar.extractfile(m).read(), "__url__": ""} for m in tar]
    return [
        {k: v for k, v in sample.items() if k not in ("__url__", "__local_path__")}
        for sample in webdataset().tariterators.group_by_keys(iter(members))
    ]


def contents(server: RunningServer, pattern: str) -> list[dict[str, Any]]:
    return [each for path in sorted(server.root.glob(pattern)) for each in samples(path)]


def as_counted(found: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(sorted(sample.items())) for sample in found)


@pytest.mark.parametrize(
    ("name", "options", "sources"),
    [
        ("shuffled", ["--shuffle"], ["ais://b/in/s-{00..04}.tar"]),
        ("seeded", ["--shuffle", "3"], ["ais://b/in/"]),
        ("by-name", [], ["ais://b/in/*.tar"]),
        ("reversed", ["--decreasing"], ["ais://b/in/s-00.tar", "ais://b/in/s-{01..04}.tar"]),
        ("by-key", ["--by", "content", "--key", "cls", "--key-type", "int"], ["ais://b/in"]),
        ("by-md5", ["--by", "md5", "--shard-size", "1KiB"], ["ais://b/in/s-*"]),
    ],
)
def test_a_sorted_copy_has_the_same_samples(
    server: RunningServer, name: str, options: list[str], sources: list[str]
) -> None:
    out, err = run(server, "sort", *options, *sources, f"ais://{name}/p/t-{{000..}}.tar")
    before, after = contents(server, "b/in/*.tar"), contents(server, f"{name}/p/t-*.tar")
    assert len(before) == SHARDS * SAMPLES
    assert as_counted(after) == as_counted(before)
    shards = len(list((server.root / name / "p").iterdir()))
    assert f"5 shards with 60 members sorted into {shards}: ais://{name}/p/t-" in out
    assert ID.search(err)
    keys = [sample["__key__"] for sample in after]
    if "--shuffle" in options:
        assert keys != sorted(keys)
    else:
        assert keys == sorted(keys, reverse="--decreasing" in options)
    # A second time it would overwrite what it has written.
    _, err = run(server, "sort", *options, *sources, f"ais://{name}/p/t-{{000..}}.tar", code=1)
    assert "would overwrite" in err


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["ais://b/in/", "ais://out/*.tar"], 2, "new shards need names"),
        (["ais://b/in/", "ais://out/t.tar"], 2, "needs a range"),
        (["ais://b/in/", "ais://out/t-{00..}.tgz"], 2, "ends in .tar"),
        (["ais://b/in/", "out/t-{00..}.tar"], 2, "the cluster writes the shards"),
        (["./in", "ais://out/t-{00..}.tar"], 2, "aisfs pack --shuffle"),
        (["ais://b/in/", "ais://other/", "ais://out/t-{0..}.tar"], 2, "reads one bucket"),
        (["ais://b/", "ais://out/t-{00..}.tar"], 2, "not a plain tar"),
        (["ais://b/none/", "ais://out/t-{00..}.tar"], 5, "no shard (X.tar) there"),
        (["ais://none/", "ais://out/t-{00..}.tar"], 5, "no such bucket"),
        (["--shuffle", "-1", "ais://b/in/", "ais://out/t-{0..}.tar"], 2, "not a seed"),
        (["--shuffle", "--by", "md5", "ais://b/in/", "ais://out/t-{0..}.tar"], 2, "--shuffle goes"),
        (["--by", "content", "ais://b/in/", "ais://out/t-{0..}.tar"], 2, "needs --key"),
        (["ais://out/t-{0..}.tar"], 2, "give a SOURCE"),
        (["--shard-size", "big", "ais://b/in/", "ais://out/t-{0..}.tar"], 2, "not a size"),
        (["--shard-size", "1", "ais://b/in/", "ais://no/t-{0..3}.tar"], 1, "widen the range"),
        (
            ["--by", "content", "--key", "no", "ais://b/in/", "ais://no/t-{0..3}.tar"],
            1,
            "each sample needs the member of --key",
        ),
        (
            [
                *("--by", "content", "--key", "image.jpg", "--key-type", "int"),
                *("ais://b/in/", "ais://no/t-{0..3}.tar"),
            ],
            1,
            "--key-type; nothing is written",
        ),
    ],
)
def test_what_cannot_be_sorted(
    server: RunningServer, words: list[str], code: int, reason: str
) -> None:
    out, err = run(server, "sort", *words, code=code)
    assert reason in err
    assert not out
    assert len(err.strip().splitlines()[-1]) < 1000
    for bucket in ("out", "no"):
        assert not list((server.root / bucket).glob("*.tar"))


def test_a_dry_run_starts_nothing(server: RunningServer) -> None:
    before = json.loads(run(server, "jobs", "--json")[0])
    words = ("--dry-run", "--shuffle", "ais://b/in/s-{00..09}.tar", "ais://dry/t-{0..3}.tar")
    out, _ = run(server, "sort", *words)
    assert out.startswith("5 shards of ais://b, ")
    assert "5 shards that SOURCE names do not exist" in out
    assert "should they not do, nothing is written" in out
    assert json.loads(run(server, "jobs", "--json")[0]) == before
    assert not (server.root / "dry").exists()


def test_ctrl_c_stops_the_job_and_keeps_what_is_written(server: RunningServer) -> None:
    server.hold_jobs(SHARDS + 2)
    words = ("sort", "--shard-size", "1", "ais://b/in/", "ais://cut/t-{00..}.tar")
    written = server.root / "cut"
    with running(server, *words) as command:
        until(lambda: len(list(written.glob("*.tar"))) == 2 and server.waiting_jobs())
        until(lambda: "started job" in command.err())
        command.interrupt()
        out, err = command.end(INTERRUPTED)
    assert "asking the cluster to stop job srt-" in err
    assert "what it has written stays (2 shards)" in err
    assert not out
    uuid = ID.search(err)[0]
    (job,) = [job for job in json.loads(run(server, "jobs", "--json")[0]) if job["id"] == uuid]
    assert (job["state"], job["created"]) == ("aborted", 2)
    assert run(server, "jobs", "--watch", uuid, code=1)[0].count("aborted") >= 1
    _, err = run(server, "jobs", "--cancel", uuid, code=1)
    assert "already ended" in err


def test_a_job_is_left_alone_then_watched_and_cancelled(server: RunningServer) -> None:
    server.hold_jobs(2)
    out, err = run(server, "sort", "--detach", "ais://b/in/", "ais://later/t-{00..}.tar")
    uuid = out.strip()
    assert ID.fullmatch(uuid)
    assert not err
    until(lambda: server.waiting_jobs())
    assert f"{uuid}  dsort  reading shards  2 of 5" in run(server, "jobs")[0]
    with running(server, "jobs", "--watch", uuid) as command:
        until(lambda: "reading shards: 2 of 5" in command.err())
        command.interrupt()  # which ends the watching, and not the job
        command.end(INTERRUPTED)
    assert not json.loads(run(server, "jobs", "--json")[0])[0]["ended"]
    server.hold_jobs(None)
    out, _ = run(server, "jobs", "--watch", uuid, "--json")
    assert json.loads(out)[0] | {"started": 0, "ended": 0, "description": ""} == {
        "id": uuid,
        "kind": "dsort",
        "state": "finished",
        "source": "ais://b",
        "target": "ais://later",
        "started": 0,
        "ended": 0,
        "step": "writing shards",
        "done": 1,
        "total": 1,
        "bytes": json.loads(out)[0]["bytes"],
        "created": 1,
        "counts": {"shards": 5, "records": 60},
        "warnings": [],
        "errors": [],
        "description": "",
    }
    server.hold_jobs(1)
    out, _ = run(server, "sort", "--detach", "ais://b/in/", "ais://never/t-{00..}.tar")
    other = out.strip()
    assert run(server, "jobs", "--cancel", other)[0].startswith("the cluster was asked to stop")
    run(server, "jobs", "--watch", other, code=1)


def test_a_terminal_shows_a_bar(server: RunningServer) -> None:
    ours, theirs = pty.openpty()
    words = ("sort", "ais://b/in/", "ais://bar/t-{00..}.tar")
    shown = b""
    with running(server, *words, terminal=theirs) as command:
        os.close(theirs)
        with suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        command.end()
    assert "━".encode() in shown
    assert b"writing shards" in shown


def test_unknown_jobs_and_wrong_ids(server: RunningServer) -> None:
    for uuid in ("srt-nosuchid1", "NoSuchId12"):
        for option in ("--watch", "--cancel"):
            assert "no such job" in run(server, "jobs", option, uuid, code=1)[1]
    assert "is not the id of a job" in run(server, "jobs", "--watch", "a/b", code=2)[1]
    assert "give one of" in run(server, "jobs", "--watch", "a", "--cancel", "b", code=2)[1]
    every = json.loads(run(server, "jobs", "--all", "--json")[0])
    assert len({job["id"] for job in every}) == len(every)


def test_a_build_without_jobs(tmp_path: Path) -> None:
    (tmp_path / "served" / "b").mkdir(parents=True)
    (tmp_path / "served" / "b" / "x.tar").write_bytes(tar_of(["a.txt"]))
    with running_server(tmp_path / "served", without_jobs=["dsort", "index-shard"]) as server:
        _, err = run(server, "sort", "--shuffle", "ais://b/", "ais://b/t-{00..}.tar", code=1)
        assert "does not have this job (HTTP 501)" in err
        assert "aisfs mount --view shards --shuffle" in err
        assert run(server, "jobs")[0] == "no jobs\n"
        assert "no such job" in run(server, "jobs", "--watch", "srt-nosuchid1", code=1)[1]


def test_a_lost_reply_does_not_start_the_job_twice(tmp_path: Path) -> None:
    (tmp_path / "served" / "b").mkdir(parents=True)
    (tmp_path / "served" / "b" / "x.tar").write_bytes(tar_of(["a.txt"]))
    with running_server(tmp_path / "served", faulty=True) as server:
        match = {"method": "POST", "path_contains": "/v1/sort"}
        server.faults([{"match": match, "action": "reset", "stage": "done"}])
        run(server, "sort", "ais://b/", "ais://b/t-{00..}.tar")
        assert len(json.loads(run(server, "jobs", "--json")[0])) == 1
        server.faults([{"match": match, "action": "reset", "times": -1}])
        _, err = run(server, "sort", "ais://b/x.tar", "ais://b/u-{00..}.tar", code=4)
        assert "the sort of ais://b" in err
