"""Contenders in turn, round after round, and the rows that come of it."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import reclaim
from bench.processes import NotMeasured
from bench.server import Endpoint
from bench.settings import Settings


@dataclass
class Reading:
    """One measured value, and what was counted beside it."""

    value: float
    counted: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """Who is measured: `run` gives a reading for each state it knows, such as cold and warm."""

    case: str
    """What is done; contenders of one case are compared."""
    name: str
    unit: str
    run: Callable[[], Mapping[str, Reading]]
    states: tuple[str, ...] = ("cold", "warm")
    """Known beforehand, for the rows of a contender that fails."""
    baseline: bool = False


@dataclass
class Row:
    """One line of the table."""

    group: str
    case: str
    name: str
    state: str
    unit: str
    baseline: bool
    values: list[float] = field(default_factory=list)
    counted: dict[str, list[float]] = field(default_factory=dict)
    reason: str = ""
    """Why there is no value, or fewer than in the other rows."""
    note: str = ""
    """What else has to be known of it."""
    ratio: float | None = None
    """To the baseline of the case: the median of the ratios of each round."""
    against: str = ""

    @property
    def median(self) -> float | None:
        """The middle of all rounds."""
        return statistics.median(self.values) if self.values else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """Where the middle half of the rounds lies."""
        if len(self.values) < 2:
            return None
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    def document(self) -> dict[str, Any]:
        """Give the row as JSON has it."""
        iqr = self.quartiles
        return {
            "kind": "row",
            "group": self.group,
            "case": self.case,
            "name": self.name,
            "state": self.state,
            "unit": self.unit,
            "baseline": self.baseline,
            "n": len(self.values),
            "median": self.median,
            "min": min(self.values, default=None),
            "max": max(self.values, default=None),
            "q1": iqr[0] if iqr else None,
            "q3": iqr[1] if iqr else None,
            "values": self.values,
            "ratio": self.ratio,
            "against": self.against,
            "counted": {k: statistics.median(v) for k, v in self.counted.items()},
            "reason": self.reason,
            "note": self.note,
            "spoiled": reclaim.verdict(self.counted),
        }


def measure(
    group: str,
    contenders: Sequence[Contender],
    settings: Settings,
    progress: Callable[[str], None],
) -> list[Row]:
    """Measure every contender once per round: A B C A B C …

    A contender that fails leaves the race; its rows say why. Rounds end when the budget of the
    group would not last for one more, but not before the least number.
    """
    rows = {
        (at, state): Row(group, who.case, who.name, state, who.unit, who.baseline)
        for at, who in enumerate(contenders)
        for state in who.states
    }
    failed: set[int] = set()
    start = time.monotonic()
    for number in range(settings.repeats):
        spent = time.monotonic() - start
        if number >= settings.least and spent / number * (number + 1) > settings.budget:
            break
        for at, who in enumerate(contenders):
            if at in failed:
                continue
            label = f"{group} {number + 1}/{settings.repeats} · {who.case} · {who.name}"
            try:
                readings = who.run()
            except Exception as error:  # noqa: BLE001 (no peer may end the run)
                failed.add(at)
                reason = str(error) if isinstance(error, NotMeasured) else repr(error)
                for state in who.states:
                    rows[at, state].reason = f"round {number + 1}: {reason}" if number else reason
                progress(f"{label}: not measured: {reason}")
                continue
            for state, reading in readings.items():
                row = rows[at, state]
                row.values.append(reading.value)
                for key, value in reading.counted.items():
                    row.counted.setdefault(key, []).append(value)
            said = ", ".join(f"{s} {number_text(r.value)}" for s, r in readings.items())
            progress(f"{label}: {said} {who.unit}")
    return compare(list(rows.values()))


def compare(rows: list[Row]) -> list[Row]:
    """Set the ratios to the baselines, round by round."""
    for row in rows:
        rivals = [r for r in rows if r.baseline and r.case == row.case and r.values]
        base = next((r for r in rivals if r.state == row.state), rivals[0] if rivals else None)
        if base is None or not row.values:
            continue
        row.against = base.name
        row.ratio = ratio(row.values, base.values)
    return rows


def ratio(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Give the median ratio of values measured in the same rounds."""
    pairs = [a / b for a, b in zip(values, others, strict=False) if b]
    return statistics.median(pairs) if pairs else None


def timed(work: Callable[[], object]) -> float:
    """Give the seconds a function takes, with the garbage of others out of its way."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def epoch(work: Callable[[], object], endpoint: Endpoint) -> dict[str, float]:
    """Time a function and count what the server was asked for meanwhile; runs in the child."""
    before, pages = endpoint.counters(), reclaim.counts()
    seconds = timed(work)
    taken = reclaim.since(pages)
    after = endpoint.counters()
    kinds = ("get", "get_bytes", "get_member", "redirect", "list_page", "head")
    return {
        "seconds": seconds,
        **taken,
        **{k: after.get(k, 0) - before.get(k, 0) for k in kinds if endpoint.counted},
    }


def number_text(value: float | None) -> str:
    """Write a number as people compare it: three digits that say something."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
