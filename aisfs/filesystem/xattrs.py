"""Extended attributes: what aisfs knows about a file and `stat` has no room for."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

from aisfs.core.names.inodes import ROOT, split_member
from aisfs.core.names.listing import Form
from aisfs.core.views.tree import MembersView
from aisfs.engine.shards import CacheCoverage
from aisfs.errors import AisfsError, NoSuchAttribute, NotPermitted
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.nodes import ObjectNode, ShardNode
from aisfs.filesystem.plans import Plans
from aisfs.metrics import Metrics
from aisfs.model import FAILURE, ByteRange
from aisfs.redaction import shown
from aisfs.system.logs import RecentWarnings

PREFIX = b"user.ais"
"""How the names of all begin."""
VERSION = b"user.ais.version"
CHECKSUM = b"user.ais.checksum"
SHARD = b"user.aisfs.shard"
OFFSET = b"user.aisfs.offset"
ERROR = b"user.aisfs.error"
"""Why an object could not be transformed."""
WARNINGS = b"user.aisfs.warnings"
SKIPPED = b"user.aisfs.skipped"
STATS = b"user.aisfs.stats"
RECENT = b"user.aisfs.recent"
"""The last warnings, as JSON for `aisfs status`. Not listed: it changes by itself."""
ABOUT = b"user.aisfs.about"
"""The process of the mount and its rates, as JSON for `aisfs status`. Not listed."""
HEALTH = b"user.aisfs.health"
"""What is wrong with the cluster, which is asked for it; empty if nothing is. Not listed."""
UPGRADE = b"user.aisfs.upgrade"
"""Of the root: asked for, it has the installed program go on with the mount. Not listed."""
REFRESH = b"user.aisfs.refresh"
"""Asked for, it has everything below looked up anew, and says as JSON what came of it. Not listed."""
FLUSH = b"user.aisfs.flush"
"""Of the root: asked for, it has everything uploaded that waits, and says as JSON what came of it. Not listed."""
PLAN = b"user.aisfs.plan"
"""Of anything in the mount: the plans; with words behind it, see `Plans.control`. Not listed."""
KEPT = b"user.aisfs.kept"
"""Not listed: a copy of all attributes must not wait for the disk."""


class Xattrs:
    """Reads the extended attributes of an inode."""

    def __init__(
        self,
        filesystem: FileSystem,
        metrics: Metrics,
        coverage: CacheCoverage,
        warnings: RecentWarnings,
        *,
        reports: Mapping[bytes, Callable[[], Awaitable[bytes]]],
        plans: Plans | None = None,
        flush: Callable[[], Awaitable[int]] | None = None,
        listed: bool = False,
    ) -> None:
        """Serve what the collaborators know, and `reports` on the mount as attributes of its root.

        `flush` uploads what waits, and returns how many files. The names are listed only if `listed`.
        """
        self._plans = plans
        self._flush_all = flush
        self._reports = {STATS: self._stats, RECENT: self._recent, **reports}
        self._listed = listed
        self._filesystem = filesystem
        self._metrics = metrics
        self._coverage = coverage
        self._warnings = warnings

    async def get(self, ino: int, name: bytes, user: int, pid: int = 0) -> bytes:
        """Return one attribute to a user, and a process.

        Raises:
            NotPermitted: only root and the user who mounted may ask for it.
            NoSuchAttribute: the inode has none of this name.
        """
        if not name.startswith(PREFIX):  # `ls -l` asks for security labels: no scan for that
            raise NoSuchAttribute(f"no attribute {os.fsdecode(name)!r}")
        asked, *words = name.removeprefix(b"user.aisfs.").decode(errors="replace").split(".", 2)
        plans = asked == "plan" and name.startswith(PLAN)
        if (plans or name in (REFRESH, FLUSH, UPGRADE)) and user not in (0, os.geteuid()):
            raise NotPermitted(f"only root and the user who mounted may {asked}")
        if plans and self._plans is not None:
            return await self._plans.control(words, pid)
        if ino == ROOT and name in self._reports:
            return await self._reports[name]()
        if name == REFRESH or (name == FLUSH and ino == ROOT):
            return await (self._refresh(ino) if name == REFRESH else self._flush())
        if name == KEPT:
            return b"%d" % await self._kept(ino)
        if name == SHARD:  # known without opening the shard
            node = self._filesystem.inodes.node(ino)
            if isinstance(node, ShardNode):
                return node.info.key.encode(errors="surrogateescape")
        value = (await self._all(ino)).get(name)
        if value is None:
            raise NoSuchAttribute(f"no attribute {os.fsdecode(name)!r}")
        return value

    async def _stats(self) -> bytes:
        return self._metrics.text()

    async def _recent(self) -> bytes:
        found = [asdict(each) for each in self._warnings.all()]
        return json.dumps(found, ensure_ascii=False).encode()

    async def _refresh(self, ino: int) -> bytes:
        try:
            told: dict[str, object] = {"names": await self._filesystem.refresh(ino)}
        except AisfsError as error:  # an errno would not say which shards cannot be found
            told = {"failed": str(error)}
        return json.dumps(told, ensure_ascii=False).encode()

    async def _flush(self) -> bytes:
        try:
            files = await self._flush_all() if self._flush_all is not None else 0
            told: dict[str, object] = {"files": files}
        except AisfsError as error:  # an errno would not say which files are not uploaded
            told = {"failed": str(error)}
        return json.dumps(told, ensure_ascii=False).encode()

    async def names(self, ino: int) -> list[bytes]:
        """Name the attributes an inode has, as far as they are listed."""
        if not self._listed:
            return []
        found = list(await self._all(ino))
        return [*found, STATS] if ino == ROOT else found

    async def _kept(self, ino: int) -> int:
        """Count what is on disk: bytes of an object or member, the index of a folder."""
        node = self._filesystem.inodes.node(ino)
        if isinstance(node, ObjectNode):
            whole = ByteRange(0, node.info.size)
            return await self._coverage.cached(node.bucket, node.info, whole)
        if isinstance(node, ShardNode):
            _, is_directory, low = split_member(ino) or (0, True, 0)
            if is_directory and low == 0:
                with self._filesystem.noticing_change(node):
                    return await self._coverage.save_index(node.bucket, node.info)
            index = (await self._filesystem.view(node)).index
            if not is_directory and index.form is Form.TAR and index.plain(low):
                place = index.data_range(low)
                return await self._coverage.cached(node.bucket, node.info, place)
        raise NoSuchAttribute(f"it is not known how much of inode {ino} is kept")

    async def _all(self, ino: int) -> Mapping[bytes, bytes]:
        node = self._filesystem.inodes.node(ino)
        match node:
            case ObjectNode(_, info):
                error = info.custom.get(FAILURE, "")
                found = {VERSION: info.version, CHECKSUM: info.checksum, ERROR: error}
                return {name: shown(said).encode() for name, said in found.items() if said}
            case ShardNode():
                return await self._in_shard(node, ino)
        return _skipped(await self._filesystem.tree.report(node))

    async def _in_shard(self, node: ShardNode, ino: int) -> Mapping[bytes, bytes]:
        shard = node.info.key.encode(errors="surrogateescape")
        _, is_directory, low = split_member(ino) or (0, True, 0)
        view = await self._filesystem.view(node)
        if not is_directory:
            if view.index.form is not Form.TAR:  # it is no plain range of the object
                return {SHARD: shard}
            offset = view.index.data_range(low).start
            return {SHARD: shard, OFFSET: str(offset).encode()}
        return {SHARD: shard, **(_report(view) if low == 0 else {})}


def _report(view: MembersView) -> Mapping[bytes, bytes]:
    """Return what is wrong with a shard; empty when nothing is."""
    report = dict(_skipped(view.skipped))
    if view.index.warnings:
        report[WARNINGS] = "\n".join(view.index.warnings).encode(errors="surrogateescape")
    return report


def _skipped(counts: Mapping[str, int]) -> Mapping[bytes, bytes]:
    """Spell counts as one `reason: count` a line."""
    if not counts:
        return {}
    return {SKIPPED: "\n".join(f"{reason}: {n}" for reason, n in sorted(counts.items())).encode()}
