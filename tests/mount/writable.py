"""A writable mount over a store whose objects are plain files, so that tests see what it holds.

With AIS_ENDPOINT set the embedded server's place is taken by a fresh bucket of that cluster, whose
objects are brought into files when a test looks at them.
"""

import json
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from aisfs.engine.writing.unsent import unsent_files
from tests.contract.subjects import CLUSTER, send
from tests.support.mounts import Mount, aisfs, mounted
from tests.support.servers import RunningServer, running_server

MOVES_DATA = False
"""Whether data moves at the start of each test (`--moving-data`)."""
MOVES = {"cause": "maintenance", "share": 0.5, "moving": 4.0, "incomplete": 0.5}
MOVES_LOGGED = ("moving objects between", "complete again")


def fetched(endpoint: str, bucket: str, key: str) -> bytes | None:
    """What a cluster gives to another client."""
    reply = send("GET", endpoint, bucket, key)
    if reply.status_code == 404:
        return None
    reply.raise_for_status()
    return reply.content


@dataclass(frozen=True)
class ClusterBucket:
    """A bucket of the cluster of AIS_ENDPOINT."""

    endpoint: str
    name: str

    def fill(self, folder: Path) -> None:
        """Put all files below `folder` into it."""
        for file in folder.rglob("*"):
            if file.is_file():
                key = str(file.relative_to(folder))
                send("PUT", self.endpoint, self.name, key, file.read_bytes()).raise_for_status()

    def fetch(self, folder: Path, prefix: str) -> None:
        """Make the files below `folder` the objects it has below `prefix` now."""
        shutil.rmtree(folder)
        folder.mkdir()
        for found in self._bucket.list_all_objects(prefix=prefix):
            content = fetched(self.endpoint, self.name, found.name)
            if content is not None:
                file = folder / found.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)

    def uploads(self) -> list[str]:
        """The uploads in parts that the cluster knows."""
        listed = requests.get(f"{self.endpoint}/s3/{self.name}?uploads", timeout=30)
        listed.raise_for_status()
        return re.findall("<UploadId>(.*?)</UploadId>", listed.text)

    @property
    def _bucket(self) -> Any:
        from aistore.sdk import Client  # 0.3 s of each worker

        return Client(self.endpoint).bucket(self.name)


@contextmanager
def cluster_bucket() -> Iterator[ClusterBucket]:
    """Make a bucket, and remove it with all that is in it."""
    made = ClusterBucket(CLUSTER, f"aisfs-test-{uuid.uuid4().hex[:12]}")
    bucket = made._bucket
    bucket.create()
    try:
        yield made
    finally:
        bucket.delete()


@dataclass
class Writable:
    """A mount, and what is behind it."""

    mount: Mount
    path: Path
    files: Path
    """The objects of the bucket as files; of a cluster as they were when last looked at."""
    staging: Path
    server: RunningServer | ClusterBucket | None

    def objects(self, prefix: str = "") -> Path:
        """The objects below a prefix as files, as they are now."""
        if isinstance(self.server, ClusterBucket):
            self.server.fetch(self.files, prefix)
        return self.files / prefix

    @property
    def bucket(self) -> str:
        return self.server.name if isinstance(self.server, ClusterBucket) else "b"

    def stored(self, key: str) -> bytes | None:
        """What the store holds, whatever the mount shows."""
        if isinstance(self.server, ClusterBucket):
            return self.fetched(key)
        file = self.files / key
        return file.read_bytes() if file.is_file() else None

    def fetched(self, key: str) -> bytes | None:
        """What the cluster gives to another client."""
        assert self.server is not None
        return fetched(self.server.endpoint, self.bucket, key)

    def uploads(self) -> list[str]:
        """The uploads in parts that the cluster knows, of files that are not stored yet."""
        if isinstance(self.server, ClusterBucket):
            return self.server.uploads()
        return [folder.name for folder in self._parts()]

    def sent(self) -> int:
        """Bytes that the cluster has in such parts.

        Of a real one the mount has to tell: AIStore 5.0 lists the parts of an upload too, but where it
        meets a gap, since a later part was quicker, it never unlocks that upload again. The mount is
        asked by a process that has inherited no descriptor: closing a copy would upload the file.
        """
        if isinstance(self.server, ClusterBucket):
            shown = json.loads(aisfs("status", self.path, "--json").stdout)
            return sum(upload["sent_bytes"] for upload in shown.get("uploads", {}).values())
        return sum(_allocated(folder) for folder in self._parts())

    def _parts(self) -> list[Path]:
        return list((self.files.parent / ".aisfs-server" / "tmp").glob("parts-*"))

    def put(self, key: str, content: bytes) -> None:
        """Write an object as another client."""
        if self.server is not None:
            self._send("PUT", key, content)
            return
        file = self.files / key
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}")
        temporary.write_bytes(content)
        temporary.replace(file)

    def delete(self, key: str) -> None:
        """Delete an object as another client; empty directories are nothing to a bucket."""
        if self.server is not None:
            self._send("DELETE", key)
            return
        file = self.files / key
        file.unlink()
        for folder in file.parents:
            if folder == self.files or any(folder.iterdir()):
                break
            folder.rmdir()

    def _send(self, method: str, key: str, content: bytes = b"") -> None:
        assert self.server is not None
        send(method, self.server.endpoint, self.bucket, key, content).raise_for_status()

    def names(self) -> set[str]:
        objects = self.objects()
        return {
            str(file.relative_to(objects))
            for file in objects.rglob("*")
            if file.is_file() and not file.name.startswith(".")
        }

    def staged(self) -> list[Path]:
        """Give the files with staged bytes."""
        return [path for path in self.staging.rglob("*.data") if path.stat().st_size]

    def unsent(self) -> list[Path]:
        """Give the records of the staged files that `aisfs recover` lists."""
        return records_of_unsent(self.staging)


def records_of_unsent(staging: Path) -> list[Path]:
    """Give the records of staged files that were given up, in the order in which they were."""
    found = [one.path for one in unsent_files(staging) if not one.acknowledged]
    return sorted(
        (path.with_suffix(".json") for path in found), key=lambda path: path.stat().st_mtime_ns
    )


def _allocated(folder: Path) -> int:
    try:
        return sum(file.stat().st_blocks * 512 for file in folder.iterdir())
    except FileNotFoundError:
        return 0  # thrown away meanwhile


@contextmanager
def writable(
    base: Path,
    *,
    backend: str = "ais",
    options: Sequence[str] = (),
    expected_log: Sequence[str] = (),
    faulty: bool = False,
    keeper: bool = False,
    env: Mapping[str, str] | None = None,
    traps: bool = False,
    deadline: float = 200.0,
    server: RunningServer | ClusterBucket | None = None,
    name: str = "mnt",
) -> Iterator[Writable]:
    """Mount the bucket `b` of a server, or a directory, below `base`; whatever is there stays."""
    base = base.resolve()
    place, objects, staging = base / name, base / "store" / "b", base / f"staging-{name}"
    for folder in (place, objects):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if backend == "ais" and server is None and CLUSTER and not faulty:
            server = stack.enter_context(cluster_bucket())
            server.fill(objects)
        elif backend == "ais" and server is None:
            moves = MOVES_DATA and not faulty
            server = stack.enter_context(
                running_server(base / "store", faulty=faulty, traps=traps or moves)
            )
            if moves:
                server.move(**MOVES)
                expected_log = [*expected_log, *MOVES_LOGGED]
        bucket = server.name if isinstance(server, ClusterBucket) else "b"
        mount = stack.enter_context(
            mounted(
                f"ais://{bucket}" if server is not None else str(objects),
                place,
                endpoint=server.endpoint if server is not None else None,
                options=["--writable", "--staging-dir", str(staging), *options],
                expected_log=expected_log,
                keeper=keeper,
                env=env,
                deadline=deadline,
            )
        )
        yield Writable(mount, place, objects, staging, server)
