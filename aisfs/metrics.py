"""The counters of one mount; `getfattr -n user.aisfs.stats MNT` shows them in Prometheus' text form.

Every metric is declared here with its unit and meaning, so that names stay the same everywhere.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """What a mount counts, in a registry of its own."""

    def __init__(self) -> None:
        """Start at zero."""
        self._registry = CollectorRegistry()
        self.operations = Counter(
            "aisfs_operations",
            "Requests of the kernel that reached the daemon, by operation and by who answered: the"
            " lane's thread, a task of its own (trio), or pyfuse3.",
            ["operation", "answered_by"],
            registry=self._registry,
        )
        self.failures = Counter(
            "aisfs_failed_operations",
            "Requests of the kernel that failed, by operation and errno; names and attributes that are"
            " missing only as far as they did not stay in the lane.",
            ["operation", "errno"],
            registry=self._registry,
        )
        self.store_seconds = Histogram(
            "aisfs_store_request_seconds",
            "Seconds a call of the store took, retries included, by call.",
            ["call"],
            registry=self._registry,
        )
        self.bytes_fetched = Counter(
            "aisfs_fetched_bytes",
            "Bytes of objects that came from the store.",
            registry=self._registry,
        )
        self.bytes_sent = Counter(
            "aisfs_sent_bytes",
            "Bytes of objects and members that went to the store.",
            registry=self._registry,
        )
        self.names_refused = Counter(
            "aisfs_refused_names",
            "Keys of listings that cannot be shown as names, by reason.",
            ["reason"],
            registry=self._registry,
        )

        self.dataset_shards = Gauge(
            "aisfs_dataset_shards",
            "Shards of the dataset: shown, or why not.",
            ["state"],
            registry=self._registry,
        )

        self.left_out = Gauge(
            "aisfs_dataset_left_out",
            "Samples, members and objects of the dataset that are not shown, by reason.",
            ["reason"],
            registry=self._registry,
        )

        self.mount = Gauge(
            "aisfs_mount",
            "1; the labels say what is mounted, from where, and where its cache is.",
            ["source", "endpoint", "cache_dir"],
            registry=self._registry,
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

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(name, documentation, registry=self._registry)

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(name, documentation, registry=self._registry)

    def text(self) -> bytes:
        """Give all counters in Prometheus' text form."""
        for update in self.before_text:
            update()
        return generate_latest(self._registry)
