"""Mounts of transformed objects: ETLs of the embedded server, which sets all traps, and local commands."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from aisfs.commands.options import Exit
from aisfs.core.index.sizes import decode_sizes, encode_sizes
from tests.mount.content import put
from tests.mount.datasets import sample, write_shard
from tests.support.mounts import Mount, aisfs, check_refused, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

BIG = b"abc\n" * 50_000
OBJECTS = {"a.txt": b"hello\n", "big.txt": BIG, "d/b.txt": b"below\n", "empty.txt": b""}
FAILED = ["the transformation failed|transform another object|broke off|does not run"]
UPPER = "tr a-z A-Z"


@pytest.fixture
def mode(tmp_path: Path) -> Path:
    """A script that transforms; a test may write another one."""
    file = tmp_path / "mode"
    file.write_text(UPPER)
    return file


@pytest.fixture
def server(tmp_path: Path, mode: Path) -> Iterator[RunningServer]:
    root = tmp_path / "served"
    for key, content in OBJECTS.items():
        (root / "b" / key).parent.mkdir(parents=True, exist_ok=True)
        (root / "b" / key).write_bytes(content)
    for number in range(3):
        write_shard(
            root / f"pets/samples-{number:02}.tar",
            [sample(f"s{number}{each}", each, image=b"picture") for each in range(3)],
        )
    (root / "pets/classes.txt").write_text("cat\ndog\nbird\n")
    etls = {
        "mode-etl": f"sh {mode}",
        "upper-etl": UPPER,
        "reverse-etl": "rev",
        "twice-etl": "sed s/.*/&&/",
        "random-etl": "head -c 300000 /dev/urandom",
        "args-etl": """python3 -c 'import os; print(os.environ["AISFS_ETL_ARGS"])'""",
        "tar-etl": "sed s/picture/PICTURE/g",
    }
    with running_server(root, traps=True, etls=etls) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def transformed(server: RunningServer, mountpoint: Path, tmp_path: Path) -> Any:
    def mount(*options: str, source: str = "ais://b", log: Sequence[str] = (), **more: Any) -> Any:
        options = (*options, "--cache-dir", str(tmp_path / "cache"))
        endpoint = server.endpoint if "://" in source else None
        more |= {"options": options, "expected_log": log}
        return mounted(source, mountpoint, endpoint=endpoint, **more)

    return mount


def refused(path: Path, good: Collection[bytes] | None = None) -> int | None:
    """Return the error of reading a file; None if it has a content, which must be one of the good ones."""
    try:
        found = path.read_bytes()
    except OSError as error:
        return error.errno
    assert good is None or found in good, found[-300:]
    return None


def error_of(path: Path) -> str:
    return os.getxattr(path, "user.aisfs.error").decode()


def etl(server: RunningServer, method: str, path: str = "", **message: Any) -> None:
    said = requests.request(method, f"{server.endpoint}/v1/etl{path}", json=message, timeout=30)
    said.raise_for_status()


def test_an_etl(transformed: Any, mountpoint: Path) -> None:
    with transformed("--etl", "upper-etl"):
        assert (mountpoint / "a.txt").read_bytes() == b"HELLO\n"
        for key, content in OBJECTS.items():
            assert (mountpoint / key).stat().st_size == len(content)
            assert (mountpoint / key).read_bytes() == content.upper()
        with open(mountpoint / "big.txt", "rb") as file:
            file.seek(100_001)
            assert file.read(5) == BIG.upper()[100_001:100_006]
        status = aisfs("status", mountpoint).stdout.decode()
        assert "transformations" in status
        with pytest.raises(OSError, match="Read-only"):
            (mountpoint / "new").write_text("x")
    # What is known is known to the next mount.
    with transformed("--etl", "upper-etl"):
        assert (mountpoint / "big.txt").read_bytes() == BIG.upper()
        assert "transformations" not in aisfs("status", mountpoint).stdout.decode()


def test_etls_in_a_row_and_arguments(transformed: Any, mountpoint: Path) -> None:
    with transformed("--etl", "twice-etl,upper-etl"):
        assert (mountpoint / "a.txt").stat().st_size == 11
        assert (mountpoint / "a.txt").read_bytes() == b"HELLOHELLO\n"
    with transformed("--etl", "args-etl", "--etl-args", '{"a": "&?é"}'):
        assert (mountpoint / "a.txt").read_text() == '{"a": "&?é"}\n'


def test_a_command_for_any_source(
    transformed: Any, mountpoint: Path, server: RunningServer
) -> None:
    for source in ("ais://b", str(server.root / "b")):
        with transformed("--transform", "rev", source=source):
            assert (mountpoint / "a.txt").read_bytes() == b"olleh\n"
            assert (mountpoint / "empty.txt").read_bytes() == b""
    with transformed("--transform", "python:gzip:compress", "--include", "a*"):
        assert (mountpoint / "a.txt").read_bytes()[:2] == b"\x1f\x8b"
        assert sorted(os.listdir(mountpoint)) == ["a.txt", "d"]


def transformations(server: RunningServer) -> int:
    return server.requests().get("transform", 0)


@pytest.mark.parametrize("more", [[], ["--list-ttl", "0"]], ids=["believed", "listed-each-time"])
def test_names_cost_no_transformation(
    transformed: Any, mountpoint: Path, server: RunningServer, more: list[str]
) -> None:
    for number in range(60):
        put(server.endpoint, "b", f"many/{number:02}", b"text")
    with transformed("--etl", "twice-etl", *more):
        assert sorted(os.listdir(mountpoint)) == ["a.txt", "big.txt", "d", "empty.txt", "many"]
        with os.scandir(mountpoint) as entries:
            found = {entry.name: (entry.is_dir(), entry.inode() > 0) for entry in entries}
        assert found["a.txt"] == (False, True)
        assert found["d"] == (True, True)
        assert sum(len(files) for _, _, files in os.walk(mountpoint)) == 64
        assert not (mountpoint / "many/no").exists()
        assert transformations(server) == 0
        assert (mountpoint / "many/30").stat().st_size == 8
        assert transformations(server) == 1
        # Attributes of what is known come with the names from now on, and not those of others.
        listed = {each.name: each.stat().st_size for each in os.scandir(mountpoint)}
        assert (listed["a.txt"], listed["big.txt"]) == (11, 350_000)
        status = aisfs("status", "--json", mountpoint).stdout.decode()
        assert json.loads(status)["transformations"]["done"] == transformations(server)


def test_status_tells_what_is_being_transformed(
    transformed: Any, mountpoint: Path, server: RunningServer, mode: Path, tmp_path: Path
) -> None:
    mode.write_text(f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; cat")

    def status() -> dict[str, int]:
        said = json.loads(aisfs("status", "--json", mountpoint).stdout)
        found: dict[str, int] = said.get("transformations", {})
        return found

    with transformed("--etl", "mode-etl"), ThreadPoolExecutor(2) as readers:
        try:
            sizes = [
                readers.submit(lambda key=key: (mountpoint / key).stat().st_size)
                for key in ("a.txt", "d/b.txt")
            ]
            assert eventually(lambda: status().get("running") == 2)
        finally:
            (tmp_path / "go").touch()
        assert [size.result() for size in sizes] == [6, 6]
        assert eventually(lambda: (status()["done"], status().get("running", 0)) == (2, 0))


def test_without_the_fast_path_a_listing_has_all_attributes(
    transformed: Any, mountpoint: Path, server: RunningServer
) -> None:
    with transformed("--etl", "twice-etl", "--no-fastpath"):
        assert sorted(os.listdir(mountpoint)) == ["a.txt", "big.txt", "d", "empty.txt"]
        assert (mountpoint / "a.txt").stat().st_size == 11
        assert transformations(server) == 3


def test_what_is_looked_up_next_is_transformed_ahead(
    transformed: Any, mountpoint: Path, server: RunningServer
) -> None:
    for number in range(60):
        put(server.endpoint, "b", f"many/{number:02}", b"text")
    with transformed("--etl", "twice-etl", source="ais://b/many/"):
        for name in ("50", "20", "40"):  # in no order
            assert (mountpoint / name).stat().st_size == 8
        assert transformations(server) == 3
        for name in ("00", "01"):
            assert (mountpoint / name).stat().st_size == 8
        assert eventually(lambda: transformations(server) == 5 + 16)
        assert {each.stat().st_size for each in mountpoint.iterdir()} == {8}
        assert transformations(server) == 60


@pytest.mark.parametrize("source", ["samples-*.tar", "samples-{00..02}.tar"])
def test_a_shard_is_transformed_when_it_is_needed(
    transformed: Any, mountpoint: Path, server: RunningServer, source: str
) -> None:
    with transformed("--etl", "tar-etl", source=f"ais://pets/{source}"):
        assert sorted(os.listdir(mountpoint)) == ["samples-00", "samples-01", "samples-02"]
        assert transformations(server) == 0
        assert (mountpoint / "samples-01/s10.jpg").read_bytes() == b"PICTURE"
        assert transformations(server) == 1
        assert (mountpoint / "samples-00/s00.jpg").read_bytes() == b"PICTURE"
        assert transformations(server) == 2
        assert len(list(mountpoint.glob("*/*.jpg"))) == 9
        assert transformations(server) == 3


def test_names_of_an_etl_that_was_defined_anew(
    transformed: Any, mountpoint: Path, server: RunningServer
) -> None:
    etl(server, "PUT", name="moving-etl", runtime={"image": "upper-etl"})
    with transformed("--etl", "moving-etl", "--attr-ttl", "0", "--list-ttl", "0"):
        assert (mountpoint / "a.txt").stat().st_size == 6
        etl(server, "DELETE", "/moving-etl")
        etl(server, "PUT", name="moving-etl", runtime={"image": "twice-etl"})
        before = transformations(server)
        assert "a.txt" in os.listdir(mountpoint)
        assert transformations(server) == before
        assert eventually(lambda: (mountpoint / "a.txt").stat().st_size == 11)
        assert (mountpoint / "a.txt").read_bytes() == b"hellohello\n"


@pytest.mark.parametrize(
    "how",
    [["--etl", "tar-etl"], ["--transform", "sed s/picture/PICTURE/g"]],
    ids=["etl", "command"],
)
def test_shards_are_the_transformed_shards(
    transformed: Any, mountpoint: Path, how: list[str]
) -> None:
    with transformed(*how, source="ais://pets"):
        folder = mountpoint / "samples-00.tar.d"
        assert (folder / "s00.jpg").read_bytes() == b"PICTURE"
        assert len(os.listdir(folder)) == 6
    with transformed(*how, "--view", "class", source="ais://pets"):
        # The names of classes are as they are.
        assert sorted(os.listdir(mountpoint)) == ["bird", "cat", "dog"]
        assert (mountpoint / "dog/s11.jpg").read_bytes() == b"PICTURE"


def test_only_shards_that_are_named_are_transformed(
    transformed: Any, mountpoint: Path, server: RunningServer
) -> None:
    with transformed("--etl", "tar-etl", source="ais://pets/samples-01.tar"):
        assert (mountpoint / "samples-01/s10.jpg").read_bytes() == b"PICTURE"
        assert server.requests()["transform"] == 1


def test_warming_a_mount_transforms_all(
    transformed: Any, mountpoint: Path, server: RunningServer
) -> None:
    with transformed("--etl", "tar-etl", source="ais://pets"):
        for _ in range(2):
            said = aisfs("warm", mountpoint)
            assert said.returncode == 0
            assert b"disk cache keeps only" not in said.stderr
            assert b"3 shards, 1 object" in said.stdout
        assert server.requests()["transform"] == 4


def test_warming_a_source_and_looking_into_it(
    transformed: Any, mountpoint: Path, server: RunningServer, tmp_path: Path
) -> None:
    """The next mount has the results."""
    options = ("--etl", "mode-etl", "--endpoint", server.endpoint)
    place = ("--cache-dir", tmp_path / "cache")
    (tmp_path / "mode").write_text("sed s/picture/PICTURE/g")
    said = aisfs("warm", "ais://pets", *options, *place)
    assert said.returncode == 0, said.stderr
    assert b"3 shards, 1 object" in said.stdout
    with transformed("--etl", "mode-etl", source="ais://pets"):
        assert (mountpoint / "samples-02.tar.d/s20.jpg").read_bytes() == b"PICTURE"
        assert len(list(mountpoint.iterdir())) == 4
    assert server.requests()["transform"] == 4
    report = aisfs("inspect", "--json", "ais://pets/samples-02.tar", *options, *place)
    assert report.returncode == 0, report.stderr
    assert server.requests()["transform"] == 4
    local = aisfs("inspect", str(server.root / "pets"), "--etl", "mode-etl")
    assert local.returncode == Exit.USAGE
    assert b"is not in AIStore" in local.stderr


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo bad args >&2; exit 3", "bad args"),
        ("cat; exit 3", "broke off"),  # E1: the server appends an error to the content
        ("head -c 100000; kill -9 $$", "does not run"),
    ],
    ids=["refuses", "breaks-off", "dies"],
)
def test_an_error_is_no_content(
    transformed: Any, mountpoint: Path, mode: Path, server: RunningServer, script: str, said: str
) -> None:
    mode.write_text(f'case "$(head -c 3)" in abc) {script};; *) echo good ;; esac')
    options = [
        "--etl",
        "mode-etl",
        "--io-timeout",
        "2",
        "--exclude",
        "a.txt",
        "--exclude",
        "empty*",
    ]
    with transformed(*options, log=FAILED):
        assert refused(mountpoint / "big.txt") == errno.EIO
        assert said in error_of(mountpoint / "big.txt")
        if "kill" in script:  # which ends the ETL
            etl(server, "POST", "/mode-etl/start")
        assert sorted(os.listdir(mountpoint)) == ["big.txt", "d"]
        assert (mountpoint / "d/b.txt").read_bytes() == b"good\n"
        assert refused(mountpoint / "big.txt") == errno.EIO


def test_a_slow_reader_gets_all(transformed: Any, mountpoint: Path, server: RunningServer) -> None:
    """E2: a reader that pauses does not count against the ETL's time."""
    image = {"runtime": {"image": "upper-etl"}, "obj_timeout": "2s"}
    etl(server, "PUT", name="short-etl", **image)
    with (
        transformed("--etl", "short-etl", "--read-ahead-max", "0"),
        open(mountpoint / "big.txt", "rb", buffering=0) as file,
    ):
        got = file.read(1000)
        etl(server, "POST", "/short-etl/stop")  # as after any pause
        while piece := file.read(50_000):
            got += piece
        assert got == BIG.upper()


def test_names_that_aistore_would_not_find(
    transformed: Any, mountpoint: Path, server: RunningServer, mode: Path
) -> None:
    """E3: of these it transforms an empty input, unless clients ask the transformer themselves."""
    names = ["a?b", "a#b", "a%41b"]
    for name in names:
        put(server.endpoint, "b", f"odd/{name}", b"text")
    with transformed("--etl", "upper-etl", source="ais://b/odd/", log=FAILED):
        for name in names:
            assert refused(mountpoint / name) == errno.EIO
            assert "?, # or %" in error_of(mountpoint / name)
    etl(server, "PUT", name="pull-etl", communication="hpull://", runtime={"image": "upper-etl"})
    with transformed("--etl", "pull-etl", source="ais://b/odd/"):
        assert {(mountpoint / name).read_bytes() for name in names} == {b"TEXT"}
    etl(server, "PUT", name="refuses-etl", communication="hpull://", runtime={"image": "mode-etl"})
    mode.write_text("echo bad args >&2; exit 3")
    with transformed("--etl", "refuses-etl", source="ais://b/odd/", log=FAILED):
        assert refused(mountpoint / "a#b") == errno.EIO
        assert "bad args" in error_of(mountpoint / "a#b")
    assert "token_leaked" not in server.requests()


def test_a_pod_does_not_get_the_token(tmp_path: Path, mountpoint: Path) -> None:
    (tmp_path / "served/b").mkdir(parents=True)
    (tmp_path / "served/b/a").write_bytes(b"text")
    with running_server(tmp_path / "served", token="secret", etls={"upper-etl": UPPER}) as server:
        definition = {"name": "pull-etl", "communication": "hpull://"}
        said = requests.put(
            f"{server.endpoint}/v1/etl",
            json={**definition, "runtime": {"image": "upper-etl"}},
            headers={"Authorization": "Bearer secret"},
            timeout=30,
        )
        said.raise_for_status()
        options = ["--etl", "pull-etl", "--cache-dir", str(tmp_path / "cache")]
        env = {"AIS_AUTHN_TOKEN": "secret"}
        with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options, env=env):
            assert (mountpoint / "a").read_bytes() == b"TEXT"
        assert "token_leaked" not in server.requests()


def test_a_stopped_etl_is_no_missing_object(
    transformed: Any, mountpoint: Path, server: RunningServer
) -> None:
    """E6."""
    with transformed("--etl", "upper-etl", "--io-timeout", "3", log=["does not run"]):
        assert (mountpoint / "a.txt").read_bytes() == b"HELLO\n"
        etl(server, "POST", "/upper-etl/stop")
        assert (mountpoint / "a.txt").read_bytes() == b"HELLO\n"
        with pytest.raises(OSError, match="Input/output"):
            (mountpoint / "big.txt").stat()
        etl(server, "POST", "/upper-etl/start")
        assert (mountpoint / "big.txt").read_bytes() == BIG.upper()


@pytest.mark.parametrize("how", [["--etl", "twice-etl"], ["--transform", "sed s/.*/&&/"]])
def test_results_without_a_directory_are_errors(
    transformed: Any, mountpoint: Path, server: RunningServer, tmp_path: Path, how: list[str]
) -> None:
    """The mount stays, also where objects are transformed ahead of who asks for them."""
    for number in range(20):
        put(server.endpoint, "b", f"many/{number:02}", b"text")
    data = tmp_path / "cache/v1/transformed/data"
    with transformed(*how, source="ais://b/many/", log=["results of transformations"]):
        shutil.rmtree(data)
        for name in ("00", "01", "02", "03"):
            with pytest.raises(OSError, match="Input/output"):
                (mountpoint / name).stat()
        data.mkdir()
        assert {each.stat().st_size for each in mountpoint.iterdir()} == {8}
        assert (mountpoint / "19").read_bytes() == b"texttext"


def test_shards_whose_results_have_no_directory_are_errors(
    transformed: Any, mountpoint: Path, tmp_path: Path
) -> None:
    data = tmp_path / "cache/v1/transformed/data"
    options = ("--etl", "tar-etl")
    with transformed(*options, source="ais://pets/samples-*.tar", log=["results of transf"]):
        shutil.rmtree(data)
        for name in ("samples-00", "samples-01"):
            with pytest.raises(OSError, match="Input/output"):
                os.listdir(mountpoint / name)
        data.mkdir()
        assert len(list(mountpoint.glob("*/*.jpg"))) == 9


def test_results_on_a_full_disk_are_errors(
    transformed: Any, mountpoint: Path, server: RunningServer, tmp_path: Path
) -> None:
    for number in range(20):
        put(server.endpoint, "b", f"many/{number:02}", b"text" * 50_000)
    cache = tmp_path / "cache"
    cache.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "none", str(cache)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    try:
        options = ("--etl", "upper-etl", "--cache-size", "64M")
        log = ["results of transformations", "transformed: ", "No space", "full"]
        with transformed(*options, source="ais://b/many/", log=log):
            assert (mountpoint / "00").read_bytes() == b"TEXT" * 50_000
            with (cache / "filler").open("wb", buffering=0) as filler, suppress(OSError):
                while True:
                    filler.write(bytes(4096))
            for name in ("02", "03", "04"):
                assert refused(mountpoint / name, {b"TEXT" * 50_000}) in (None, errno.EIO)
            assert refused(mountpoint / "12") == errno.EIO
            (cache / "filler").unlink()
            assert (mountpoint / "12").read_bytes() == b"TEXT" * 50_000
    finally:
        subprocess.run(["umount", "-l", str(cache)], check=True)


SLOW = "tr a-z A-Z | { head -c 4000; sleep 0.05; cat; }"
TOO_SLOW = "tr a-z A-Z | { head -c 4000; sleep 1; cat; }"


class Disturber:
    """Changes what transforms the object `a.txt` of the bucket `b`, and the object, by chance."""

    images = ("upper-etl", "reverse-etl", "mode-etl", "mode-etl")
    texts = (b"one\n" * 2000, b"two more\n" * 3000)

    def __init__(self, server: RunningServer, mode: Path, read: Callable[[], object]) -> None:
        self.server, self.mode, self.read = server, mode, read
        self.killed = 0
        self.pid, self.rng = mode.with_name("pid"), random.Random(35)
        etl(server, "PUT", name="moving-etl", runtime={"image": "upper-etl"})
        self.first = [self.stop, self.define, self.define, self.write, self.break_off] * 2
        self.first += [self.slow_down, self.slow_down, self.kill]
        self.second = [self.start, self.define, self.write]

    @property
    def good(self) -> set[bytes]:
        good = {b"HELLO\n", b"olleh\n"}
        for text in self.texts:
            lines = text.split(b"\n")[:-1]
            good |= {text.upper(), b"".join(line[::-1] + b"\n" for line in lines)}
        return good

    def stop(self) -> None:
        etl(self.server, "POST", "/moving-etl/stop")

    def start(self) -> None:
        requests.post(f"{self.server.endpoint}/v1/etl/moving-etl/start", timeout=30)

    def define(self, image: str = "", number: int = 0) -> None:
        etl(self.server, "DELETE", "/moving-etl")
        env = [{"name": "NUMBER", "value": str(number)}]  # another definition has no results yet
        runtime = {"image": image or self.rng.choice(self.images), "env": env}
        etl(self.server, "PUT", name="moving-etl", obj_timeout="250ms", runtime=runtime)

    def write(self) -> None:
        put(self.server.endpoint, "b", "a.txt", self.rng.choice(self.texts))

    def break_off(self) -> None:
        how = ["cat; exit 3", "cat; kill -9 $$", "tr a-z A-Z; exit 1"]
        self.transform_by(self.rng.choice(how))

    def slow_down(self) -> None:
        self.transform_by(self.rng.choice([SLOW, SLOW, SLOW, SLOW, TOO_SLOW]))

    def transform_by(self, text: str) -> None:
        self.define("mode-etl", self.rng.getrandbits(32))
        new = self.mode.with_name("new")  # a shell reads its script while it runs it
        new.write_text(f"echo $$ >{self.pid}\n{text}\n")
        new.replace(self.mode)
        self.write()  # the mount need not ask at once how an ETL is defined

    def kill(self) -> None:
        """Kill or stop a transformer from outside."""
        self.transform_by(SLOW)
        self.pid.unlink(missing_ok=True)
        self.read()
        if eventually(lambda: self.pid.exists() and self.pid.read_text(), 1):
            with suppress(ProcessLookupError):
                how = self.rng.choice([signal.SIGKILL, signal.SIGSTOP])
                os.kill(int(self.pid.read_text()), how)
                self.killed += 1


def test_reads_while_everything_changes(
    transformed: Any, mountpoint: Path, server: RunningServer, mode: Path
) -> None:
    """Whatever happens to sources and transformers: a reader gets a result, whole, or an error."""
    read_disturbed(40, transformed, mountpoint, server, mode)


@pytest.mark.timeout(600)
def test_two_hundred_reads_while_everything_changes(
    transformed: Any, mountpoint: Path, server: RunningServer, mode: Path
) -> None:
    """The same, for longer."""
    read_disturbed(200, transformed, mountpoint, server, mode)


def read_disturbed(
    count: int, transformed: Any, mountpoint: Path, server: RunningServer, mode: Path
) -> None:
    """Read a file so many times, changing its source and its transformer before and meanwhile."""
    happened, reading = Counter[str](), list[Future[int | None]]()
    options = ("--etl", "moving-etl", "--attr-ttl", "0", "--list-ttl", "0", "--io-timeout", "5")
    said = [*FAILED, "changed", "changes while", "content now", "anew", "again"]
    with ThreadPoolExecutor(2) as thread:

        def read() -> None:
            reading.append(thread.submit(refused, mountpoint / "a.txt", disturber.good))

        disturber = Disturber(server, mode, read)
        with transformed(*options, log=said, deadline=500.0):
            for _ in range(count):
                disturber.rng.choice(disturber.first)()
                read()
                disturber.rng.choice(disturber.second)()
                disturber.start()
                while reading:
                    result = reading.pop().result()
                    assert result in (None, errno.EIO, errno.ESTALE)
                    happened["error" if result else "content"] += 1
            assert min(happened["error"], happened["content"]) > count // 20, happened
            assert disturber.killed
            assert server.requests()["transform"] > count
            disturber.define("upper-etl")
            disturber.write()
            assert refused(mountpoint / "a.txt", disturber.good) is None


def test_results_that_differ_are_not_mixed(
    transformed: Any, mountpoint: Path, tmp_path: Path
) -> None:
    """E5: a file that is open has the bytes of one result, or none; what is made again is another version."""
    path, kept = mountpoint / "a.txt", tmp_path / "cache/v1/transformed/data"
    with transformed("--etl", "random-etl", log=["content now"]):
        first, number = path.read_bytes(), path.stat().st_ino
        assert (path.read_bytes(), len(first)) == (first, path.stat().st_size)
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.read(100) == first[:100]
            for result in kept.iterdir():
                result.unlink()
            with suppress(OSError):
                while piece := file.read(100_000):
                    assert piece == first[file.tell() - len(piece) : file.tell()]
    for result in kept.iterdir():
        result.unlink()
    with transformed("--etl", "random-etl", log=["content now"]):
        # Of the first result only size and checksum are known: the first read finds out that it is gone.
        refused(path)
        second = path.read_bytes()
        assert second != first
        assert path.stat().st_ino != number


def test_one_line_at_mount(server: RunningServer, mountpoint: Path, tmp_path: Path) -> None:
    def check(*words: str, code: int, said: str, endpoint: str = server.endpoint) -> None:
        check_refused(words, mountpoint, endpoint=endpoint, code=code, said=said)

    b = str(server.root / "b")
    check("ais://b", "--etl", "no-such-etl", code=Exit.FAILURE, said="no such ETL, or it does not")
    check("ais://b", "--etl", "Upper", code=Exit.USAGE, said="names of ETLs")
    check("ais://b", "--etl", "upper-etl", "--writable", code=Exit.USAGE, said="only read")
    check("ais://b", "--transform", "rev", "--writable", code=Exit.USAGE, said="only read")
    check("ais://b", "--etl", "upper-etl", "--transform", "rev", code=Exit.USAGE, said="not with")
    check("ais://b", "--etl-args", "x", code=Exit.USAGE, said="--etl-args needs --etl")
    check("ais://b", "--transform", "no-program", code=Exit.USAGE, said="no such program")
    check(b, "--etl", "upper-etl", code=Exit.USAGE, said="is not in AIStore")
    check("ais://b", "--etl", "upper-etl", "--cache-size", "0", code=Exit.USAGE, said="on disk")
    (tmp_path / "other/b").mkdir(parents=True)
    with running_server(tmp_path / "other") as without:
        said = "built without ETLs"
        words = ("ais://b", "--etl", "upper-etl")
        check(*words, code=Exit.FAILURE, said=said, endpoint=without.endpoint)


def test_clearing_the_cache_forgets_results(
    transformed: Any, mountpoint: Path, tmp_path: Path
) -> None:
    with transformed("--transform", "rev", source="ais://b/d/"):
        assert (mountpoint / "b.txt").read_bytes() == b"woleb\n"
    data = tmp_path / "cache/v1/transformed/data"
    assert os.listdir(data)
    assert aisfs("cache", "clear", "--cache-dir", tmp_path / "cache").returncode == 0
    assert not os.listdir(data)


RESTARTED = "died|started again|SIGKILL"


def test_another_daemon_goes_on(transformed: Any, mountpoint: Path, server: RunningServer) -> None:
    with (
        transformed("--etl", "upper-etl", keeper=True, log=[RESTARTED]) as mount,
        open(mountpoint / "big.txt", "rb", buffering=0) as file,
    ):
        got = file.read(1000)
        os.kill(mount.pid, 9)
        mount.daemon_now()
        while piece := file.read(50_000):
            got += piece
        assert got == BIG.upper()
        assert server.requests()["transform"] == 1


def test_another_daemon_goes_on_without_the_etl(
    transformed: Any, mountpoint: Path, server: RunningServer
) -> None:
    """What is known is served; what is not has to wait until the ETL runs, and fails at the deadline."""
    options = ("--etl", "upper-etl", "--io-timeout", "3", "--attr-ttl", "0", "--list-ttl", "0")
    said = [RESTARTED, "has to wait", "does not run"]
    with transformed(*options, keeper=True, log=said) as mount:
        assert (mountpoint / "a.txt").read_bytes() == b"HELLO\n"
        etl(server, "POST", "/upper-etl/stop")
        os.kill(mount.pid, 9)
        mount.daemon_now()
        assert (mountpoint / "a.txt").read_bytes() == b"HELLO\n"
        assert refused(mountpoint / "big.txt") == errno.EIO
        etl(server, "POST", "/upper-etl/start")
        assert (mountpoint / "big.txt").read_bytes() == BIG.upper()
        assert server.requests()["transform"] == 2


@pytest.mark.parametrize("keeper", [False, True])
def test_commands_end_with_a_daemon_that_is_killed(
    transformed: Any, mountpoint: Path, tmp_path: Path, keeper: bool
) -> None:
    """Also what they have started themselves."""
    pids = tmp_path / "pids"
    command = f"sh -c '[ -e {pids} ] || {{ sleep 1000 & echo $$ $! >{pids}; wait; }}; cat'"
    log = [RESTARTED] if keeper else []
    options = ("--transform", command, "--include", "a.txt")
    with transformed(*options, keeper=keeper, log=log) as mount:
        reader = os.fork()
        if not reader:
            with suppress(OSError):
                (mountpoint / "a.txt").read_bytes()
            os._exit(0)
        assert eventually(lambda: pids.exists() and pids.read_text())
        os.kill(mount.pid, 9)
        os.waitpid(reader, 0)
        for pid in pids.read_text().split():
            assert eventually(lambda pid=pid: has_ended(pid))
        if keeper:
            mount.daemon_now()
            assert (mountpoint / "a.txt").read_bytes() == b"hello\n"


def has_ended(pid: str) -> bool:
    """Return whether a process is gone, or only waits to be reaped by one that may never do so."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_command_ends_with_its_mount(transformed: Any, mountpoint: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = f"sh -c 'echo $$ > {pid}; exec sleep 1000'"
    reader = 0
    with transformed("--transform", command, "--include", "a.txt") as mount:
        assert isinstance(mount, Mount)
        reader = os.fork()
        if not reader:
            refused(mountpoint / "a.txt")
            os._exit(0)
        assert eventually(lambda: pid.exists() and pid.read_text())
        os.kill(mount.pid, 15)
        os.waitpid(reader, 0)
        assert mount.wait_until_gone()
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


def index(server: RunningServer, tmp_path: Path, *words: str) -> tuple[int, str]:
    """Run `aisfs index` on a machine that has transformed nothing yet; return its exit code and what it said."""
    cache = tmp_path / f"cache-{len(list(tmp_path.iterdir()))}"
    options = ("--endpoint", server.endpoint, "--cache-dir", cache)
    done = aisfs("index", *words, *options)
    return done.returncode, (done.stdout + done.stderr).decode()


def test_published_sizes(
    transformed: Any, mountpoint: Path, server: RunningServer, tmp_path: Path
) -> None:
    twice = ("--etl", "twice-etl", "ais://b")
    code, said = index(server, tmp_path, *twice, "--check")
    assert (code, said.splitlines()) == (
        Exit.FAILURE,
        [
            *(f"ais://b/{key}" for key in sorted(OBJECTS)),
            "4 objects: 0 sizes are current, 4 are not",
        ],
    )
    assert transformations(server) == 0
    code, said = index(server, tmp_path, *twice)
    assert (code, said) == (Exit.OK, "4 objects: 4 sizes published, 0 were current\n")
    assert transformations(server) == 7  # three of them twice
    with transformed("--etl", "twice-etl"):
        sizes = {key: (mountpoint / key).stat().st_size for key in OBJECTS}
        assert sizes == {"a.txt": 11, "big.txt": 350_000, "d/b.txt": 11, "empty.txt": 0}
        assert transformations(server) == 7
        assert (mountpoint / "a.txt").read_bytes() == b"hellohello\n"
        assert transformations(server) == 8
    # Only what is new, and what is gone is left out.
    put(server.endpoint, "b", "d/new.txt", b"new\n")
    requests.delete(f"{server.endpoint}/v1/objects/b/empty.txt", timeout=30).raise_for_status()
    assert "d/new.txt" in index(server, tmp_path, *twice, "--check")[1]
    assert "1 size published, 3 were current" in index(server, tmp_path, *twice)[1]
    assert transformations(server) == 10
    assert index(server, tmp_path, *twice, "--check")[0] == Exit.OK
    # Of a directory above, and for shards that are named.
    with transformed("--etl", "twice-etl", "--cache-dir", str(tmp_path / "x"), source="ais://b/d/"):
        assert {each.stat().st_size for each in mountpoint.iterdir()} == {11, 7}
        assert transformations(server) == 10
    # Other arguments, and other ETLs of the name, have other results.
    etl(server, "PUT", name="moving-etl", runtime={"image": "upper-etl"})
    assert index(server, tmp_path, "--etl", "moving-etl", "ais://b")[0] == Exit.OK
    etl(server, "DELETE", "/moving-etl")
    etl(server, "PUT", name="moving-etl", runtime={"image": "twice-etl"})
    assert (
        "0 sizes are current"
        in index(server, tmp_path, "--etl", "moving-etl", "ais://b", "--check")[1]
    )
    with transformed("--etl", "moving-etl"):
        assert (mountpoint / "a.txt").stat().st_size == 11


def test_published_sizes_of_shards(
    transformed: Any, mountpoint: Path, server: RunningServer, tmp_path: Path
) -> None:
    some = ("--etl", "tar-etl", "--index-bucket", "", "ais://pets/samples-{00..01}.tar")
    assert "2 sizes published" in index(server, tmp_path, *some)[1]
    more = (*some[:-1], "ais://pets/samples-*.tar")
    assert "1 size published, 2 were current" in index(server, tmp_path, *more)[1]
    assert index(server, tmp_path, *some, "--check")[0] == Exit.OK
    made = transformations(server)
    with transformed("--etl", "tar-etl", "--index-bucket", "", source="ais://pets"):
        assert os.listdir(mountpoint / "samples-00.tar.d")
        assert (mountpoint / "samples-01.tar").stat().st_size > 0
        assert transformations(server) == made + 1


def test_sizes_that_cannot_be_published(
    transformed: Any, mountpoint: Path, server: RunningServer, mode: Path, tmp_path: Path
) -> None:
    mode.write_text("cat; date +%N")
    code, said = index(server, tmp_path, "--etl", "mode-etl", "ais://b")
    assert (code, "gives other bytes each time" in said) == (Exit.FAILURE, True)
    assert "not be found" not in said
    mode.write_text('case "$(head -c 3)" in abc) echo bad args >&2; exit 3;; *) cat;; esac')
    code, said = index(server, tmp_path, "--etl", "mode-etl", "ais://b")
    assert (code, "bad args" in said, "3 sizes published" in said) == (Exit.FAILURE, True, True)
    for words, text in {
        ("ais://b", "--etl-args", "x"): "--etl-args needs --etl",
        ("ais://b", "--etl", "mode-etl", "--force"): "--etl takes only",
        ("ais://b", "--etl", "mode-etl", "--dry-run"): "--etl takes only",
        ("ais://b", "--etl", "no-such-etl"): "no such ETL",
        (str(server.root), "--etl", "mode-etl"): "is not in AIStore",
    }.items():
        code, said = index(server, tmp_path, *words)
        assert (code != Exit.OK, text in said) == (True, True), said


@pytest.mark.parametrize(
    ("second", "left"),
    [("exit 3", 4), ("rm {b}/empty.txt; cat", 3), ("cat; echo changed >{b}/a.txt", 4)],
    ids=["fails-once", "goes", "changes"],
)
def test_objects_that_cannot_be_compared_do_not_end_it(
    server: RunningServer, mode: Path, tmp_path: Path, second: str, left: int
) -> None:
    runs, second = tmp_path / "runs", second.format(b=server.root / "b")
    mode.write_text(f"echo >>{runs}; if [ $(wc -l <{runs}) = 2 ]; then {second}; else cat; fi")
    code, said = index(server, tmp_path, "--etl", "mode-etl", "ais://b")
    assert (code, f"{left} sizes published" in said) == (Exit.OK, True), said


@pytest.mark.parametrize("damage", [b"", b"AISFSETL", b"x" * 5000])
def test_a_damaged_table_is_only_a_warning(
    transformed: Any, mountpoint: Path, server: RunningServer, tmp_path: Path, damage: bytes
) -> None:
    assert index(server, tmp_path, "--etl", "upper-etl", "ais://b")[0] == Exit.OK
    key = "ais/b/.aisfs-index/upper-etl.sizes"
    table = requests.get(f"{server.endpoint}/v1/objects/aisfs-index/{key}", timeout=30).content
    put(server.endpoint, "aisfs-index", key, damage or table[:-1] + b"x")
    with transformed("--etl", "upper-etl", log=["sizes in .* are not used"]):
        assert (mountpoint / "a.txt").read_bytes() == b"HELLO\n"
    assert index(server, tmp_path, "--etl", "upper-etl", "ais://b")[0] == Exit.OK


@pytest.mark.parametrize(("more", "content"), [(1, b"x" * 16), (1, b""), (-1, b"")])
def test_a_table_that_says_something_else(
    transformed: Any,
    mountpoint: Path,
    server: RunningServer,
    tmp_path: Path,
    more: int,
    content: bytes,
) -> None:
    """Sizes that others wrote may be wrong; content is not."""
    assert index(server, tmp_path, "--etl", "upper-etl", "ais://b")[0] == Exit.OK
    key = "ais/b/.aisfs-index/upper-etl.sizes"
    table = requests.get(f"{server.endpoint}/v1/objects/aisfs-index/{key}", timeout=30).content
    rows = {
        digest: (max(0, size + more), content or right)
        for digest, (size, right) in decode_sizes(table).items()
    }
    put(server.endpoint, "aisfs-index", key, encode_sizes(rows))
    with transformed("--etl", "upper-etl", log=["content now", "a result has 6 bytes"]):
        assert (mountpoint / "a.txt").stat().st_size == 6 + more
        assert refused(mountpoint / "a.txt", {b"HELLO\n"}) in (None, errno.ESTALE)
        assert eventually(lambda: refused(mountpoint / "a.txt", {b"HELLO\n"}) is None)
        assert (mountpoint / "a.txt").stat().st_size == 6
