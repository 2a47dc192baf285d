"""`aisfs recover`: what was written and never uploaded, to be listed, uploaded or dropped."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path

import click
import trio

from aisfs.ais.client import AISClient
from aisfs.ais.protocol.checksums import checksum_of, is_known
from aisfs.cli.exits import Exit
from aisfs.config import ClusterSettings, WriteSettings
from aisfs.core.staged.posix_metadata import stamped
from aisfs.core.staged.record import StagedRecord, version_text
from aisfs.engine.write.appender import Appender
from aisfs.engine.write.shard_copy import END_MARK, NewMember
from aisfs.engine.write.staging import StagingArea
from aisfs.engine.write.unsent import UnsentFile, adopt_dead_sessions, parked
from aisfs.errors import AisfsError, BucketNotFound, ConfigError, NotFound, SourceMissing, Stale
from aisfs.model import ObjectInfo
from aisfs.process import logs
from aisfs.store.content import BytesContent, FileContent
from aisfs.store.local.store import LocalStore
from aisfs.store.port import WritableStore
from aisfs.store.retry import RetryingStore

_ABANDON_SECONDS = 10.0
"""How long a cluster may take to throw parts away; what is not wanted must not wait for it."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--upload", is_flag=True, help="Upload them and forget them.")
@click.option("--drop", is_flag=True, help="Remove them for good.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option(
    "--force", is_flag=True, help="Upload over an object that was changed by somebody else since."
)
@click.option("--staging-dir", type=click.Path(path_type=Path), metavar="DIR", help="As for mount.")
def recover(
    names: tuple[str, ...],
    upload: bool,
    drop: bool,
    everything: bool,
    force: bool,
    staging_dir: Path | None,
) -> int:
    """List what was written but never reached the store; upload or drop it.

    NAME is an id or an object as the list shows them. What a running mount is still writing is not
    shown.
    """
    if upload and drop:
        raise click.UsageError("--upload and --drop: one of them")
    logs.configure("error", None, foreground=True)
    settings = WriteSettings.load({"staging_dir": staging_dir})
    directory = settings.staging_dir
    if not directory.is_dir():
        return _nowhere(directory, names, given=staging_dir is not None)
    adopt_dead_sessions(directory)
    found = parked(directory)
    if not upload and not drop:
        _list(_chosen(found, names, everything=not names))
        return Exit.OK
    if not names and not everything:
        raise ConfigError(f"--{'upload' if upload else 'drop'}: say which, or --all")
    failed = 0
    for one in _chosen(found, names, everything=everything):
        try:
            if upload:
                trio.run(_upload, one, force, settings)
            elif one.record.upload:
                trio.run(_forget_parts, one)
            one.drop()
        except AisfsError as error:
            failed += 1
            click.echo(f"aisfs: {one.record.name}: {error}", err=True)
        else:
            click.echo(f"{one.record.name}: {'uploaded' if upload else 'dropped'}")
    return Exit.FAILURE if failed else Exit.OK


def _nowhere(directory: Path, names: Sequence[str], *, given: bool) -> int:
    """Say what a staging directory that is not there means: that nothing was lost, or a mistake."""
    if names:
        raise ConfigError(f"{names[0]}: nothing of this name; {directory} does not exist")
    if given:
        raise SourceMissing(f"--staging-dir {directory}: no such directory")
    return Exit.OK


def _chosen(
    found: Sequence[UnsentFile], names: Sequence[str], *, everything: bool
) -> list[UnsentFile]:
    if everything:
        return list(found)
    chosen = [one for one in found if one.id in names or one.record.name in names]
    for name in names:
        if not any(name in (one.id, one.record.name) for one in chosen):
            raise ConfigError(f"{name}: nothing of this name; `aisfs recover` lists what there is")
    return chosen


def _list(found: Sequence[UnsentFile]) -> None:
    """Print two lines for each, which no terminal's width changes: what it is, and why."""
    for one in found:
        when = datetime.fromtimestamp(one.mtime_ns / 1e9).astimezone().isoformat(" ", "seconds")
        click.echo(f"{one.id}  {one.size} bytes  {when}  {one.record.name}")
        click.echo(f"    {one.record.reason or 'the mount was killed before it was uploaded'}")


async def _upload(one: UnsentFile, force: bool, settings: WriteSettings) -> None:
    """Upload one.

    Raises:
        Stale: the object is not what it was when it was opened to be changed.
        NotFound: the shard is gone that it was to be added to.
    """
    record = one.record
    async with _opened(record.endpoint) as store:
        with one.path.open("rb") as file:
            content = FileContent(file.fileno(), one.size, str(one.path))
            if not force and not record.member:
                await _check_unchanged(store, record, content)
            if record.member:
                await _append(store, one, content, force, settings)
            else:
                custom = stamped({}, mtime_ns=one.mtime_ns, mode=record.mode)
                await store.upload(record.bucket, record.key, content, custom=custom)
        if record.upload:
            await _abandon(store, record)


async def _append(
    store: WritableStore,
    one: UnsentFile,
    content: FileContent,
    force: bool,
    settings: WriteSettings,
) -> None:
    """Add a member to its shard; by force also to one that is not there any more."""
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


async def _forget_parts(one: UnsentFile) -> None:
    """Remove from the cluster what was sent ahead of one that is not wanted."""
    try:
        async with _opened(one.record.endpoint) as store:
            await _abandon(store, one.record)
    except ConfigError as error:
        _parts_stay(one.record, str(error))


async def _abandon(store: WritableStore, record: StagedRecord) -> None:
    """Throw away what was sent of an upload; that it stays in the cluster must not keep the rest."""
    reason = "no answer"
    with trio.move_on_after(_ABANDON_SECONDS):
        try:
            await store.abandon_upload(record.bucket, record.key, record.upload)
            return
        except NotFound:
            return
        except AisfsError as error:
            reason = str(error)
    _parts_stay(record, reason)


def _parts_stay(record: StagedRecord, reason: str) -> None:
    click.echo(f"aisfs: parts of {record.name} stay in the cluster: {reason}", err=True)


@asynccontextmanager
async def _opened(endpoint: str) -> AsyncIterator[WritableStore]:
    """Have the cluster, or the directory, that a record names."""
    local = endpoint.startswith("/")
    settings = ClusterSettings.load({} if local else {"endpoint": endpoint})
    direct: WritableStore = LocalStore(Path(endpoint)) if local else AISClient(settings)
    store = RetryingStore(direct, deadline=settings.io_timeout)
    try:
        yield store
    finally:
        await store.aclose()


async def _check_unchanged(
    store: WritableStore, record: StagedRecord, content: FileContent
) -> None:
    """Let only what it was made from, or the very same bytes, be overwritten."""
    now: ObjectInfo | None = None
    with suppress(NotFound):
        now = await store.head(record.bucket, record.key)
    if version_text(now) != record.base and not (now is not None and await _is(now, content)):
        raise Stale("the object was changed by somebody else since; --force uploads over it")


async def _is(info: ObjectInfo, content: FileContent) -> bool:
    """Say whether an object has these bytes: the mount ended when the store had them already."""
    kind = info.checksum.partition(":")[0]
    if info.size != content.size or not is_known(kind):
        return False
    return await trio.to_thread.run_sync(checksum_of, content, kind) == info.checksum
