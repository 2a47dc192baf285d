"""Uploads what earlier daemons wrote and did not upload: for `aisfs recover`, and at the start and end of a mount."""

import logging
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import trio

from aisfs.core.names.sources import BucketSource, DirectorySource, Everything, Source
from aisfs.engine.writing.appender import END_MARK, Appender, NewMember
from aisfs.engine.writing.on_disk import StagedRecord, StagingErrors, version_text
from aisfs.engine.writing.staging import StagingArea
from aisfs.engine.writing.unsent import (
    LostPart,
    UnsentFile,
    adopt_dead_sessions,
    lost_parts,
    sole_uploader,
    unsent_files,
)
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import (
    AisfsError,
    BucketNotFound,
    ConfigError,
    DeadlineExceeded,
    NotFound,
    Stale,
    Unavailable,
)
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.nodes import DirectoryNode
from aisfs.filesystem.trees import Tree
from aisfs.filesystem.writing.commit import is_content
from aisfs.filesystem.writing.setattr import WriteLayer, write_layer
from aisfs.model import Bucket, ObjectInfo
from aisfs.mount.services import CLOCK, Services
from aisfs.mount.setup import MountSetup, origin_of
from aisfs.mount.source import connect
from aisfs.settings import ClusterSettings, WriteSettings
from aisfs.stores.pipeline import CallPipeline, all_of
from aisfs.stores.port import BytesContent, Content, Upload, WritableStore
from aisfs.stores.posix_metadata import with_posix_metadata
from aisfs.stores.registry import origin_of_store

__all__ = [
    "LostPart",
    "UnsentFile",
    "drop",
    "find_unsent",
    "upload",
    "upload_acknowledged",
    "upload_waiting",
]

_AT_ONCE = 16
"""Files uploaded at once: as many as a mount does."""
_ABANDON_SECONDS = 10.0
"""How long a cluster may take to discard parts that were uploaded; recovery goes on without it."""


def find_unsent(directory: Path, names: Sequence[str]) -> tuple[list[UnsentFile], list[LostPart]]:
    """List what was never uploaded, the oldest first: all of it, or by id or name of the object.

    Returns:
        What can be uploaded, and what is damaged.

    Raises:
        ConfigError: there is nothing of one of the names.
    """
    with StagingErrors(directory):
        adopt_dead_sessions(directory)
    found, lost = unsent_files(directory), lost_parts(directory)
    everything: list[UnsentFile | LostPart] = [*found, *lost]
    chosen: list[UnsentFile | LostPart] = []
    for name in names:
        meant = (name, os.path.realpath(name))  # a file of a directory may be named by any path
        of_name = [
            one
            for one in everything
            if one.id == name or (one.record is not None and one.record.name in meant)
        ]
        if not of_name:
            raise ConfigError(f"{name}: nothing of this name; `aisfs recover` lists what there is")
        chosen += of_name
    if names:
        found = [one for one in found if one in chosen]
        lost = [one for one in lost if one in chosen]
    return found, lost


def upload(one: UnsentFile, settings: WriteSettings, *, force: bool) -> str:
    """Upload a file and forget it; by force over an object that was changed since.

    Returns:
        A warning for the user, or nothing.

    Raises:
        Stale: the object is not what it was when it was opened to be changed.
        NotFound: the shard it was to be added to is gone.
    """
    warning = trio.run(_upload, one, force, settings)
    _forget(one)
    return warning


def upload_waiting(files: Sequence[UnsentFile]) -> list[tuple[UnsentFile, AisfsError | None]]:
    """Upload files whose close was acknowledged, many at once; return what came of each."""
    if not files:
        return []
    with sole_uploader(files[0].path.parent.parent) as alone:
        if not alone:
            busy = Unavailable("another process, perhaps a mount that starts, is uploading it")
            return [(one, busy) for one in files]
        # Another process may have ended a moment ago.
        left = {one.id for one in unsent_files(files[0].path.parent.parent)}
        return trio.run(_upload_waiting, [one for one in files if one.id in left])


async def _upload_waiting(
    files: Sequence[UnsentFile],
) -> list[tuple[UnsentFile, AisfsError | None]]:
    failures: dict[UnsentFile, AisfsError] = {}
    places: dict[tuple[str, Bucket], list[UnsentFile]] = {}
    for one in files:
        places.setdefault((one.record.endpoint, one.record.bucket), []).append(one)
    for there in places.values():
        try:
            async with _opened(there[0].record) as store:
                failures |= dict(await upload_acknowledged(store, there))
        except AisfsError as error:
            failures |= dict.fromkeys(there, error)
    return [(one, failures.get(one)) for one in files]


async def upload_acknowledged(
    store: WritableStore, files: Sequence[UnsentFile]
) -> list[tuple[UnsentFile, AisfsError]]:
    """Upload files whose close was acknowledged, and forget them; return those that stay, and why.

    An object that is not what it was then is not overwritten. After an error that may pass, the rest stays.
    Of the files of one name the one that was closed last is uploaded, among those made from the version that
    is there; the older ones go with it, or stay as it does.
    """
    failures: list[tuple[UnsentFile, AisfsError]] = []
    problems: list[AisfsError] = []

    async def upload_newest(same: list[UnsentFile]) -> None:
        while same:
            try:
                if problems:
                    raise problems[0]
                await _upload_acknowledged(store, same[0])
                for one in reversed(same):  # killed in between, the newest is uploaded again
                    await trio.to_thread.run_sync(_forget, one)
                return
            except Stale as error:  # an older one may be of the version that is there
                failures.append((same.pop(0), error))
            except AisfsError as error:
                failures.extend((one, error) for one in same)
                if isinstance(error, Unavailable | DeadlineExceeded):
                    problems.append(error)
                return

    await all_of((partial(upload_newest, same) for same in _by_name(files)), _AT_ONCE)
    return failures


def _by_name(files: Sequence[UnsentFile]) -> list[list[UnsentFile]]:
    """Return the files of each object, the newest first: several mounts may have ended with one of it."""
    found: dict[tuple[Bucket, str], list[UnsentFile]] = {}
    for one in files:
        found.setdefault((one.record.bucket, one.record.key), []).append(one)
    for (
        same
    ) in found.values():  # by when they were closed: the times of the files are what programs set
        same.sort(key=lambda one: one.written_ns, reverse=True)
    return list(found.values())


async def _upload_acknowledged(store: WritableStore, one: UnsentFile) -> None:
    try:
        with one.content() as content:
            await _upload_object(store, one, content)
    except OSError as error:
        raise Unavailable(f"{one.path}: {error.strerror}") from error


async def _upload_object(
    store: WritableStore, one: UnsentFile, content: Content, *, force: bool = False
) -> None:
    """Make a file the object's content; without `force` it replaces only what is there now, if it may at all."""
    record, now, only_new = one.record, None, ""
    if not force:
        now = await _check_unchanged(store, record, content)
        only_new = (record.only_new or uuid.uuid4().hex) if now is None else ""
    custom = with_posix_metadata({}, mtime_ns=one.mtime_ns, mode=record.mode)
    await store.upload(
        Upload(record.bucket, record.key, content, custom, only_new=only_new, replaces=now)
    )


def _forget(one: UnsentFile | LostPart) -> None:
    """Remove it for good.

    Raises:
        Unavailable: the disk refuses it; what was uploaded will be found in the store, as it is there.
    """
    try:
        one.drop()
    except OSError as error:
        raise Unavailable(f"{one.path}: {error.strerror}") from error


def drop(one: UnsentFile | LostPart) -> str:
    """Remove a file for good, with the parts of it that the cluster has; or forget what is damaged.

    Returns:
        A warning for the user, or nothing.
    """
    warning = ""
    if isinstance(one, UnsentFile) and one.record.upload:
        warning = trio.run(_drop_parts, one)
    _forget(one)
    return warning


async def _upload(one: UnsentFile, force: bool, settings: WriteSettings) -> str:
    record = one.record
    async with _opened(record) as store:
        with one.content() as content:
            if record.member:
                await _append(store, one, content, force, settings)
            else:
                await _upload_object(store, one, content, force=force)
        return await _abandon(store, record) if record.upload else ""


async def _append(
    store: WritableStore,
    one: UnsentFile,
    content: Content,
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
            await store.upload(Upload(record.bucket, record.key, BytesContent(END_MARK)))
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
    store: WritableStore, record: StagedRecord, content: Content
) -> ObjectInfo | None:
    """Return what is there, if anything: the version that a file was made from, or the very same bytes.

    Raises:
        Stale: it is something else.
    """
    now: ObjectInfo | None = None
    with suppress(NotFound):
        now = await store.head(record.bucket, record.key)
    if version_text(now) != record.base and not (
        now is not None and await is_content(now, content)
    ):
        raise Stale("the object was changed by somebody else since; --force uploads over it")
    return now


log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
"""How often it is tried whether another process is done: fast enough for a start."""
_OTHERS_SECONDS = 600.0
"""How long others may take: 20,000 files over a slow link. A mount without files that were closed would
show less than was acknowledged."""


async def build_write_layer(
    setup: MountSetup, services: Services, filesystem: FileSystem, tree: Tree
) -> WriteLayer | None:
    """Build what changes a mount; None if it is only read.

    First, files are uploaded that a mount of the same source acknowledged before it was killed.
    """
    if services.staging is None:
        return None
    await _upload_left(setup, services)
    writer = Writer(
        services.store,
        services.staging,
        services.nursery,
        endpoint=origin_of(setup),
        ignore_zeros=setup.tree.ignore_zeros,
        indexer=services.indexer,
        index_bucket=services.index_bucket,
    )
    layer = write_layer(filesystem, tree, services.lister, writer, setup.writing, CLOCK)
    if layer.write_back is not None:
        services.nursery.start_soon(layer.write_back.run)
        services.metrics.before_text.append(lambda: _show(layer, services))
    return layer


async def _upload_left(setup: MountSetup, services: Services) -> None:
    """Upload what is left of the source that is mounted."""
    origin, root = origin_of(setup), services.root

    def belongs(one: UnsentFile) -> bool:
        bucket = root.bucket if isinstance(root, DirectoryNode) else None
        within = bucket is None or one.record.bucket == bucket
        return one.acknowledged and one.record.endpoint == origin and within

    async def find() -> list[UnsentFile]:
        found = await trio.to_thread.run_sync(unsent_files, directory)
        return [one for one in found if belongs(one)]

    directory = setup.writing.staging_dir
    if not await find():
        return
    with await _alone(directory):
        left = await find()  # another process may have uploaded them
        if left:
            log.info("uploading %d files that were closed before their mount ended", len(left))
        failed = await upload_acknowledged(services.store, left)
        for one, error in failed:
            log.error("%s was not uploaded: %s; `aisfs recover` lists it", one.record.name, error)
    assert services.staging is not None, "only what can be written has files that wait"
    await trio.to_thread.run_sync(services.staging.count_unsent)


async def _alone(directory: Path) -> ExitStack:
    """Return what keeps others from uploading, once none does: it may be at the files of another source.

    Raises:
        Unavailable: another process has been at it for too long.
    """
    told = False
    with trio.move_on_after(_OTHERS_SECONDS):
        while True:
            with ExitStack() as stack:
                if stack.enter_context(sole_uploader(directory)):
                    return stack.pop_all()
            if not told:
                log.info(
                    "waiting until another process has uploaded what it found in %s", directory
                )
                told = True
            await trio.sleep(_LOOK_SECONDS)
    raise Unavailable(
        f"{directory}: another process has been uploading closed files for {_OTHERS_SECONDS:.0f} s"
    )


def _show(layer: WriteLayer, services: Services) -> None:
    assert layer.write_back is not None, "only shown where files may wait"
    metrics = services.metrics
    files, size = layer.write_back.waiting()
    metrics.waiting_files.set(files)
    metrics.waiting_bytes.set(size)
    metrics.failed_uploads.set(layer.write_back.failed())


async def upload_rest(layer: WriteLayer, scope: trio.CancelScope) -> None:
    """Upload what still waits when the mount has ended, unless `scope` is cancelled.

    Raises:
        AisfsError: something was not uploaded; it stays on the local disk.
    """
    write_back = layer.write_back
    if write_back is None:
        return
    problem: AisfsError | None = None
    with scope:
        try:
            await write_back.flush()
        except AisfsError as error:
            problem = error
        except Exception as error:  # what waits is reported all the same
            log.exception("an upload failed: this is a bug in aisfs, please report it")
            problem = Unavailable(str(error))
    waiting, _ = write_back.waiting()
    if waiting:
        raise type(problem or AisfsError())(
            f"{waiting} closed files were not uploaded yet{f': {problem}' if problem else ''}; the next mount "
            "of this source or `aisfs recover` uploads them"
        )
    if problem is not None:
        raise problem
