"""What the extended attributes say, through system calls and through `getfattr`."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import xxhash

from tests.mount import zoo
from tests.mount.content import fill, object_url, payload, put
from tests.support.mounts import Mount, mounted, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

MEMBERS = {"a.bin": payload(700, "a"), "d/b.bin": payload(5000, "b"), "c.txt": b"c"}


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    base = tmp_path_factory.mktemp("shard")
    fill(base / "in", MEMBERS)
    zoo.gnu_tar("-C", str(base / "in"), "-cf", str(base / "x.tar"), ".")
    return (base / "x.tar").read_bytes()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shard: bytes) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("xattrs") / "store"
    fill(root / "b", {})
    with running_server(root) as server:
        put(server.endpoint, "b", "plain.txt", b"old")
        put(server.endpoint, "b", "plain.txt", b"plain")
        put(server.endpoint, "b", "empty", b"")
        put(server.endpoint, "b", "sub/x.tar", shard)
        put(server.endpoint, "b", "sub/cut.tar", shard[: shard.index(MEMBERS["d/b.bin"]) + 1000])
        yield server


@pytest.fixture(scope="module")
def mount(server: RunningServer, shared_mountpoint: Path) -> Iterator[Mount]:
    with mounted(
        "ais://b",
        shared_mountpoint,
        options=["--list-xattrs"],
        endpoint=server.endpoint,
        deadline=300,
        expected_log=["cut"],
    ) as mount:
        yield mount


def text(path: Path, name: str) -> str:
    return os.getxattr(path, name).decode()


@pytest.mark.parametrize("key", ["plain.txt", "empty", "sub/x.tar"])
def test_an_object(key: str, mount: Mount, server: RunningServer):
    url = object_url(server.endpoint, "b", key)
    head = requests.head(
        url, params={"props": "checksum,version"}, allow_redirects=True, timeout=30
    ).headers
    path = mount.path / key
    assert text(path, "user.ais.version") == head["Ais-Version"]
    assert text(path, "user.ais.checksum") == f"xxhash2:{head['Ais-Checksum-Value']}"
    assert {"user.ais.version", "user.ais.checksum"} <= set(os.listxattr(path))


def test_the_checksum_is_that_of_the_bytes(mount: Mount):
    digest = xxhash.xxh64(b"plain").hexdigest()
    assert text(mount.path / "plain.txt", "user.ais.checksum") == f"xxhash2:{digest}"


def test_a_member(mount: Mount, shard: bytes):
    for name, data in MEMBERS.items():
        path = mount.path / "sub" / "x.tar.d" / name
        assert text(path, "user.aisfs.shard") == "sub/x.tar"
        offset = int(text(path, "user.aisfs.offset"))
        assert shard[offset : offset + len(data)] == data
        assert {"user.aisfs.shard", "user.aisfs.offset"} <= set(os.listxattr(path))


def test_a_shard_folder(mount: Mount):
    folder = mount.path / "sub" / "x.tar.d"
    assert text(folder, "user.aisfs.shard") == "sub/x.tar"
    assert "user.aisfs.shard" in os.listxattr(folder)
    assert "user.aisfs.warnings" not in os.listxattr(folder)
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(folder, "user.aisfs.warnings")


def test_warnings_of_a_damaged_shard(mount: Mount):
    folder = mount.path / "sub" / "cut.tar.d"
    assert text(folder, "user.aisfs.warnings").strip()
    assert "user.aisfs.warnings" in os.listxattr(folder)


@pytest.mark.parametrize("name", ["user.missing", "user.ais.missing", "user.aisfs.offset"])
def test_a_missing_attribute(name: str, mount: Mount):
    for path in (mount.path / "plain.txt", mount.path / "sub", mount.path):
        with pytest.raises(OSError, match="No data available") as caught:
            os.getxattr(path, name)
        assert caught.value.errno == errno.ENODATA


def test_other_namespaces_are_empty(mount: Mount):
    for name in ("security.capability", "security.selinux", "system.posix_acl_access", "trusted.x"):
        with pytest.raises(OSError, match=r"No data available|not supported"):
            os.getxattr(mount.path / "plain.txt", name)


def test_every_listed_attribute_has_a_value(mount: Mount):
    for name in ("", "plain.txt", "sub", "sub/x.tar", "sub/x.tar.d", "sub/x.tar.d/d/b.bin"):
        path = mount.path / name
        for attribute in os.listxattr(path):
            assert isinstance(os.getxattr(path, attribute), bytes)


def test_nothing_is_listed_unless_asked_and_copies_of_all_attributes_work(
    server: RunningServer, tmp_path: Path
):
    out, back, mnt = tmp_path / "out", tmp_path / "back", tmp_path / "mnt"
    mnt.mkdir()
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]
    with mounted(
        "ais://b", mnt, endpoint=server.endpoint, options=options, expected_log=["cut"]
    ) as mount:
        for name in ("", "plain.txt", "sub/x.tar.d", "sub/x.tar.d/c.txt"):
            assert os.listxattr(mount.path / name) == []
        assert text(mount.path / "plain.txt", "user.ais.version") == "2"
        succeed("rsync", "-aX", f"{mount.path}/", f"{out}/")
        succeed("cp", "-a", mount.path / "sub/x.tar.d", back)
        assert os.listxattr(out / "plain.txt") == os.listxattr(back / "c.txt") == []
        succeed("rsync", "-rX", f"{out}/sub/", f"{mount.path}/copied/")
        assert (mount.path / "copied/x.tar").read_bytes() == (out / "sub/x.tar").read_bytes()


def test_getfattr(mount: Mount):
    printed = succeed("getfattr", "--absolute-names", "-d", mount.path / "plain.txt").decode()
    assert 'user.ais.version="' in printed
    assert 'user.ais.checksum="xxhash2:' in printed
    member = mount.path / "sub" / "x.tar.d" / "c.txt"
    printed = succeed("getfattr", "--absolute-names", "-d", member).decode()
    assert 'user.aisfs.shard="sub/x.tar"' in printed
    assert 'user.aisfs.offset="' in printed
    succeed("getfattr", "--absolute-names", "-R", "-d", "-m", "-", mount.path)
