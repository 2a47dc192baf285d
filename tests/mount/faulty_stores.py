"""One bucket in each kind of store, behind a server that fails on demand.

| store | what answers | what fails in front of it |
|---|---|---|
| `ais` | the embedded server | itself |
| `s3` | moto | a proxy |
| `http` | nginx | a proxy |
| `whole` | Python's web server, which knows no ranges | a proxy |
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.mount.content import fill, put
from tests.support.clouds import Cloud, moto, s3_environment
from tests.support.mounts import Mount, aisfs, mounted
from tests.support.servers import RunningServer, running_server
from tests.support.web_servers import Clock, nginx, python_server

Rule = dict[str, Any]
STORES = ("ais", "s3", "http")
READ_TIMEOUT = "2"
"""Seconds; less than any --io-timeout of the tests, so that a silent request is repeated."""


@dataclass
class FaultyStore:
    """A bucket named `b`, or called otherwise, that can be read and perhaps written."""

    root: Path
    """What the server that fails is started on; of AIStore, with the objects."""
    stack: ExitStack
    objects: Mapping[str, bytes]
    server: RunningServer = field(init=False)
    listing: ClassVar[Rule]
    """What matches the requests that list a directory."""
    kind = ""
    forward = ""

    def __post_init__(self) -> None:
        self.fill()
        self.server = self._start(0)

    def fill(self) -> None:
        """Put the objects there."""
        raise NotImplementedError

    def put(self, key: str, data: bytes) -> None:
        """Write an object as another client, whatever fails."""
        raise NotImplementedError

    def stored(self, key: str) -> bytes | None:
        """Return what another client finds, whatever fails."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """What to type."""
        raise NotImplementedError

    @property
    def environment(self) -> dict[str, str]:
        """What leads there."""
        return {"AIS_ENDPOINT": self.server.endpoint}

    def bytes_of(self, key: str) -> Rule:
        """Return what matches the requests that bring bytes of an object."""
        return {"method": "GET", "path_contains": key}

    @contextmanager
    def failing(self, *rules: Rule) -> Iterator[None]:
        """Fail as the rules say, by default always, until the block ends; each must be met."""
        self.server.faults([{"times": -1, **rule} for rule in rules])
        try:
            yield
            assert all(self.server.struck()), "a fault was never met"
        finally:
            self.server.faults([])
            time.sleep(0.3)  # what has just failed is not asked again at once

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Kill the server, and start it again at the end of the block."""
        port = int(self.server.endpoint.rpartition(":")[2])
        self.server.kill()
        yield
        self.server = self._start(port)

    @contextmanager
    def mounted(
        self, mountpoint: Path, *options: str, expected_log: Sequence[str] = ("WARNING|ERROR",),
        **more: Any,
    ) -> Iterator[Mount]:  # fmt: skip
        """Mount the bucket."""
        env = {"AIS_READ_TIMEOUT": READ_TIMEOUT, **self.environment}
        with mounted(
            self.source, mountpoint, options=options, env=env, expected_log=expected_log, **more
        ) as mount:
            yield mount

    def command(self, *words: str | Path) -> Any:
        """Run aisfs with what leads to the store."""
        return aisfs(*words, env=self.environment)

    def _start(self, port: int) -> RunningServer:
        faulty = running_server(
            self.root, faulty=True, port=port, traps=False, forward=self.forward
        )
        return self.stack.enter_context(faulty)


class AisStore(FaultyStore):
    """AIStore."""

    kind = "ais"
    source = "ais://b"
    listing: ClassVar[Rule] = {"method": "GET", "path_contains": "/v1/buckets/b"}

    def fill(self) -> None:
        """See above."""
        fill(self.root / "b", self.objects)

    def put(self, key: str, data: bytes) -> None:
        """See above; through the server, which knows versions."""
        put(self.server.endpoint, "b", key, data)

    def stored(self, key: str) -> bytes | None:
        """See above."""
        path = self.root / "b" / key
        return path.read_bytes() if path.is_file() else None

    def bytes_of(self, key: str) -> Rule:
        """See above; the proxy only redirects."""
        return {**super().bytes_of(key), "marked": True}


class S3Store(FaultyStore):
    """S3 without AIStore."""

    kind = "s3"
    listing: ClassVar[Rule] = {"query_contains": "list-type"}
    cloud: Cloud

    def fill(self) -> None:
        """See above."""
        self.cloud = self.stack.enter_context(moto())
        self.forward = self.cloud.url
        self.bucket = self.cloud.make_bucket()
        for key, data in self.objects.items():
            self.put(key, data)

    def put(self, key: str, data: bytes) -> None:
        """See above."""
        self.cloud.put(self.bucket, key, data)

    def stored(self, key: str) -> bytes | None:
        """See above."""
        return self.cloud.get(self.bucket, key)

    @property
    def source(self) -> str:
        """See above."""
        return self.cloud.source(self.bucket)

    @property
    def environment(self) -> dict[str, str]:
        """See above."""
        return s3_environment(self.server.endpoint)


class WebStore(FaultyStore):
    """A web server."""

    kind = "http"
    serve = staticmethod(nginx)
    listing: ClassVar[Rule] = {"method": "GET", "path_contains": "/d/"}
    environment: ClassVar[dict[str, str]] = {}

    def fill(self) -> None:
        """See above."""
        self._clock = Clock()
        self.files = self.root / "site"
        for key, data in self.objects.items():
            self.put(key, data)
        self.forward = self.stack.enter_context(self.serve(self.files)).url

    def put(self, key: str, data: bytes) -> None:
        """See above."""
        path = self.files / key
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.root / "fresh"
        fresh.write_bytes(data)
        self._clock.stamp(fresh)
        fresh.rename(path)

    @property
    def source(self) -> str:
        """See above."""
        return f"{self.server.endpoint}/"


class WholeStore(WebStore):
    """A web server without ranges."""

    kind = "whole"
    serve = staticmethod(python_server)


KINDS: dict[str, type[FaultyStore]] = {
    "ais": AisStore,
    "s3": S3Store,
    "http": WebStore,
    "whole": WholeStore,
}


@contextmanager
def faulty_store(kind: str, root: Path, objects: Mapping[str, bytes]) -> Iterator[FaultyStore]:
    """Run a store with these objects until the block ends."""
    with ExitStack() as stack:
        root.mkdir()
        root.chmod(0o755)
        yield KINDS[kind](root, stack, objects)
