"""What a mount has done so far, from the counters its daemon keeps."""

import errno
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from aisfs.app.watching.asking import ask
from aisfs.app.watching.mounts import ABOUT
from aisfs.errors import MountError
from aisfs.fuse.mountpoint import our_mount

ATTRIBUTE = "user.aisfs.stats"
WARNINGS = "user.aisfs.recent"
HEALTH = "user.aisfs.health"

Labels = frozenset[tuple[str, str]]


class Counters:
    """The samples of one reading."""

    def __init__(self, text: str) -> None:
        """Parse Prometheus' text form."""
        self._samples: dict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples[sample.name][frozenset(sample.labels.items())] = sample.value

    def value(self, name: str) -> int:
        """Return a counter without labels; 0 when the daemon has none of that name."""
        return int(self._samples[name].get(frozenset(), 0))

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels of a metric that has one sample, which exists for its labels."""
        return dict(sorted(next(iter(self._samples[name]), frozenset())))

    def by(self, name: str, *labels: str) -> dict[str, int]:
        """Return the sums of a counter by the values of these labels; zeros are left out."""
        found: Counter[str] = Counter()
        for given, value in self._samples[name].items():
            values = dict(given)
            found[" ".join(values.get(label, "") for label in labels)] += int(value)
        return {words: count for words, count in sorted(found.items()) if count}


def read_counters(mountpoint: Path) -> Counters:
    """Ask the daemon of a mount for its counters.

    Raises:
        MountError: there is no mount of aisfs, or its daemon has died.
    """
    return Counters(_ask(mountpoint, ATTRIBUTE))


@dataclass(frozen=True, slots=True)
class MountReport:
    """How one mount is."""

    found: dict[str, object]
    """Sections of plain values."""
    warnings: list[dict[str, object]]
    """The last ones: the `time` of the last time, the `level`, the `text`, and how often as `count`."""


def read_report(mountpoint: Path, *, fastpath: bool = False) -> MountReport:
    """Ask the daemon of a mount how it is; with `fastpath` also about its threads.

    Raises:
        MountError: there is no mount of aisfs, or its daemon has died or does not answer.
    """
    counters = read_counters(mountpoint)
    about = json.loads(_ask(mountpoint, ABOUT, otherwise="{}"))
    # It asks the cluster, for two seconds at most.
    problem = _ask(mountpoint, HEALTH, otherwise="not known: the daemon is of an older aisfs")
    found = summary(counters)
    rates = about.pop("rates", None)
    mount = found.pop("mount")
    # A store without AIStore is not asked: it may charge for it.
    asked = "reachable" if mount.get("endpoint") else "none"
    report = {
        "mount": {**mount, **about, "cluster": problem or asked},
        **({"rates": rates} if rates is not None else {}),
        **found,
        **(fastpath_summary(counters) if fastpath else {}),
    }
    warnings = [
        {**warned, "time": datetime.fromtimestamp(warned["time"], UTC).isoformat("T", "seconds")}
        for warned in json.loads(_ask(mountpoint, WARNINGS, otherwise="[]"))
    ]
    return MountReport(report, warnings)


def _ask(mountpoint: Path, attribute: str, otherwise: str | None = None) -> str:
    """Read an attribute of a mount; return `otherwise` if its daemon is too old to have it."""
    try:
        return ask(our_mount(mountpoint), attribute).decode()
    except OSError as error:
        if error.errno == errno.ENODATA and otherwise is not None:
            return otherwise
        raise MountError(f"{mountpoint}: {error.strerror}") from error


def summary(counters: Counters) -> dict[str, Any]:
    """Return what `aisfs status` shows, as plain values."""
    shards = counters.value("aisfs_dataset_shards_to_open")
    opened = {
        "opened_shards": counters.value("aisfs_dataset_shards_opened"),
        "shards": shards,
        "files": counters.value("aisfs_dataset_opened_files"),
    }
    dataset = {
        **({"dataset": opened} if shards else {}),
        "dataset_shards": counters.by("aisfs_dataset_shards", "state"),
        "left_out": counters.by("aisfs_dataset_left_out", "reason"),
    }
    charged = counters.by("aisfs_store_requests_total", "class")
    return {
        "mount": counters.labels("aisfs_mount")
        | {"inodes": counters.value("aisfs_inodes")}
        | ({"metrics": url} if (url := _listening(counters)) else {}),
        **(dataset if any(dataset.values()) else {}),
        "cache": {
            "hit_percent": _percent(counters),
            "limit_bytes": counters.value("aisfs_cache_limit_bytes"),
            "used_bytes": counters.value("aisfs_cache_used_bytes"),
            "hits": counters.value("aisfs_cache_hits"),
            "misses": counters.value("aisfs_cache_misses"),
            "fetched_bytes": counters.value("aisfs_fetched_bytes_total"),
        },
        **_writing(counters),
        "requests": counters.by("aisfs_operations_total", "operation"),
        "failures": counters.by("aisfs_failed_operations_total", "operation", "errno"),
        "store_calls": counters.by("aisfs_store_request_seconds_count", "call"),
        **({"requests_by_class": charged} if charged else {}),
    }


def _percent(counters: Counters) -> float | None:
    """Return how many of the ranges that were looked for in the disk cache were there."""
    hits, misses = counters.value("aisfs_cache_hits"), counters.value("aisfs_cache_misses")
    return round(100 * hits / (hits + misses), 1) if hits + misses else None


def _listening(counters: Counters) -> str:
    return counters.labels("aisfs_metrics_listening").get("url", "")


def _writing(counters: Counters) -> dict[str, object]:
    """Return what is being written and uploaded; nothing on a read-only mount."""
    limit = counters.value("aisfs_staging_limit_bytes")
    if not limit:
        return {}
    sizes = counters.by("aisfs_upload_size_bytes", "object")
    sent = counters.by("aisfs_upload_sent_bytes", "object")
    uploads = {
        name: {"sent_bytes": sent.get(name, 0), "size_bytes": sizes.get(name)}
        for name in sorted(sizes | sent)
    }
    staging = {
        "staged_bytes": counters.value("aisfs_staging_used_bytes"),
        "limit_bytes": limit,
        "sent_bytes": counters.value("aisfs_sent_bytes_total"),
    }
    waiting = {
        "waiting_files": counters.value("aisfs_waiting_files"),
        "waiting_bytes": counters.value("aisfs_waiting_bytes"),
        "failed_uploads": counters.value("aisfs_failed_uploads"),
    }
    staging |= waiting if any(waiting.values()) else {}
    return {"writing": staging, "uploads": uploads} if uploads else {"writing": staging}


def fastpath_summary(counters: Counters) -> dict[str, object]:
    """Return which threads answered the kernel, and what became of pushed members."""
    return {
        "answers": counters.by("aisfs_operations_total", "operation", "answered_by"),
        "push": {
            "members": counters.value("aisfs_pushed_members_total"),
            "bytes": counters.value("aisfs_pushed_bytes_total"),
            "used": counters.value("aisfs_pushed_members_used_total"),
            "wasted": counters.value("aisfs_pushed_members_wasted_total"),
            "dropped_events": counters.value("aisfs_push_dropped_events_total"),
        },
    }
