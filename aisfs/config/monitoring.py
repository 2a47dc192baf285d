"""How a mount is watched."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from aisfs.config.values import Settings

LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(\[[^\[\]]+\]|[^:\[\]\s/]*):)?(\d{1,5})")


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) else value  # a port, in a file


def _address(value: str) -> str:
    found = _ADDRESS.fullmatch(value.strip())
    if found is None or int(found[2]) > 65535:
        raise ValueError("an address is HOST:PORT, or PORT to listen on this machine only")
    return f"{found[1] or LOOPBACK}:{int(found[2])}"


class MonitoringSettings(Settings):
    """How a mount is watched."""

    metrics_addr: Annotated[str, BeforeValidator(_text), AfterValidator(_address)] | None = None
    """Where the counters are served over HTTP, without a host on the loopback interface only. Off,
    since they name buckets, and a port must be chosen for each mount; 0 takes a free one."""

    @property
    def listen_on(self) -> tuple[str, int] | None:
        """The host and the port to listen on; None for none."""
        if self.metrics_addr is None:
            return None
        host, _, port = self.metrics_addr.rpartition(":")
        return host.strip("[]"), int(port)
