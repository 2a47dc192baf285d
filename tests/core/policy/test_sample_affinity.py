"""When the rest of a sample is fetched with one of its members."""

import random

from aisfs.core.policy.shard_readers import CLOSE, SampleAffinity

SAMPLES, PARTS = 3000, 3
HELD = CLOSE // 4
"""Samples that memory holds until their other members are asked for."""


def fetched(habit, order):
    """Count members fetched by a reader whose memory holds the latest samples only."""
    total = 0
    held = []
    for sample, row in order:
        if (sample, row) in held:
            continue
        rows = [row] if habit.alone(sample, row) else range(PARTS)
        total += len(rows)
        held = [*held, *((sample, each) for each in rows)][-HELD * PARTS :]
    return total


def epoch(seed, *, together):
    chance = random.Random(seed)
    samples = chance.sample(range(SAMPLES), SAMPLES)
    order = [(sample, row) for sample in samples for row in range(PARTS)]
    return order if together else chance.sample(order, len(order))


def test_samples_read_as_such_are_fetched_whole_and_once():
    habit = SampleAffinity()
    for seed in range(5):
        assert fetched(habit, epoch(seed, together=True)) == SAMPLES * PARTS


def test_members_read_far_apart_are_fetched_alone_from_the_second_epoch_on():
    habit = SampleAffinity()
    first, *later = (fetched(habit, epoch(seed, together=False)) for seed in range(5))
    assert SAMPLES * PARTS < first < 2 * SAMPLES * PARTS
    assert all(total < 1.05 * SAMPLES * PARTS for total in later)


def test_reading_samples_as_such_again_is_noticed():
    habit = SampleAffinity()
    for seed in range(3):
        fetched(habit, epoch(seed, together=False))
    fetched(habit, epoch(3, together=True))
    assert fetched(habit, epoch(4, together=True)) == SAMPLES * PARTS
    assert not any(habit.alone(sample, 0) for sample in range(SAMPLES))
