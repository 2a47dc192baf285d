"""The counters of one mount; `getfattr -n user.aisfs.stats MNT` shows them in Prometheus' text form.

Every metric is declared here with its unit and meaning, so that names stay the same everywhere.
"""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """The counters of a mount, in a registry of its own."""

    def __init__(self) -> None:
        """Start at zero. One long table, so that a counter is found by reading it through."""
        self._registry = CollectorRegistry()
        self.operations = self._counter(
            "aisfs_operations",
            "Requests of the kernel that reached the daemon, by operation and by what answered: the"
            " thread of the fast path (lane), a task of its own (trio), or pyfuse3.",
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
        self.mount = self._gauge(
            "aisfs_mount",
            "1; the labels say what is mounted, from where, and where its cache is.",
            ["source", "endpoint", "cache_dir"],
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

    def _gauge(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, documentation, labels, registry=self._registry)

    def _counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, documentation, labels, registry=self._registry)

    def text(self) -> bytes:
        """Return all counters in Prometheus' text form."""
        for update in self.before_text:
            update()
        return generate_latest(self._registry)
