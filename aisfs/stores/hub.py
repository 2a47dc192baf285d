"""Repositories of Hugging Face as buckets, each at one commit.

Names, sizes and checksums come from the library of the hub, which also knows where the hub is
(HF_ENDPOINT) and who asks (HF_TOKEN, or the file of `hf auth login`). Bytes are read like those of any
web server; the token goes to the hub itself only, not to the storage that the hub redirects to.

A branch or tag stands for the commit that it names when it is first asked for. Only this module
imports huggingface_hub, which is an extra.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import trio
from msgspec import structs

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    InvalidName,
    NotFound,
    ProtocolError,
    Unavailable,
)
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import through_proxy
from aisfs.model import Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.settings import ClusterSettings
from aisfs.stores import web
from aisfs.stores.port import Arrived, Count, ReadOnlyStore, Sink, WritableStore, uncounted
from aisfs.stores.web import HostHeaders, WebClient

T = TypeVar("T")

_KINDS = {"datasets": "dataset", "spaces": "space"}
_NS = 1_000_000_000
_PAGE = 1000
"""Entries that a request for a listing brings."""


class _Repository(NamedTuple):
    """A repository at one commit."""

    name: str
    kind: str
    commit: str
    mtime_ns: int
    """When anything in the repository changed last."""


def open_hub(
    settings: ClusterSettings, buckets: Iterable[Bucket], count: Count = uncounted
) -> WritableStore:
    """Return the store of these repositories.

    Raises:
        ConfigError: a file that the settings name is unusable.
    """
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.hf_api

    return HubStore(huggingface_hub, settings, buckets, count)


class HubStore(ReadOnlyStore):
    """Files of repositories."""

    def __init__(
        self,
        hub: Any,  # noqa: ANN401 - the module of the extra
        settings: ClusterSettings,
        buckets: Iterable[Bucket],
        count: Count = uncounted,
    ) -> None:
        """Take the library; nothing is sent."""
        self._hub = hub
        self._endpoint: str = hub.constants.ENDPOINT
        token = None if settings.anonymous else hub.get_token()
        self._api = hub.HfApi(token=token or False)
        host = urlsplit(self._endpoint).netloc
        said = {host: {"Authorization": f"Bearer {token}"}} if token else {}
        self._client = WebClient(settings, HostHeaders(said), count)
        self._buckets = sorted(buckets)
        self._count = count
        self._limiter = trio.CapacityLimiter(settings.max_connections)
        self._asking = trio.Lock()
        self._repositories: dict[Bucket, _Repository] = {}

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """Return the repositories that are known to be of use."""
        return [bucket for bucket in self._buckets if provider in (None, bucket.provider)]

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """List the directory `prefix`, all of it on one page."""
        if prefix and not prefix.endswith("/"):
            raise InvalidName(f"{bucket}/{prefix}: a directory prefix ends in '/'")
        page = Page([], [], "")
        for entry, info in await self._tree(bucket, prefix, recursive=False):
            if info is None:
                page.directories.append(f"{entry}/")
            else:
                page.objects.append(info)
        return page

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """Return `most` keys at most of files below the directory `prefix`."""
        tree = await self._tree(bucket, prefix, recursive=True, most=most + 1)
        found = [path for path, info in tree if info is not None]
        return Keys(found[:most], len(found) <= most)

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe a file of the commit."""
        subject = f"{bucket}/{key}"
        if not key or key.endswith("/"):
            raise NotFound(f"{subject}: no name of a file")
        at = await self._repository(bucket)
        ask = partial(
            self._api.get_paths_info, at.name, [key], revision=at.commit, repo_type=at.kind
        )
        self._count("head", 1)
        for entry in await self._ask(subject, ask):
            if entry.path == key and (info := self._described(entry, at)) is not None:
                return info
        raise NotFound(f"{subject}: no such file in commit {at.commit}")

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        if not 0 <= start < start + len(buffer) <= expected.size:
            raise ValueError(f"{len(buffer)} bytes from {start} on of {expected.size}")
        subject, url = f"{bucket}/{expected.key}", await self._url(bucket, expected)
        # A file of a commit never changes, and the tags are those of the storage.
        same = structs.replace(expected, version="")

        def work(connections: ConnectionSet) -> None:
            web.read_range(self._client, connections, url, subject, same, start, buffer, arrived)

        await self._client.pool.run(subject, work)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole file, version `expected`, to `sink` as the bytes arrive."""
        subject, url = f"{bucket}/{expected.key}", await self._url(bucket, expected)
        same = structs.replace(expected, version="")

        def work(connections: ConnectionSet) -> None:
            web.stream(self._client, connections, url, subject, same, sink)

        await self._client.pool.run(subject, work)

    async def aclose(self) -> None:
        """Close all connections, make the calls in progress fail, and wait until they have."""
        await self._client.pool.aclose()

    # The library ---------------------------------------------------------------------------------

    async def _url(self, bucket: Bucket, expected: ObjectInfo) -> str:
        """Return where the bytes of a file are."""
        at = await self._repository(bucket)
        found: str = self._hub.hf_hub_url(
            at.name, expected.key, repo_type=at.kind, revision=at.commit, endpoint=self._endpoint
        )
        return found

    async def _tree(
        self, bucket: Bucket, prefix: str, *, recursive: bool, most: int | None = None
    ) -> list[tuple[str, ObjectInfo | None]]:
        """Return paths below a directory, with None for directories; the first `most` files."""
        subject = f"{bucket}/{prefix}"
        at = await self._repository(bucket)
        ask = partial(
            self._api.list_repo_tree,
            at.name,
            prefix.removesuffix("/") or None,
            recursive=recursive,
            revision=at.commit,
            repo_type=at.kind,
        )

        def listed() -> list[tuple[str, ObjectInfo | None]]:
            entries = ((entry.path, self._described(entry, at)) for entry in ask())
            if most is None:
                return list(entries)
            files = (entry for entry in entries if entry[1] is not None)
            return list(itertools.islice(files, most))

        self._count("list", 1)
        try:
            found = await self._ask(subject, listed)
        except BucketNotFound:
            raise
        except NotFound:
            return []
        self._count("list", max(0, len(found) - 1) // _PAGE)
        for path, _ in found:
            name = path[len(prefix) :]
            if not path.startswith(prefix) or not name or ("/" in name and not recursive):
                raise ProtocolError(f"{subject}: the hub lists what is not in the directory")
        return found

    def _described(self, entry: Any, at: _Repository) -> ObjectInfo | None:  # noqa: ANN401 - of the extra
        if not isinstance(entry, self._hub.hf_api.RepoFile):
            return None
        checksum = f"sha256:{entry.lfs.sha256}" if entry.lfs else ""
        return ObjectInfo(entry.path, entry.size, entry.blob_id, checksum, at.mtime_ns)

    async def _repository(self, bucket: Bucket) -> _Repository:
        """Return a repository with its commit, which is looked up once."""
        if (known := self._repositories.get(bucket)) is not None:
            return known
        if bucket.provider is not Provider.HF:
            raise BucketNotFound(f"{bucket}: no repository of Hugging Face")
        path, _, revision = bucket.name.partition("@")
        first, _, rest = path.partition("/")
        kind = _KINDS.get(first, "model")
        name = path if kind == "model" else rest
        ask = partial(self._api.repo_info, name, revision=revision or None, repo_type=kind)
        async with self._asking:
            if bucket not in self._repositories:
                self._count("head", 1)
                try:
                    found = await self._ask(str(bucket), ask)
                except NotFound as error:
                    raise BucketNotFound(str(error)) from error
                changed = int(found.last_modified.timestamp()) * _NS if found.last_modified else 0
                if not found.sha:
                    raise ProtocolError(f"{bucket}: the hub does not say at which commit it is")
                self._repositories[bucket] = _Repository(name, kind, found.sha, changed)
        return self._repositories[bucket]

    async def _ask(self, subject: str, ask: Callable[[], T]) -> T:
        """Have the library ask the hub. A call that is cancelled ends by itself, without effect."""

        def work() -> T:
            try:
                return ask()
            except Exception as error:
                raise self._error_of(subject, error) from error

        return await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)

    def _error_of(self, subject: str, error: Exception) -> AisfsError:
        errors = self._hub.errors
        status = getattr(getattr(error, "response", None), "status_code", 0)
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        if isinstance(error, errors.GatedRepoError):
            return AccessDenied(
                f"{subject}: a gated repository: accept its terms on its page, and set HF_TOKEN"
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            return BucketNotFound(f"{subject}: no such repository, or a private one: set HF_TOKEN")
        if isinstance(error, errors.RevisionNotFoundError):
            return BucketNotFound(f"{subject}: no such branch, tag or commit")
        if isinstance(error, errors.EntryNotFoundError):
            return NotFound(f"{subject}: no such file")
        if status in (401, 403):
            return AccessDenied(f"{subject}: the hub does not permit this: set HF_TOKEN ({said})")
        if status == 404:
            return NotFound(f"{subject}: {said}")
        if isinstance(error, ValueError | TypeError | KeyError) and not status:
            return ProtocolError(f"{subject}: the hub's answer makes no sense ({said})")
        if 400 <= status < 500 and status not in (408, 425, 429):
            return ProtocolError(f"{subject}: the hub refuses the request ({said})")
        through = through_proxy(self._endpoint)
        return Unavailable(f"{subject}: the hub does not answer{through} ({said})")
