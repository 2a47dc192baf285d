"""Archives of every form, opened as folders: the bytes are those that the libraries unpack."""

import errno
import functools
import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.mount.content import fill, payload
from tests.support.archives import (
    COMPRESSIONS,
    SUFFIXES,
    lz4_legacy,
    make,
    make_tar,
    make_zip,
    text,
    xz_with_dictionary,
)
from tests.support.mounts import Mount, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

MIB = 1 << 20
MEMBERS: dict[str, bytes] = {
    **{f"{n:04}.cls": str(n).encode() for n in range(40)},
    **{f"{n:04}.image.jpg": payload(20_000 + n, n) for n in range(40)},
    "deep/er/empty": b"",
    "deep/text.txt": text(300_000),
    "deep/one-block": text(512),
}
LARGE = {"a.bin": payload(5 * MIB, "a"), "b.txt": text(6 * MIB, "b"), "c.cls": b"1"}

READ_IN_RANDOM_ORDER = """
import hashlib, os, random, sys
root, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = [os.path.join(p, n) for p, _, files in os.walk(root) for n in files]
chosen = random.Random(seed)
for _ in range(rounds):
    chosen.shuffle(names)
    for name in names:
        with open(name, "rb") as file:
            print(hashlib.sha256(file.read()).hexdigest(), os.path.relpath(name, root))
"""


@functools.cache
def archives() -> dict[str, bytes]:
    found = {f"small.{suffix}": make(suffix, MEMBERS) for suffix in SUFFIXES}
    found |= {f"large.{suffix}": make(suffix, LARGE) for suffix in ("tgz", "tar.zst", "zip")}
    for name, method in (("bz2", zipfile.ZIP_BZIP2), ("lzma", zipfile.ZIP_LZMA)):
        found[f"{name}.zip"] = make_zip(MEMBERS, method)
        found[f"large-{name}.zip"] = make_zip(LARGE, method)
    found["stored.zip"] = make_zip(MEMBERS, zipfile.ZIP_STORED)
    found["large-stored.zip"] = make_zip(LARGE, zipfile.ZIP_STORED)
    return found


def unpacked(root: Path) -> dict[str, bytes]:
    return {
        os.path.relpath(os.path.join(parent, name), root): Path(parent, name).read_bytes()
        for parent, _, files in os.walk(root)
        for name in files
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("forms") / "store"
    fill(root / "b", archives())
    with running_server(root) as server:
        yield server


@pytest.fixture(scope="module", params=["cluster", "local"])
def mount(request, server: RunningServer, tmp_path_factory, fastpath) -> Iterator[Mount]:
    place = tmp_path_factory.mktemp("mnt").resolve()
    cache = tmp_path_factory.mktemp("cache")
    options = ["--cache-dir", str(cache), "--cache-size", "400MiB"]
    source = str(server.root / "b") if request.param == "local" else "ais://b"
    endpoint = None if request.param == "local" else server.endpoint
    with mounted(source, place, endpoint=endpoint, options=options, deadline=900) as mount:
        yield mount


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_members_are_those_of_the_archive(suffix: str, mount: Mount):
    assert unpacked(mount.path / f"small.{suffix}.d") == MEMBERS


@pytest.mark.parametrize("name", [
    "large.tgz", "large.tar.zst", "large.zip", "large-stored.zip", "large-bz2.zip", "large-lzma.zip",
])  # fmt: skip
def test_large_members(name: str, mount: Mount):
    folder = mount.path / f"{name}.d"
    with open(folder / "b.txt", "rb") as file:  # from behind, before anything else is read
        for start in (5 * MIB, 3 * MIB + 5, 0, 6 * MIB - 7):
            file.seek(start)
            assert file.read(70_000) == LARGE["b.txt"][start : start + 70_000]
    assert unpacked(folder) == LARGE


@pytest.mark.parametrize("method", ["stored", "bz2", "lzma"])
def test_zips_of_other_methods(method: str, mount: Mount):
    assert unpacked(mount.path / f"{method}.zip.d") == MEMBERS


def test_the_archive_itself_stays_a_file(mount: Mount, server: RunningServer):
    for suffix in SUFFIXES:
        name = f"small.{suffix}"
        assert (mount.path / name).read_bytes() == (server.root / "b" / name).read_bytes()
    with zipfile.ZipFile(mount.path / "small.zip") as file:
        assert file.testzip() is None
    assert sorted(os.listdir(mount.path)) == sorted(archives())


def test_sizes_and_times_without_reading(mount: Mount):
    for suffix in SUFFIXES:
        status = os.stat(mount.path / f"small.{suffix}.d" / "deep" / "text.txt")
        assert status.st_size == 300_000
        assert status.st_mtime_ns // 10**9 == 1_700_000_000


def test_shards_dir(server: RunningServer, mountpoint: Path):
    options = ["--shards", "dir"]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options):
        assert (mountpoint / "small.tgz" / "0003.cls").read_bytes() == b"3"
        assert (mountpoint / "small.zip" / "0003.cls").read_bytes() == b"3"
        raw = (mountpoint / "small.tar.xz.raw").read_bytes()
        assert raw == (server.root / "b" / "small.tar.xz").read_bytes()


def test_one_download_and_none_after_a_remount(tmp_path: Path, mountpoint: Path):
    members = {f"{n}.bin": text(MIB, n) for n in range(12)}
    data = make("tgz", members)
    fill(tmp_path / "store" / "b", {"x.tgz": data})
    options = ["--cache-dir", str(tmp_path / "cache"), "--cache-size", "200MiB"]
    common = {"options": options}
    with running_server(tmp_path / "store") as server:
        with mounted("ais://b", mountpoint, endpoint=server.endpoint, **common) as mount:
            assert unpacked(mountpoint / "x.tgz.d") == members
            assert _fetched(mountpoint) <= len(data) + 200_000
            assert "decompressed" in mount.log()
        before = server.requests().get("get", 0)
        with mounted("ais://b", mountpoint, endpoint=server.endpoint, **common):
            assert unpacked(mountpoint / "x.tgz.d") == members
            assert _fetched(mountpoint) == 0
        assert server.requests().get("get", 0) == before


def _fetched(mountpoint: Path) -> float:
    stats = os.getxattr(mountpoint, "user.aisfs.stats").decode()
    line = next(x for x in stats.splitlines() if x.startswith("aisfs_fetched_bytes_total"))
    return float(line.split()[1])


def test_zip_is_not_read_whole(tmp_path: Path, mountpoint: Path):
    members = {f"{n}.bin": payload(MIB, n) for n in range(12)}
    fill(tmp_path / "store" / "b", {"x.zip": make_zip(members)})
    options = ["--cache-size", "0"]
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options),
    ):
        assert len(os.listdir(mountpoint / "x.zip.d")) == 12
        assert _fetched(mountpoint) <= 200_000
        assert (mountpoint / "x.zip.d" / "7.bin").read_bytes() == members["7.bin"]
        assert _fetched(mountpoint) <= 3 * MIB


def test_eight_processes_in_random_order_on_a_small_cache(tmp_path: Path, mountpoint: Path):
    contents = {
        f"{n}.{kind}": {f"{m:03}.txt": text(200_000 + m, (n, m)) for m in range(30)}
        for n in range(2)
        for kind in ("tgz", "tar.lz4", "zip")
    }
    sources = {name: make(name.partition(".")[2], members) for name, members in contents.items()}
    fill(tmp_path / "store" / "b", sources)
    options = ["--cache-dir", str(tmp_path / "cache"), "--cache-size", "24MiB"]
    expected = {
        name: {hashlib.sha256(data).hexdigest() + " " + m for m, data in members.items()}
        for name, members in contents.items()
    }
    with (
        running_server(tmp_path / "store") as server,
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=options, deadline=280
        ) as mount,
    ):
        names = [*contents, *random.Random(1).sample(sorted(contents), 2)]
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READ_IN_RANDOM_ORDER, f"{mount.path}/{name}.d", str(n), "1"],
                stdout=subprocess.PIPE,
            )
            for n, name in enumerate(names)
        ]
        for name, reader in zip(names, readers, strict=True):
            out, _ = reader.communicate(timeout=240)
            assert reader.returncode == 0
            assert set(out.decode().splitlines()) == expected[name]
    used = sum(f.stat().st_blocks * 512 for f in (tmp_path / "cache").rglob("*") if f.is_file())
    assert used <= 24 * MIB


# Damage ------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path, mountpoint: Path):
    """Mounts these objects from a local directory and expects complaints."""

    def mount(objects: Mapping[str, bytes], *options: str, log: tuple[str, ...] = ("b/",)):
        fill(tmp_path / "b", objects)
        chosen = ["--cache-dir", str(tmp_path / "cache"), *options]
        if "--cache-size" not in options:
            chosen += ["--cache-size", "100MiB"]
        return mounted(str(tmp_path / "b"), mountpoint, options=chosen, expected_log=log)

    return mount


def warnings_of(folder: Path) -> str:
    return os.getxattr(folder, "user.aisfs.warnings").decode()


def errno_of(path: Path) -> int:
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        path.read_bytes()
    return caught.value.errno


@pytest.mark.parametrize("suffix", [s for s in COMPRESSIONS if s != "tar"])
def test_cut_off_stream_serves_what_lies_before(suffix: str, damaged, mountpoint: Path):
    members = {f"{n:03}.bin": payload(50_000, n) for n in range(60)}
    whole = make(suffix, members)
    with damaged({f"x.{suffix}": whole[: len(whole) // 2]}):
        folder = mountpoint / f"x.{suffix}.d"
        listed = os.listdir(folder)
        assert 5 <= len(listed) <= 31
        good = sorted(listed)[:-1]
        for name in good:
            assert (folder / name).read_bytes() == members[name]
        assert "damaged behind byte" in warnings_of(folder)


def test_several_streams_in_one_file(damaged, mountpoint: Path):
    tar = make_tar(MEMBERS)
    cut = len(tar) // 2 // 512 * 512 + 100
    objects = {
        f"x.{suffix}": compress(tar[:cut]) + compress(tar[cut:])
        for suffix, compress in COMPRESSIONS.items()
        if suffix != "tar"
    }
    objects["zeros.tgz"] = COMPRESSIONS["tgz"](tar) + bytes(10_240)
    with damaged(objects, log=()):
        for name in objects:
            assert unpacked(mountpoint / f"{name}.d") == MEMBERS


def test_wrong_suffix(damaged, mountpoint: Path):
    objects = {"zip.tgz": make("zip", MEMBERS), "tar.zip": make("tar", MEMBERS)}
    objects |= {"text.tar.zst": b"this is text\n" * 100, "empty.tar.xz": b"", "empty.zip": b""}
    with damaged(objects):
        for name in ("zip.tgz", "tar.zip", "text.tar.zst"):
            assert os.listdir(mountpoint / f"{name}.d") == []
            assert warnings_of(mountpoint / f"{name}.d")
            assert (mountpoint / name).read_bytes() == objects[name]
        assert os.listdir(mountpoint / "empty.zip.d") == []


def test_damaged_zip_member_is_an_error_and_its_neighbours_are_not(damaged, mountpoint: Path):
    objects = {}
    for name, method in (("s.zip", zipfile.ZIP_STORED), ("d.zip", zipfile.ZIP_DEFLATED)):
        data = bytearray(make_zip({**MEMBERS, **LARGE}, method))
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            for member in ("deep/text.txt", "b.txt"):
                info = file.getinfo(member)
                data[info.header_offset + 100 + info.compress_size * 9 // 10] ^= 0xFF
        objects[name] = bytes(data)
    with damaged(objects, log=("text.txt", "b.txt", "s.zip", "d.zip")) as mount:
        for name in objects:
            folder = mountpoint / f"{name}.d"
            assert errno_of(folder / "deep" / "text.txt") == errno.EIO
            assert errno_of(folder / "b.txt") == errno.EIO
            assert (folder / "a.bin").read_bytes() == LARGE["a.bin"]
            assert (folder / "0007.image.jpg").read_bytes() == MEMBERS["0007.image.jpg"]
        assert "deep/text.txt" in mount.log()


def test_encrypted_members_are_counted(damaged, mountpoint: Path):
    data = bytearray(make_zip({"secret.txt": b"1", "open.txt": b"2"}))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with damaged({"x.zip": bytes(data)}, log=()):
        assert os.listdir(mountpoint / "x.zip.d") == ["open.txt"]
        assert os.getxattr(mountpoint / "x.zip.d", "user.aisfs.skipped") == b"encrypted: 1"


# Limits ------------------------------------------------------------------------------------------


def test_bombs_are_errors_and_the_disk_stays_below_the_limit(
    damaged, tmp_path: Path, mountpoint: Path
):
    zeros = make_tar({"zeros": bytes(100 * MIB)})
    objects = {
        "bomb.tgz": COMPRESSIONS["tgz"](zeros),
        "bomb.tar.zst": COMPRESSIONS["tar.zst"](zeros),
        "bomb.tar.xz": COMPRESSIONS["tar.xz"](zeros),
        "bomb.zip": make_zip({"zeros": bytes(100 * MIB), "fine": b"1"}),
        "good.tgz": make("tgz", MEMBERS),
    }
    with damaged(objects, "--cache-size", "50MiB", log=("larger --cache-size",)) as mount:
        for name in ("bomb.tgz", "bomb.tar.zst", "bomb.tar.xz"):
            for _ in range(2):
                with pytest.raises(OSError, match="File too large"):
                    os.listdir(mountpoint / f"{name}.d")
            assert _disk(tmp_path / "cache") <= 50 * MIB
        assert errno_of(mountpoint / "bomb.zip.d" / "zeros") == errno.EFBIG
        assert (mountpoint / "bomb.zip.d" / "fine").read_bytes() == b"1"
        assert unpacked(mountpoint / "good.tgz.d") == MEMBERS
        assert "--cache-size" in mount.log()


def test_archives_that_take_too_much_memory_are_refused_and_say_why(damaged, mountpoint: Path):
    tar = make_tar(MEMBERS)
    objects = {
        "modest.tar.xz": xz_with_dictionary(tar, 1 << 26),
        "greedy.tar.xz": xz_with_dictionary(tar, 2**32 - 1),
    }
    with damaged(objects, log=("more than 128 MiB of memory",)) as mount:
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                os.listdir(mountpoint / "greedy.tar.xz.d")
        assert unpacked(mountpoint / "modest.tar.xz.d") == MEMBERS
        assert "greedy.tar.xz (decompressed): it takes more than 128 MiB" in mount.log()


def _disk(folder: Path) -> int:
    return sum(f.stat().st_blocks * 512 for f in folder.rglob("*") if f.is_file())


def test_without_a_cache_there_is_no_decompressing(damaged, mountpoint: Path):
    objects = {"x.tgz": make("tgz", MEMBERS), "x.zip": make("zip", MEMBERS)}
    with damaged(objects, "--cache-size", "0", log=("--cache-size",)) as mount:
        with pytest.raises(OSError, match="not supported") as caught:
            os.listdir(mountpoint / "x.tgz.d")
        assert caught.value.errno == errno.EOPNOTSUPP
        assert unpacked(mountpoint / "x.zip.d") == MEMBERS
        assert "give --cache-size" in mount.log()


@pytest.mark.parametrize(("suffix", "module"), [("tar.zst", "backports"), ("tar.lz4", "lz4")])
def test_missing_codec_names_the_package(
    suffix: str, module: str, tmp_path: Path, mountpoint: Path
):
    (tmp_path / "hidden" / module).mkdir(parents=True)
    (tmp_path / "hidden" / module / "__init__.py").write_text("")
    fill(tmp_path / "b", {f"x.{suffix}": make(suffix, MEMBERS)})
    extra = suffix.removeprefix("tar.").replace("zst", "zstd")
    with mounted(
        str(tmp_path / "b"),
        mountpoint,
        env={"PYTHONPATH": str(tmp_path / "hidden")},
        expected_log=("pip install",),
    ) as mount:
        with pytest.raises(OSError, match="not supported") as caught:
            os.listdir(mountpoint / f"x.{suffix}.d")
        assert caught.value.errno == errno.EOPNOTSUPP
        assert f"pip install '.[{extra}]'" in mount.log()


def test_damaged_cache_is_decompressed_again(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "b", {"x.tgz": make("tgz", LARGE)})
    options = ["--cache-dir", str(tmp_path / "cache"), "--cache-size", "100MiB"]
    with mounted(str(tmp_path / "b"), mountpoint, options=options):
        assert unpacked(mountpoint / "x.tgz.d") == LARGE
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file() and path.stat().st_size > 4 * MIB:
            with open(path, "r+b") as file:
                file.seek(3 * MIB)
                file.write(b"damage")
    with mounted(
        str(tmp_path / "b"), mountpoint, options=options, expected_log=("have changed", "dropped")
    ) as mount:
        assert unpacked(mountpoint / "x.tgz.d") == LARGE
        assert "decompressed" in mount.log()


def test_magic_goes_by_content(damaged, mountpoint: Path):
    objects = {
        "zip.tgz": make("zip", MEMBERS),
        "gz.tar": make("tgz", MEMBERS),
        "plain": make("tar", MEMBERS),
        "model.bin": make("tar.zst", MEMBERS),
        "text": b"this is text\n" * 100,
        "empty": b"",
        "real.tar.lz4": make("tar.lz4", MEMBERS),
        "legacy": lz4_legacy(make("tar", MEMBERS)),
    }
    with damaged(objects, "--magic", log=()):
        assert sorted(os.listdir(mountpoint)) == sorted(objects)
        for name in objects.keys() - {"text", "empty"}:
            assert unpacked(mountpoint / f"{name}.d") == MEMBERS
        for name in ("text.d", "empty.d", "nothing.d", ".d"):
            assert not (mountpoint / name).exists()


def test_names_without_a_suffix_are_files_without_magic(damaged, mountpoint: Path):
    with damaged({"plain": make("tar", MEMBERS)}, log=()):
        assert not (mountpoint / "plain.d").exists()


class _Pipe(io.RawIOBase):
    """Where a writer cannot go back, so that sizes follow the data."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.data += data
        return len(data)


def test_zips_of_other_writers(damaged, mountpoint: Path):
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in MEMBERS.items():
            file.writestr(name, data)
    long_header = io.BytesIO()
    with zipfile.ZipFile(long_header, "w") as file:
        for name, data in MEMBERS.items():
            info = zipfile.ZipInfo(name)
            info.extra = b"\xfe\xca\x2c\x01" + bytes(300)
            file.writestr(info, data)
    with_program = b"#!/bin/sh\nexit 0\n" * 1000 + make_zip(MEMBERS)
    updated = io.BytesIO(make_zip({"0000.cls": b"old", **dict(list(MEMBERS.items())[1:])}))
    with zipfile.ZipFile(updated, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("0000.cls", MEMBERS["0000.cls"])
    objects = {
        "streamed.zip": bytes(pipe.data),
        "long.zip": long_header.getvalue(),
        "program.zip": with_program,
        "updated.zip": updated.getvalue(),
    }
    with damaged(objects, log=()):
        for name in objects:
            assert unpacked(mountpoint / f"{name}.d") == MEMBERS
        assert os.getxattr(mountpoint / "updated.zip.d", "user.aisfs.skipped") == b"duplicate: 1"


def test_names_in_zips_of_windows_and_of_other_encodings(tmp_path: Path, mountpoint: Path):
    names, raw = ("cat\\?1.jpg", "dog\\", "dog\\?2.jpg"), "ソ".encode("cp932")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name in names:
            info = zipfile.ZipInfo(name.replace("?", "@@"))
            info.create_system = 0
            file.writestr(info, name[:3])
    fill(tmp_path / "b", {"w.zip": out.getvalue().replace(b"@@", raw)})
    (tmp_path / "b" / "ascii.zip").write_bytes(make_zip(MEMBERS))
    cache = ["--cache-dir", str(tmp_path / "cache")]
    # The same cache without the option, with it, and without it again.
    for encoding in ("", "cp932", ""):
        options = [*cache, *(["--encoding", encoding] if encoding else [])]
        with mounted(str(tmp_path / "b"), mountpoint, options=options):
            expected = {"cat/ソ1.jpg": b"cat", "dog/ソ2.jpg": b"dog"}
            if not encoding:  # the second byte of the letter is a backslash
                expected = {"cat/â/1.jpg": b"cat", "dog/â/2.jpg": b"dog"}
            assert unpacked(mountpoint / "w.zip.d") == expected
            assert unpacked(mountpoint / "ascii.zip.d") == MEMBERS


def test_zeros_behind_a_compressed_tar_are_no_damage(damaged, mountpoint: Path):
    tar = make_tar(MEMBERS)
    objects = {f"x.{suffix}": pack(tar) for suffix, pack in COMPRESSIONS.items() if suffix != "tar"}
    objects = {name: data + bytes(-len(data) % 10240 or 10240) for name, data in objects.items()}
    with damaged(objects, log=()):
        for name in objects:
            assert unpacked(mountpoint / f"{name}.d") == MEMBERS
            with pytest.raises(OSError, match="No data"):
                os.getxattr(mountpoint / f"{name}.d", "user.aisfs.warnings")


def test_a_daemon_killed_while_it_decompresses_leaves_a_cache_that_works(
    tmp_path: Path, mountpoint: Path
):
    members = {f"{n}.bin": payload(MIB, n) for n in range(14)}
    fill(tmp_path / "b", {"x.tar.bz2": COMPRESSIONS["tar.bz2"](make_tar(members))})
    options = ["--cache-dir", str(tmp_path / "cache"), "--cache-size", "60MiB"]
    source = str(tmp_path / "b")
    with mounted(source, mountpoint, options=options, foreground=True) as mount:
        reader = subprocess.Popen(
            ["ls", mountpoint / "x.tar.bz2.d"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert eventually(lambda: _disk(tmp_path / "cache") > 4 * MIB)
        os.kill(mount.pid, signal.SIGKILL)
        assert reader.wait(30)
    with mounted(source, mountpoint, options=options):
        assert unpacked(mountpoint / "x.tar.bz2.d") == members
    assert _disk(tmp_path / "cache") <= 60 * MIB
