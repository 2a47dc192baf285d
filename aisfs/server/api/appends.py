"""AIStore's two kinds of append: bytes to an object by handle, members to an archive."""

import os
import re
import shutil
import uuid
from dataclasses import replace
from pathlib import Path

from aisfs.server import failures
from aisfs.server.api import archives
from aisfs.server.api.objects import Objects
from aisfs.server.api.properties import checksum_type
from aisfs.server.damage import Damage
from aisfs.server.failures import Failure, uri_of
from aisfs.server.messages import Reply, Request, ShortBody
from aisfs.server.storage.bucket import Bucket, Found
from aisfs.server.storage.checksums import hash_file
from aisfs.server.storage.objects import Storage, write_out
from aisfs.server.storage.records import Record

APPEND, APPEND_OR_CREATE = "1", "2"
"""Values of `Ais-Pine`; without the header the shard is replaced."""
MEMBER_LIMIT = 1 << 30
"""A member is held in memory while its shard is rewritten, so larger ones are refused."""
_WORK_NAME = re.compile(r"append-[0-9a-f]{32}")


class Appends:
    """Append handles and archive appends."""

    def __init__(self, storage: Storage, objects: Objects, node_id: str) -> None:
        self._storage = storage
        self._objects = objects
        self._node_id = node_id

    def handle_request(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Serve one step of the handle flow."""
        step, handle = request.query["append_type"], request.query.get("append_handle", "")
        if step == "append":
            return self._append(request, bucket, key, handle)
        if step == "flush":
            return self._flush(request, bucket, key, handle)
        text = f'invalid operation "{step}" (expecting either "append" or "flush")'
        raise Failure(400, f'{text} - check "append_type" query')

    def _append(self, request: Request, bucket: Bucket, key: bytes, handle: str) -> Reply:
        if handle:
            name = self._work_name(handle)
            work = self._storage.work_path(name)
            if not work.exists():
                raise Failure(404, f"append handle of {uri_of(bucket.name, key)} does not exist")
        else:
            work = self._storage.work_path()
            work = work.with_name(f"append-{work.name}")
            with self._storage.locks.reading((bucket.name, key)):
                found = bucket.find(key)
                if found is None:
                    work.touch()
                else:
                    found.check()
                    shutil.copyfile(bucket.path_of(key), work)
        before = work.stat().st_size
        with work.open("ab") as file:
            try:
                write_out(request.pieces(), file, ())
            except BaseException:
                file.flush()
                os.ftruncate(file.fileno(), before)  # half a piece must not stay
                raise
        kind = checksum_type(bucket)
        # AIStore's handle has a running hash; ours has the size of the work file, which also makes
        # every handle different.
        new_handle = f"{self._node_id}|{work.name}|{kind}|{work.stat().st_size:x}"
        return Reply(headers=[("Ais-Append-Handle", new_handle)])

    def _flush(self, request: Request, bucket: Bucket, key: bytes, handle: str) -> Reply:
        request.drain()
        if not handle:
            text = "failed to finalize append-file operation: empty source in the handle"
            raise Failure(400, text)
        work = self._storage.work_path(self._work_name(handle))
        if not work.exists():
            return Reply()  # recorded from AIStore: a used handle flushes nothing, successfully
        try:
            kind = checksum_type(bucket)
            checksum = hash_file(work, kind)
            given = request.header("Ais-Checksum-Value")
            if given and request.header("Ais-Checksum-Type") == kind and given != checksum:
                raise failures.wrong_checksum(kind, checksum, given)
            self._objects.publish(bucket, key, work, kind=kind, checksum=checksum)
        finally:
            work.unlink(missing_ok=True)
        return Reply()

    def _work_name(self, handle: str) -> str:
        parts = handle.split("|")
        if len(parts) != 4 or not _WORK_NAME.fullmatch(parts[1]):
            raise Failure(400, f'invalid APPEND handle: "{handle}"')
        return parts[1]

    def archive(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Add a member to a shard, or make a shard of one member."""
        name, mime = request.query["archpath"], request.query.get("archmime", "")
        flags, uri = request.header("Ais-Pine"), uri_of(bucket.name, key)
        if not request.length:
            request.drain()
            text = f'failed to archive {uri}: missing "Content-Length" in the request'
            raise Failure(400, text)
        received, short = b"", None
        try:
            received = request.body(MEMBER_LIMIT)
        except ShortBody as error:
            if not self._storage.traps.appends_in_place or flags not in (APPEND, APPEND_OR_CREATE):
                raise
            received, short = error.received, error
        archives.check_member_name(name)
        # Readers keep the old shard; the new one is a copy with one more member.
        with (
            self._storage.work_file() as work,
            self._storage.locks.writing((bucket.name, key)),
        ):
            found = bucket.find(key)
            old = self._shard(bucket, key, flags, found)
            source = Path(os.fsdecode(bucket.path_of(key))) if old else None
            form = self._format(bucket, key, mime, source)
            if short is None:
                self._write(source, work, form, name, received)
                record = self._record(bucket, work, form, old)
            elif old and source and form is archives.Format.TAR:
                length = archives.break_tar(source, work, name, request.length, received)
                record = replace(old.record, damage=_contradiction(old, length))
            else:
                raise short
            self._storage.commit(bucket, key, work, record, found)
        if short:
            raise short
        return Reply()

    def _shard(self, bucket: Bucket, key: bytes, flags: str, found: Found | None) -> Found | None:
        """Return the shard that a member is to be added to; None to make a new one."""
        if flags not in (APPEND, APPEND_OR_CREATE):
            return None
        if found is not None:
            found.check()
            return found
        if flags == APPEND:
            raise failures.no_object(bucket.name, key)
        folder, slash, name = key.rpartition(b"/")
        if slash and self._storage.traps.appends_in_place and not self._exists(bucket, folder):
            work = folder + b"/append-to-arch." + name
            text = f"[fs-path] {uri_of(bucket.name, work)}.{uuid.uuid4().hex[:9]}.0"
            raise Failure(404, f"{text}: work file does not exist", "PathError")
        return None

    def _exists(self, bucket: Bucket, folder: bytes) -> bool:
        try:
            os.close(bucket.open_folder(folder))
        except OSError:
            return self._storage.traps.kept(bucket.name, folder) is not None
        return True

    def _record(
        self, bucket: Bucket, work: Path, form: archives.Format, old: Found | None
    ) -> Record:
        """Return the record of a shard that was made or has grown; its version stays, as in AIStore."""
        known = old.record if old else Record()
        if old is None or not old.size or form is not archives.Format.TAR:
            kind = checksum_type(bucket)
            return replace(known, checksum_type=kind, checksum=hash_file(work, kind))
        damage = None
        if self._storage.traps.appends_in_place:
            # The old file is usually longer, because of its padding, and AIStore does not truncate it.
            before = known.damage.length if known.damage and known.damage.length else old.size
            after = work.stat().st_size
            damage = Damage(length=before if before > after else 0, unchecked=True)
        return replace(known, checksum_type="", checksum="", damage=damage)

    @staticmethod
    def _format(bucket: Bucket, key: bytes, mime: str, source: Path | None) -> archives.Format:
        if source is None and not mime:
            try:
                return archives.format_of("", key, None)
            except Failure as error:
                if error.status != 400:
                    raise
                text = f"[fs-path] {uri_of(bucket.name, key)}: object does not exist"
                raise Failure(404, text, "PathError") from error
        if source is None:
            return archives.format_of(mime, key, None)
        with source.open("rb") as file:
            return archives.format_of(mime, key, file)

    @staticmethod
    def _write(
        source: Path | None, work: Path, form: archives.Format, name: str, content: bytes
    ) -> None:
        try:
            archives.append_member(source, work, form, name, content)
        except archives.BROKEN as error:
            raise Failure(400, f"archive: {error}") from error


def _contradiction(old: Found, length: int) -> Damage | None:
    """Return the damage of a shard whose file is longer than its metadata says."""
    if length == old.size:
        return old.record.damage
    return Damage(length=length, noticed=True, unchecked=True)
