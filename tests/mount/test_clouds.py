"""Mounts of S3, Google's cloud and Azure without AIStore: whatever the store, the same mount."""

import json
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from aisfs.commands.options import Exit
from tests.mount.content import payload
from tests.mount.datasets import encode, sample, tree
from tests.mount.test_class_view import jpeg
from tests.support.clouds import (
    S3,
    Azure,
    Cloud,
    Google,
    azurite,
    fake_gcs,
    google_names,
    moto,
    s3_environment,
)
from tests.support.late_copies import late_copies
from tests.support.mounts import Mount, aisfs, eventually, mounted
from tests.support.servers import RunningServer, running_server
from tests.support.slow_line import slow_line
from tests.support.web_servers import make_certificate, nginx

pytestmark = pytest.mark.mount

SHARDS, EACH, CLASSES = 3, 10, 4
NO_ROLE = {"AWS_EC2_METADATA_DISABLED": "true"}
"""No test asks a machine for its role."""


@pytest.fixture(scope="module")
def s3() -> Iterator[Cloud]:
    with moto() as cloud:
        yield cloud


@pytest.fixture(scope="module")
def gcs() -> Iterator[Cloud]:
    with fake_gcs() as cloud:
        yield cloud


@pytest.fixture(scope="module")
def google(s3: S3) -> Iterator[Google]:
    with google_names(s3) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def azure() -> Iterator[Cloud]:
    with azurite() as cloud:
        yield cloud


def shards() -> dict[str, bytes]:
    return {
        f"train/x-{number:03}.tar": encode(
            sample(f"s{number}-{n}", n % CLASSES, jpeg(number * EACH + n)) for n in range(EACH)
        )
        for number in range(SHARDS)
    }


def filled(cloud: Cloud) -> str:
    """Make a bucket with shards and other objects."""
    bucket = cloud.make_bucket()
    for key, data in {**shards(), "readme.txt": b"read me", "d/big.bin": BIG}.items():
        cloud.put(bucket, key, data)
    return bucket


BIG = payload(3 << 20)
PATTERN = f"/train/x-{{000..{SHARDS - 1:03}}}.tar"


@pytest.fixture(params=["s3", "gcs", "azure"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    found: Cloud = request.getfixturevalue(request.param)
    return found


@contextmanager
def mount_of(
    cloud: Cloud, source: str | Sequence[str], mountpoint: Path, *options: str, **more
) -> Iterator[Mount]:
    with mounted(source, mountpoint, options=options, env=cloud.environment, **more) as mount:
        yield mount


def test_class_view(cloud: Cloud, mountpoint: Path):
    bucket = filled(cloud)
    with mount_of(cloud, cloud.source(bucket, PATTERN), mountpoint, "--view", "class") as mount:
        pictures = ImageFolder(str(mount.path))
        assert len(pictures) == SHARDS * EACH
        assert pictures.classes == [str(label) for label in range(CLASSES)]
        assert all(picture.size == (8, 8) for picture, _ in pictures)
        assert len(tree(mount.path)) == SHARDS * EACH


def test_bucket(cloud: Cloud, mountpoint: Path):
    """A bucket as directories; what was replaced meanwhile is never mixed with what was there."""
    bucket = filled(cloud)
    with mount_of(
        cloud,
        cloud.source(bucket),
        mountpoint,
        "--attr-ttl",
        "0",
        "--list-ttl",
        "0",
        expected_log=["changed since it was opened"],
    ) as mount:
        assert sorted(os.listdir(mount.path)) == ["d", "readme.txt", "train"]
        assert len(os.listdir(mount.path / "train" / "x-000.tar.d")) == 2 * EACH
        with open(mount.path / "d" / "big.bin", "rb") as file:
            assert file.read(10) == BIG[:10]
            fresh = bytes(reversed(BIG))
            cloud.put(bucket, "d/big.bin", fresh)
            assert (mount.path / "d" / "big.bin").read_bytes() == fresh
            with suppress(OSError):
                assert file.read() == BIG[10:]  # what was fetched before
        counted = json.loads(aisfs("status", mount.path, "--json").stdout)["requests_by_class"]
        assert counted["get"] >= 2
        assert counted["list"] >= 3


@pytest.mark.parametrize("name", ["s3", "azure"])
def test_writing(name: str, request: pytest.FixtureRequest, mountpoint: Path, tmp_path: Path):
    cloud: Cloud = request.getfixturevalue(name)
    bucket = filled(cloud)
    options = ["--writable", "--staging-dir", str(tmp_path / "staging"), "--part-size", "5MiB"]
    large = payload(12 << 20)
    with mount_of(cloud, cloud.source(bucket), mountpoint, *options) as mount:
        (mount.path / "new").mkdir()
        (mount.path / "new" / "large.bin").write_bytes(large)
        (mount.path / "new" / "small.txt").write_text("small")
        os.rename(mount.path / "readme.txt", mount.path / "new" / "readme.txt")
        os.unlink(mount.path / "d" / "big.bin")
        with pytest.raises(FileExistsError):
            (mount.path / "new" / "small.txt").touch(exist_ok=False)
    with mount_of(cloud, cloud.source(bucket), mountpoint) as mount:
        assert (mount.path / "new" / "large.bin").read_bytes() == large
        assert tree(mount.path / "new") == ["large.bin", "readme.txt", "small.txt"]
        assert not (mount.path / "d").exists()
        assert not (mount.path / "readme.txt").exists()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "1.txt").write_text("one")
    packed = run(cloud, "pack", tmp_path / "files", cloud.source(bucket, "/new/p-{00..}.tar"))
    assert b"1 shard written" in packed.stdout, packed.stderr
    assert (
        f"{cloud.source(bucket)}/new/p-00.tar"
        in run(cloud, "ls", cloud.source(bucket, "/new/*.tar")).stdout.decode()
    )


def test_a_slow_line_needs_the_time_that_it_needs(s3: Cloud, mountpoint: Path, tmp_path: Path):
    """15 MB at 1 MB/s, with deadlines that are far shorter, as one request; and a dead line ends."""
    bucket, data = s3.make_bucket(), payload(15 << 20)
    options = ["--writable", "--staging-dir", str(tmp_path / "staging"), "--io-timeout", "3"]
    with slow_line(s3.url, 1e6) as line:
        env = {**s3_environment(line.url), "AIS_READ_TIMEOUT": "1"}
        log = ["given up", "was not uploaded"]
        with mounted(
            s3.source(bucket), mountpoint, options=options, env=env, expected_log=log
        ) as mount:
            (mount.path / "large.bin").write_bytes(data)
            assert s3.get(bucket, "large.bin") == data
            file = open(mount.path / "lost.bin", "wb")  # noqa: SIM115 - its close fails
            file.write(data)
            line.is_dead = True
            before = time.monotonic()
            with pytest.raises(OSError, match="timed out"):
                file.close()
            assert time.monotonic() - before < 30, "it ended within a deadline"
            line.is_dead = False


def test_a_rename_waits_until_azure_has_copied(azure: Azure, mountpoint: Path, tmp_path: Path):
    """It may answer before that, and the new blob is empty meanwhile."""
    bucket, data = azure.make_bucket(), payload(2 << 20)
    azure.put(bucket, "d/old.bin", data)
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]
    with late_copies(azure, 2) as late:
        with mount_of(late, late.source(bucket), mountpoint, *options) as mount:
            os.rename(mount.path / "d" / "old.bin", mount.path / "d" / "new.bin")
            assert (mount.path / "d" / "new.bin").read_bytes() == data
            assert os.listdir(mount.path / "d") == ["new.bin"]
            assert azure.get(bucket, "d/new.bin") == data
        with mount_of(
            late, late.source(bucket), mountpoint, *options, "--io-timeout", "0.7",
            expected_log=["given up"],
        ) as mount:  # fmt: skip
            with pytest.raises(OSError, match="timed out"):
                os.rename(mount.path / "d" / "new.bin", mount.path / "d" / "newer.bin")
            assert azure.get(bucket, "d/new.bin") == data


def test_modes_and_times_are_refused_or_last_as_long_as_the_mount(
    s3: Cloud, mountpoint: Path, tmp_path: Path
):
    bucket, old = s3.make_bucket(), 1_600_000_000
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("content")
    os.chmod(source / "a", 0o640)
    os.utime(source / "a", (old, old))
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]

    def code(*words: str | Path) -> int:
        return subprocess.run(words, capture_output=True, check=False).returncode

    with mount_of(s3, s3.source(bucket), mountpoint, *options) as mount:
        assert code("touch", mount.path / "new") == 0
        assert code("touch", mount.path / "new") == 1
        assert code("cp", "-p", source / "a", mount.path / "kept") == 0
        facts = (mount.path / "kept").stat()
        assert (facts.st_mode & 0o777, facts.st_mtime) == (0o640, old)
        assert code("rsync", "-rt", f"{source}/", mount.path / "copied") == 23
        assert (mount.path / "copied" / "a").read_text() == "content"
        assert code("chmod", "640", mount.path / "copied" / "a") == 1
        assert code("touch", "-d", "2001-01-01", mount.path / "copied" / "a") == 1
        assert code("rsync", "-r", "--size-only", f"{source}/", mount.path / "copied") == 0
    with mount_of(s3, s3.source(bucket), mountpoint, *options, "--ignore-attr-changes") as mount:
        assert code("rsync", "-a", f"{source}/", mount.path / "again") == 0
    with mount_of(s3, s3.source(bucket), mountpoint) as mount:
        for name in ("kept", "copied/a", "again/a"):
            facts = (mount.path / name).stat()
            assert facts.st_mtime > old
            assert facts.st_mode & 0o777 == 0o444


def test_links_are_refused_where_nothing_would_say_that_they_are_some(
    s3: Cloud, mountpoint: Path, tmp_path: Path
):
    bucket = s3.make_bucket()
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]
    warning = ["no symbolic links: the bucket keeps no custom metadata"]
    with mount_of(s3, s3.source(bucket), mountpoint, *options, expected_log=warning) as mount:
        for _ in range(2):
            with pytest.raises(PermissionError):
                os.symlink("target", mount.path / "l")
            assert os.listdir(mount.path) == []
        assert mount.log().count(warning[0]) == 2
        (mount.path / "l").write_text("a file")
        assert s3.get(bucket, "l") == b"a file"


ODD = {
    "d//x": "d/aisfs-empty/x",
    "d//y/z": "d/aisfs-empty/y/z",
    "d///deep": "d/aisfs-empty/aisfs-empty/deep",
    "d/../y": "d/aisfs-dotdot/y",
    "d/.": "d/aisfs-dot",
    "d/aisfs-empty/x": "d/aisfs-aisfs-empty/x",
    "d/tab\tx": "d/tab\tx",
    "/lead": "aisfs-empty/lead",
    "d/fine.txt": "d/fine.txt",
    "fine.txt": "fine.txt",
    "both//x": "both/aisfs-empty/x",
}
"""Keys of S3, and where a mount shows them."""


def test_keys_with_components_that_no_path_has(s3: S3, mountpoint: Path, tmp_path: Path):
    bucket, again = s3.make_bucket(), s3.make_bucket()
    for key in ODD:
        s3.put(bucket, key, key.encode())
    for hidden in ("both", "both/", "d//y"):  # directories have their names
        s3.put(bucket, hidden, b"hidden")
    with mount_of(s3, s3.source(bucket), mountpoint) as mount:
        for key, path in ODD.items():  # by name first: nothing has been listed yet
            assert (mount.path / path).read_bytes() == key.encode()
        for missing in ("aisfs-dot", "d/aisfs-empty/none", "d/aisfs-aisfs-dot", "both/aisfs-dot"):
            assert not (mount.path / missing).exists()
        assert set(tree(mount.path)) >= set(ODD.values())
        listed = subprocess.run(["ls", "-AR", mount.path], check=True, capture_output=True)
        assert listed.stdout.count(b"aisfs-empty:") == 5
        subprocess.run(["rsync", "-r", f"{mount.path}/", tmp_path / "copy"], check=True)
    found = {
        str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*") if p.is_file()
    }
    assert found == set(ODD.values())
    options = ["--writable", "--staging-dir", str(tmp_path / "staging"), "--ignore-attr-changes"]
    with mount_of(s3, s3.source(again), mountpoint, *options) as mount:
        subprocess.run(["rsync", "-r", f"{tmp_path / 'copy'}/", mount.path], check=True)
    assert {key: s3.get(again, key) for key in ODD} == {key: key.encode() for key in ODD}


def test_keys_with_components_that_no_path_has_are_changed(
    s3: S3, mountpoint: Path, tmp_path: Path
):
    bucket = s3.make_bucket()
    for key in ODD:
        s3.put(bucket, key, key.encode())
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]
    log = ["cannot be written: empty component"]
    with mount_of(s3, s3.source(bucket), mountpoint, *options, expected_log=log) as mount:
        with open(mount.path / "d/aisfs-empty/x", "ab") as file:
            file.write(b" and more")
        os.rename(mount.path / "d/aisfs-dotdot/y", mount.path / "mended")
        os.rename(mount.path / "aisfs-empty", mount.path / "led")
        os.rename(mount.path / "d/aisfs-dot", mount.path / "led/aisfs-dotdot")
        (mount.path / "new").mkdir()
        (mount.path / "new/aisfs-empty").mkdir()
        (mount.path / "new/aisfs-empty/x").write_bytes(b"new")
        subprocess.run(["rm", "-r", mount.path / "both"], check=True)
        for path in ("new/aisfs-dots", "new/aisfs-aisfs-dot"):
            (mount.path / path).write_bytes(path.encode())
        with pytest.raises(OSError, match="Invalid argument"):
            (mount.path / "mended").rename(mount.path / "d/aisfs-aisfs-empty/aisfs-empty")
        (mount.path / "new/aisfs-aisfs-empty").mkdir()
        with pytest.raises(OSError, match="Invalid argument"):
            (mount.path / "aisfs-empty").touch()
        assert sorted(os.listdir(mount.path / "new")) == sorted(
            ["aisfs-aisfs-dot", "aisfs-aisfs-empty", "aisfs-dots", "aisfs-empty"]
        )
    wanted = {"d//x": b"d//x and more", "mended": b"d/../y", "led/lead": b"/lead", "led/..": b"d/."}
    wanted |= {"new//x": b"new", "new/aisfs-dots": b"new/aisfs-dots"}
    wanted |= {"new/aisfs-dot": b"new/aisfs-aisfs-dot"}
    gone = ("d/../y", "/lead", "d/.", "both//x", "new/", "new//")
    assert {key: s3.get(bucket, key) for key in wanted} == wanted
    assert [key for key in gone if s3.get(bucket, key) is not None] == []


def test_members_made_of_keys_with_such_components_stay_below_where_they_are_extracted(
    s3: S3, mountpoint: Path, tmp_path: Path
):
    bucket = s3.make_bucket()
    wanted = {
        "../../up.jpg": "aisfs-dotdot/aisfs-dotdot/up.jpg",
        "/etc/x.jpg": "aisfs-empty/etc/x.jpg",
    }
    wanted |= {"d//x.jpg": "d/aisfs-empty/x.jpg", "d/x.jpg": "d/x.jpg"}
    for key in wanted:
        s3.put(bucket, key, key.encode())
    packed = aisfs("pack", f"{s3.source(bucket)}/", tmp_path / "x-{0..}.tar", env=s3.environment)
    assert packed.returncode == 0, packed.stderr
    with mount_of(s3, s3.source(bucket), mountpoint, "--view", "shards") as mount:
        for shard in (tmp_path / "x-0.tar", mount.path / "shard-000000.tar"):
            with tarfile.open(shard) as tar:
                found = {name: tar.extractfile(name).read().decode() for name in tar.getnames()}
            assert found == {path: key for key, path in wanted.items()}


def test_a_shard_below_an_empty_component(s3: S3, mountpoint: Path):
    bucket = s3.make_bucket()
    s3.put(bucket, "train//x.tar", encode([sample("a", 3, jpeg(1))]))
    with mount_of(s3, s3.source(bucket), mountpoint) as mount:
        assert len(os.listdir(mount.path / "train/aisfs-empty/x.tar.d")) == 2
    with mount_of(s3, s3.source(bucket), mountpoint, "--view", "class") as mount:
        assert os.listdir(mount.path) == ["3"]


@pytest.mark.parametrize("name", ["gcs", "azure"])
def test_a_key_that_cannot_be_a_file_spoils_no_more_than_the_listing_of_its_directory(
    name: str, request: pytest.FixtureRequest, mountpoint: Path, tmp_path: Path
):
    cloud: Cloud = request.getfixturevalue(name)
    bucket = cloud.make_bucket()
    for key in ("d//x", "d/../y", "d/fine.txt", "d/e/fine.txt", "fine.txt", "other/fine.txt"):
        cloud.put(bucket, key, key.encode())
    log = ["cannot be listed while a key there begins with 'd/.*rename such keys"]
    with mount_of(cloud, cloud.source(bucket), mountpoint, expected_log=log) as mount:
        assert sorted(os.listdir(mount.path)) == ["d", "fine.txt", "other"]
        assert (mount.path / "d" / "fine.txt").read_bytes() == b"d/fine.txt"
        assert os.listdir(mount.path / "d" / "e") == ["fine.txt"]
        assert not (mount.path / "d" / "none").exists()
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                os.listdir(mount.path / "d")
        cloud.delete(bucket, "d//x")
        cloud.delete(bucket, "d/../y")
        assert eventually(lambda: listable(mount.path / "d"))
        assert sorted(os.listdir(mount.path / "d")) == ["e", "fine.txt"]


def test_rmdir_removes_what_other_tools_leave_for_a_directory(
    s3: S3, mountpoint: Path, tmp_path: Path
):
    bucket = s3.make_bucket()
    for key in ("empty/", "full/", "full/sub/", "full/sub/x", "beside", "beside/", "more/", "new/"):
        s3.put(bucket, key, b"")
    s3.put(bucket, "more/", b"content")
    s3.put(bucket, "odd/", b"")
    s3.put(bucket, "odd//x", b"")
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]
    log = ["and stays: .*/more/: an object of 7 bytes"]
    with mount_of(s3, s3.source(bucket), mountpoint, *options, expected_log=log) as mount:
        names = ["beside", "empty", "full", "more", "new", "odd"]
        assert sorted(os.listdir(mount.path)) == names
        assert all(entry.is_dir() for entry in os.scandir(mount.path))
        assert os.listdir(mount.path / "odd") == ["aisfs-empty"]
        for name in ("empty", "beside", "more"):
            assert os.listdir(mount.path / name) == []
        (mount.path / "empty").rmdir()
        (mount.path / "beside").rmdir()
        for name in ("full", "full/sub", "more", "odd"):
            with pytest.raises(OSError, match="not empty"):
                (mount.path / name).rmdir()
        os.rename(mount.path / "full" / "sub", mount.path / "new")
        assert os.listdir(mount.path / "new") == ["x"]
        subprocess.run(["rm", "-r", mount.path / "new"], check=True)
    left = [
        key for key in ("empty/", "beside/", "new/", "new/x") if s3.get(bucket, key) is not None
    ]
    assert left == []
    assert s3.get(bucket, "more/") == b"content"
    assert s3.get(bucket, "beside") == s3.get(bucket, "full/") == s3.get(bucket, "odd/") == b""
    with mount_of(s3, s3.source(bucket), mountpoint, expected_log=log) as mount:
        assert sorted(os.listdir(mount.path)) == ["beside", "full", "more", "odd"]


def test_an_object_with_the_name_of_a_directory_is_there_when_the_directory_is_gone(
    s3: S3, mountpoint: Path, tmp_path: Path
):
    bucket = s3.make_bucket()
    for name in ("marked", "filled", "moved", "emptied"):
        s3.put(bucket, name, name.encode())
        s3.put(bucket, f"{name}/" if name == "marked" else f"{name}/x", b"")
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]
    with mount_of(s3, s3.source(bucket), mountpoint, *options) as mount:
        (mount.path / "marked").rmdir()
        subprocess.run(["rm", "-r", mount.path / "filled"], check=True)
        os.rename(mount.path / "moved", mount.path / "elsewhere")
        os.rename(mount.path / "emptied" / "x", mount.path / "elsewhere" / "y")
        (mount.path / "emptied").rmdir()
        for name in ("marked", "filled", "moved", "emptied"):
            assert name in os.listdir(mount.path)
            assert (mount.path / name).read_bytes() == name.encode()
            with open(mount.path / name, "ab") as file:
                file.write(b" and more")
    for name in ("marked", "filled", "moved", "emptied"):
        assert s3.get(bucket, name) == f"{name} and more".encode()


def test_the_marker_of_a_directory_stays_when_a_rename_onto_it_fails(
    s3: S3, mountpoint: Path, tmp_path: Path
):
    bucket = s3.make_bucket()
    for key in ("a/1", "a/2", "onto/"):
        s3.put(bucket, key, b"")
    options = ["--writable", "--staging-dir", str(tmp_path / "s"), "--rename-dir-limit", "1"]
    with mount_of(s3, s3.source(bucket), mountpoint, *options) as mount:
        with pytest.raises(OSError, match="cross-device"):
            os.rename(mount.path / "a", mount.path / "onto")
        assert os.listdir(mount.path / "onto") == []
    assert s3.get(bucket, "onto/") == b""


@pytest.mark.parametrize("name", ["google", "azure"])
def test_what_other_tools_leave_for_a_directory_elsewhere_stays(
    name: str, request: pytest.FixtureRequest, mountpoint: Path, tmp_path: Path
):
    """obstore would remove the object of that name without the slash. On Azure it does not list it."""
    cloud: Google | Azure = request.getfixturevalue(name)
    bucket = cloud.make_bucket()
    cloud.put(bucket, "empty/", b"")
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]
    log = ["and stays: .*/empty/: obstore cannot do it; the cloud's own tools can"]
    with mount_of(cloud, cloud.source(bucket), mountpoint, *options, expected_log=log) as mount:
        assert os.listdir(mount.path) == ["empty"]
        assert os.listdir(mount.path / "empty") == []
        if name == "azure":
            (mount.path / "empty").rmdir()
            assert os.listdir(mount.path) == []
        else:
            with pytest.raises(OSError, match="not empty"):
                (mount.path / "empty").rmdir()
    assert cloud.get(bucket, "empty/") == b""
    with mount_of(cloud, cloud.source(bucket), mountpoint) as mount:
        assert os.listdir(mount.path) == ["empty"]


def listable(path: Path) -> bool:
    with suppress(OSError):
        return bool(os.listdir(path))
    return False


@pytest.mark.parametrize("waits", [False, True], ids=["close", "write-back"])
def test_of_two_clients_that_make_a_file_one_wins(
    waits: bool, s3: Cloud, mountpoint: Path, tmp_path: Path
):
    """O_EXCL found no such file; by the time it is closed another client has made it."""
    bucket = s3.make_bucket()
    staging = ["--staging-dir", str(tmp_path / "staging")]
    options = ["--writable", *staging, *(["--write-back", "3600"] if waits else [])]
    options += ["--attr-ttl", "0", "--list-ttl", "0"]
    # What was lost is detached: Linux looks its name up again when an open finds that.
    lost = ["was not uploaded", "could not be uploaded", "open it again"]
    name = mountpoint / "lock"
    with mount_of(s3, s3.source(bucket), mountpoint, *options, expected_log=lost) as mount:
        with open(mountpoint / "mine", "x") as mine:
            mine.write("mine alone")
        made = open(name, "x")  # noqa: SIM115 - its close fails
        made.write("mine")
        s3.put(bucket, "lock", b"theirs")
        if waits:
            made.close()
            assert aisfs("flush", mount.path).returncode == Exit.FAILURE
        else:
            with pytest.raises(FileExistsError):
                made.close()
        assert eventually(lambda: name.read_bytes() == b"theirs")
    assert b"another client has made it" in run(s3, "recover", *staging).stdout
    refused = run(s3, "recover", "--upload", "--all", *staging)
    assert b"--force" in refused.stderr, refused
    done = run(s3, "recover", "--upload", "--all", "--force", *staging)
    assert done.returncode == Exit.OK, done
    with mount_of(s3, s3.source(bucket), mountpoint):
        assert (mountpoint / "mine").read_text() == "mine alone"
        assert name.read_text() == "mine"


def run(cloud: Cloud, *words: str | Path, **more: str) -> subprocess.CompletedProcess[bytes]:
    return aisfs(*words, env={**NO_ROLE, **cloud.environment, **more})


def test_commands(s3: Cloud, tmp_path: Path):
    bucket = filled(s3)
    place = s3.source(bucket)
    assert run(s3, "ls", place).stdout == b"d/\nreadme.txt\ntrain/\n"
    assert (
        run(s3, "ls", f"s3://{bucket}/train/*1.tar").stdout == f"{place}/train/x-001.tar\n".encode()
    )
    found = json.loads(run(s3, "inspect", "--json", place + PATTERN).stdout)
    assert found["samples"] == SHARDS * EACH, found
    pictures = tmp_path / "pictures"
    for number in range(6):
        folder = pictures / f"kind-{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
    packed = run(s3, "pack", pictures, f"{place}/packed/p-{{00..}}.tar", "--class-to", "cls")
    assert packed.returncode == Exit.OK, packed.stderr
    assert b"1 shard written" in packed.stdout
    unpacked = run(s3, "unpack", f"{place}/packed/*.tar", tmp_path / "unpacked")
    assert unpacked.returncode == Exit.OK, unpacked.stderr
    assert [name for name in tree(tmp_path / "unpacked") if name.endswith("jpg")] == tree(pictures)
    again = run(s3, "pack", f"{place}/train/", f"{place}/again-{{00..}}.tar")
    assert b"1 shard written" in again.stdout, again.stderr
    indexed = run(s3, "index", "--publish", place + PATTERN)
    assert b"3 indexes published" in indexed.stdout, indexed.stderr
    warmed = run(s3, "warm", place + PATTERN, "--cache-dir", tmp_path / "cache")
    assert b"3 shards" in warmed.stdout, warmed.stderr
    refused = run(s3, "mb", "s3+direct://new-bucket", AIS_ENDPOINT="http://127.0.0.1:1")
    assert b"make this one in its cloud" in refused.stderr


def test_doctor(cloud: Cloud):
    bucket = filled(cloud)
    found = json.loads(run(cloud, "doctor", "--json", cloud.source(bucket)).stdout)
    said = {check["name"]: check for check in found["checks"]}
    assert "without AIStore in between" in said["store"]["found"], said
    assert said["source"]["state"] == "ok", said
    assert "secret" not in json.dumps(found)
    missing = run(cloud, "doctor", cloud.source(f"{bucket}x"))
    assert missing.returncode == Exit.FAILURE
    assert b"region" in missing.stdout


def test_what_cannot_work_is_one_clear_line(s3: Cloud, mountpoint: Path, tmp_path: Path):
    bucket = s3.make_bucket()
    for words, code, reason in (
        ([s3.source("no-such-bucket")], Exit.NO_SOURCE, "does not exist"),
        (["--direct", "ais://pets"], Exit.USAGE, "--direct: ais://pets is in AIStore"),
        (["--direct"], Exit.USAGE, "--direct: give a SOURCE"),
        (["s3+direct://"], Exit.USAGE, "no bucket; write s3+direct://BUCKET"),
        (["az://con"], Exit.USAGE, "AZURE_STORAGE_ACCOUNT_NAME"),
        (["--writable", "--anonymous", s3.source(bucket)], Exit.USAGE, "--anonymous"),
        (["--writable", "https://host/dir"], Exit.USAGE, "https://host can only be read"),
        (["--writable", "hf://datasets/o/n"], Exit.USAGE, "can only be read"),
        (["s3a://bucket"], Exit.USAGE, "; s3:// is read without fsspec"),
        (["gcs://bucket"], Exit.USAGE, "; gs:// is read without fsspec"),
        ([s3.source(bucket, "/x.tar"), "https://host/x.tar"], Exit.USAGE, "what one store has"),
        (["https://u:secret@host/x.tar"], Exit.USAGE, "no user or password"),
    ):
        done = run(s3, "mount", *words, mountpoint, AISFS_CACHE_DIR=str(tmp_path / "cache"))
        text = done.stderr.decode()
        assert (done.returncode, text.count("\n")) == (code, 1), (words, text)
        assert reason in text, text
        assert "secret" not in text, text
    unreachable = {**s3_environment("http://127.0.0.1:1"), "AIS_ENDPOINT": ""}
    done = aisfs("mount", s3.source(bucket), mountpoint, env=unreachable)
    assert done.returncode == Exit.UNREACHABLE, done.stderr
    assert b"no connection to http://127.0.0.1:1: Connection refused" in done.stderr
    federated = tmp_path / "federated.json"  # as gcloud writes it for Amazon
    federated.write_text(
        '{"type": "external_account", "audience": "//iam.googleapis.com/p", "token_url": "https://sts.googleapis.com/v1/token",'
        ' "credential_source": {"environment_id": "aws1", "url": "http://169.254.169.254"}}'
    )
    for more, reason in (
        ({"GOOGLE_APPLICATION_CREDENTIALS": str(federated)}, b"only the kind with a token in a file is read"),
        ({"AWS_ENDPOINT_URL": "host:9000x://y"}, b"is no URL such as http://host:9000"),
        ({"GOOGLE_APPLICATION_CREDENTIALS": "/no/key.json"}, b"(credentials: GOOGLE_APPLICATION_CREDENTIALS)"),
    ):  # fmt: skip
        source = s3.source(bucket) if "AWS_ENDPOINT_URL" in more else "gs+direct://pets"
        done = aisfs("ls", source, env={"AIS_ENDPOINT": "", **s3.environment, **more})
        assert done.returncode == Exit.USAGE, done.stderr
        assert (reason in done.stderr, done.stderr.count(b"\n")) == (True, 1), done.stderr
    plain = s3_environment(s3.url.replace("http", "https"))
    done = aisfs("ls", s3.source(bucket), env=plain)
    assert done.returncode == Exit.USAGE, done.stderr
    assert b"the server does not speak TLS: use http:// in the endpoint" in done.stderr


def test_buckets_whose_readers_pay(s3: Cloud, google: Google, mountpoint: Path, tmp_path: Path):
    for cloud, header, value, env in (
        (s3, "x_amz_request_payer", "requester", {}),
        (google, "x_goog_user_project", "payer", {"GOOGLE_CLOUD_PROJECT": "payer"}),
    ):
        bucket = filled(cloud)
        there = cloud.environment.get("STORAGE_EMULATOR_HOST") or cloud.url
        pays = f'if ($http_{header} != "{value}") {{ return 403; }} proxy_pass {there};'
        with nginx(tmp_path, autoindex=False, more=f"{pays} client_max_body_size 0;") as front:
            via = {**s3_environment(front.url), "STORAGE_EMULATOR_HOST": front.url, **env}
            refused = aisfs("ls", cloud.source(bucket), env=via)
            assert (refused.returncode, b"403" in refused.stderr) == (Exit.DENIED, True)
            options = ["--requester-pays", "--writable"]
            with mounted(cloud.source(bucket), mountpoint, options=options, env=via) as mount:
                assert (mount.path / "readme.txt").read_bytes() == b"read me"
                assert "train" in os.listdir(mount.path)
                (mount.path / "new.txt").write_bytes(b"new")
                (mount.path / "new.txt").rename(mount.path / "newer.txt")
                (mount.path / "newer.txt").unlink()
            if cloud is s3:
                cloud.put(bucket, "d//odd", b"")  # boto3 lists this directory
                listed = aisfs("ls", "--requester-pays", cloud.source(bucket, "/d/"), env=via)
                assert b"big.bin" in listed.stdout, listed.stderr


@pytest.mark.parametrize("view", ["class", "flat", "shards"])
def test_an_archived_shard_does_not_stop_a_view(
    view: str, s3: S3, mountpoint: Path, tmp_path: Path
):
    bucket = filled(s3)
    s3.archive(bucket, "train/x-001.tar", shards()["train/x-001.tar"])
    env = {"AIS_ENDPOINT": "", "AISFS_CACHE_DIR": str(tmp_path), **s3.environment}
    options = ["--view", view] + ["--shuffle", "1"] * (view == "shards")
    with mounted(
        s3.source(bucket, "/train/*.tar"), mountpoint, options=options, env=env,
        expected_log=["1 archived shards left out"],
    ) as mount:  # fmt: skip
        found = tree(mount.path)
        if view == "shards":
            assert len(found) == SHARDS - 1
        else:
            names = {Path(name).name.partition("-")[0].partition(".")[0] for name in found}
            assert len(found) == (SHARDS - 1) * EACH * (2 if view == "flat" else 1), names
        assert f"{bucket}/train/x-001.tar" in mount.log()
        said = os.getxattr(mount.path, "user.aisfs.skipped").decode()
        assert "archived shard" in said, said
    with mounted(s3.source(bucket), mountpoint, env=env, expected_log=["archived"]) as mount:
        done = run(s3, "inspect", s3.source(bucket, "/train/*.tar"))
        assert b"archived" in done.stdout + done.stderr, (done.stdout, done.stderr)
        with pytest.raises(PermissionError):
            (mount.path / "train" / "x-001.tar").read_bytes()


def test_who_pays_is_named():
    for source, said in (
        ("gs+direct://pets", b"set GOOGLE_CLOUD_PROJECT to the project that pays"),
        ("az+direct://account/pets/", b"only S3 and Google charge so"),
        ("https://host/pets/", b"only S3 and Google charge so"),
        ("ais://pets", b"only S3 and Google charge so"),
    ):
        env = {"AIS_ENDPOINT": "http://127.0.0.1:9"}
        done = aisfs("ls", "--requester-pays", source, env=env)
        assert (done.returncode, done.stderr.count(b"\n")) == (Exit.USAGE, 1), done.stderr
        assert said in done.stderr, done.stderr


def test_a_private_certificate_authority(s3: Cloud, tmp_path: Path):
    bucket, certificate = filled(s3), make_certificate(tmp_path)
    s3.put(bucket, "d//odd", b"")  # boto3 lists this directory
    proxy = f"proxy_pass {s3.url}; proxy_set_header Host $http_host;"
    with nginx(tmp_path, certificate=certificate, autoindex=False, more=proxy) as front:
        environment = s3_environment(front.url)
        refused = aisfs("ls", s3.source(bucket), env=environment)
        assert refused.returncode == Exit.USAGE
        assert b"not trusted (UnknownIssuer): name its CA in AIS_CLIENT_CA" in refused.stderr
        without = s3_environment(front.url.replace("https", "http"))
        refused = aisfs("ls", s3.source(bucket), env=without)
        assert refused.returncode == Exit.USAGE
        assert b"the server speaks TLS: use https:// in the endpoint" in refused.stderr
        own = {
            "AIS_CRT": str(certificate[0]),
            "AIS_CRT_KEY": str(certificate[1]),
            "AIS_ENDPOINT": "",
        }
        refused = aisfs("ls", s3.source(bucket), env={**environment, **own})
        assert refused.returncode == Exit.USAGE
        assert b"takes no client certificate" in refused.stderr
        for more in ({"AIS_CLIENT_CA": str(certificate[0])}, {"AIS_SKIP_VERIFY_CRT": "true"}):
            done = aisfs("ls", s3.source(bucket, "/d/"), env={**environment, **more})
            assert done.stdout == b"/\nbig.bin\n", done.stderr


def test_profile_of_aws(s3: Cloud, tmp_path: Path):
    bucket = filled(s3)
    url = s3.environment["AWS_ENDPOINT_URL"]
    (tmp_path / "credentials").write_text(
        "[mine]\naws_access_key_id = test\naws_secret_access_key = hidden\n"
    )
    (tmp_path / "config").write_text(
        f"[profile mine]\nregion = us-east-1\nendpoint_url = {url}\n[profile bare]\nregion = x\n"
        "[profile role]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = mine\n"
    )
    files = {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        **NO_ROLE,
    }
    done = aisfs("ls", s3.source(bucket), env={**files, "AWS_PROFILE": "mine"})
    assert done.stdout == b"d/\nreadme.txt\ntrain/\n", done.stderr
    done = aisfs("ls", s3.source(bucket), env={**files, "AWS_PROFILE": "none"})
    assert (done.returncode, b"none" in done.stderr) == (Exit.USAGE, True), done.stderr
    done = aisfs("ls", s3.source(bucket), env={**files, "AWS_PROFILE": "bare"})
    assert b"aws configure" in done.stderr, done.stderr
    role = {"AWS_PROFILE": "role", "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}
    done = aisfs("ls", s3.source(bucket), env={**files, **role})
    assert done.stdout == b"d/\nreadme.txt\ntrain/\n", done.stderr


# Faults of uploads; others are in `test_faults` and its like ---------------------------------------


@pytest.fixture(scope="module")
def faulty(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    s3.make_bucket("pets")
    root = tmp_path_factory.mktemp("proxy")
    with running_server(root, faulty=True, forward=s3.url) as server:
        yield server


@contextmanager
def mount_of_faulty(faulty: RunningServer, mountpoint: Path, *options: str) -> Iterator[Mount]:
    env = {**s3_environment(faulty.endpoint), "AIS_READ_TIMEOUT": "1"}
    try:
        with mounted(
            "s3+direct://pets",
            mountpoint,
            options=options,
            env=env,
            expected_log=["WARNING", "ERROR"],
        ) as mount:
            yield mount
    finally:
        faulty.faults([])


def test_recover(faulty: RunningServer, s3: S3, mountpoint: Path, tmp_path: Path):
    """What could not be sent goes later to the store it was written for, and to no other."""
    staging = ["--staging-dir", str(tmp_path / "staging")]
    options = ["--writable", "--io-timeout", "2", *staging]
    with mount_of_faulty(faulty, mountpoint, *options) as mount:
        faulty.faults([{"action": "status", "match": {"method": "PUT"}, "times": -1}])
        with pytest.raises(OSError, match=r"error|timed out"):
            (mount.path / "new.txt").write_bytes(b"written")
    here = s3_environment(faulty.endpoint)
    elsewhere = aisfs(
        "recover", "--upload", "--all", *staging, env=s3_environment("http://127.0.0.1:1")
    )
    assert b"the environment leads to" in elsewhere.stderr, elsewhere
    done = aisfs("recover", "--upload", "--all", *staging, env=here)
    assert done.returncode == Exit.OK, done
    assert s3.get("pets", "new.txt") == b"written"


@pytest.mark.parametrize("part_size", ["256MiB", "5MiB"], ids=["whole", "parts"])
def test_questions_that_hang_beside_an_upload(
    part_size: str, faulty: RunningServer, s3: S3, mountpoint: Path, tmp_path: Path
):
    """The cloud is asked whether it answers while a slow line sends; some of the answers never come."""
    data = payload(7 << 20)
    hang = {"action": "stall", "seconds": 600, "until_cleared": True, "times": -1}
    options = ["--writable", "--staging-dir", str(tmp_path / "staging")]
    options += ["--io-timeout", "4", "--part-size", part_size]
    log = ["given up", "was not uploaded", "kept"]
    with slow_line(faulty.endpoint, 2e6) as line:
        env = {**s3_environment(line.url), "AIS_READ_TIMEOUT": "1"}
        with mounted(
            "s3+direct://pets", mountpoint, options=options, env=env, expected_log=log
        ) as mount:
            with open(mount.path / f"sent-{part_size}", "wb") as file:
                file.write(data)
                file.flush()
                faulty.faults([{**hang, "match": {"method": "HEAD"}, "every": 3}])
            assert sum(faulty.struck()) > 0, "nothing hung"
            faulty.faults([])
            assert s3.get("pets", f"sent-{part_size}") == data

            lost = open(mount.path / f"lost-{part_size}", "wb")  # noqa: SIM115 - its close fails
            lost.write(data)
            lost.flush()
            faulty.faults([{**hang, "match": {"method": "HEAD"}}])
            with pytest.raises(OSError, match="timed out"):
                lost.close()
            assert sum(faulty.struck()) > 0, "nothing hung"
            faulty.faults([])
            (mount.path / "later").write_bytes(b"later")
            assert s3.get("pets", "later") == b"later"
        done = aisfs("recover", "--upload", "--all", "--force", *options[1:3], env=env)
        assert done.returncode == Exit.OK, done
    assert s3.get("pets", f"lost-{part_size}") == data
