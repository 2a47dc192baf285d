"""The stores that the contract suites run against, and a way to write behind their backs."""

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import fsspec
import requests

from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.by_fsspec import open_fsspec
from aisfs.stores.cloud import CloudStore
from aisfs.stores.hub import open_hub
from aisfs.stores.local import LocalStore
from aisfs.stores.memory import MemoryStore
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import WritableStore, pages_of
from aisfs.stores.web import WebStore
from tests.support.clouds import Cloud
from tests.support.hub import Hub
from tests.support.web_servers import Clock, WebServer

CLUSTER = os.environ.get("AIS_ENDPOINT", "")
ODD_NAMES = [
    " a b ",
    "100%",
    "%41",
    "a+b",
    "a?b=c",
    "a#b",
    "ü",
    "日本",
    "a\nb",
    "'\"&<>\\|;$`*[]{}",
    "x" * 255,
    "...",
    "-",
]


class Subject:
    """A store with one bucket, and the way to write to it behind the store's back."""

    store: WritableStore
    bucket: Bucket
    name_may_be_file_and_directory = False
    lists_buckets = True
    keeps_custom = True
    odd_names: Sequence[str] = ODD_NAMES
    takes_odd_components = False
    """Whether keys may have components that are empty, `.` or `..`."""
    names_are_bytes = True
    follows_changes = True
    knows_own_tries = False
    """Whether an upload with a condition replaces what one before it wrote, whose answer may have been lost."""
    knows_directories = False

    def put(self, key: str, data: bytes) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError

    def destroy_bucket(self, bucket: Bucket) -> None:
        raise NotImplementedError

    def nowhere(self) -> Bucket:
        """A bucket that does not exist."""
        return Bucket("there-is-no-such-bucket")

    async def read(self, info: ObjectInfo, start: int, stop: int) -> bytes:
        buffer = bytearray(stop - start)
        await self.store.read_range(self.bucket, info, start, memoryview(buffer))
        return bytes(buffer)

    async def stream(self, info: ObjectInfo) -> bytes:
        pieces: list[bytes] = []
        await self.store.stream(self.bucket, info, lambda piece: pieces.append(bytes(piece)))
        return b"".join(pieces)

    pages = 0
    """Listed so far."""

    def page_size(self, size: int) -> None:
        """Have pages of so many entries, if the store has any pages."""

    async def occupied(self, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        """List a directory without the emptied ones in it, which a cluster goes on listing."""
        objects, directories = await self.list(prefix)
        first = [(await self.store.first_keys(self.bucket, each, 1)).found for each in directories]
        return objects, [each for each, keys in zip(directories, first, strict=True) if keys]

    async def list(self, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        objects: dict[str, ObjectInfo] = {}
        directories: dict[str, None] = {}
        async for page in pages_of(self.store, self.bucket, prefix):
            self.pages += 1
            objects |= {info.key: info for info in page.objects}
            directories |= dict.fromkeys(page.directories)
        return list(objects.values()), list(directories)


class MemorySubject(Subject):
    name_may_be_file_and_directory = True

    def __init__(self, *, retrying: bool) -> None:
        self.memory = MemoryStore(page_size=3, batches=True)
        self.bucket = Bucket("b")
        self.memory.add_bucket(self.bucket)
        self.store = CallPipeline(self.memory, deadline=60) if retrying else self.memory

    def page_size(self, size: int) -> None:
        self.memory.page_size = size

    def put(self, key: str, data: bytes) -> None:
        self.memory.put(self.bucket, key, data)

    def delete(self, key: str) -> None:
        self.memory.delete(self.bucket, key)

    def destroy_bucket(self, bucket: Bucket) -> None:
        self.memory.delete_bucket(bucket)


class LocalSubject(Subject):
    def __init__(self, root: Path) -> None:
        self.root = os.fsencode(root)
        local = LocalStore(root)
        self.store, self.bucket = local, local.bucket

    def put(self, key: str, data: bytes) -> None:
        path = os.path.join(self.root, os.fsencode(key))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # As a careful writer does: the new version is a new file.
        fresh = os.path.join(self.root, b"fresh")
        with open(fresh, "wb") as file:
            file.write(data)
        os.rename(fresh, path)

    def delete(self, key: str) -> None:
        os.unlink(os.path.join(self.root, os.fsencode(key)))


class WebSubject(LocalSubject):
    """A web server over a directory."""

    knows_directories = True

    def __init__(self, server: WebServer, **options: Any) -> None:
        scheme, _, host = server.url.partition("://")
        self.bucket = Bucket(host, Provider(scheme))
        self.root = os.fsencode(server.root)
        for left in server.root.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        self.store = WebStore(ClusterSettings(**options), buckets=[self.bucket])
        self._clock = Clock()

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self._clock.stamp(os.path.join(self.root, os.fsencode(key)))


class NginxSubject(WebSubject):
    odd_names = tuple(name for name in ODD_NAMES if not name.startswith("."))
    """Its index leaves out what begins with a dot."""


class PythonSubject(WebSubject):
    names_are_bytes = False
    """Its index encodes what is not UTF-8 in a way of its own."""


class HubSubject(Subject):
    """A repository of the hub: one commit, whatever comes after it."""

    names_are_bytes = False
    follows_changes = False

    def __init__(self, hub: Hub, **options: Any) -> None:
        self._hub = hub
        hub.files.clear()
        self.bucket = Bucket("datasets/own/pets", Provider.HF)
        self.store = open_hub(ClusterSettings(**options), [self.bucket])

    def put(self, key: str, data: bytes) -> None:
        self._hub.files[key] = data

    def delete(self, key: str) -> None:
        del self._hub.files[key]


class FsspecSubject(Subject):
    """What fsspec keeps in memory."""

    names_are_bytes = False

    def __init__(self) -> None:
        self._files = fsspec.filesystem("memory")
        self._files.store.clear()
        self._files.pseudo_dirs[:] = [""]
        self.bucket = Bucket("memory://pets", Provider.FSSPEC)
        self.store = open_fsspec(self.bucket, 16)

    def put(self, key: str, data: bytes) -> None:
        if self._files.isdir(f"/pets/{key}"):  # it would take both
            raise IsADirectoryError(key)
        self._files.pipe_file(f"/pets/{key}", data)

    def delete(self, key: str) -> None:
        self._files.rm_file(f"/pets/{key}")


class CloudSubject(Subject):
    """A cloud without AIStore; the environment leads to it."""

    name_may_be_file_and_directory = knows_own_tries = True
    lists_buckets = keeps_custom = names_are_bytes = False
    odd_names = tuple(name for name in ODD_NAMES if "\n" not in name)
    """obstore takes no control characters."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.takes_odd_components = cloud.scheme == "s3"
        if cloud.scheme == "az":  # which takes a backslash for a slash
            self.odd_names = tuple(name for name in self.odd_names if "\\" not in name)
        self._name = cloud.make_bucket()
        self.bucket = Bucket(self._name, Provider.parse(f"{cloud.scheme}+direct"))
        self.store = CloudStore(ClusterSettings(max_connections=16, part_size=5 << 20))

    def nowhere(self) -> Bucket:
        account, slash, _ = self.bucket.name.rpartition("/")
        return Bucket(f"{account}{slash}there-is-no-such-bucket", self.bucket.provider)

    def put(self, key: str, data: bytes) -> None:
        self.cloud.put(self._name, key, data)

    def delete(self, key: str) -> None:
        self.cloud.delete(self._name, key)


class ClusterSubject(Subject):
    knows_own_tries = True

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.bucket = Bucket(f"contract-{uuid.uuid4().hex[:12]}")
        self.buckets = f"{endpoint}/v1/buckets/{self.bucket.name}?provider=ais"
        settings = ClusterSettings(
            endpoint=endpoint, skip_verify_crt=False, max_connections=16, part_size=5 << 20
        )
        self.store = self.client = AISClient(settings)

    def page_size(self, size: int) -> None:
        self.client.page_size = size

    def create(self) -> None:
        action = {"action": "create-bck", "name": "", "value": None}
        requests.post(self.buckets, json=action, timeout=30).raise_for_status()

    def destroy(self) -> None:
        self.destroy_bucket(self.bucket)

    def destroy_bucket(self, bucket: Bucket) -> None:
        url = f"{self._endpoint}/v1/buckets/{bucket.name}?provider=ais"
        action = {"action": "destroy-bck", "name": "", "value": None}
        requests.delete(url, json=action, timeout=30).raise_for_status()

    def put(self, key: str, data: bytes) -> None:
        self._send("PUT", key, data)

    def delete(self, key: str) -> None:
        self._send("DELETE", key)

    def _send(self, method: str, key: str, data: bytes = b"") -> None:
        send(method, self._endpoint, self.bucket.name, key, data).raise_for_status()


def send(method: str, endpoint: str, bucket: str, key: str, data: bytes = b"") -> requests.Response:
    """Send a request for an object, and give the target's reply.

    It goes where the redirect says, with our own path: AIStore spoils names with line breaks.
    """
    url = f"{endpoint}/v1/objects/{bucket}/{quote(os.fsencode(key))}?provider=ais"
    redirect = requests.request(method, url, timeout=30, allow_redirects=False)
    goal, path = urlsplit(redirect.headers["Location"]), urlsplit(url).path
    url = f"{goal.scheme}://{goal.netloc}{path}?{goal.query}"
    return requests.request(method, url, data=data, timeout=60)
