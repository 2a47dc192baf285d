"""Objects that are written by several requests: in parts, by handle, and as an archive that gets members.

A part is written straight to its place in the object if that place is known when it arrives: usually
all parts but the last have the same size. Any other part, and one that is sent again, is a separate file
until the upload is completed. Like all work files they are removed at a restart, with their upload.

A handle, too, names a work file, which grows until it is flushed. A member is added to a copy of its archive,
which then replaces the archive.
"""

import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from aisfs.server import failures
from aisfs.server.api import archives
from aisfs.server.api.objects import Objects
from aisfs.server.failures import Failure, uri_of
from aisfs.server.messages import Reply, Request, ShortBody, text_reply
from aisfs.server.storage.bucket import Bucket, Found, checksum_type
from aisfs.server.storage.objects import Storage, write_out
from aisfs.server.storage.records import Damage, LostPart, Record, hash_file

CHECKSUM = "crc32c"
"""Checksum type of an object whose parts arrived out of order, unless it replaces one with another."""
_MOST_PARTS = 10_000
_COPY = 64 << 20
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")


class _ListedPart(msgspec.Struct):
    number: int = msgspec.field(name="part-number")


@dataclass
class Upload:
    """An upload in progress, and its parts."""

    bucket: str
    key: bytes
    folder: Path
    sizes: dict[int, int] = field(default_factory=dict)
    step: int = 0
    """Bytes of the part that arrived first; part N is expected at N - 1 times as many."""
    begun: set[int] = field(default_factory=set)
    """Parts whose place was written to, even in part; they are not written there again."""
    placed: set[int] = field(default_factory=set)
    """Parts that are complete and in their place."""
    in_order: bool = True
    """Whether the parts arrived in the order of their numbers so far."""
    lost: set[int] = field(default_factory=set)
    """Parts that were sent twice, where that loses them."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held to write to `whole`: the kernel admits one writer at a time, and the others would spin."""

    @property
    def whole(self) -> Path:
        """The file with parts in their places."""
        return self.folder / "whole"

    def part(self, number: int) -> Path:
        """Return the file of a part that is not in `whole`."""
        return self.folder / str(number)

    def keep(self, number: int, size: int) -> None:
        """Record a part that is complete."""
        self.in_order = self.in_order and number == len(self.sizes) + 1
        self.sizes[number] = size

    def place(self, number: int, length: int) -> int | None:
        """Return where in `whole` a part may be written; None when it needs a separate file."""
        self.step = self.step or length
        if not length or length > self.step or number in self.begun or number in self.sizes:
            return None
        self.begun.add(number)
        return (number - 1) * self.step


@dataclass(frozen=True)
class _Piece:
    """A part, and where it goes."""

    number: int
    start: int
    size: int


class Parts:
    """The multipart uploads in progress."""

    def __init__(self, storage: Storage, objects: Objects) -> None:
        self._storage = storage
        self._objects = objects
        self._lock = threading.Lock()
        self._uploads: dict[str, Upload] = {}

    def start(self, bucket: Bucket, key: bytes) -> Reply:
        """Begin an upload; the reply is its id."""
        name = uuid.uuid4().hex[:16]
        folder = self._storage.work_path(f"parts-{name}")
        folder.mkdir()
        with self._lock:
            self._uploads[name] = Upload(bucket.name, key, folder)
        return text_reply(name)

    def put(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Store one part; sent again it replaces the first one, or destroys it where traps are on."""
        text = request.query.get("partNumber", "")
        if not _NUMBER.fullmatch(text) or int(text) > _MOST_PARTS:
            raise Failure(400, f'invalid part number "{text}" (expecting 1..{_MOST_PARTS})')
        upload, number = self._upload(request, bucket, key), int(text)
        if number in upload.sizes and self._storage.traps.loses_repeated_parts:
            upload.lost.add(number)  # whatever becomes of this one
        if not request.length:
            request.drain()
            chunked = "HTTP_TRANSFER_ENCODING" in request.environ
            text = f"{uri_of(bucket.name, key)}: put-part invalid size ({-1 if chunked else 0})"
            raise Failure(400, text)
        # Like AIStore, this ignores the checksums of parts.
        self._store(upload, number, request.length, request.pieces())
        return Reply()

    def _store(self, upload: Upload, number: int, length: int, pieces: Iterable[bytes]) -> None:
        """Store the pieces of one part, unless they raise."""
        with self._lock:
            place = upload.place(number, length)
        if place is not None:
            with _still_there(upload), _open_at(upload.whole, place) as file:
                size = write_out(pieces, file, (), upload.turn)
            with self._lock:
                upload.keep(number, size)
                upload.placed.add(number)
            return
        with self._storage.work_file() as work:
            with work.open("xb") as file:
                size = write_out(pieces, file, ())
            with self._lock, _still_there(upload):
                if number in upload.sizes and self._storage.traps.loses_repeated_parts:
                    upload.lost.add(number)
                os.replace(work, upload.part(number))
                upload.keep(number, size)
                upload.placed.discard(number)

    def complete(self, request: Request, listed: object, bucket: Bucket, key: bytes) -> Reply:
        """Make an object of the listed parts, which have to be all parts."""
        upload, numbers = self._upload(request, bucket, key), _numbers(listed)
        self._check_all_listed(upload, numbers)
        if not self._finish(request.query["uploadId"], numbers, bucket, key):
            raise _unknown(request, bucket, key)
        return Reply()

    def _check_all_listed(self, upload: Upload, numbers: list[int]) -> None:
        """Check that all parts are listed, and that none is missing between them."""
        with self._lock:
            have = dict(upload.sizes)
        if not set(numbers) <= have.keys() or len(have) > len(numbers):
            text = f"requested {len(numbers)} parts, have {len(have)}"
            raise Failure(400, f"partial completion is not allowed: {text}")
        for at, number in enumerate(numbers):
            if number != at + 1:
                text = f"chunk at ({at}) has invalid number {number} (count={len(numbers)})"
                raise Failure(400, text)

    def _finish(self, name: str, numbers: list[int], bucket: Bucket, key: bytes) -> bool:
        """Make an object of these parts, which were all received; return False if the upload has ended."""
        uri = uri_of(bucket.name, key)
        with self._lock:
            upload = self._uploads.get(name)
            if upload is None:
                return False
            if 1 in upload.lost:  # AIStore appends the others to its file
                text = f"rename {upload.part(1)} {upload.whole}: no such file or directory"
                text = f"t[{{node}}]: failed to finalize {uri}, err: {text}"
                raise Failure(404, text, "ErrFailedTo")
            del self._uploads[name]
        try:
            pieces = _pieces(upload, numbers)
            work = self._put_together(upload, pieces)
            old = bucket.find(key)
            kind = (old and old.record.checksum_type) or ("" if upload.in_order else CHECKSUM)
            self._objects.publish(
                bucket,
                key,
                work,
                kind=kind,
                chunks=(len(pieces), max(piece.size for piece in pieces)),
                damage=_damage(upload, pieces, uri),
            )
        except BaseException:
            with self._lock:  # it may be tried again, or aborted
                self._uploads[name] = upload
            raise
        _remove(upload)
        return True

    @staticmethod
    def _put_together(upload: Upload, pieces: list[_Piece]) -> Path:
        """Return one file of the parts: `whole`, unless the parts in it turned out misplaced."""
        end = pieces[-1].start + pieces[-1].size
        right = all(p.start == (p.number - 1) * upload.step for p in pieces if _placed(upload, p))
        target = upload.whole if right else upload.folder / "moved"
        with _open_at(target, 0) as file:
            for piece in pieces:
                if not _placed(upload, piece):
                    _copy(upload.part(piece.number), 0, file.fileno(), piece)
                elif not right:
                    _copy(upload.whole, (piece.number - 1) * upload.step, file.fileno(), piece)
            file.truncate(end)
        return target

    def abort(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Discard the parts."""
        request.drain()
        name = request.query["uploadId"]
        with self._lock:
            upload = self._uploads.pop(name, None)
        if upload is None:
            what = f"partial chunk-manifest[{uri_of(bucket.name, key)}, id={name}]"
            text = f"failed to load {what}: open {self._storage.work}: no such file or directory"
            raise Failure(404, text, "wrapError")
        _remove(upload)
        return Reply()

    def _upload(self, request: Request, bucket: Bucket, key: bytes) -> Upload:
        with self._lock:
            upload = self._uploads.get(request.query.get("uploadId", ""))
        if upload is None or (upload.bucket, upload.key) != (bucket.name, key):
            if request.method == "PUT":  # of others the body has been read
                request.drain()
            raise _unknown(request, bucket, key)
        return upload


def _numbers(listed: object) -> list[int]:
    try:
        parts = msgspec.convert(listed, list[_ListedPart])
    except msgspec.ValidationError as error:
        raise Failure(400, f"invalid list of parts: {error}") from error
    numbers = sorted(part.number for part in parts)
    if not numbers:
        raise Failure(400, "no chunks")
    if len(set(numbers)) < len(numbers):
        have = len(set(numbers))
        text = f"requested {len(numbers)} parts, have {have}"
        raise Failure(400, f"partial completion is not allowed: {text}")
    return numbers


def _unknown(request: Request, bucket: Bucket, key: bytes) -> Failure:
    name = request.query.get("uploadId", "")
    text = f"o[{bucket.name}/{failures.text_of(key)}(-)]: {name} does not exist"
    return Failure(404, text, "ErrNotFound")


def _remove(upload: Upload) -> None:
    """Remove the files of an upload; what a part under way would add finds no folder of that name."""
    gone = upload.folder.with_name(f"removed-{upload.folder.name}")
    upload.folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def _still_there(upload: Upload) -> Iterator[None]:
    """Turn the missing files of an upload that was aborted meanwhile into a 404."""
    try:
        yield
    except FileNotFoundError as error:
        text = f"o[{upload.bucket}/{failures.text_of(upload.key)}(-)]: aborted"
        raise Failure(404, text, "ErrNotFound") from error


def _pieces(upload: Upload, numbers: list[int]) -> list[_Piece]:
    """Return parts in order, with their places in the object."""
    pieces, end = [], 0
    for number in numbers:
        pieces.append(_Piece(number, end, upload.sizes[number]))
        end += upload.sizes[number]
    return pieces


def _damage(upload: Upload, pieces: list[_Piece], name: str) -> Damage | None:
    lost = tuple(
        LostPart(p.start, p.size, f"{name}.{upload.folder.name[-9:]}.{p.number:04d}")
        for p in pieces
        if p.number in upload.lost
    )
    return Damage(lost) if lost else None


def _placed(upload: Upload, piece: _Piece) -> bool:
    return piece.number in upload.placed


def _open_at(path: Path, offset: int) -> BinaryIO:
    """Open a file, which need not exist, to write at an offset."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644), "wb")
    file.seek(offset)
    return file


def _copy(source: Path, at: int, target: int, piece: _Piece) -> None:
    """Copy a piece to its place."""
    os.lseek(target, piece.start, os.SEEK_SET)
    with source.open("rb") as file:
        left = piece.size
        while left:
            left -= os.sendfile(target, file.fileno(), at + piece.size - left, min(left, _COPY))


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
