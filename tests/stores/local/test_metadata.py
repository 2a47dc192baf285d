"""Mode and time that come as custom metadata are those of the file, and no two contents are one version."""

import os
import stat
from pathlib import Path

import pytest

from aisfs.errors import Stale, Unsupported
from aisfs.stores import local
from aisfs.stores.local import LocalStore
from aisfs.stores.port import BytesContent, Upload
from aisfs.stores.posix_metadata import mode_of, mtime_of, with_posix_metadata

MTIME = 10**18
CHOSEN = with_posix_metadata({"other": "kept"}, mtime_ns=MTIME, mode=0o640)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def shown(path: Path) -> tuple[int, int]:
    found = path.stat()
    return stat.S_IMODE(found.st_mode), found.st_mtime_ns


async def test_a_file_has_what_came_with_it(store: LocalStore, tmp_path: Path):
    info = await store.upload(Upload(store.bucket, "f", BytesContent(b"content"), custom=CHOSEN))
    assert shown(tmp_path / "f") == (0o640, MTIME)
    assert (mode_of(info), mtime_of(info), info.custom["other"]) == (0o640, MTIME, "kept")
    later = with_posix_metadata(info.custom, mtime_ns=MTIME + 1, mode=0o600)
    changed = await store.set_custom(store.bucket, info, later)
    assert shown(tmp_path / "f") == (0o600, MTIME + 1)
    assert changed == await store.head(store.bucket, "f")
    assert changed.custom == later
    assert not changed.same_content(info), "another time is another version"


async def test_a_mode_changes_no_version(store: LocalStore, tmp_path: Path):
    (tmp_path / "f").write_bytes(b"somebody else's")
    info = await store.head(store.bucket, "f")
    custom = with_posix_metadata({}, mtime_ns=info.mtime_ns, mode=0o600)
    assert (await store.set_custom(store.bucket, info, custom)).version == info.version
    assert shown(tmp_path / "f") == (0o600, info.mtime_ns)


async def test_contents_of_one_size_and_time_are_told_apart(store: LocalStore, tmp_path: Path):
    """A new file often has the number of the one before the last again."""
    known = []
    for round_ in range(20):
        content = BytesContent(b"%04d" % round_)
        known.append(await store.upload(Upload(store.bucket, "f", content, custom=CHOSEN)))
    assert len({info.version for info in known}) == 20
    assert (await store.list_page(store.bucket, "")).objects == known[-1:]
    buffer = memoryview(bytearray(4))
    await store.read_range(store.bucket, known[-1], 0, buffer)
    assert buffer == b"0019"
    for old in known[:-1]:
        with pytest.raises(Stale):
            await store.read_range(store.bucket, old, 0, buffer)


async def test_without_attributes_the_time_stays_that_of_the_write(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(file: int | bytes, subject: str, text: str) -> None:
        raise Unsupported("no extended attributes here")

    monkeypatch.setattr(local, "write_attribute", refuse)
    info = await store.upload(Upload(store.bucket, "f", BytesContent(b"content"), custom=CHOSEN))
    mode, mtime_ns = shown(tmp_path / "f")
    assert (mode, mtime_ns > MTIME) == (0o640, True)
    with pytest.raises(Unsupported):
        await store.set_custom(store.bucket, info, CHOSEN)
    assert shown(tmp_path / "f") == (mode, mtime_ns)


async def test_a_file_system_without_modes_takes_files_all_the_same(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    info = await store.upload(Upload(store.bucket, "f", BytesContent(b"content"), custom=CHOSEN))
    assert (info.custom, info.mtime_ns > MTIME) == ({}, True)


async def test_what_belongs_to_somebody_else_stays_as_it_is(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    info = await store.upload(Upload(store.bucket, "f", BytesContent(b"content"), custom=CHOSEN))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "utime", refuse)
    later = with_posix_metadata(CHOSEN, mtime_ns=MTIME + 1, mode=0o640)
    with pytest.raises(Unsupported, match="not permitted"):
        await store.set_custom(store.bucket, info, later)
    assert await store.head(store.bucket, "f") == info
    assert (await store.head(store.bucket, "f")).custom == info.custom
