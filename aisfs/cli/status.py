"""`aisfs status MNT`: what a mount has done so far, from the counters its daemon keeps."""

import errno
import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import click
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from aisfs.errors import MountError
from aisfs.fuse.mounting.mountpoint import our_mount

ATTRIBUTE = "user.aisfs.stats"
_MIB = 1 << 20

Labels = frozenset[tuple[str, str]]


class Counters:
    """The samples of one reading."""

    def __init__(self, text: str) -> None:
        """Take Prometheus' text form apart."""
        self._samples: dict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples[sample.name][frozenset(sample.labels.items())] = sample.value

    def value(self, name: str) -> int:
        """Give a counter without labels; 0 when the daemon has none of that name."""
        return int(self._samples[name].get(frozenset(), 0))

    def labels(self, name: str) -> dict[str, str]:
        """Give the labels of a metric that is there once, for them."""
        return dict(sorted(next(iter(self._samples[name]), frozenset())))

    def by(self, name: str, *labels: str) -> dict[str, int]:
        """Add a counter up by the values of these labels, joined by blanks; zeros are left out."""
        found: Counter[str] = Counter()
        for given, value in self._samples[name].items():
            values = dict(given)
            found[" ".join(values.get(label, "") for label in labels)] += int(value)
        return {words: count for words, count in sorted(found.items()) if count}


def read_counters(mountpoint: Path) -> Counters:
    """Ask the daemon of a mount.

    Raises:
        MountError: there is no mount of aisfs, or nobody serves it any more.
    """
    place = our_mount(mountpoint)
    try:
        return Counters(os.getxattr(place, ATTRIBUTE).decode())
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            raise MountError(
                f"the daemon of {mountpoint} has died; clear the mount with: "
                f"aisfs umount {mountpoint}"
            ) from error
        raise MountError(f"{mountpoint}: {error.strerror}") from error


def summary(counters: Counters) -> dict[str, object]:
    """Give what `aisfs status` shows, as plain values."""
    dataset = {
        "dataset_shards": counters.by("aisfs_dataset_shards", "state"),
        "left_out": counters.by("aisfs_dataset_left_out", "reason"),
    }
    return {
        "mount": counters.labels("aisfs_mount") | {"inodes": counters.value("aisfs_inodes")},
        **(dataset if any(dataset.values()) else {}),
        "cache": {
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
    }


def _writing(counters: Counters) -> dict[str, object]:
    """Give what is being written and uploaded, where anything can be."""
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
    return {"writing": staging, "uploads": uploads} if uploads else {"writing": staging}


def lane_summary(counters: Counters) -> dict[str, object]:
    """Give who answered the kernel, and what became of pushed members."""
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


def table(found: dict[str, object]) -> Table:
    """Lay a summary out, a section after the other."""
    laid = Table(show_header=False, box=None)
    laid.add_column(style="bold", no_wrap=True)
    laid.add_column(overflow="fold")
    laid.add_column(justify="right", overflow="fold")
    for title, values in found.items():
        assert isinstance(values, dict), "a summary is made of sections"
        shown = title.replace("_", " ")
        for name, value in values.items():
            laid.add_row(shown, *_words(name, value))
            shown = ""
        if not values:
            laid.add_row(shown, "none", "")
    return laid


def _words(name: str, value: object) -> tuple[str, str]:
    if isinstance(value, dict):  # an upload
        sent, size = value["sent_bytes"], value["size_bytes"]
        of = "of a file still being written" if size is None else f"of {size / _MIB:,.1f} MiB"
        return name, f"{sent / _MIB:,.1f} MiB {of}"
    if name.endswith("bytes") and isinstance(value, int):
        return name.removesuffix("_bytes"), f"{value / _MIB:,.1f} MiB"
    return name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value) or "none"


@click.command()
@click.argument("mountpoint", metavar="MNT", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option(
    "--lane-stats",
    is_flag=True,
    help="Also tell who answered the kernel's requests, and what was pushed into its page cache.",
)
def status(mountpoint: Path, as_json: bool, lane_stats: bool) -> None:
    """Show what the mount at MNT has done so far."""
    counters = read_counters(mountpoint)
    found = summary(counters) | (lane_summary(counters) if lane_stats else {})
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        Console(markup=False, emoji=False, highlight=False).print(table(found))
