"""The ratios the design promises (DESIGN 7 and the issues), taken from the rows of one run.

Nothing fails when one is missed: a report says what was measured, and people decide.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.engine import Row, ratio
from bench.groups import (
    bystanders,
    class_view,
    epochs,
    fastpath,
    indexing,
    latency,
    link,
    listing,
    models,
    pictures,
    s3,
    shard,
    shuffle,
    writing,
)
from bench.settings import FULL

LINK, LINK_USED = (10, 0.0002), 0.8
"""The link that is to be used, and how far."""
FULL_SHARE, OURS_SHARE = 0.95, 0.8
"""From when on the processors count as full, and with what is measured rather than with others."""
Find = Callable[..., Row | None]


@dataclass(frozen=True)
class Goal:
    """One promise and what became of it."""

    text: str
    at_least: bool
    wanted: float
    measured: float

    @property
    def reached(self) -> bool:
        """Whether the measured ratio keeps the promise."""
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted

    def document(self) -> dict[str, Any]:
        """Give the goal as JSON has it."""
        return {
            "kind": "goal",
            "text": self.text,
            "wanted": f"{'>=' if self.at_least else '<='} {self.wanted:g}",
            "measured": self.measured,
            "reached": self.reached,
        }


_Side = tuple[str, str]
"""A contender and its state."""
_RATES: list[tuple[str, str, str, _Side, _Side, float]] = [
    # text, group, case, whose rate, against whose, at least
    ("1 KB samples, warm: rate over extracted files", "small", "0 workers",
     (epochs.FILES, "warm"), (epochs.EXTRACTED, "warm"), 1 / 1.5),
    ("1 KB samples, cold: rate over AISShardReader", "small", "0 workers",
     (epochs.FILES, "cold"), (epochs.SDK_SHARDS, "cold"), 1.8),
    ("1 KB samples, cold: rate over webdataset", "small", "0 workers",
     (epochs.FILES, "cold"), (epochs.WEB, "cold"), 2.3),
    ("1 KB samples, cold: rate over one GET per object", "small", "0 workers",
     (epochs.FILES, "cold"), (epochs.GET, "cold"), 100),
    ("images, cold: rate over curl of the shards", "images", "0 workers",
     (epochs.FILES, "cold"), (epochs.CURL, "cold"), 0.9),
    ("images, warm: rate over extracted files", "images", "0 workers",
     (epochs.FILES, "warm"), (epochs.EXTRACTED, "warm"), 0.8),
    ("one shard as a file, cold, over loopback: rate over curl", "shard", shard.ALONE,
     (shard.READ, "cold"), (shard.CURL, "cold"), 0.4),
    ("cold pictures: eight readers of different shards over one", "pictures", pictures.TOGETHER,
     (pictures.AT_ONCE.format(8), pictures.STEADY), (pictures.AT_ONCE.format(1), pictures.STEADY),
     1.5),
    *((f"one shard as a file, cold, {delay * 1000:.0f} ms away: rate over curl", "latency",
       latency.case_of(delay, latency.SEQUENTIAL),
       (latency.READ, "cold"), (latency.CURL, "cold"), 0.9)
      for delay in FULL.latencies),
    ("opening a tar (ustar): rate over tarfile", "indexing", indexing.PLAIN,
     (indexing.OURS, "warm"), (indexing.TARFILE, "warm"), 10),
    ("opening a tar (pax): rate over tarfile", "indexing", indexing.PAX,
     (indexing.OURS, "warm"), (indexing.TARFILE, "warm"), 10),
    ("opening a tar (ustar): rate over ratarmount", "indexing", indexing.PLAIN,
     (indexing.OURS, "warm"), (indexing.RATARMOUNT, "warm"), 10),
    ("opening a tar (pax): rate over ratarmount", "indexing", indexing.PAX,
     (indexing.OURS, "warm"), (indexing.RATARMOUNT, "warm"), 10),
]  # fmt: skip


def judge(rows: Sequence[Row]) -> list[Goal]:
    """Give the goals whose rows were measured."""

    def find(group: str, case: str, name: str, state: str) -> Row | None:
        wanted = (group, case, name, state)
        return next(
            (r for r in rows if (r.group, r.case, r.name, r.state) == wanted and r.values), None
        )

    goals = []
    for text, group, case, ours, theirs, wanted in _RATES:
        mine, other = find(group, case, *ours), find(group, case, *theirs)
        if mine and other and (measured := ratio(mine.values, other.values)) is not None:
            goals.append(Goal(text, True, wanted, measured))
    return (
        goals
        + _second_process(find)
        + _quiet(find)
        + _fast_path(find)
        + _waited(find)
        + _written(rows)
        + _fetched(rows)
        + _listings(rows)
        + _class_views(rows)
        + _pictures(find)
        + _linked(find)
        + _models(rows)
        + _over_s3(rows)
    )


def _second_process(find: Find) -> list[Goal]:
    one, two = (
        find("fastpath", fastpath.WARM.format(processes), fastpath.FAST, "warm")
        for processes in fastpath.PROCESSES
    )
    measured = ratio(two.values, one.values) if one and two else None
    if measured is None:
        return []
    return [Goal("1 KB samples, warm: two processes over one", True, 1.7, measured)]


def _pictures(find: Find) -> list[Goal]:
    """Judge cold pictures: their rate beside webdataset's, at the start, and what the daemon takes."""
    goals = []
    for workers in (0, 2):
        case = f"{workers} workers"
        ours, web = (
            find("pictures", case, name, pictures.STEADY) for name in (pictures.ON_DISK, epochs.WEB)
        )
        first = find("pictures", case, pictures.ON_DISK, pictures.FIRST)
        text = f"cold pictures, {case}"
        if ours and web and (measured := ratio(ours.values, web.values)) is not None:
            goals.append(Goal(f"{text}: rate over webdataset", True, 1, measured))
        if ours and first and (measured := ratio(first.values, ours.values)) is not None:
            goals.append(Goal(f"{text}: the first over the steady rate", True, 0.9, measured))
        if shares := _fetched_without_cache(find, case):
            goal = f"{text}, --cache-size 0: of the data fetched to list and read in order"
            goals.append(Goal(goal, False, 1.02, max(shares)))
        if ours and (spent := ours.counted.get("daemon_s_gb")):
            seconds = statistics.median(spent)
            goals.append(Goal(f"{text}: processor seconds of the daemon a GB", False, 1.2, seconds))
    return goals


def _fetched_without_cache(find: Find, case: str) -> list[float]:
    """Give the share of the data that each round fetched, of what is first read and what is next."""
    states = (pictures.FIRST, pictures.STEADY)
    rows = [find("pictures", case, pictures.NO_CACHE, state) for state in states]
    counted = [row.counted for row in rows if row is not None and "get_bytes" in row.counted]
    if len(counted) < len(states):
        return []
    # What is first read also fetches ahead of what is next.
    got, stored = (
        map(sum, zip(*(c[key] for c in counted), strict=False)) for key in ("get_bytes", "stored")
    )
    return [part / whole for part, whole in zip(got, stored, strict=False)]


def _linked(find: Find) -> list[Goal]:
    """Judge cold pictures over a fast link: it is used, or the processors have no time for more."""
    gigabits, delay = LINK
    row = find("link", link.case_of(gigabits, delay), pictures.ON_DISK, pictures.STEADY)
    if row is None or row.median is None:
        return []
    busy, ours = (statistics.median(row.counted.get(n) or [0.0]) for n in ("busy", "busy_ours"))
    text = f"cold pictures over {row.case}"
    if row.median < LINK_USED and busy >= FULL_SHARE and ours >= OURS_SHARE:
        text = f"{text}: of all processors busy (at {row.median:.2f} of the link)"
        return [Goal(text, True, FULL_SHARE, busy)]
    return [Goal(f"{text}: of the link", True, LINK_USED, row.median)]


def _models(rows: Sequence[Row]) -> list[Goal]:
    """Judge models by mmap: their rate beside curl's, and that nothing is fetched twice."""
    goals = []
    found = {row.name: row for row in rows if row.group == "models" and row.values}
    for order, wanted in ((models.IN_ORDER, 0.9), (models.AT_RANDOM, 0.85)):
        for processes in models.PROCESSES:
            ours = found.get(models.BY_MMAP.format(order, processes))
            curl = found.get(models.CURL)
            # Another link is not the one of the goals.
            if ours is None or curl is None or ours.case != link.case_of(*FULL.model_link):
                continue
            text = f"a model by mmap, cold, {order}, {processes} processes"
            if (measured := ratio(ours.values, curl.values)) is not None:
                goals.append(Goal(f"{text}: rate over curl", True, wanted, measured))
            if got := ours.counted.get("get_bytes"):
                shares = [part / ours.counted["stored"][0] for part in got]
                goals.append(Goal(f"{text}: of its bytes fetched", False, 1.02, max(shares)))
    return goals


def _quiet(find: Find) -> list[Goal]:
    goals = []
    for group in ("small", "images"):
        for state in ("warm", "remount"):
            row = find(group, "0 workers", epochs.FILES, state)
            if row and row.counted.get("get"):
                text = f"{group}, {state} epoch: data requests at the server"
                goals.append(Goal(text, False, 0, max(row.counted["get"])))
    row = find("shard", shard.TOGETHER, shard.CAT, "cold")
    if row and row.counted.get("get_bytes") and row.median:
        one = find("shard", shard.TOGETHER, shard.CURL, "cold")
        if one and one.counted.get("get_bytes"):
            sent = ratio(row.counted["get_bytes"], one.counted["get_bytes"]) or 0.0
            text = "eight readers of one cold shard: downloads at the server"
            goals.append(Goal(text, False, 1.01, sent * shard.READERS))
    return goals


def _fast_path(find: Find) -> list[Goal]:
    goals = []
    warm = find("small", "0 workers", epochs.FILES, "warm")
    if warm and "reads" in warm.counted:
        # The least of all rounds, here and below: kernels drop pages that nobody missed (DAMON).
        text = "1 KB samples, warm epoch, quietest round: reads that the daemon answered"
        goals.append(Goal(text, False, 0, min(warm.counted["reads"])))
    first, third = (
        find("fastpath", fastpath.SCAN, fastpath.TREE, state) for state in ("first", "third")
    )
    if first and first.median:
        text = "scan of files in shards, first: microseconds per file"
        goals.append(Goal(text, False, 12, 1e6 / first.median))
    if third and "requests" in third.counted:
        text = "scan of files in shards, again, quietest round: requests of the daemon"
        goals.append(Goal(text, False, 0, min(third.counted["requests"])))
    for readers in fastpath.READERS:
        case = fastpath.RANDOM.format(readers)
        ours, plain = (
            find("fastpath", case, name, fastpath.DROPPED)
            for name in (fastpath.FAST, fastpath.PLAIN)
        )
        measured = ratio(ours.values, plain.values) if ours and plain else None
        if measured is not None:
            goals.append(Goal(f"{case}: rate over --no-fastpath", True, 3, measured))
    return goals


def _waited(find: Find) -> list[Goal]:
    goals = []
    for case in (bystanders.ATTRIBUTE, bystanders.PAGE):
        ours, others = (
            find("bystanders", case, bystanders.BUSY, state)
            for state in (bystanders.STATE, bystanders.ELSEWHERE)
        )
        if ours and others:
            # What a scan adds: all wait for two processors, also those of a daemon that does nothing.
            more = [mine - theirs for mine, theirs in zip(ours.values, others.values, strict=False)]
            text = f"{case}, beside a scan: ms that 99 of 100 wait more than at a second daemon"
            goals.append(Goal(text, False, 5, statistics.median(more)))
    return goals


def _written(rows: Sequence[Row]) -> list[Goal]:
    goals = []
    found = {(row.case, row.name): row for row in rows if row.group == "writing"}
    pairs = (
        (writing.CP, writing.CURL, 0.7),
        (writing.CP_TREE, writing.SDK, 2.0),
        (writing.CP_WAITING, writing.SDK, 5.0),
    )
    for (case, name), row in found.items():
        for ours, theirs, wanted in pairs:
            other = found.get((case, theirs))
            measured = ratio(row.values, other.values) if name == ours and other else None
            if measured is not None:
                goals.append(Goal(f"{case}, {ours}: rate over {theirs}", True, wanted, measured))
    return goals


def _fetched(rows: Sequence[Row]) -> list[Goal]:
    later = [r for r in rows if r.group == "shuffle" and r.values and r.state != "epoch 1"]
    goals = []
    for case in (shuffle.SHUFFLED, shuffle.CYCLIC):
        values = [row.median or 0.0 for row in later if row.case == case]
        if values:
            text = f"{case}: of the data fetched, worst epoch from the second"
            goals.append(Goal(text, False, 0.6, max(values)))
    ample = [row for row in rows if row.group == "shuffle" and row.case == shuffle.ENOUGH]
    if ample and all(row.values for row in ample):
        text = f"{shuffle.ENOUGH}: of the data fetched, all epochs together"
        goals.append(Goal(text, False, 1.01, sum(row.median or 0.0 for row in ample)))
    return goals


def _listings(rows: Sequence[Row]) -> list[Goal]:
    """Compare the time beyond the server's own; too little time says nothing."""
    goals = []
    found = {(r.case, r.name): r for r in rows if r.group == "listing" and r.state == "cold"}
    for (case, name), row in found.items():
        server = found.get((case, listing.PAGES))
        if name != listing.SCANDIR or server is None or not row.median or not server.median:
            continue
        number = int(case.split()[0].replace(",", ""))
        beyond = number / row.median - number / server.median
        if number >= 10_000 and beyond > 0:
            text = f"listing {case}, cold: entries/s beyond the server's own time"
            goals.append(Goal(text, True, 100_000, number / beyond))
    return goals


def _class_views(rows: Sequence[Row]) -> list[Goal]:
    """Judge what the first listing on a fresh machine takes, and what it fetches."""
    goals = []
    full = class_view.case_of(FULL.class_shards, FULL.class_samples)
    for name, share in ((class_view.PUBLISHED, 0.005), (class_view.SERVER, 0.02)):
        for row in rows:
            if row.group != "class view" or (row.name, row.state) != (name, "cold"):
                continue
            if shares := row.counted.get("share"):
                goals.append(
                    Goal(f"{row.case}, {name}: of the data fetched", False, share, max(shares))
                )
            if name == class_view.PUBLISHED and row.case == full and row.median:
                seconds = FULL.class_shards * FULL.class_samples / row.median
                goals.append(Goal(f"{row.case}, {name}: seconds", False, 5, seconds))
    return goals


def _over_s3(rows: Sequence[Row]) -> list[Goal]:
    """Judge cold rates over S3: three times the best of the others, however they are read."""
    goals = []
    cold = [row for row in rows if (row.group, row.state) == ("s3", "cold") and row.values]
    for ours in (row for row in cold if row.name == s3.OURS):
        others = [row for row in cold if row.case == ours.case and row is not ours]
        for way in (s3.FILES, s3.WEB):
            named = [row for row in others if row.name in {way.format(peer) for peer in s3.PEERS}]
            best = max(named, key=lambda row: row.median or 0.0, default=None)
            measured = ratio(ours.values, best.values) if best else None
            if best and measured is not None:
                text = f"{ours.case} over S3, cold: rate over the best of its kind, {best.name}"
                goals.append(Goal(text, True, 3, measured))
    return goals
