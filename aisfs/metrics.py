"""The counters of one mount; `getfattr -n user.aisfs.stats MNT` shows them in Prometheus' text form.

Every metric is declared here with its unit and meaning, so that names stay the same everywhere.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest


class Metrics:
    """What a mount counts, in a registry of its own."""

    def __init__(self) -> None:
        """Start at zero."""
        self._registry = CollectorRegistry()
        self.operations = Counter(
            "aisfs_operations",
            "Requests of the kernel that reached the daemon, by operation.",
            ["operation"],
            registry=self._registry,
        )
        self.failures = Counter(
            "aisfs_failed_operations",
            "Requests of the kernel answered with an error, by operation and errno.",
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

    def text(self) -> bytes:
        """Give all counters in Prometheus' text form."""
        return generate_latest(self._registry)
