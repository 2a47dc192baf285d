"""`aisfs csi driver`, `aisfs csi mounter` and `aisfs csi controller`."""

from pathlib import Path

import click

from aisfs.commands.guide import Documented
from aisfs.commands.options import LOGS, Exit, own_option, setting, settings, start_logging
from aisfs.csi.permitted import IO_TIMEOUT_MOST, SCHEMES, Permitted
from aisfs.system.daemon import loading


@click.group()
def csi() -> None:
    """Mount volumes of Kubernetes."""


@csi.command(cls=Documented)
@own_option("--node-id NAME", "The node's name in Kubernetes.", "must be given", required=True)
@own_option(
    "--socket PATH",
    "Socket on which kubelet calls.",
    default=Path("/csi/csi.sock"),
    type=click.Path(path_type=Path),
)
@own_option(
    "--mounter PATH",
    "Socket on which `aisfs csi mounter` listens.",
    default=Path("/mounter/mounter.sock"),
    type=click.Path(path_type=Path),
)
@own_option(
    "--allow-scheme",
    "Let volumes show this, too, besides what AIStore serves; repeatable.",
    multiple=True,
    type=click.Choice(SCHEMES),
)
@own_option(
    "--allow-host HOST[:PORT]",
    "Let volumes name this web server, or this endpoint of another AIStore; repeatable.",
    "without a port, that of the scheme",
    multiple=True,
)
@own_option(
    "--max-io-timeout S",
    "Most seconds that a volume may set as its `io-timeout`.",
    default=IO_TIMEOUT_MOST,
    type=click.FloatRange(min=0, min_open=True),
)
@own_option(
    "--max-volumes N",
    "Most volumes that Kubernetes may place on this node; 0: no limit.",
    "all of them share the mounter's memory",
    default=0,
    type=click.IntRange(min=0),
)
@own_option(
    "--token-audience AUDIENCE",
    "Give AIStore the pod's token for this audience, if the volume has no token of its own.",
    "see [KUBERNETES](KUBERNETES.md#the-identity-of-the-pod)",
)
@own_option(
    "--metrics-addr HOST:PORT",
    "Serve the driver's counters for Prometheus there.",
    "see [KUBERNETES](KUBERNETES.md#watching)",
)
@setting("log_level", why="the log goes to stderr")
@settings(*LOGS[1:])
def driver(
    node_id: str,
    socket: Path,
    mounter: Path,
    allow_scheme: tuple[str, ...],
    allow_host: tuple[str, ...],
    max_io_timeout: float,
    max_volumes: int,
    token_audience: str | None,
    metrics_addr: str | None,
    **log_settings: object,
) -> int:
    """Take the calls of kubelet on this node, as root.

    Each volume is mounted and handed to `aisfs csi mounter`. Volumes stay mounted when the driver ends.
    """
    from aisfs.settings import LogSettings, MonitoringSettings

    start_logging(LogSettings.load(log_settings), foreground=True)
    permitted = Permitted(allow_scheme, allow_host, max_io_timeout, token_audience or "")
    monitoring = MonitoringSettings.load({"metrics_addr": metrics_addr})
    with loading():
        from aisfs.csi.services import Options, run
    run(socket, mounter, Options(node_id, max_volumes, permitted, monitoring))


@csi.command(cls=Documented)
@click.argument("socket", type=click.Path(path_type=Path))
@setting("log_level", why="the log goes to stderr")
@settings(*LOGS[1:])
def mounter(socket: Path, **log_settings: object) -> int:
    """Serve the volumes that `aisfs csi driver` mounts, one process for each.

    It needs no rights. Its options are the variables of `aisfs mount`, such as AIS_ENDPOINT and
    AISFS_CACHE_SIZE; a volume can override some of them.
    """
    from aisfs.settings import LogSettings

    start_logging(LogSettings.load(log_settings), foreground=True)
    with loading():
        from aisfs.csi.mounter import run
    run(socket)
    return Exit.OK


@csi.command(cls=Documented)
@own_option(
    "--socket PATH",
    "Socket on which Kubernetes' external-provisioner calls.",
    default=Path("/csi/csi.sock"),
    type=click.Path(path_type=Path),
)
@setting("log_level", why="the log goes to stderr")
@settings(*LOGS[1:])
def controller(socket: Path, **log_settings: object) -> int:
    """Make volumes for claims, and remove them: buckets of AIStore, or directories in one.

    It mounts nothing and needs no rights. Cluster and token are those of AIS_ENDPOINT and the like.
    """
    from aisfs.settings import LogSettings

    start_logging(LogSettings.load(log_settings), foreground=True)
    with loading():
        from aisfs.csi.services import run_controller
    run_controller(socket)
