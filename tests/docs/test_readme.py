"""What README shows first works as it is written, in the environment that `make demo` leaves."""

import io
import re
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.docs.documents import README
from tests.support.archives import make_tar
from tests.support.mounts import COMMAND, aisfs, environment, is_mountpoint, run
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

TEXT = README.read_text()
MOUNTED_ON = "/mnt/pets"
LABELS = (1, 37, 5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A bucket of three shards, and nothing else that one would have to explain."""
    store = tmp_path_factory.mktemp("readme").resolve() / "store"
    (store / "pets").mkdir(parents=True)
    (store / "pets" / "readme.txt").write_text("pets\n")
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "JPEG")
    for shard in range(3):
        members = {}
        for sample, label in zip((1, 2), (LABELS[shard], 37), strict=True):
            members[f"sample_{2 * shard + sample:04}.cls"] = f"{label}\n".encode()
            members[f"sample_{2 * shard + sample:04}.jpg"] = picture.getvalue()
        (store / "pets" / f"samples-{shard:02}.tar").write_bytes(make_tar(members))
    with running_server(store) as server:
        yield server


@pytest.fixture
def shell(server: RunningServer, tmp_path: Path):
    """Runs a line of README, with a directory of the test for /mnt/pets."""
    mountpoint = tmp_path.resolve() / "mnt"
    mountpoint.mkdir()
    for name, words in (("aisfs", COMMAND), ("python", (sys.executable,))):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
    given = {"AIS_ENDPOINT": server.endpoint, "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}

    def call(line: str) -> str:
        line = line.replace(MOUNTED_ON, str(mountpoint))
        done = run("bash", "-c", line, env=environment(given), timeout=90)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().replace(str(mountpoint), MOUNTED_ON)

    yield call
    aisfs("umount", "--lazy", mountpoint)


MOUNT, PYTHON = re.findall(r"^    ((?:aisfs|python) .*)$", TEXT, re.MULTILINE)[:2]


def test_torchvision_reads_the_classes_of_the_first_lines(shell):
    assert "from torchvision.datasets import ImageFolder" in PYTHON
    shell(MOUNT)
    shown = shell(PYTHON)
    assert "Number of datapoints: 6" in shown
    assert "Root location: /mnt/pets" in shown


def test_the_first_lines_show_classes(shell):
    assert "--view class" in MOUNT
    shell(MOUNT)
    listed = shell("cd /mnt/pets && ls -d */*")
    for path in re.findall(r"`(\d+/sample_\d+\.jpg)`", TEXT):
        assert f"{path}\n" in listed


def test_the_listing_is_that_of_a_bucket(shell):
    (block,) = re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    shell("aisfs mount ais://pets /mnt/pets")
    steps = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    assert len(steps) == 3
    for step in steps:
        command, _, output = step.partition("\n")
        assert shell(command) == output


def test_the_way_on_a_laptop_connects(shell, tmp_path: Path):
    """All lines of the section as one script, which waits for the server as its comment says."""
    (section,) = re.findall(r"^## Try it on a laptop\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^    (.+)$", section, re.MULTILINE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (serve,) = [line for line in lines if line.startswith("aisfs serve")]
    command = serve.partition("&")[0].replace("serve", f"serve --port {port}")
    waits = f"{command} > ~/said & until grep -q http ~/said; do sleep 0.1; done"
    script = "\n".join(lines).replace(serve, waits).replace(":8080", f":{port}")
    for name in re.findall(r"`~/(pics/\S+\.jpg)`", section):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    said = shell(f"set -em; export HOME={tmp_path}\n{script}")
    assert said.endswith("\ncat\ndog\n")
    assert not is_mountpoint(tmp_path / "pets")
