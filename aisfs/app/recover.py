"""`aisfs recover`: list, upload or drop what was written and never uploaded."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from aisfs.app.source import connect
from aisfs.app.stores import origin_of_store
from aisfs.config import ClusterSettings, WriteSettings
from aisfs.core.checksums import is_known
from aisfs.core.namespace.sources import BucketSource, DirectorySource, Everything, Source
from aisfs.core.staged.posix_metadata import with_posix_metadata
from aisfs.core.staged.record import StagedRecord, version_text
from aisfs.engine.write.appender import Appender
from aisfs.engine.write.shard_copy import END_MARK, NewMember
from aisfs.engine.write.staging import StagingArea
from aisfs.engine.write.unsent import UnsentFile, adopt_dead_sessions, unsent_files
from aisfs.errors import AisfsError, BucketNotFound, ConfigError, NotFound, Stale
from aisfs.model import ObjectInfo
from aisfs.store.content import BytesContent, FileContent, checksum_of
from aisfs.store.pipeline import CallPipeline
from aisfs.store.port import WritableStore

__all__ = ["UnsentFile", "drop", "find_unsent", "upload"]

_ABANDON_SECONDS = 10.0
"""How long a cluster may take to discard parts that were uploaded; recovery goes on without it."""


def find_unsent(directory: Path, names: Sequence[str]) -> list[UnsentFile]:
    """List what was never uploaded, the oldest first: all of it, or by id or name of the object.

    Raises:
        ConfigError: there is nothing of one of the names.
    """
    adopt_dead_sessions(directory)
    found = unsent_files(directory)
    for name in names:
        if not any(name in (one.id, one.record.name) for one in found):
            raise ConfigError(f"{name}: nothing of this name; `aisfs recover` lists what there is")
    return [one for one in found if not names or one.id in names or one.record.name in names]


def upload(one: UnsentFile, settings: WriteSettings, *, force: bool) -> str:
    """Upload a file and forget it; by force over an object that was changed since.

    Returns:
        A warning for the user, or nothing.

    Raises:
        Stale: the object is not what it was when it was opened to be changed.
        NotFound: the shard it was to be added to is gone.
    """
    warning = trio.run(_upload, one, force, settings)
    one.drop()
    return warning


def drop(one: UnsentFile) -> str:
    """Remove a file for good, with the parts of it that the cluster has.

    Returns:
        A warning for the user, or nothing.
    """
    warning = trio.run(_drop_parts, one) if one.record.upload else ""
    one.drop()
    return warning


async def _upload(one: UnsentFile, force: bool, settings: WriteSettings) -> str:
    record = one.record
    async with _opened(record) as store:
        with one.path.open("rb") as file:
            content = FileContent(file.fileno(), one.size, str(one.path))
            if record.member:
                await _append(store, one, content, force, settings)
            else:
                if not force:
                    await _check_unchanged(store, record, content)
                custom = with_posix_metadata({}, mtime_ns=one.mtime_ns, mode=record.mode)
                await store.upload(record.bucket, record.key, content, custom=custom)
        return await _abandon(store, record) if record.upload else ""


async def _append(
    store: WritableStore,
    one: UnsentFile,
    content: FileContent,
    force: bool,
    settings: WriteSettings,
) -> None:
    """Add a member to its shard; by force also to a shard that no longer exists."""
    record = one.record
    if force:
        try:
            await store.head(record.bucket, record.key)
        except BucketNotFound:
            raise
        except NotFound:
            await store.upload(record.bucket, record.key, BytesContent(END_MARK))
    member = NewMember(record.member, content, record.mode, one.mtime_ns)
    staging = StagingArea(settings.staging_dir, settings.staging_limit())
    failed: AisfsError | None = None
    try:
        async with trio.open_nursery() as services:
            try:
                await Appender(store, staging, services).append(record.bucket, record.key, member)
            except AisfsError as error:  # a nursery would put it into a group
                failed = error
            services.cancel_scope.cancel()
    finally:
        staging.close()
    if failed is not None:
        raise failed


async def _drop_parts(one: UnsentFile) -> str:
    try:
        async with _opened(one.record) as store:
            return await _abandon(store, one.record)
    except ConfigError as error:
        return _parts_stay(one.record, str(error))


async def _abandon(store: WritableStore, record: StagedRecord) -> str:
    """Discard the parts that were uploaded early; a failure must not end the recovery."""
    with trio.move_on_after(_ABANDON_SECONDS):
        try:
            await store.abandon_upload(record.bucket, record.key, record.upload)
        except NotFound:
            pass
        except AisfsError as error:
            return _parts_stay(record, str(error))
        return ""
    return _parts_stay(record, "no answer")


def _parts_stay(record: StagedRecord, reason: str) -> str:
    return f"parts of {record.name} stay in the cluster: {reason}"


@asynccontextmanager
async def _opened(record: StagedRecord) -> AsyncIterator[WritableStore]:
    """Open the cluster, the directory or the store that a record names.

    Raises:
        ConfigError: the environment leads to another store than it did when the file was written.
    """
    endpoint, direct = record.endpoint, record.bucket.provider.is_direct
    local = endpoint.startswith("/")
    cluster = ClusterSettings.load({} if local or direct else {"endpoint": endpoint})
    source: Source = DirectorySource(Path(endpoint)) if local else Everything()
    if direct:
        source = BucketSource(record.bucket, "")
        if (here := origin_of_store(source, cluster)) != endpoint:
            raise ConfigError(f"{record.name}: is for {endpoint}; the environment leads to {here}")
    store = CallPipeline(connect(source, cluster).store, deadline=cluster.io_timeout)
    try:
        yield store
    finally:
        await store.aclose()


async def _check_unchanged(
    store: WritableStore, record: StagedRecord, content: FileContent
) -> None:
    """Refuse to overwrite anything but the version it was made from, or the very same bytes."""
    now: ObjectInfo | None = None
    with suppress(NotFound):
        now = await store.head(record.bucket, record.key)
    if version_text(now) != record.base and not (now is not None and await _is(now, content)):
        raise Stale("the object was changed by somebody else since; --force uploads over it")


async def _is(info: ObjectInfo, content: FileContent) -> bool:
    """Return whether an object has these bytes: the store may have had them when the mount ended."""
    kind = info.checksum.partition(":")[0]
    if info.size != content.size or not is_known(kind):
        return False
    return await trio.to_thread.run_sync(checksum_of, content, kind) == info.checksum
