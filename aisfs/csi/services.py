"""The services Identity and Node, and what serves them and `controller` on a unix socket."""

import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.wrappers_pb2 import BoolValue
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aisfs.csi import csi_pb2
from aisfs.csi.controller import Controller
from aisfs.csi.mounter import Mounter, Status
from aisfs.csi.permitted import Permitted
from aisfs.csi.targets import (
    ANSWER_SECONDS,
    PUBLISHES_AT_ONCE,
    UNPUBLISHES_AT_ONCE,
    State,
    Targets,
    facts_of,
)
from aisfs.csi.volumes import Code, VolumeError, code_of, parse_volume
from aisfs.errors import AisfsError, ConfigError
from aisfs.fuse import mountpoint
from aisfs.redaction import escaped
from aisfs.settings import ClusterSettings, MonitoringSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.transport import VERSION


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


log = logging.getLogger(__name__)

DRIVER = "csi.aisfs"
"""The name that manifests call the driver by."""
CALLS_AT_ONCE = PUBLISHES_AT_ONCE + UNPUBLISHES_AT_ONCE + 64
"""Threads, which are made when they are needed. No other call ever waits for volumes that are being published, or
unpublished."""
GRACE_SECONDS = 5
_Count = Callable[[str, str], None]
"""Counts a call and its code."""
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class Identity:
    """Tells what the driver is, and whether it can work."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        """Ask `ready` whether it can."""
        self._ready = ready

    def GetPluginInfo(self, request: csi_pb2.GetPluginInfoRequest) -> csi_pb2.GetPluginInfoResponse:
        """Return name and version."""
        return csi_pb2.GetPluginInfoResponse(name=DRIVER, vendor_version=VERSION)

    def GetPluginCapabilities(
        self, request: csi_pb2.GetPluginCapabilitiesRequest
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        """Return that there is a controller: also where it is not, as the specification says."""
        services = csi_pb2.PluginCapability.Service
        service = services(type=services.CONTROLLER_SERVICE)
        return csi_pb2.GetPluginCapabilitiesResponse(
            capabilities=[csi_pb2.PluginCapability(service=service)]
        )

    def Probe(self, request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
        """Return whether the process can work. A missing mounter is no reason to restart the driver."""
        return csi_pb2.ProbeResponse(ready=BoolValue(value=self._ready()))


class Node:
    """Mounts volumes on this node."""

    def __init__(self, targets: Targets, options: "Options") -> None:
        """Mount with `targets`."""
        self._targets = targets
        self._options = options

    def NodeGetInfo(self, request: csi_pb2.NodeGetInfoRequest) -> csi_pb2.NodeGetInfoResponse:
        """Return the name of the node, and how many volumes Kubernetes may place there."""
        return csi_pb2.NodeGetInfoResponse(
            node_id=self._options.node_id, max_volumes_per_node=self._options.max_volumes
        )

    def NodeGetCapabilities(
        self, request: csi_pb2.NodeGetCapabilitiesRequest
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        """Return which of the optional calls there are."""
        kinds = csi_pb2.NodeServiceCapability.RPC
        rpcs = (kinds.GET_VOLUME_STATS, kinds.VOLUME_CONDITION, kinds.SINGLE_NODE_MULTI_WRITER)
        found = [csi_pb2.NodeServiceCapability(rpc=kinds(type=rpc)) for rpc in rpcs]
        return csi_pb2.NodeGetCapabilitiesResponse(capabilities=found)

    def NodePublishVolume(
        self, request: csi_pb2.NodePublishVolumeRequest
    ) -> csi_pb2.NodePublishVolumeResponse:
        """Mount a volume on its target; nothing to do if it is."""
        target = _target(request.volume_id, request.target_path)
        wanted = request.volume_capability
        if not wanted.HasField("mount"):
            raise VolumeError(
                Code.INVALID_ARGUMENT, "a volume of aisfs is a file system, no block device"
            )
        modes = csi_pb2.VolumeCapability.AccessMode
        read_only = request.readonly or wanted.access_mode.mode in (
            modes.SINGLE_NODE_READER_ONLY,
            modes.MULTI_NODE_READER_ONLY,
        )
        volume = parse_volume(
            request.volume_context,
            wanted.mount.mount_flags,
            request.secrets,
            read_only=read_only,
            permitted=self._options.permitted,
        )
        alone = wanted.access_mode.mode == modes.SINGLE_NODE_SINGLE_WRITER
        self._targets.publish(target, volume, alone=alone)
        log.info("volume %s is on %s", request.volume_id, target)
        return csi_pb2.NodePublishVolumeResponse()

    def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        """Unmount a volume; nothing to do if it is not mounted."""
        target = _resolved(_target(request.volume_id, request.target_path))
        self._targets.unpublish(target)
        log.info("volume %s is no more on %s", request.volume_id, target)
        return csi_pb2.NodeUnpublishVolumeResponse()

    def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        """Return the size that `df` shows, and whether the daemon of the volume answers."""
        if request.volume_id and request.volume_path and not os.path.isabs(request.volume_path):
            raise VolumeError(Code.NOT_FOUND, f"{request.volume_path}: no volume is mounted there")
        target = _resolved(_target(request.volume_id, request.volume_path))
        state, facts = facts_of(target, ANSWER_SECONDS)
        if state in (State.FREE, State.FOREIGN):
            raise VolumeError(Code.NOT_FOUND, f"{target}: no volume is mounted there")
        why = self._targets.why_dead(target, state)
        served = state is State.SERVED
        message = f"{state.value}, again: {why}" if served and why else why or state.value
        usage = [csi_pb2.VolumeUsage(unit=csi_pb2.VolumeUsage.BYTES)]
        if facts is not None:
            usage = [
                csi_pb2.VolumeUsage(
                    unit=csi_pb2.VolumeUsage.BYTES,
                    total=facts.f_blocks * facts.f_frsize,
                    available=facts.f_bavail * facts.f_frsize,
                ),
                csi_pb2.VolumeUsage(
                    unit=csi_pb2.VolumeUsage.INODES, total=facts.f_files, available=facts.f_favail
                ),
            ]
        condition = csi_pb2.VolumeCondition(abnormal=not served, message=message)
        return csi_pb2.NodeGetVolumeStatsResponse(usage=usage, volume_condition=condition)


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator of a node says."""

    node_id: str
    """What Kubernetes calls the node."""
    max_volumes: int
    """Most volumes on it; 0 sets no limit."""
    permitted: Permitted
    monitoring: MonitoringSettings


def run(path: Path, mounter: Path, options: Options) -> NoReturn:
    """Serve calls for a node until SIGTERM; then end the process. Volumes stay mounted.

    Raises:
        VolumeError: `path` cannot be listened on.
        ConfigError: metrics cannot be served.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # inherited by the threads that follow
    targets = Targets(mounter, path.absolute().parent / "left")
    metrics = DriverMetrics(mounter, targets)
    metrics.serve(options.monitoring)
    ready = partial(os.access, "/dev/fuse", os.W_OK)
    services = {"Identity": Identity(ready), "Node": Node(targets, options)}
    _serve(path, services, metrics.count, f"serves node {options.node_id}")


def run_controller(path: Path) -> NoReturn:
    """Serve calls about volumes that are to be made or removed, until SIGTERM; then end the process.

    Raises:
        VolumeError: `path` cannot be listened on.
        ConfigError, AccessDenied: the environment names no cluster, or is unusable.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    AISClient(ClusterSettings.load({}))  # reads the token and the certificates, and sends nothing
    services = {"Identity": Identity(lambda: True), "Controller": Controller()}
    _serve(path, services, lambda call, code: None, "makes volumes")


def _serve(path: Path, services: Mapping[str, object], count: _Count, what: str) -> NoReturn:
    server = grpc.server(ThreadPoolExecutor(CALLS_AT_ONCE))
    for name, service in services.items():
        server.add_generic_rpc_handlers((_handlers(name, service, count),))
    path.unlink(missing_ok=True)
    try:
        server.add_insecure_port(f"unix://{path.absolute()}")
    except RuntimeError as error:
        raise VolumeError(Code.INTERNAL, f"--socket {path}: cannot listen there") from error
    server.start()
    log.info("driver %s %s on %s", DRIVER, what, path)
    signal.sigwait(_ENDING)
    server.stop(GRACE_SECONDS).wait()
    logging.shutdown()
    # Python would wait for the threads of volumes that are not ready. These go on without this process.
    os._exit(0)


_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


def _handlers(name: str, service: object, count: _Count) -> Any:  # noqa: ANN401 - grpc has no types
    """Return the handlers of all calls of a service: each is a method of the same name."""
    handlers = {
        method.name: grpc.unary_unary_rpc_method_handler(
            _answering(getattr(service, method.name), count),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in csi_pb2.DESCRIPTOR.services_by_name[name].methods
    }
    return grpc.method_handlers_generic_handler(f"csi.v1.{name}", handlers)


def _answering(method: Callable[[Any], Any], count: _Count) -> Callable[[Any, Any], Any]:
    """Return a handler that turns errors into codes. It logs no request: there are secrets in them."""
    call: str = method.__name__

    def answer(request: Any, context: Any) -> Any:  # noqa: ANN401
        try:
            answered = method(request)
            count(call, Code.OK.name)
            return answered
        except AisfsError as error:
            failed = (
                error if isinstance(error, VolumeError) else VolumeError(code_of(error), str(error))
            )
            count(call, failed.code.name)
            log.warning("%s: %s (%s)", call, failed, failed.code.name)
            context.abort(_STATUS[failed.code], escaped(str(failed)))

    return answer


def _target(volume: str, path: str) -> Path:
    target = Path(path)
    if not volume or not target.is_absolute() or not target.name or "\0" in path:
        raise VolumeError(Code.INVALID_ARGUMENT, "a call needs a volume id and an absolute path")
    if ".." in target.parts:
        raise VolumeError(Code.INVALID_ARGUMENT, f"{target}: a path with `..`")
    return target


def _resolved(target: Path) -> Path:
    """Return a target as the kernel calls it, if an older version of this driver has mounted there through a link."""
    return Path(os.path.realpath(target.parent), target.name)
