"""Mounts of web servers and of the hub: the same as those of a bucket."""

import errno
import io
import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aisfs.commands.options import Exit
from tests.mount.cache_tools import big_directory
from tests.mount.content import payload
from tests.mount.datasets import ImageFolder, sample, tree, write_shard
from tests.support.hub import Hub, running_hub
from tests.support.mounts import MountFailedError, aisfs, eventually, mounted, run
from tests.support.web_servers import WebServer, ftp_server, make_certificate, nginx, python_server

pytestmark = pytest.mark.mount

SHARDS, EACH, CLASSES = 10, 6, 3
BIG = payload(9 << 20)
TOKEN = "hf_of_the_test"


def jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    with big_directory() as root:
        for shard in range(SHARDS):
            numbers = range(shard * EACH, (shard + 1) * EACH)
            write_shard(
                root / "data" / f"x-{shard:03}.tar",
                [sample(f"{number:03}", number % CLASSES, jpeg(number)) for number in numbers],
            )
        (root / "plain").mkdir()
        (root / "plain" / "big.bin").write_bytes(BIG)
        (root / "plain" / "small.txt").write_bytes(b"few bytes\n")
        root.chmod(0o755)
        yield root


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(site: Path, certificate: tuple[Path, Path]) -> Iterator[WebServer]:
    with nginx(site, certificate=certificate) as server:
        yield server


@pytest.fixture(scope="module")
def plain(site: Path) -> Iterator[WebServer]:
    with python_server(site) as server:
        yield server


@pytest.fixture
def trusted(certificate: tuple[Path, Path]) -> dict[str, str]:
    return {"AIS_CLIENT_CA": str(certificate[0])}


def test_classes_of_shards_over_tls(secure: WebServer, trusted: dict[str, str], mountpoint: Path):
    source = f"{secure.url}/data/x-{{000..009}}.tar"
    with mounted(source, mountpoint, options=["--view", "class"], env=trusted) as mount:
        dataset = ImageFolder(str(mount.path))
        assert dataset.classes == ["0", "1", "2"]
        assert len(dataset) == SHARDS * EACH
        for path, label in dataset.samples:
            number = int(Path(path).name.partition(".")[0][-3:])
            assert number % CLASSES == label
            assert Path(path).read_bytes() == jpeg(number)
        with pytest.raises(OSError, match="Read-only") as caught:
            (mount.path / "0" / "new").write_bytes(b"1")
        assert caught.value.errno == errno.EROFS


def test_a_directory_with_an_index(secure: WebServer, trusted: dict[str, str], mountpoint: Path):
    with mounted(f"{secure.url}/", mountpoint, env=trusted) as mount:
        assert sorted(os.listdir(mount.path)) == ["data", "plain"]
        names = [f"x-{number:03}.tar" for number in range(SHARDS)]
        assert sorted(os.listdir(mount.path / "data")) == names
        big = mount.path / "plain" / "big.bin"
        assert big.stat().st_size == len(BIG)
        assert int(big.stat().st_mtime) == int((secure.root / "plain" / "big.bin").stat().st_mtime)
        assert big.read_bytes() == BIG
        assert len(os.listdir(mount.path / "data" / "x-003.tar.d")) == 2 * EACH
        assert os.getxattr(big, "user.ais.version").startswith(b'"')


def test_a_file_that_is_replaced_is_stale_and_then_new(site: Path, mountpoint: Path):
    with big_directory() as root:
        root.chmod(0o755)
        name = root / "k"
        name.write_bytes(BIG)
        with (
            nginx(root) as server,
            mounted(
                f"{server.url}/", mountpoint, options=["--list-ttl", "0", "--attr-ttl", "0"],
                expected_log=["changed"],
            ) as mount,
            open(mount.path / "k", "rb") as file,
        ):  # fmt: skip
            assert file.read(4096) == BIG[:4096]
            fresh = root / "fresh"
            fresh.write_bytes(BIG[::-1])
            os.utime(fresh, (1, 1))
            fresh.rename(name)
            file.seek(8 << 20)
            with pytest.raises(OSError, match="Stale") as caught:
                file.read()
            assert caught.value.errno == errno.ESTALE
            assert eventually(lambda: (mount.path / "k").read_bytes() == BIG[::-1])


def test_commands(secure: WebServer, trusted: dict[str, str]):
    listed = aisfs("ls", f"{secure.url}/plain/", env=trusted)
    assert listed.stdout.split() == [b"big.bin", b"small.txt"]
    seen = aisfs(
        "inspect",
        f"{secure.url}/data/x-{{000..009}}.tar",
        "--cache-size",
        "0",
        "--json",
        env=trusted,
    )
    assert json.loads(seen.stdout)["samples"] == SHARDS * EACH


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["{url}/data/x-{{000..009}}.tar", "--view", "class"], Exit.USAGE, "name its CA in AIS_CLIENT_CA"),
        (["{url}/", "--writable"], Exit.USAGE, "can only be read"),
        (["https://user:s3cret@h/"], Exit.USAGE, "no user or password in a URL"),
    ],
)  # fmt: skip
def test_refusals(secure: WebServer, mountpoint: Path, words: list[str], code: int, said: str):
    source, *options = (word.format(url=secure.url) for word in words)
    with pytest.raises(MountFailedError) as caught, mounted(source, mountpoint, options=options):
        pass
    assert said in caught.value.stderr
    assert "s3cret" not in caught.value.stderr
    assert caught.value.returncode == code
    assert len(caught.value.stderr.splitlines()) == 1


def test_nothing_there(plain: WebServer, mountpoint: Path):
    for source, said in (
        (f"{plain.url}/data/y-{{0..3}}.tar", "no shard"),
        (f"{plain.url}/nowhere/", "nothing is below it"),
        ("http://127.0.0.1:9/x.tar", "connection failed"),
    ):
        with pytest.raises(MountFailedError) as caught, mounted(source, mountpoint):
            pass
        assert said in caught.value.stderr


def test_a_server_without_ranges(plain: WebServer, mountpoint: Path):
    """Large files are copied once; all is there after a remount."""
    for _ in range(2):
        with mounted(f"{plain.url}/plain/", mountpoint) as mount:
            with open(mount.path / "big.bin", "rb") as file:
                file.seek(8 << 20)
                assert file.read() == BIG[8 << 20 :]
            assert (mount.path / "big.bin").read_bytes() == BIG
            assert (mount.path / "small.txt").read_bytes() == b"few bytes\n"


def test_without_room_for_a_copy(plain: WebServer, mountpoint: Path):
    with mounted(
        f"{plain.url}/plain/",
        mountpoint,
        options=["--cache-size", "0"],
        expected_log=["only whole"],
    ) as mount:
        done = run("cat", mount.path / "big.bin")
        assert b"not supported" in done.stderr
        assert (mount.path / "small.txt").read_bytes() == b"few bytes\n"
        assert "only whole" in mount.log()
        assert "give --cache-size" in mount.log()


def test_without_an_index_shards_are_named(site: Path, mountpoint: Path):
    with nginx(site, autoindex=False) as server:
        with mounted(
            f"{server.url}/data/x-{{000..009}}.tar", mountpoint, options=["--view", "flat"]
        ) as mount:
            assert len(tree(mount.path)) == 2 * SHARDS * EACH
        warned = ["no index of this directory"]
        with mounted(f"{server.url}/data/", mountpoint, expected_log=warned) as mount:
            assert (mount.path / "x-003.tar").read_bytes() == (site / "data/x-003.tar").read_bytes()
            assert len(os.listdir(mount.path / "x-003.tar.d")) == 2 * EACH
            assert not (mount.path / "no.tar").exists()
            with pytest.raises(OSError, match="not supported"):
                os.listdir(mount.path)
            assert "be opened by its name, and not be listed" in mount.log()


def test_what_an_index_hides_can_be_looked_up(site: Path, mountpoint: Path, tmp_path: Path):
    """nginx hides names that begin with a dot; Apache whatever IndexIgnore says."""
    for name in (".hidden.tar", ".deep/inner/x.tar"):
        place = tmp_path / "root" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((site / "data" / "x-000.tar").read_bytes())
    (tmp_path / "root" / "seen.txt").write_bytes(b"seen")
    with nginx(tmp_path / "root") as server, mounted(f"{server.url}/", mountpoint) as mount:
        assert os.listdir(mount.path) == ["seen.txt"]
        assert (mount.path / ".hidden.tar").stat().st_size > 0
        assert len(os.listdir(mount.path / ".hidden.tar.d")) == 2 * EACH
        assert os.listdir(mount.path / ".deep") == ["inner"]
        assert (mount.path / ".deep" / "inner" / "x.tar").is_file()
        assert not (mount.path / ".other").exists()
        assert os.listdir(mount.path) == ["seen.txt"]


def test_commands_of_a_server_with_few_indexes(site: Path, mountpoint: Path, tmp_path: Path):
    """One file needs no index at all, and a directory none but its own."""
    cache = ["--cache-dir", str(tmp_path / "cache")]
    with (
        nginx(site, more="} location = / { return 403;") as root_only,
        nginx(site, autoindex=False) as none,
    ):
        shard, file = f"{none.url}/data/x-000.tar", f"{none.url}/plain/small.txt"
        for words, said in (
            (["ls", f"{root_only.url}/plain/"], b"big.bin\nsmall.txt"),
            (["ls", f"{root_only.url}/data/*3.tar"], b"x-003.tar"),
            (["warm", f"{root_only.url}/plain/", *cache], b"2 objects"),
            (["pack", f"{root_only.url}/plain/", tmp_path / "a-{0..}.tar"], b"1 shard written"),
            (["ls", shard], shard.encode()),
            (["ls", file], file.encode()),
            (["inspect", shard, *cache], b"shards"),
            (["inspect", f"{none.url}/data/x-{{000..000}}.tar", *cache], b"shards"),
            (["warm", shard, *cache], b"1 shard, 0 objects"),
            (["pack", shard, file, tmp_path / "b-{0..}.tar"], b"1 shard written"),
        ):
            done = aisfs(*words)
            assert said in done.stdout, (words, done.stderr)
        missing = aisfs("ls", f"{none.url}/data/y.tar")
        assert (missing.returncode, missing.stdout) == (Exit.NO_SOURCE, b""), missing
        source = f"{root_only.url}/data/*.tar"
        with mounted(source, mountpoint, options=["--view", "flat"]) as mount:
            assert len(tree(mount.path)) == 2 * SHARDS * EACH


def test_what_fsspec_opens(site: Path, mountpoint: Path):
    with ftp_server(site) as server:
        source = f"{server.url}/data/x-{{000..009}}.tar"
        with mounted(source, mountpoint, options=["--view", "class"]) as mount:
            dataset = ImageFolder(str(mount.path))
            assert len(dataset) == SHARDS * EACH
            for path, _ in dataset.samples:
                assert Path(path).read_bytes() == jpeg(int(Path(path).name.partition(".")[0][-3:]))
        with mounted(f"{server.url}/plain/", mountpoint) as mount:
            big = mount.path / "big.bin"
            assert big.read_bytes() == BIG
            assert int(big.stat().st_mtime) == int((site / "plain" / "big.bin").stat().st_mtime)


@pytest.fixture
def hub(site: Path) -> Iterator[Hub]:
    with running_hub(TOKEN) as hub:
        hub.files |= {f"data/{path.name}": path.read_bytes() for path in (site / "data").iterdir()}
        hub.files["README.md"] = b"# Pets\n"
        yield hub


def test_a_dataset_of_the_hub(hub: Hub, mountpoint: Path):
    env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
    source = "hf://datasets/own/pets/data/*.tar"
    with mounted(source, mountpoint, options=["--view", "class"], env=env) as mount:
        dataset = ImageFolder(str(mount.path))
        assert len(dataset) == SHARDS * EACH
        hub.files["data/x-000.tar"] = b"another commit"
        for path, _ in dataset.samples:
            assert Path(path).read_bytes() == jpeg(int(Path(path).name.partition(".")[0][-3:]))
        assert TOKEN not in mount.log()
    assert not any("authorization" in headers for headers in hub.to_storage)
    with mounted("hf://datasets/own/pets", mountpoint, env=env) as mount:
        assert (mount.path / "README.md").read_bytes() == b"# Pets\n"
        assert (mount.path / "data" / "x-000.tar").read_bytes() == b"another commit"


@contextmanager
def python_with_tls(certificate: tuple[Path, Path]) -> Iterator[str]:
    """Run a server that closes a connection on which somebody speaks without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_wrong_one_of_http_and_https(
    site: Path, secure: WebServer, certificate: tuple[Path, Path], mountpoint: Path
):
    with python_with_tls(certificate) as closing:
        for url in (secure.url, closing):
            for rest in ("/data/x-000.tar", "/data/"):
                done = aisfs("mount", url.replace("https", "http") + rest, mountpoint)
                text = done.stderr.decode()
                assert (done.returncode, text.count("\n")) == (Exit.USAGE, 1), text
                assert "the server speaks TLS: use https://" in text, text
    with nginx(site) as plain, python_server(site) as other:
        for url in (plain.url, other.url):
            done = aisfs("mount", url.replace("http", "https") + "/data/x-000.tar", mountpoint)
            text = done.stderr.decode()
            assert (done.returncode, text.count("\n")) == (Exit.USAGE, 1), text
            assert "the server does not speak TLS: use http://" in text, text


def test_a_server_that_wants_a_certificate(
    site: Path, certificate: tuple[Path, Path], trusted: dict[str, str], mountpoint: Path
):
    crt, key = certificate
    with nginx(site, certificate=certificate, trusts=crt) as server:
        source = f"{server.url}/data/x-000.tar"
        for place in (source, f"{server.url}/data/"):
            done = aisfs("mount", place, mountpoint, env=trusted)
            assert done.returncode == Exit.FAILURE
            assert b"client certificate" in done.stderr, done.stderr
        options = ["--client-cert", str(crt), "--client-key", str(key), "--view", "class"]
        with mounted(source, mountpoint, options=options, env=trusted) as mount:
            assert len(tree(mount.path)) == EACH


def test_who_takes_no_client_certificate_says_so(certificate: tuple[Path, Path], mountpoint: Path):
    crt, key = (str(path) for path in certificate)
    for source in ("hf://datasets/own/pets", "ftp://127.0.0.1:1/x.tar", "gs+direct://pets"):
        options = ["--client-cert", crt, "--client-key", key]
        done = aisfs("mount", *options, source, mountpoint, env={"AIS_ENDPOINT": ""})
        text = done.stderr.decode()
        assert (done.returncode, text.count("\n")) == (Exit.USAGE, 1), text
        assert "takes no client certificate" in text, text


def test_a_server_whose_host_is_an_ipv6_address(site: Path, mountpoint: Path, tmp_path: Path):
    with nginx(site, host="[::1]") as server:
        with mounted(f"{server.url}/", mountpoint) as mount:
            assert (mount.path / "plain" / "small.txt").read_bytes() == b"few bytes\n"
        several = [f"{server.url}/data/x-{{000..001}}.tar", f"{server.url}/data/x-00[2-3].tar"]
        one_word = f"{server.url}/data/x-004.tar::{server.url}/data/x-005.tar"
        listed = tmp_path / "list"
        listed.write_text(f"{server.url}/data/x-006.tar\n")
        lines = ["--files-from", str(listed)]
        for source, options, count in ((several, [], 4), (one_word, [], 2), ((), lines, 1)):
            with mounted(source, mountpoint, options=[*options, "--view", "class"]) as mount:
                assert len(tree(mount.path)) == count * EACH
        assert b"x-000.tar" in aisfs("ls", f"{server.url}/data/").stdout
        assert b"x-000.tar" in aisfs("ls", f"{server.url}/data/x-00[01].tar").stdout
        packed = aisfs("pack", f"{server.url}/plain/", tmp_path / "p-{0..}.tar")
        assert packed.returncode == 0, packed.stderr
        data = f"{server.url}/data/"
        indexed = aisfs("index", data, "--publish-to", tmp_path / "indexes", "--cache-size", "0")
        assert indexed.returncode == 0, indexed.stderr
        assert len(list((tmp_path / "indexes").rglob("*.idx"))) == SHARDS
