"""The counters of the driver, with what the mounter says of its daemons. Those of a volume are its own."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aisfs.csi.mounter import Mounter, Status
from aisfs.csi.targets import Targets
from aisfs.csi.volumes import VolumeError
from aisfs.errors import ConfigError
from aisfs.fuse import mountpoint
from aisfs.settings import MonitoringSettings


class DriverMetrics(Collector):
    """Counts calls; asks for the rest when it is wanted."""

    def __init__(self, mounter: Path, targets: Targets) -> None:
        """Ask the process that listens on the socket `mounter`, and `targets`."""
        self._mounter = mounter
        self._targets = targets
        self._calls: Counter[tuple[str, str]] = Counter()

    def count(self, call: str, code: str) -> None:
        """Count a call and its code. For any thread; about right is good enough."""
        self._calls[call, code] += 1

    def serve(self, settings: MonitoringSettings) -> None:
        """Serve the counters where the settings say.

        Raises:
            ConfigError: nothing can listen there.
        """
        if settings.listen_on is None:
            return
        host, port = settings.listen_on
        registry = CollectorRegistry()
        registry.register(self)
        try:
            start_http_server(port, host, registry)
        except OSError as error:
            where = settings.metrics_addr
            raise ConfigError(f"--metrics-addr {where}: {error.strerror or error}") from error

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        calls = CounterMetricFamily(
            "aisfs_csi_calls", "Calls of kubelet, by how they ended.", labels=["call", "code"]
        )
        for words, count in self._calls.copy().items():
            calls.add_metric(words, count)
        yield calls
        kinds = dict(mountpoint.mounted_filesystems()).values()
        mounted = sum(kind == mountpoint.FILE_SYSTEM for kind in kinds)
        yield _gauge("aisfs_csi_volumes", "Targets with a mount, dead ones included.", mounted)
        yield CounterMetricFamily(
            "aisfs_csi_rescued",
            "Targets that files were found in without a mount; they are in left/ beside the socket.",
            value=self._targets.rescued,
        )
        try:
            with Mounter(self._mounter) as mounter:
                status = mounter.status()
        except VolumeError:
            yield _gauge("aisfs_csi_mounter_up", "Whether the mounter answers.", 0)
            return
        yield _gauge("aisfs_csi_mounter_up", "Whether the mounter answers.", 1)
        yield from _of_mounter(status)


def _of_mounter(status: Status) -> Iterable[Metric]:
    yield _gauge("aisfs_csi_daemons", "Processes that serve volumes.", status.daemons)
    deaths = CounterMetricFamily(
        "aisfs_csi_daemon_deaths",
        "Processes of volumes that were killed since the mounter began, by signal, or `out of memory`.",
        labels=["by"],
    )
    for by, count in status.deaths.items():
        deaths.add_metric([by], count)
    yield deaths
    for what, size in (("limit", status.memory_limit), ("available", status.memory_available)):
        if size is not None:
            text = f"Memory of the mounter and all volumes of the node, bytes: {what}."
            yield _gauge(f"aisfs_csi_mounter_memory_{what}_bytes", text, size)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
