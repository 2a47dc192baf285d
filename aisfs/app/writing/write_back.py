"""What a mount with `--write-back` does at its start and at its end with files that wait for their upload."""

import logging
from contextlib import ExitStack
from pathlib import Path

import trio

from aisfs.app.plan import MountPlan, origin_of
from aisfs.app.services import CLOCK, Services
from aisfs.app.writing.recover import upload_acknowledged
from aisfs.engine.writing.unsent import UnsentFile, sole_uploader, unsent_files
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import AisfsError, Unavailable
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.nodes import DirectoryNode
from aisfs.filesystem.trees import Tree
from aisfs.filesystem.writing.setattr import WriteLayer, write_layer

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
"""How often it is tried whether another process is done: fast enough for a start."""
_OTHERS_SECONDS = 600.0
"""How long others may take: 20,000 files over a slow link. A mount without files that were closed would
show less than was acknowledged."""


async def build_write_layer(
    plan: MountPlan, services: Services, filesystem: FileSystem, tree: Tree
) -> WriteLayer | None:
    """Build what changes a mount; None if it is only read.

    First, files are uploaded that a mount of the same source acknowledged before it was killed.
    """
    if services.staging is None:
        return None
    await _upload_left(plan, services)
    writer = Writer(
        services.store,
        services.staging,
        services.nursery,
        endpoint=origin_of(plan),
        ignore_zeros=plan.tree.ignore_zeros,
        indexer=services.indexer,
        index_bucket=services.index_bucket,
    )
    layer = write_layer(filesystem, tree, services.lister, writer, plan.writing, CLOCK)
    if layer.write_back is not None:
        services.nursery.start_soon(layer.write_back.run)
        services.metrics.before_text.append(lambda: _show(layer, services))
    return layer


async def _upload_left(plan: MountPlan, services: Services) -> None:
    """Upload what is left of the source that is mounted."""
    origin, root = origin_of(plan), services.root

    def belongs(one: UnsentFile) -> bool:
        bucket = root.bucket if isinstance(root, DirectoryNode) else None
        within = bucket is None or one.record.bucket == bucket
        return one.acknowledged and one.record.endpoint == origin and within

    async def find() -> list[UnsentFile]:
        found = await trio.to_thread.run_sync(unsent_files, directory)
        return [one for one in found if belongs(one)]

    directory = plan.writing.staging_dir
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
