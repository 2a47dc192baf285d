"""Jobs over many objects, which finish within the request that starts them."""

import os
import re
import tarfile
from collections.abc import Iterator
from typing import Any

from aisfs.server.api import archives
from aisfs.server.api.jobs.destination import make_like
from aisfs.server.api.jobs.registry import Registry
from aisfs.server.api.objects import Objects
from aisfs.server.failures import Failure, unsupported, uri_of
from aisfs.server.messages import Reply
from aisfs.server.names import check_key
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.keys import Directories, keys_below
from aisfs.server.storage.objects import Storage, check_bucket_name, find

BRACES = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})(?:\.\.0*([1-9]\d{0,17}))?\}")
MOST_NAMES = 1_000_000
"""Most names of one template: about 100 MB of names and some minutes of work."""


class ListJobs:
    """Delete, copy and archive by list, template or prefix."""

    def __init__(self, storage: Storage, objects: Objects, registry: Registry) -> None:
        self._storage = storage
        self._objects = objects
        self._registry = registry

    def delete(self, bucket: Bucket, value: dict[str, Any]) -> Reply:
        """Delete the selected objects; as in AIStore, an empty selector selects all."""
        missing = ""
        for key in list(self._selected(bucket, value)):
            try:
                if not self._storage.delete(bucket, key):
                    missing = f"{uri_of(bucket.name, key)} does not exist"
            except Failure as failure:
                missing = failure.message
        return self._registry.finished("delete-listrange", missing)

    def copy_bucket(self, bucket: Bucket, to: str, value: dict[str, Any]) -> Reply:
        """Copy a bucket, or the part of it below a prefix."""
        if to == bucket.name and value.get("dry_run") is not True:
            raise Failure(400, f'cannot copy-bck bucket "ais://{to}" onto itself')
        prefix = os.fsencode(str(value.get("prefix", "")))
        keys = keys_below(Directories(), bucket, prefix, continued=False)
        return self._copy("copy-bck", bucket, to, list(keys), value)

    def copy_list(self, bucket: Bucket, value: dict[str, Any]) -> Reply:
        """Copy the selected objects."""
        keys = list(self._selected(bucket, value))
        return self._copy("copy-listrange", bucket, check_bucket_name(_target(value)), keys, value)

    def _copy(
        self, kind: str, bucket: Bucket, to: str, keys: list[bytes], value: dict[str, Any]
    ) -> Reply:
        dry = value.get("dry_run", False)
        if not isinstance(dry, bool):
            raise Failure(400, f"{kind}: dry_run must be true or false")
        for option in ("synchronize", "non-recurs"):
            if value.get(option):
                raise unsupported(f"{kind} with {option}")
        if not dry and to not in self._storage.names():
            make_like(self._storage, bucket, to)
        front = os.fsencode(str(value.get("prepend", "")))
        error, count, size = "", 0, 0
        for key in keys:
            try:
                if dry:
                    size += find(bucket, key).size
                else:
                    target = self._storage.bucket(to)
                    size += self._storage.copy(bucket, key, target, front + key).size
                count += 1
            except Failure as failure:
                error = failure.message
        return self._registry.finished(kind, error, count, size)

    def archive(self, bucket: Bucket, value: dict[str, Any]) -> Reply:
        """Pack the selected objects into a tar or tgz."""
        name = str(value.get("archname", ""))
        key = os.fsencode(name)
        check_key(key)
        form = archives.format_of(str(value.get("mime", "")), key, None)
        if form is archives.Format.ZIP:
            raise unsupported("archiving into a zip")
        target = self._storage.bucket(_target(value) or bucket.name)
        error = ""
        with self._storage.work_file() as work:
            mode = "w:gz" if form is archives.Format.TGZ else "w"
            with tarfile.open(work, mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
                for member in list(self._selected(bucket, value)):
                    found = bucket.find(member)
                    if found is None:
                        error = f"{uri_of(bucket.name, member)} does not exist"
                        continue
                    info = tarfile.TarInfo(member.decode("utf-8", "surrogateescape"))
                    info.size, info.mode, info.mtime = found.size, 0o644, found.mtime_ns // 10**9
                    with os.fdopen(bucket.open(member), "rb") as file:
                        tar.addfile(info, file)
            self._objects.publish(target, key, work)
        return self._registry.finished("archive", error)

    @staticmethod
    def _selected(bucket: Bucket, value: dict[str, Any]) -> Iterator[bytes]:
        names, template = value.get("objnames") or [], str(value.get("template") or "")
        if not isinstance(names, list):
            raise Failure(400, "objnames must be a list of names")
        if names:
            yield from (os.fsencode(str(name)) for name in names)
        elif BRACES.search(template):
            if count_names(template) > MOST_NAMES:
                text = f"template {template[:100]!r} stands for more than {MOST_NAMES:,} names"
                raise Failure(400, text)
            yield from (os.fsencode(name) for name in expand(template))
        else:
            prefix = os.fsencode(template)
            yield from keys_below(Directories(), bucket, prefix, continued=False)


def count_names(template: str) -> int:
    """Return how many names a template stands for."""
    count = 1
    for first, last, step in BRACES.findall(template):
        count *= len(range(int(first), int(last) + 1, int(step or 1)))
    return count


def expand(template: str) -> Iterator[str]:
    """Yield the names of a template such as `shard-{000..009..3}.tar`."""
    found = BRACES.search(template)
    if found is None:
        yield template
        return
    width = len(found[1])
    for number in range(int(found[1]), int(found[2]) + 1, int(found[3] or 1)):
        head = f"{template[: found.start()]}{number:0{width}d}"
        yield from (head + tail for tail in expand(template[found.end() :]))


def _target(value: dict[str, Any]) -> str:
    to = value.get("tobck")
    return str(to.get("name", "")) if isinstance(to, dict) else ""
