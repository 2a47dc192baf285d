"""Prints hit ratios of cache policies over epochs, side by side: `python -m bench.admission`.

Pure simulation: no bytes move, and the same seed gives the same table everywhere.
"""

import argparse
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

from aisfs.core.policy.admission import Admission

Request = tuple[str, int]


class Policy(Protocol):
    def access(self, key: str, size: int) -> bool:
        """Say whether it was a hit; on a miss decide what to keep."""


class Ours:
    def __init__(self, limit: int, _seed: int) -> None:
        self.admission = Admission[str](limit)

    def access(self, key: str, size: int) -> bool:
        self.admission.request(key, size)
        if key in self.admission:
            return True
        self.admission.admit(key, size)
        return False


class Lru:
    def __init__(self, limit: int, _seed: int) -> None:
        self.left = limit
        self.sizes: OrderedDict[str, int] = OrderedDict()

    def access(self, key: str, size: int) -> bool:
        if key in self.sizes:
            self.sizes.move_to_end(key)
            return True
        self.sizes[key] = size
        self.left -= size
        while self.left < 0:
            self.left += self.sizes.popitem(last=False)[1]
        return False


class Random:
    def __init__(self, limit: int, seed: int) -> None:
        self.left = limit
        self.kept: list[Request] = []
        self.keys: set[str] = set()
        self.random = random.Random(seed)

    def access(self, key: str, size: int) -> bool:
        if key in self.keys:
            return True
        self.kept.append((key, size))
        self.keys.add(key)
        self.left -= size
        while self.left < 0:
            at = self.random.randrange(len(self.kept))
            self.kept[at], self.kept[-1] = self.kept[-1], self.kept[at]
            gone, freed = self.kept.pop()
            self.keys.remove(gone)
            self.left += freed
        return False


POLICIES: dict[str, Callable[[int, int], Policy]] = {"LRU": Lru, "random": Random, "ours": Ours}


def dataset(name: str, count: int, skewed: random.Random | None = None) -> list[Request]:
    size = 1000
    return [
        (f"{name}/{number:06d}", int(skewed.lognormvariate(7, 1.5)) + 1 if skewed else size)
        for number in range(count)
    ]


def hit_ratio(policy: Policy, requests: Iterable[Request]) -> float:
    hits = [policy.access(key, size) for key, size in requests]
    return sum(hits) / len(hits)


class Scenario:
    """A cache of `limit` bytes, epochs before, and the epochs whose hit ratios are averaged."""

    def __init__(self, seed: int) -> None:
        self.shuffle = random.Random(seed)

    def epoch(self, data: list[Request], order: str) -> list[Request]:
        return self.shuffle.sample(data, len(data)) if order == "shuffled" else data

    def steady(self, policy: Policy, data: list[Request], order: str) -> float:
        hit_ratio(policy, self.epoch(data, order))
        return sum(hit_ratio(policy, self.epoch(data, order)) for _ in range(4)) / 4


def table(seed: int) -> list[tuple[str, list[float]]]:
    rows = []
    kinds = {
        "147 shards": dataset("a", 147),
        "20,000 samples": dataset("a", 20_000),
        "5,000 of skewed sizes": dataset("a", 5_000, random.Random(seed)),
    }
    for kind, data in kinds.items():
        total = sum(size for _, size in data)
        for share in (0.1, 0.5, 0.9):
            for order in ("cyclic", "shuffled"):
                ratios = [
                    Scenario(seed).steady(make(int(total * share), seed), data, order)
                    for make in POLICIES.values()
                ]
                rows.append((f"{kind}, {order}, cache {share:.0%}", ratios))
    for name, then in (("half fits", 20_000), ("all fits", 10_000)):
        for epoch in (2, 3):
            ratios = []
            for make in POLICIES.values():
                scenario, policy = Scenario(seed), make(10_000_000, seed)
                scenario.steady(policy, kinds["20,000 samples"], "shuffled")
                new = dataset("b", then)
                for _ in range(epoch):
                    last = hit_ratio(policy, scenario.epoch(new, "shuffled"))
                ratios.append(last)
            rows.append((f"after another data set, {name}: epoch {epoch}", ratios))
    ratios = []
    for make in POLICIES.values():
        scenario, policy = Scenario(seed), make(10_000_000, seed)
        hot = dataset("hot", 10_000)
        scenario.steady(policy, hot, "shuffled")
        hit_ratio(policy, dataset("once", 100_000))
        ratios.append(hit_ratio(policy, scenario.epoch(hot, "shuffled")))
    rows.append(("what filled the cache, after a scan of 10 times as much", ratios))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    rows = table(parser.parse_args().seed)
    width = max(len(name) for name, _ in rows)
    print(f"{'hit ratio':{width}}", *(f"{name:>7}" for name in POLICIES))
    for name, ratios in rows:
        print(f"{name:{width}}", *(f"{ratio:7.3f}" for ratio in ratios))


if __name__ == "__main__":
    main()
