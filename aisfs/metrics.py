"""The counters of one mount; `getfattr -n user.aisfs.stats MNT` shows them in Prometheus' text form.

Every metric is declared here with its unit and meaning, so that names stay the same everywhere.
"""

import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_BOUNDS = (
    25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5,
    1.0, 5.0, 10.0, 60.0,
)  # fmt: skip
"""Seconds: from an answer out of memory to a request that `--io-timeout` ends."""


class Totals(NamedTuple):
    """What a mount has done so far, in four numbers."""

    served_bytes: int
    fetched_bytes: int
    sent_bytes: int
    operations: int


def _total(counter: Counter) -> int:
    (family,) = counter.collect()
    return int(sum(s.value for s in family.samples if s.name.endswith("_total")))


class OperationTimes:
    """How long requests of the kernel took, by operation. For one thread.

    A histogram of prometheus-client takes two locks and many times as long.
    """

    __slots__ = ("_rows", "name_of")

    def __init__(self) -> None:
        """Start without any."""
        self.name_of: Callable[[Any], str] = str
        """Returns the name of an operation as it is observed."""
        self._rows: defaultdict[Hashable, list[float]] = defaultdict(
            lambda: [0.0] * (len(_BOUNDS) + 2)
        )
        """Of each operation the requests in each bucket, and all seconds."""

    def observe(self, operation: Hashable, seconds: float) -> None:
        """Count a request. Costs a third of a microsecond."""
        row = self._rows[operation]
        row[bisect_left(_BOUNDS, seconds)] += 1
        row[-1] += seconds

    def rows(self) -> list[tuple[str, list[float]]]:
        """Return what was counted, by name of the operation. For any thread."""
        return [(self.name_of(key), row.copy()) for key, row in self._rows.copy().items()]


class _OperationSeconds(Collector):
    """Shows `OperationTimes` as one histogram."""

    def __init__(self, times: Mapping[str, OperationTimes]) -> None:
        self._times = times

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(
            "aisfs_operation_seconds",
            "Seconds from when the daemon had a request of the kernel until it was answered, by"
            " operation and by what answered, as in aisfs_operations_total; without requests that"
            " were interrupted.",
            labels=["operation", "answered_by"],
        )
        for answered_by, times in self._times.items():
            for operation, (*counts, seconds) in times.rows():
                buckets, total = list[tuple[str, float]](), 0.0
                for bound, count in zip((*_BOUNDS, "+Inf"), counts, strict=True):
                    total += count
                    buckets.append((str(bound), total))
                family.add_metric([operation, answered_by], buckets, seconds)
        yield family


class Metrics:
    """The counters of a mount, in a registry of its own."""

    def __init__(self) -> None:  # noqa: PLR0915 - a statement for each
        """Start at zero. One long table, so that a counter is found by reading it through."""
        self._registry = CollectorRegistry()
        self.lane_times, self.trio_times, self.pyfuse_times = (OperationTimes() for _ in range(3))
        """Requests that the fast path, a task, or pyfuse3 answered."""
        self.receiver_times = OperationTimes()
        """READs that were answered as their bytes came; one of several at once may be lost to the count."""
        self.journal_times = OperationTimes()
        """Closes that the journal's thread answered; one that needed no disk may be lost to the count."""
        self.registry = self._complete()
        """All counters, those included that have no room in an extended attribute."""
        self.build = Info(
            "aisfs_build",
            "1; the labels are the version of aisfs and that of Python.",
            registry=self._registry,
        )
        self.operations = self._counter(
            "aisfs_operations",
            "Requests of the kernel that reached the daemon, by operation and by what answered: the"
            " thread of the fast path (lane), the one that received the bytes (receiver), a task of its"
            " own (trio), the journal of --write-back, or pyfuse3.",
            ["operation", "answered_by"],
        )
        self.failures = self._counter(
            "aisfs_failed_operations",
            "Requests of the kernel that failed, by operation and errno; without the missing names and"
            " attributes that the fast path answered.",
            ["operation", "errno"],
        )
        self.store_seconds = Histogram(
            "aisfs_store_request_seconds",
            "Seconds a call of the store took, retries included, by call.",
            ["call"],
            registry=self._registry,
        )
        self.store_failures = self._counter(
            "aisfs_store_failed_requests",
            "Calls of the store that failed after all retries, by call and error; NotFound and Stale"
            " are ordinary answers.",
            ["call", "error"],
        )
        self.store_requests = self._counter(
            "aisfs_store_requests",
            "Requests sent to a store that is reached without AIStore, by class: list, head, get, put,"
            " copy, delete. Clouds charge for them; a part of an upload is a put, too.",
            ["class"],
        )
        self.store_retries = self._counter(
            "aisfs_store_retries",
            "Attempts of calls of the store beyond the first of each.",
        )
        self.read_bytes = self._counter(
            "aisfs_read_bytes",
            "Bytes of files that were read or pushed, by where they were: in the disk cache (disk), in"
            " memory, or still to be fetched or decompressed (network). What the kernel keeps is"
            " never asked for.",
            ["source"],
        )
        self._read: defaultdict[str, int] = defaultdict(int)
        self.bytes_fetched = self._counter(
            "aisfs_fetched_bytes",
            "Bytes of objects that came from the store.",
        )
        self.bytes_sent = self._counter(
            "aisfs_sent_bytes",
            "Bytes of objects and members that went to the store.",
        )
        self.upload_sent = self._gauge(
            "aisfs_upload_sent_bytes",
            "Bytes sent of each object over 1 MiB that is being uploaded.",
            ["object"],
        )
        self.upload_size = self._gauge(
            "aisfs_upload_size_bytes",
            "Bytes of each such object; not of one that is still being written.",
            ["object"],
        )
        self.staging_used = self._gauge(
            "aisfs_staging_used_bytes",
            "Bytes of files being written, and of those that were never uploaded.",
        )
        self.staging_limit = self._gauge(
            "aisfs_staging_limit_bytes",
            "Bytes that the staging directory may have.",
        )
        self.waiting_files = self._gauge(
            "aisfs_waiting_files",
            "Files that were closed and wait for their upload; with --write-back only.",
        )
        self.waiting_bytes = self._gauge("aisfs_waiting_bytes", "Their bytes.")
        self.failed_uploads = self._gauge(
            "aisfs_failed_uploads",
            "Files that were closed and could not be uploaded: they wait on, or `aisfs recover` lists them.",
        )
        self.transformations = self._counter(
            "aisfs_transformations",
            "Objects that were transformed, by --etl or --transform.",
        )
        self.running_transformations = self._gauge(
            "aisfs_running_transformations",
            "Objects that are being transformed, and those that wait for that.",
            ["state"],
        )
        self.failed_transformations = self._counter(
            "aisfs_failed_transformations",
            "Objects that could not be transformed; what was tried again and succeeded is not counted.",
        )
        self.names_refused = self._counter(
            "aisfs_refused_names",
            "Keys of listings that cannot be shown as names, by reason.",
            ["reason"],
        )
        self.dataset_shards = self._gauge(
            "aisfs_dataset_shards",
            "Shards of the dataset: shown, or why not.",
            ["state"],
        )
        self.exclusions = self._gauge(
            "aisfs_dataset_left_out",
            "Samples, members and objects of the dataset that are not shown, by reason.",
            ["reason"],
        )
        self.shards_to_open = self._gauge(
            "aisfs_dataset_shards_to_open",
            "Shards that are opened before the dataset is shown, in a view that needs all of them.",
        )
        self.shards_opened = self._gauge("aisfs_dataset_shards_opened", "Those that are open.")
        self.opened_files = self._gauge(
            "aisfs_dataset_opened_files", "Files, or samples to shuffle, that they have."
        )
        self.mount = self._gauge(
            "aisfs_mount",
            "1; the labels say what is mounted, from where, and where its cache is.",
            ["source", "endpoint", "cache_dir"],
        )
        self.listening = self._gauge(
            "aisfs_metrics_listening",
            "1 if counters are served over HTTP; the label says where.",
            ["url"],
        )
        self.restarts = self._counter(
            "aisfs_restarts",
            "How often the keeper had to start another daemon for this mount, since the one before had died;"
            " upgrades are not counted.",
        )
        self.inodes = self._gauge(
            "aisfs_inodes",
            "Inodes the kernel knows and has not forgotten; all members of a shard are one.",
        )
        self.cache_limit = self._gauge(
            "aisfs_cache_limit_bytes", "Bytes the disk cache may take; 0 without one."
        )
        self.cache_used = self._gauge("aisfs_cache_used_bytes", "Bytes of contents it holds.")
        self.cache_hits = self._gauge(
            "aisfs_cache_hits", "Ranges found in the disk cache since the start."
        )
        self.cache_misses = self._gauge("aisfs_cache_misses", "Ranges looked for in vain.")
        self.cache_evictions = self._gauge(
            "aisfs_cache_evictions", "Segments removed from it since the start to make room."
        )
        self.cache_rejected = self._gauge(
            "aisfs_cache_rejected", "Ranges that it did not accept since the start."
        )
        self.pushed_members = self._counter(
            "aisfs_pushed_members", "Members of shards stored into the kernel's page cache early."
        )
        self.pushed_bytes = self._counter("aisfs_pushed_bytes", "Their bytes.")
        self.push_used = self._counter(
            "aisfs_pushed_members_used",
            "Pushed members that a reader in order went past without asking for them.",
        )
        self.push_wasted = self._counter(
            "aisfs_pushed_members_wasted",
            "Pushed members that were asked for all the same, or whose reader did not come.",
        )
        self.push_dropped = self._counter(
            "aisfs_push_dropped_events", "Reads and listings that pushing had no time to look at."
        )
        self.before_text: list[Callable[[], None]] = []
        """Called before the counters are shown, to bring them up to date."""

    def _complete(self) -> CollectorRegistry:
        """Return a registry of everything."""
        complete = CollectorRegistry()
        complete.register(self._registry)
        times = {
            "lane": self.lane_times,
            "receiver": self.receiver_times,
            "trio": self.trio_times,
            "journal": self.journal_times,
            "pyfuse3": self.pyfuse_times,
        }
        complete.register(_OperationSeconds(times))
        ProcessCollector(registry=complete)
        return complete

    def _gauge(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, documentation, labels, registry=self._registry)

    def _counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, documentation, labels, registry=self._registry)

    def show_version(self, version: str) -> None:
        """Set the labels of `build`."""
        self.build.info({"version": version, "python": platform.python_version()})

    def show_read(self, source: str, size: int) -> None:
        """Set `read_bytes` of a source, which never falls."""
        counter = self.read_bytes.labels(source)
        counter.inc(max(0, size - self._read[source]))
        self._read[source] = max(size, self._read[source])

    def fetched(self) -> int:
        """Return how many bytes came from the store."""
        return _total(self.bytes_fetched)

    def totals(self) -> Totals:
        """Return what has been done so far. In the trio thread."""
        self.update()
        return Totals(
            served_bytes=_total(self.read_bytes),
            fetched_bytes=_total(self.bytes_fetched),
            sent_bytes=_total(self.bytes_sent),
            operations=_total(self.operations),
        )

    def update(self) -> None:
        """Bring all counters up to date. In the trio thread."""
        for update in self.before_text:
            update()

    def text(self) -> bytes:
        """Return the counters that fit into an extended attribute, in Prometheus' text form."""
        self.update()
        return generate_latest(self._registry)
