"""A writable mount over a store whose objects are plain files, so that tests see what it holds."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aistore.sdk import Client

from tests.support.mounts import Mount, mounted
from tests.support.servers import RunningServer, running_server


@dataclass
class Writable:
    """A mount, and what is behind it."""

    mount: Mount
    path: Path
    objects: Path
    """The objects of the bucket as files."""
    staging: Path
    server: RunningServer | None

    def stored(self, key: str) -> bytes | None:
        """What the store holds, whatever the mount shows."""
        file = self.objects / key
        return file.read_bytes() if file.is_file() else None

    def put(self, key: str, content: bytes) -> None:
        """Write an object as another client."""
        if self.server is not None:
            self._object(key).get_writer().put_content(content)
            return
        file = self.objects / key
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}")
        temporary.write_bytes(content)
        temporary.replace(file)

    def delete(self, key: str) -> None:
        """Delete an object as another client; empty directories are nothing to a bucket."""
        if self.server is not None:
            self._object(key).delete()
            return
        file = self.objects / key
        file.unlink()
        for folder in file.parents:
            if folder == self.objects or any(folder.iterdir()):
                break
            folder.rmdir()

    def _object(self, key: str) -> Any:
        assert self.server is not None
        return Client(self.server.endpoint).bucket("b").object(key)

    def names(self) -> set[str]:
        return {
            str(file.relative_to(self.objects))
            for file in self.objects.rglob("*")
            if file.is_file() and not file.name.startswith(".")
        }

    def parked(self) -> list[Path]:
        return sorted((self.staging / "parked").glob("*.json"))


@contextmanager
def writable(
    base: Path,
    *,
    backend: str = "ais",
    options: Sequence[str] = (),
    expected_log: Sequence[str] = (),
    faulty: bool = False,
    deadline: float = 200.0,
    server: RunningServer | None = None,
    name: str = "mnt",
) -> Iterator[Writable]:
    """Mount the bucket `b` of a server, or a directory, below `base`; whatever is there stays."""
    base = base.resolve()
    place, objects, staging = base / name, base / "store" / "b", base / f"staging-{name}"
    for folder in (place, objects):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if backend == "ais" and server is None:
            server = stack.enter_context(running_server(base / "store", faulty=faulty))
        mount = stack.enter_context(
            mounted(
                "ais://b" if server is not None else str(objects),
                place,
                endpoint=server.endpoint if server is not None else None,
                options=["--writable", "--staging-dir", str(staging), *options],
                expected_log=expected_log,
                deadline=deadline,
            )
        )
        yield Writable(mount, place, objects, staging, server)
