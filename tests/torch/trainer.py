"""A trainer that can be killed at any step and goes on from its last checkpoint, in as many processes as it is told.

As a program: `python -m tests.torch.trainer JOB`, with JOB as JSON. Its checkpoint is the sampler's state and what it trained
on so far, together, as the weights of a model are with the state of its data.
"""

import json
import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

from aisfs.torch import ShardSamples, ShardWindowSampler, SpreadBatches

WINDOW, SEED, EPOCHS = 2, 11, 2


@dataclass
class Job:
    """What is trained on, and how."""

    source: str
    home: str
    """Where the checkpoint is."""
    cache: str
    world: int = 1
    workers: int = 0
    batch: int = 3
    stateful: bool = False
    """Whether the loader is torchdata's, which has the state; else the sampler does."""
    spread: bool = False
    way: str = "fork"


def keys(samples):
    return [sample["__key__"] for sample in samples]


def new_sampler(dataset, world=1, rank=0):
    return ShardWindowSampler(dataset, window=WINDOW, seed=SEED, num_replicas=world, rank=rank)


class Rank:
    """What one process of the world has."""

    def __init__(self, job, dataset, rank):
        self.job = job
        self.sampler = new_sampler(dataset, job.world, rank)
        self.batches = SpreadBatches(self.sampler, job.batch)
        how = {"num_workers": job.workers, "collate_fn": keys}
        if job.workers:
            how["multiprocessing_context"] = job.way
        if job.spread:
            how["batch_sampler"] = self.batches
        else:
            how |= {"sampler": self.sampler, "batch_size": job.batch}
        # Here, since all workers of pytest import this module, and one trains.
        from torch.utils.data import DataLoader
        from torchdata.stateful_dataloader import StatefulDataLoader

        self.loader = (StatefulDataLoader if job.stateful else DataLoader)(dataset, **how)

    def load(self, state):
        (self.loader if self.job.stateful else self.sampler).load_state_dict(state)

    def state(self, steps):
        """The state after so many steps of a loop."""
        if self.job.stateful:
            return self.loader.state_dict()
        if self.job.spread:
            return self.batches.state_dict(consumed=steps)
        return self.sampler.state_dict(consumed=steps * self.job.batch)


def checkpoint(job):
    """The last one: epoch, state, and for each step the epoch and what each process trained on."""
    path = Path(job.home, "checkpoint")
    return pickle.loads(path.read_bytes()) if path.exists() else (0, None, [])


def train(job, dataset):
    """Go on from the last checkpoint and write one at each step, after which it yields."""
    ranks = [Rank(job, dataset, rank) for rank in range(job.world)]
    first, state, done = checkpoint(job)
    if state is not None:
        for rank in ranks:
            rank.load(state)
    for epoch in range(first, EPOCHS):
        for rank in ranks:
            rank.sampler.set_epoch(epoch)
        for steps, parts in enumerate(zip(*(rank.loader for rank in ranks), strict=True), 1):
            done.append((epoch, parts))
            state, *others = (rank.state(steps) for rank in ranks)
            assert job.stateful or others == [state] * len(others)
            fresh = Path(job.home, "checkpoint.new")
            fresh.write_bytes(pickle.dumps((epoch, state, done)))
            fresh.rename(Path(job.home, "checkpoint"))
            yield


def expected(dataset):
    """What the epochs consist of, in the order of all processes together."""
    sampler = new_sampler(dataset)
    return [[dataset[at]["__key__"] for at in sampler.order(epoch)] for epoch in range(EPOCHS)]


def sequence(done, epoch):
    """What all processes together trained on in an epoch, in the order that they share.

    The processes take samples of a step in turn, the first being that whose turn it is.
    """
    found = []
    for of, parts in done:
        if of != epoch:
            continue
        total = sum(map(len, parts))
        left = [iter(part) for part in parts]
        found += [next(left[(len(found) + at) % len(parts)]) for at in range(total)]
    return found


def main():
    job = Job(**json.loads(sys.argv[1]))
    for _ in train(job, ShardSamples(job.source, cache_dir=job.cache)):
        os.write(1, b"step\n")


if __name__ == "__main__":
    main()
