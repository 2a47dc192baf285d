"""`python -m bench` with next to no data: the shape of what it writes, and that nothing stays."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from safetensors import safe_open

from bench.data import EmbeddedStore, Samples
from bench.groups import GROUPS, models, peers, s3
from bench.interruptions import Interrupts
from bench.processes import NotMeasured
from bench.server import Endpoint
from bench.settings import TINY
from bench.stage import Stage

ROOT = Path(__file__).resolve().parents[2]
GROUP_NAMES = ["shard", "listing", "indexing"]
"""Those that need no torch."""
LIMIT = 280
"""Seconds until a run counts as hung; a few are usual."""
pytestmark = [pytest.mark.mount, pytest.mark.timeout(LIMIT + 20)]


@pytest.fixture
def place(tmp_path):
    """A directory in which everything the run makes can be found again."""
    (tmp_path / "tmp").mkdir()
    yield tmp_path
    assert os.listdir(tmp_path / "tmp") == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert processes_of(tmp_path) == []


def processes_of(place):
    """Command lines of living processes that were started from here."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                ours = f"TMPDIR={place}".encode() in (entry / "environ").read_bytes()
                alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                found += [(entry / "cmdline").read_bytes()] if ours and alive else []
        except OSError:
            continue  # it has ended meanwhile
    return found


def start(place, *words):
    kept = {name: value for name, value in os.environ.items() if name != "AIS_ENDPOINT"}
    return subprocess.Popen(
        [sys.executable, "-m", "bench", "--tiny", "--out", str(place / "out"), *words],
        cwd=ROOT,
        env={**kept, "TMPDIR": str(place / "tmp")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_rows_and_table(place):
    words = [word for name in GROUP_NAMES for word in ("--only", name)]
    run = start(place, *words)
    out, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, err
    lines = [json.loads(line) for line in (place / "out/results.jsonl").read_text().splitlines()]
    first, *between, last = lines
    assert first["kind"] == "run"
    assert first["machine"].keys() >= {"cpu", "cores", "kernel", "memory_gb"}
    assert first["versions"]["aisfs"]
    assert first["settings"]["size"] == "tiny"
    assert first["git"]
    assert last["kind"] == "end"
    rows = [line for line in between if line["kind"] == "row"]
    assert sorted({row["group"] for row in rows}) == sorted(GROUP_NAMES)
    for row in rows:
        check_row(row, rows, err)
    table = (place / "out/table.md").read_text()
    assert out.strip() == table.strip()
    for group in GROUPS:
        assert (f"## {group.title}\n" in table) == (group.name in GROUP_NAMES)


def check_row(row, rows, err):
    assert row["name"] in err  # a line of progress
    if row["reason"]:
        # What may be missing here are peers; the mount, curl and the server may not.
        assert "aistore" in row["name"] or "ratarmount" in row["name"], row
        return
    assert row["n"] == len(row["values"]) == 2
    assert 0 < row["min"] <= row["q1"] <= row["median"] <= row["q3"] <= row["max"]
    if row["baseline"]:
        assert row["ratio"] == 1
    elif row["ratio"] is None:  # its baseline is a peer that is missing
        assert not any(r["baseline"] and r["values"] for r in rows if r["case"] == row["case"])
    else:
        assert row["ratio"] > 0
    if "mount" in row["name"] and row["group"] == "shard" and row["state"] == "cold":
        assert row["counted"]["get"] >= 1


def test_mounts_over_s3(place):
    """What aisfs reads as files of shards, the others read as objects and through webdataset."""
    run = start(place, "--only", "s3")
    _, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, err
    lines = [json.loads(line) for line in (place / "out/results.jsonl").read_text().splitlines()]
    rows = {
        (line["case"], line["name"], line["state"]): line for line in lines if line["kind"] == "row"
    }
    ways = [way.format(peer) for way in (s3.FILES, s3.WEB) for peer in s3.PEERS]
    names = {s3.OURS, *ways}
    assert rows.keys() == set(product((s3.SMALL, s3.PICTURES), names, ("cold", "warm")))
    for (case, name, state), row in rows.items():
        assert row["n"] == 2, row["reason"]
        objects = {s3.SMALL: TINY.loose, s3.PICTURES: TINY.loose_images}[case]
        least = objects if name in {s3.FILES.format(peer) for peer in s3.PEERS} else TINY.shards
        # All of it comes from the server, once.
        assert row["counted"]["get"] >= (least if state == "cold" else 0)
        assert (row["counted"]["get_bytes"] > 0) == (state == "cold")
    goals = [line for line in lines if line["kind"] == "goal"]
    assert len(goals) == 4


def test_models_by_mmap(place):
    """What maps a model reads all of it, in any order and number of processes, and it comes once."""
    run = start(place, "--only", "models", "--repeats", "1")
    _, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, err
    lines = [json.loads(line) for line in (place / "out/results.jsonl").read_text().splitlines()]
    rows = {line["name"]: line for line in lines if line["kind"] == "row"}
    ways = product((models.IN_ORDER, models.AT_RANDOM), models.PROCESSES)
    assert rows.keys() == {models.CURL, *(models.BY_MMAP.format(*way) for way in ways)}
    if "not measured" in err:
        pytest.skip(rows[models.CURL]["reason"])  # no network namespaces here
    for row in rows.values():
        assert row["n"] == 1, row["reason"]
        assert row["counted"]["get_bytes"] == pytest.approx(TINY.model_bytes, rel=0.25)
    curl, *others = (rows[name]["counted"]["get_bytes"] for name in rows)
    assert all(got <= 1.02 * curl for got in others)


def test_models_are_files_of_safetensors(tmp_path):
    model = models.write_model(EmbeddedStore(tmp_path), 1 << 20)
    path = tmp_path / models.BUCKET / models.KEY
    assert path.stat().st_size == model.size
    with safe_open(path, framework="numpy") as file:
        lengths = sorted(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    assert lengths == sorted(stop - start for start, stop in model.tensors)
    total = model.tensors[-1][1] - model.tensors[0][0]
    assert models.load(path, model, None) == models.load(path, model, 7) == total


@pytest.mark.parametrize("peer", s3.PEERS)
def test_what_is_missing_is_not_measured(peer, tmp_path, monkeypatch):
    nowhere = Endpoint("http://127.0.0.1:1", counted=False)
    stage = Stage(tmp_path, TINY, nowhere, EmbeddedStore(tmp_path), Interrupts())

    def measured():
        return peers.through_s3(stage, peers.COMMANDS[peer], Samples("b"), os.listdir, 1.0)

    with pytest.raises(NotMeasured, match="the server has no /s3"):
        measured()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotMeasured, match=f"{peers.PROGRAMS[peer]} is not installed"):
        measured()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupted_run_leaves_nothing(place, number):
    run = start(place, "--only", "shard", "--repeats", "50")
    for line in run.stderr:
        if "file of the mount" in line:
            break
    run.send_signal(number)
    _, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + number, err
    assert "Traceback" not in err


def test_a_killed_run_takes_its_processes_along(place):
    run = start(place, "--only", "shard", "--repeats", "50")
    for line in run.stderr:
        if "file of the mount" in line:
            break
    run.kill()
    run.communicate(timeout=LIMIT)
    deadline = time.monotonic() + LIMIT
    while processes_of(place) and time.monotonic() < deadline:
        time.sleep(0.1)
    for folder in (place / "tmp").iterdir():  # files stay: nobody was left to delete them
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


def test_the_end_of_an_unknown_group(place):
    run = start(place, "--only", "nonsense")
    _, err = run.communicate(timeout=LIMIT)
    assert run.returncode == 2
    assert "nonsense" in err
