"""The recipes are sessions: every program and command of a page, in its order."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgpack
import pytest

from tests.docs.documents import ROOT
from tests.docs.pets import MOUNTED_ON
from tests.mount import zoo
from tests.mount.cache_tools import big_directory
from tests.programs.pictures import write_folders, write_samples
from tests.programs.programs import program_environment
from tests.support.clouds import S3, moto
from tests.support.hub import running_hub
from tests.support.mounts import daemons, eventually, is_mountpoint, run
from tests.support.servers import RunningServer, running_server
from tests.support.web_servers import nginx

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]

FOLDER = ROOT / "docs" / "recipes"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
LIMIT = 90.0
PUBLIC = "https://data.example.org"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OPENING = re.compile(r"^aisfs: open(?:ing|ed) .*\n", re.MULTILINE)
"""What a mount says only where opening its shards takes seconds."""
_PROGRAM = re.compile(r"\A# ([a-z_]+\.py)\n")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with big_directory() as base:
        bucket = base / "store" / "pets"
        write_folders(bucket / "train", 60)
        tree = str(bucket / "train")
        zoo.gnu_tar(
            "-C", tree, "--sort=name", "-cf", str(bucket / "train.tar"), "cat", "dog", "fish"
        )
        write_samples(bucket, shards=4, samples=40)
        records = (msgpack.packb({"number": number}) for number in range(50))
        (bucket / "records.mps").write_bytes(b"".join(records))
        normalize = f"{sys.executable} {ROOT}/examples/normalize.py"
        with running_server(base / "store", etls={"registry/normalize:1": normalize}) as server:
            yield server


@pytest.fixture(scope="module")
def s3(server: RunningServer) -> Iterator[S3]:
    with moto() as cloud:
        cloud.make_bucket("pets")
        for shard in (server.root / "pets").glob("samples-*.tar"):
            cloud.put("pets", shard.name, shard.read_bytes())
        yield cloud


@dataclass
class Public:
    """What stands for a web server and for the hub."""

    url: str
    hub: str


@pytest.fixture(scope="module")
def public(server: RunningServer) -> Iterator[Public]:
    with nginx(server.root) as site, running_hub("hf_of_the_reader") as hub:
        for name in ("samples-00.tar", "samples-01.tar"):
            hub.files[f"data/{name}"] = (server.root / "pets" / name).read_bytes()
        yield Public(site.url, hub.url)


@pytest.fixture
def place(server: RunningServer) -> Iterator[Path]:
    """Where a reader of the page would be: a clone of the project, and an empty directory."""
    with big_directory() as directory:
        mountpoint = directory / "mnt"
        mountpoint.mkdir()
        shutil.copytree(ROOT / "examples", directory / "examples")
        yield directory
        if is_mountpoint(mountpoint):  # the page failed before its end
            subprocess.run(["fusermount3", "-uz", mountpoint], check=True, timeout=30)
        assert eventually(lambda: not daemons(mountpoint)), "a daemon was left behind"


def matches(said: str, expected: str) -> bool:
    pattern = ".*".join(map(re.escape, expected.rstrip("\n").split("…")))
    return re.fullmatch(pattern, said.rstrip("\n")) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_recipe(page: Path, place: Path, server: RunningServer, s3: S3, public: Public):
    mountpoint = str(place / "mnt")
    env = program_environment(place, {
        "AIS_ENDPOINT": server.endpoint, "TMPDIR": str(place), "AISFS_LOG_FILE": os.devnull,
        **s3.environment, "HF_ENDPOINT": public.hub, "HF_TOKEN": "hf_of_the_reader",
    })  # fmt: skip
    commands = 0
    for kind, text in _BLOCK.findall(page.read_text()):
        if kind == "python":
            (place / _PROGRAM.match(text)[1]).write_text(text)
            continue
        assert kind == "console", "a block that nobody runs"
        for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            done = run(
                "bash", "-c", command.replace(MOUNTED_ON, mountpoint).replace(PUBLIC, public.url),
                timeout=LIMIT, env=env, cwd=place,
            )  # fmt: skip
            said = (done.stdout + done.stderr).decode().replace(mountpoint, MOUNTED_ON)
            said = _OPENING.sub("", said)
            assert matches(said, expected), f"$ {command}\n{said}instead of\n{expected}"
            assert done.returncode == 0, command
            commands += 1
    assert commands > 3
    assert not is_mountpoint(Path(mountpoint)), "the page ends with `aisfs umount`"


def test_every_page_is_in_the_list():
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (FOLDER / "README.md").read_text())
    assert sorted(listed) == [page.name for page in PAGES]


def test_every_example_is_explained():
    text = "".join(page.read_text() for page in PAGES)
    for path in (ROOT / "examples").glob("*.py"):
        assert path.name == "__init__.py" or f"examples/{path.name})" in text
