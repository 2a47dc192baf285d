"""Training goes on after any step: with each number of workers, and in other worlds than before."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from aisfs.torch import ShardSamples
from tests.mount.cache_tools import big_directory
from tests.programs.programs import ROOT, program_environment
from tests.support.for_each import for_each
from tests.support.tars import END, entry
from tests.torch.trainer import EPOCHS, Job, checkpoint, expected, sequence, train

SIZES = (20, 13, 1, 30, 17, 15)
COUNT = sum(SIZES)
RESTARTS = int(os.environ.get("RESTARTS", "0"))
"""How often to stop each trainer; the suite does it a few times, since workers and programs take long to start."""

pytestmark = [
    pytest.mark.timeout(20 * RESTARTS + 300),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with big_directory() as directory:
        for shard, size in enumerate(SIZES):
            members = (entry(f"{shard}-{at}.txt".encode(), b"x") for at in range(size))
            (directory / f"s-{shard}.tar").write_bytes(b"".join(members) + END)
        yield directory


@pytest.fixture(scope="module")
def dataset(base: Path) -> ShardSamples:
    return ShardSamples(base, cache_dir=base / "cache")


@pytest.fixture
def job(base: Path, tmp_path: Path) -> partial[Job]:
    return partial(Job, str(base), str(tmp_path), str(base / "cache"))


def check(job: Job, dataset: ShardSamples) -> None:
    done = checkpoint(job)[2]
    for epoch, order in enumerate(expected(dataset)):
        found = sequence(done, epoch)
        assert sorted(found) == sorted(order), "each sample once"
        assert found == order


def stopped(job: Job, dataset: ShardSamples, steps: int) -> bool:
    """Train for some steps, and leave all behind; return whether that was the end."""
    training = train(job, dataset)
    return any(next(training, training) is training for _ in range(steps))


KINDS = {
    "plain": {},
    "spread": {"spread": True, "batch": 5},
    "stateful": {"stateful": True},
    "stateful spread": {"stateful": True, "spread": True, "batch": 5},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("workers", "most"), [(0, 3), (2, 40), (4, 40)])
def test_a_trainer_is_stopped_at_random_steps(job, dataset, kind: str, workers: int, most: int):
    """With no workers some forty times, with workers a few times; RESTARTS says how often instead."""
    chance = random.Random(f"{kind} {workers}")
    this = job(workers=workers, **KINDS[kind])
    restarts = 0
    while True:
        steps = chance.randint(1, 2 if RESTARTS else most)
        if not stopped(this, dataset, steps):
            restarts += 1
            continue
        check(this, dataset)
        if restarts >= RESTARTS:
            break
        Path(this.home, "checkpoint").unlink()
    print(f"{kind}, {workers} workers: {restarts} restarts")


@for_each("kind", KINDS)
def test_the_world_changes_in_the_middle_of_an_epoch(base: Path, dataset: ShardSamples, kind: str):
    """2, 4 and 2 processes: the same sequence as of one that was never stopped, each sample once."""
    with big_directory() as home:
        this = partial(Job, str(base), str(home), str(base / "cache"), **KINDS[kind])
        for world, steps in ((2, 3), (4, 2)):
            assert not stopped(this(world=world), dataset, steps)
        assert checkpoint(this())[0] == 0, "in the middle of the first epoch"
        assert stopped(this(world=2), dataset, 1000)
        check(this(), dataset)
        worlds = {len(parts) for epoch, parts in checkpoint(this())[2] if not epoch}
        assert worlds == {2, 4}


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_a_trainer_is_killed(job, dataset: ShardSamples, tmp_path: Path, workers: int):
    """By SIGKILL, at a random moment after some steps."""
    chance = random.Random(workers)
    this = job(workers=workers)
    left = RESTARTS or 2
    while True:
        code = killed(
            this, tmp_path, chance.randint(1, 2 * COUNT // this.batch // 3) if left else -1
        )
        if code == -signal.SIGKILL:
            left -= 1
            continue
        assert code == 0
        check(this, dataset)
        if left <= 0:
            break
        Path(this.home, "checkpoint").unlink()


def killed(job: Job, home: Path, steps: int) -> int:
    """Run a trainer and kill it when it is so far; return how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.torch.trainer", json.dumps(asdict(job))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=program_environment(home),
        start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            while process.stdout.readline():
                steps -= 1
                if not steps:
                    process.kill()
            errors = process.stderr.read()
            process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()[-3000:]
    return process.returncode


def test_spawned_workers_read_as_well(job, dataset: ShardSamples):
    assert stopped(job(workers=1, way="spawn", batch=40), dataset, 1000)
    check(job(), dataset)
    assert len({epoch for epoch, _ in checkpoint(job())[2]}) == EPOCHS
