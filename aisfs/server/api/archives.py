"""Members of tar, tgz and zip objects: read one, select many, list, append one.

AIStore's rules: the first of several equal names counts, a name matches exactly or without its
leading slash, links are empty, and a shard's type comes from `archmime`, its extension or its
first bytes, in this order.
"""

import io
import os
import re
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

import re2

from aisfs.server.failures import Failure, text_of, unsupported, uri_of


class Format(StrEnum):
    """An archive format."""

    TAR = ".tar"
    TGZ = ".tgz"
    ZIP = ".zip"
    LZ4 = ".tar.lz4"


_QUIET = re2.Options()
_QUIET.log_errors = False
MODES = ("regexp", "prefix", "suffix", "substr", "wdskey")
BROKEN = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError)
_EXTENSIONS = {
    ".tar.lz4": Format.LZ4,
    ".tar.gz": Format.TGZ,
    ".tgz": Format.TGZ,
    ".zip": Format.ZIP,
    ".tar": Format.TAR,
}
"""Those that contain another one come first."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member's content: where it lies in the file, or the bytes themselves."""

    offset: int
    size: int
    content: bytes | None = None


def format_of(mime: str, key: bytes, file: IO[bytes] | None) -> Format:
    """Return a shard's format.

    Raises:
        Failure: 400 when it is unknown.
    """
    if mime:
        for ending, form in _EXTENSIONS.items():
            if ending.lstrip(".") in mime or (ending == ".tgz" and "gzip" in mime):
                return _offered(form)
        raise Failure(400, f'unknown mime type "{mime}"', "errUnknownMime")
    name = text_of(key)
    for ending, form in _EXTENSIONS.items():
        if name.endswith(ending):
            return _offered(form)
    if file is not None:
        start = file.read(512)
        file.seek(0)
        if start[257:262] == b"ustar":
            return Format.TAR
        if start.startswith(b"\x1f\x8b"):
            return Format.TGZ
        if start.startswith(b"PK"):
            return Format.ZIP
        raise Failure(400, f'unrecognized or unsupported file format: "{name}"')
    raise Failure(400, f'unknown filename extension ("{name}", "")', "errUnknownFileExt")


def _offered(form: Format) -> Format:
    if form is Format.LZ4:
        raise unsupported("archive format .tar.lz4")
    return form


def open_tar(file: IO[bytes], form: Format) -> tarfile.TarFile:
    """Open a tar or tgz for reading, names as they are."""
    mode = "r:" if form is Format.TAR else "r:gz"
    try:
        return tarfile.open(  # type: ignore[call-overload,no-any-return]
            fileobj=file, mode=mode, encoding="utf-8", errors="surrogateescape"
        )
    except BROKEN as error:
        raise Failure(400, "archive/tar: invalid tar header") from error


def _forget_headers(tar: tarfile.TarFile) -> None:
    # tarfile keeps every header it reads; a shard may have a million.
    tar.members = []  # type: ignore[attr-defined]


def check_member_name(path: str) -> None:
    """Refuse names that lead out of a shard or cannot be matched."""
    parts = path.split("/")
    if path.endswith("/") or "." in parts[:1] or ".." in parts:
        quoted = path.replace("/", "%2F")
        raise Failure(400, f"dpq: 'archpath={quoted}', err: invalid archpath \"{path}\"")


def find_member(file: IO[bytes], form: Format, path: str, bucket: str, key: bytes) -> Member:
    """Find a member of a shard.

    Raises:
        Failure: 404 when it is not there, 400 when the shard is broken before it.
    """
    path = path.removeprefix(text_of(key) + "/")
    wanted = {path, path.removeprefix("/"), "/" + path}
    try:
        if form is Format.ZIP:
            found = _find_in_zip(file, wanted)
        else:
            found = _find_in_tar(file, form, wanted)
    except zipfile.BadZipFile as error:
        text = f"failed to open {uri_of(bucket, key)}: zip: not a valid zip file"
        raise Failure(400, text, "wrapError") from error
    except BROKEN as error:
        raise Failure(400, f"archive/tar: {error}") from error
    if found is None:
        text = f"t[{{node}}]: {path} in {uri_of(bucket, key)} does not exist"
        raise Failure(404, text, "ErrNotFound")
    return found


def _find_in_tar(file: IO[bytes], form: Format, wanted: set[str]) -> Member | None:
    with open_tar(file, form) as tar:
        for info in tar:
            if info.name in wanted and not info.isdir():
                if not info.isreg():
                    return Member(0, 0, b"")
                if form is Format.TAR and not info.issparse():
                    return Member(info.offset_data, info.size)
                content = tar.extractfile(info)
                return Member(0, info.size, content.read() if content else b"")
            _forget_headers(tar)
    return None


def _find_in_zip(file: IO[bytes], wanted: set[str]) -> Member | None:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.filename in wanted:
                content = archive.read(info)
                return Member(0, len(content), content)
    return None


def matcher(mode: str, pattern: str) -> Callable[[str], bool]:
    """Return the test for names that `archregx` and `archmode` describe.

    Raises:
        Failure: 400 for an unknown mode or an invalid expression.
    """
    if mode not in MODES:
        listed = " ".join(MODES)
        text = f'invalid matching mode "{mode}", expecting one of: [{listed}]'
        raise Failure(400, f"dpq: 'archmode={mode}', err: {text}")
    if pattern in ("", "*"):
        return lambda _: True
    if mode == "regexp":
        try:
            expression = re2.compile(os.fsencode(pattern), _QUIET)
        except re2.error as error:
            reason = error.args[0].decode(errors="replace") if error.args else ""
            raise Failure(400, f"invalid regular expression: {reason}") from error
        return lambda name: expression.search(os.fsencode(name)) is not None
    tests: dict[str, Callable[[str], bool]] = {
        "prefix": lambda name: name.startswith(pattern),
        "suffix": lambda name: name.endswith(pattern),
        "substr": lambda name: pattern in name,
        "wdskey": lambda name: re.sub(r"\.[^./]*$", "", name) == pattern,
    }
    return tests[mode]


def select(file: IO[bytes], form: Format, wanted: Callable[[str], bool]) -> Iterator[bytes]:
    """Yield a tar of the members whose name is wanted; nothing when there are none."""
    if form is Format.ZIP:
        raise unsupported("selecting members of a zip")
    any_found = False
    try:
        with open_tar(file, form) as tar:
            for info in tar:
                _forget_headers(tar)
                if not wanted(info.name) or info.isdir():
                    continue
                any_found = True
                content = tar.extractfile(info) if info.isreg() else None
                yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
                if content is not None:
                    while piece := content.read(1 << 20):
                        yield piece
                    yield bytes(-info.size % 512)
    except BROKEN as error:
        if not any_found:
            raise Failure(400, f"archive/tar: {error}") from error
        raise
    if any_found:
        yield bytes(1024)


def list_members(path: bytes, key: bytes) -> list[tuple[bytes, int]] | None:
    """List names and sizes of a shard's members; None when the name is not a shard's."""
    try:
        form = format_of("", key, None)
    except Failure:
        return None
    found: list[tuple[bytes, int]] = []
    try:
        with open(path, "rb") as file:
            if form is Format.ZIP:
                with zipfile.ZipFile(file) as archive:
                    infos = [i for i in archive.infolist() if not i.is_dir()]
                    return [(i.filename.encode(), i.file_size) for i in infos]
            with open_tar(file, form) as tar:
                for info in tar:
                    _forget_headers(tar)
                    if not info.isdir():
                        name = info.name.encode("utf-8", "surrogateescape")
                        found.append((name, info.size if info.isreg() else 0))
    except (Failure, *BROKEN):
        return found
    return found


def append_member(
    source: Path | None, target: Path, form: Format, name: str, content: bytes
) -> None:
    """Write a copy of a shard with one more member; without a source, a new shard."""
    info = _new_member(name, len(content))
    if form is Format.ZIP:
        if source is not None:
            shutil.copyfile(source, target)
        with zipfile.ZipFile(target, "a" if source else "w") as archive:
            archive.writestr(name, content)
        return
    if form is Format.TAR:
        with _at_end_of_tar(source, target) as grown:
            grown.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            grown.write(content + bytes(-len(content) % 512))
            grown.write(bytes(1024))  # Go always ends a tar with two blocks
            grown.truncate()
        return
    with tarfile.open(target, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        if source is not None:
            with source.open("rb") as file, open_tar(file, form) as old:
                for member in old:
                    tar.addfile(member, old.extractfile(member) if member.isreg() else None)
        tar.addfile(info, io.BytesIO(content))


def break_tar(source: Path, target: Path, name: str, size: int, content: bytes) -> int:
    """Write a copy of a shard as if appending a member in place had stopped after these bytes.

    Return the length that AIStore's file would have; the copy is as long as the source.
    """
    old_size = source.stat().st_size
    with _at_end_of_tar(source, target) as grown:
        grown.write(_new_member(name, size).tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        grown.write(content)
        end = grown.tell()
        grown.truncate(old_size)
    return max(end, old_size)


def _new_member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, int(time.time())
    return info


@contextmanager
def _at_end_of_tar(source: Path | None, target: Path) -> Iterator[IO[bytes]]:
    """Copy a tar, and yield the copy, positioned at the end of its last member.

    Raises:
        Failure: 500 when it is not a tar.
    """
    size = source.stat().st_size if source else 0
    if source and size:
        shutil.copyfile(source, target)
    if 0 < size < tarfile.BLOCKSIZE:
        raise Failure(500, "unexpected EOF")
    target.touch()
    with target.open("r+b") as grown:
        if size:
            try:
                with tarfile.open(fileobj=grown, mode="r:") as tar:
                    for _ in tar:
                        _forget_headers(tar)
                    grown.seek(tar.offset)
            except BROKEN as error:
                raise Failure(500, "archive/tar: invalid tar header") from error
        yield grown
