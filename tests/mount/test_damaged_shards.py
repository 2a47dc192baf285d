"""A damaged shard serves what lies before the damage and says so."""

import errno
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill, payload
from tests.support.mounts import Mount, mounted
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

MEMBERS = {f"{number}.bin": payload(300_000, number) for number in range(5)}
STRIDE = 512 + 300_032  # a header and the data up to the next full block


def whole() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in MEMBERS.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]


SOUND = whole()
CUT_AT = 2 * STRIDE + 512 + 1000
SHARDS = {
    "cut-in-data.tar": SOUND[:CUT_AT],
    "cut-in-header.tar": SOUND[: 2 * STRIDE + 100],
    "cut-between.tar": SOUND[: 3 * STRIDE],
    "bad-header.tar": flipped(SOUND, 2 * STRIDE + 5),
    "bad-first-header.tar": flipped(SOUND, 5),
    "not-a-tar.tar": b"this is text and not an archive\n" * 100,
    "short.tar": b"tiny",
    "picture.tar": b"\xff\xd8\xff\xe0" + payload(5000, "jpeg"),
    "nothing.tar": b"",
    "zeros.tar": bytes(1024),
    "no-end.tar": SOUND[: 5 * STRIDE],
    "garbage-after.tar": SOUND + payload(4096, "garbage"),
    "two-in-one.tar": SOUND[: 2 * STRIDE] + bytes(1024) + SOUND[2 * STRIDE :],
    "sound.tar": SOUND,
}
BEFORE = {
    "cut-in-data.tar": 2,
    "cut-in-header.tar": 2,
    "cut-between.tar": 3,
    "bad-header.tar": 2,
    "no-end.tar": 5,
    "garbage-after.tar": 5,
    "two-in-one.tar": 2,
    "sound.tar": 5,
}
"""How many members lie before the damage."""


@pytest.fixture(scope="module", params=["cluster", "local"])
def mount(request, fastpath: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    root = tmp_path_factory.mktemp("damaged") / "store"
    fill(root / "b", SHARDS)
    place = tmp_path_factory.mktemp("mnt").resolve()
    common = {"deadline": 300, "expected_log": [r"[a-z-]+\.tar"]}
    if request.param == "local":
        with mounted(str(root / "b"), place, **common) as mount:
            yield mount
        return
    with (
        running_server(root) as server,
        mounted("ais://b", place, endpoint=server.endpoint, **common) as mount,
    ):
        yield mount


def warnings_of(folder: Path) -> str:
    try:
        return os.getxattr(folder, "user.aisfs.warnings").decode()
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return ""


@pytest.mark.parametrize("name", sorted(SHARDS))
def test_the_object_itself_is_intact(name: str, mount: Mount):
    assert (mount.path / name).read_bytes() == SHARDS[name]


@pytest.mark.parametrize("name", sorted(BEFORE))
def test_what_lies_before_the_damage_is_readable(name: str, mount: Mount):
    folder = mount.path / f"{name}.d"
    intact = list(MEMBERS)[: BEFORE[name]]
    listed = os.listdir(folder)
    assert set(intact) <= set(listed) <= set(MEMBERS)
    for member in intact:
        assert (folder / member).read_bytes() == MEMBERS[member]
    for member in set(listed) - set(intact):
        with pytest.raises(OSError, match="Input/output error"):
            (folder / member).read_bytes()


def test_a_member_that_was_cut_off(mount: Mount):
    folder = mount.path / "cut-in-data.tar.d"
    assert sorted(os.listdir(folder)) == ["0.bin", "1.bin", "2.bin"]
    assert os.stat(folder / "2.bin").st_size == 300_000
    fd = os.open(folder / "2.bin", os.O_RDONLY)
    try:
        for position in (1000, 150_000, 299_000):
            with pytest.raises(OSError, match="Input/output error"):
                os.pread(fd, 512, position)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "name",
    ["cut-in-data.tar", "cut-in-header.tar", "bad-header.tar", "two-in-one.tar"],
)
def test_damage_is_told(name: str, mount: Mount):
    text = warnings_of(mount.path / f"{name}.d")
    assert text.strip()
    assert all(line.strip() for line in text.rstrip("\n").split("\n"))


def test_sound_shards_have_no_warnings(mount: Mount):
    for name in ("sound.tar", "no-end.tar"):
        folder = mount.path / f"{name}.d"
        if name == "sound.tar":
            with pytest.raises(OSError, match="No data available"):
                os.getxattr(folder, "user.aisfs.warnings")
        assert sorted(os.listdir(folder)) == sorted(MEMBERS)


@pytest.mark.parametrize("name", ["nothing.tar", "zeros.tar"])
def test_an_archive_without_members_is_an_empty_directory(name: str, mount: Mount):
    assert os.listdir(mount.path / f"{name}.d") == []


@pytest.mark.parametrize(
    "name", ["not-a-tar.tar", "short.tar", "picture.tar", "bad-first-header.tar"]
)
def test_what_is_no_archive(name: str, mount: Mount):
    folder = mount.path / f"{name}.d"
    try:
        listed = os.listdir(folder)
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ENOENT, errno.ENOTDIR)  # noqa: PT017
        return
    assert listed == []
    assert warnings_of(folder).strip()


def test_damage_does_not_disturb_the_neighbours(mount: Mount):
    for name in SHARDS:
        try:
            os.listdir(mount.path / f"{name}.d")
        except OSError as error:
            assert error.errno in (errno.EIO, errno.ENOENT, errno.ENOTDIR)  # noqa: PT017
    for member, data in MEMBERS.items():
        assert (mount.path / "sound.tar.d" / member).read_bytes() == data
    assert sorted(os.listdir(mount.path)) == sorted(SHARDS)
