"""What the operator of a node lets volumes ask for."""

from dataclasses import dataclass

from aisfs.core.names.reach import GRANTABLE, Reach
from aisfs.core.names.urls import split_url
from aisfs.errors import ConfigError

SCHEMES = GRANTABLE
IO_TIMEOUT_MOST: float = 300
"""Seconds, unless the operator says otherwise: many times the default, and not for ever."""


@dataclass(frozen=True, slots=True)
class Permitted:
    """What the operator of a node lets volumes ask for."""

    schemes: tuple[str, ...] = ()
    """Besides those of AIStore."""
    hosts: tuple[str, ...] = ()
    """Web servers and endpoints, as `HOST` or `HOST:PORT`."""
    io_timeout: float = IO_TIMEOUT_MOST
    """Most seconds that a volume may set."""
    audience: str = ""
    """Of the pod's token that AIStore gets, if the volume has none of its own; empty for none."""

    def __post_init__(self) -> None:
        for host in self.hosts:
            bucket, key = split_url(f"http://{host}")
            if key or bucket.name != host.lower():
                raise ConfigError(f"--allow-host {host}: expected HOST or HOST:PORT")

    @property
    def reach(self) -> Reach:
        """Which places volumes may name."""
        return Reach.of_tenant(self.schemes, self.hosts)


NOTHING_MORE = Permitted()
