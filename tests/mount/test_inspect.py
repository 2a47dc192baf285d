"""`aisfs inspect` tells what is in shards without mounting them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill, payload
from tests.support.archives import SUFFIXES, make, make_tar
from tests.support.mounts import COMMAND, aisfs, environment, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount


def members(shard: int) -> dict[str, bytes]:
    found = {"README": b"hello"}
    for n in range(20):
        key = f"{shard:02}-{n:03}"
        found[f"{key}.image.jpg"] = payload(1000 + n, key)
        found[f"{key}.cls"] = f"{n % 4}\n".encode()
    return found


SHARDS = {f"train/s-{n:04}.{suffix}": make(suffix, members(n)) for n, suffix in enumerate(SUFFIXES)}
SEQUENCE = {f"holes/x-{n:03}.tar": make("tar", members(n)) for n in (0, 1, 4, 7)}
DAMAGED = {
    "bad/cut.tar": make("tar", members(1))[:20_700],
    "bad/cut.tgz": make("tgz", members(1))[:10_000],
    "bad/good.tar": make("tar", members(1)),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("inspect") / "store"
    fill(root / "b", {**SHARDS, **SEQUENCE, **DAMAGED, "train/notes.txt": b"hi"})
    with running_server(root) as server:
        yield server


@pytest.fixture(params=["cluster", "local"])
def look(request, server: RunningServer, tmp_path: Path):
    """Runs the command on a path in the bucket, as in a cluster or as a directory."""

    def run(path: str, *options: str):
        source = f"ais://b/{path}" if request.param == "cluster" else str(server.root / "b" / path)
        arguments = ["inspect", source, "--cache-dir", str(tmp_path / "cache"), *options]
        arguments += ["--endpoint", server.endpoint] if request.param == "cluster" else []
        if "--cache-size" not in options:
            arguments += ["--cache-size", "100MiB"]
        return aisfs(*arguments)

    return run


def found_by(done) -> dict:
    assert done.stderr == b""
    return json.loads(done.stdout)


def test_numbers(look):
    done = look("train", "--json")
    assert done.returncode == 0
    found = found_by(done)
    count = len(SUFFIXES)
    assert found["shards"] == count
    assert found["bytes"] == sum(map(len, SHARDS.values()))
    assert found["forms"] == {
        "tar": 1, "tar.gz": 2, "tar.bz2": 1, "tar.xz": 1, "tar.zst": 1, "tar.lz4": 1, "zip": 1,
    }  # fmt: skip
    assert (found["samples"], found["members"], found["images"]) == (
        20 * count,
        41 * count,
        20 * count,
    )
    assert found["components"]["image.jpg"] == {
        "count": 20 * count,
        "min": 1000,
        "median": 1009,
        "max": 1019,
        "total": sum(range(1000, 1020)) * count,
    }
    assert found["components"][""]["count"] == count
    assert found["labels"] == {str(n): 5 * count for n in range(4)}
    assert found["loose_objects"] == 1
    assert (found["damage"], found["failures"], found["holes"]) == ({}, {}, [])
    again = found_by(look("train", "--json"))
    assert (found["indexes"], again["indexes"]) == ({}, {"kept": count})
    assert again["labels"] == found["labels"]


@pytest.mark.parametrize("jobs", ["1", "16"])
def test_the_result_does_not_depend_on_the_jobs(look, jobs: str):
    assert found_by(look("train", "--json", "--jobs", jobs))["samples"] == 20 * len(SUFFIXES)


def test_one_shard(look):
    found = found_by(look("train/s-0001.tgz", "--json"))
    assert (found["shards"], found["samples"], found["loose_objects"]) == (1, 20, 0)


def test_table(look):
    done = look("train", "--labels", "2")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    for word in ("image.jpg", "cls", "4 labels", "(2 more)", "samples", "median", "1000 B"):
        assert word in text
    assert "\x1b" not in text


def test_labels_can_be_left_unread(look):
    found = found_by(look("train", "--json", "--labels", "0"))
    assert found["labels"] == {}


def test_without_a_disk_cache(look):
    found = found_by(look("train/s-0000.tar", "--json", "--cache-size", "0"))
    assert found["labels"] == {str(n): 5 for n in range(4)}
    done = look("train", "--json", "--cache-size", "0")
    assert done.returncode == 1
    failures = json.loads(done.stdout)["failures"]
    assert set(failures) == {key for key in SHARDS if not key.endswith((".tar", ".zip"))} or set(
        failures
    ) == {key.removeprefix("train/") for key in SHARDS if not key.endswith((".tar", ".zip"))}
    assert all("--cache-size" in text for text in failures.values())


def test_holes(look):
    found = found_by(look("holes", "--json"))
    names = [os.path.basename(name) for name in found["holes"]]
    assert names == [f"x-{n:03}.tar" for n in (2, 3, 5, 6)]


def test_damage(look):
    done = look("bad", "--json")
    assert done.returncode == 9
    found = found_by(done)
    assert {os.path.basename(name) for name in found["damage"]} == {"cut.tar", "cut.tgz"}
    assert found["shards"] == 3
    assert found["samples"] > 20
    table = look("bad")
    assert table.returncode == 9
    assert "damage: " in table.stdout.decode()


def test_what_is_found_is_kept_for_the_mount(
    server: RunningServer, tmp_path: Path, mountpoint: Path
):
    options = ["--cache-dir", str(tmp_path / "cache"), "--cache-size", "100MiB"]
    assert (
        aisfs("inspect", "ais://b/train", "--endpoint", server.endpoint, *options).returncode == 0
    )
    before = server.requests().get("get", 0)
    with mounted("ais://b/train/", mountpoint, endpoint=server.endpoint, options=options):
        for key in SHARDS:
            folder = mountpoint / f"{os.path.basename(key)}.d"
            assert len(os.listdir(folder)) == 41
            if not key.endswith(".zip"):
                assert (folder / "README").read_bytes() == b"hello"
    assert server.requests().get("get", 0) == before


@pytest.mark.parametrize(
    ("source", "code", "word"),
    [
        ("/nonexistent/directory", 5, "no such file"),
        ("ais://nowhere", 5, "does not exist"),
        ("ais://b/missing.tar", 5, "no such object"),
        ("non_sense://b", 2, "provider"),
    ],
)
def test_refusals(server: RunningServer, tmp_path: Path, source: str, code: int, word: str):
    done = aisfs(
        "inspect", source, "--endpoint", server.endpoint, "--cache-dir", str(tmp_path / "c")
    )
    assert done.returncode == code
    assert done.stdout == b""
    assert done.stderr.startswith(b"aisfs: ")
    assert word in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_no_endpoint_and_no_server():
    assert aisfs("inspect", "ais://b").returncode == 3
    assert aisfs("inspect", "ais://b", "--endpoint", "http://127.0.0.1:1").returncode == 4


def test_nothing_there(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    done = aisfs("inspect", str(tmp_path / "empty"), "--cache-dir", str(tmp_path / "c"))
    assert done.returncode == 0
    assert b"shards" in done.stdout


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path):
    (tmp_path / "d").mkdir()
    data = make_tar({"a.\x1b[31mred": b"1", "b.[bold]x": b"2"})
    (tmp_path / "d" / "x.tar").write_bytes(data)
    done = aisfs("inspect", str(tmp_path / "d"), "--cache-dir", str(tmp_path / "c"))
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
    assert b"[bold]x" in done.stdout


def test_no_row_is_wrapped_where_there_is_no_terminal(tmp_path: Path):
    label, component = "a label of many words " * 9, "component-" * 15
    data = make_tar({"a.cls": label.encode(), f"a.{component}": b"1"})
    fill(tmp_path / "d", {f"{'x' * 200}.tar": data})
    done = aisfs("inspect", str(tmp_path / "d"), "--cache-dir", str(tmp_path / "c"))
    lines = done.stdout.decode().splitlines()
    assert [line for line in lines if label.strip() in line and line.endswith(" 1")]
    assert [line for line in lines if component in line and line.endswith(" 1 B")]


def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path):
    fill(tmp_path / "d", {"x.tar.bz2": make("tar.bz2", {"a": payload(14 << 20)})})
    cache = tmp_path / "c"
    process = subprocess.Popen(
        [
            *COMMAND,
            "inspect",
            str(tmp_path / "d"),
            "--cache-dir",
            str(cache),
            "--cache-size",
            "1GiB",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        # A test run in the background ignores SIGINT, and what it starts would do so too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    files = cache.rglob
    assert eventually(lambda: sum(f.stat().st_blocks for f in files("*") if f.is_file()) > 4_000)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert out == b""
