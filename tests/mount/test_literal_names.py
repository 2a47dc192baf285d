"""Names with brackets, braces and stars: what exists as it is written wins over the pattern, in every command."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.mount.datasets import encode, sample, tree
from tests.support.mounts import aisfs, mounted, run
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

FILES = {
    "run[1]/x-0.tar": encode([sample("bracket-0", 0)]),
    "run[1]/x-1.tar": encode([sample("bracket-1", 1)]),
    "run[1]/notes.txt": b"of run[1]",
    "run1/x-0.tar": encode([sample("plain-0", 0)]),
    "run2/x-0.tar": encode([sample("plain-2", 0)]),
    "lr{3,4}/a*b.tar": encode([sample("brace", 0)]),
    "lr{3,4}/axb.tar": encode([sample("other", 0)]),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("literal").resolve() / "store"
    fill(root / "b", FILES)
    with running_server(root) as running:
        yield running


@pytest.fixture(params=["ais", "local"])
def place(request: pytest.FixtureRequest, server: RunningServer) -> str:
    return "ais://b" if request.param == "ais" else str(server.root / "b")


Run = Callable[..., list[str]]


@pytest.fixture
def lines(server: RunningServer) -> Run:
    def run(*words: str | Path) -> list[str]:
        done = aisfs(*words, env={"AIS_ENDPOINT": server.endpoint})
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().splitlines()

    return run


@pytest.mark.parametrize(
    "quote", [str, lambda text: "".join(f"\\{c}" if c in "[]{},*" else c for c in text)]
)
def test_mount(place: str, server: RunningServer, mountpoint: Path, quote: Callable[[str], str]):
    endpoint = server.endpoint
    with mounted(place + quote("/run[1]"), mountpoint, endpoint=endpoint) as mount:
        assert sorted(os.listdir(mount.path)) == ["notes.txt", "x-0.tar", "x-1.tar"]
    for source, shown in (
        (quote("/run[1]/") + "x-{0..1}.tar", ["x-0/bracket-0", "x-1/bracket-1"]),
        (quote("/run[1]/") + "*.tar", ["x-0/bracket-0", "x-1/bracket-1"]),
        (quote("/run[1]/") + "x-[1].tar", ["x-1/bracket-1"]),
        (quote("/lr{3,4}/a*b.tar"), ["a*b/brace"]),
        (quote("/lr{3,4}/") + "a?b.tar", ["a*b/brace", "axb/other"]),
        ("/run[12]/x-0.tar", ["run1~x-0/plain-0", "run2~x-0/plain-2"]),
    ):
        with mounted(place + source, mountpoint, endpoint=endpoint) as mount:
            assert [
                name.removesuffix(".jpg") for name in tree(mount.path) if ".jpg" in name
            ] == shown
    options = ["--view", "flat"]
    with mounted(place + quote("/run[1]"), mountpoint, endpoint=endpoint, options=options) as mount:
        assert len(tree(mount.path)) == 4
    with mounted(place + quote("/run[1]/"), mountpoint, endpoint=endpoint,
                 options=["--writable", "--staging-dir", str(mountpoint.parent)]) as mount:  # fmt: skip
        (mount.path / "new").write_bytes(b"new")
        (mount.path / "new").unlink()


def test_other_commands(place: str, server: RunningServer, lines: Run, tmp_path: Path):
    directory, shard = f"{place}/run[1]/", f"{place}/run[1]/x-0.tar"
    assert lines("ls", directory) == ["notes.txt", "x-0.tar", "x-1.tar"]
    assert lines("ls", f"{place}/lr{{3,4}}/a*b.tar") == [f"{place}/lr{{3,4}}/a*b.tar"]
    assert '  "shards": 2,' in lines("inspect", "--json", directory)
    assert '  "shards": 1,' in lines("inspect", "--json", shard)
    assert lines("unpack", shard, tmp_path / "out")[-1] == "2 files of 1 shard"
    assert lines("unpack", directory, tmp_path / "all")[-1] == "4 files of 2 shards"
    lines("index", "--publish", directory)
    lines("index", "--check", shard)
    if "://" in place:
        lines("warm", directory, shard)
    (tmp_path / "list").write_text(f"{place}/run\\[1\\]/x-0.tar\n")
    assert lines("ls", "--files-from", tmp_path / "list") == [shard]
    done = aisfs("doctor", directory, env={"AIS_ENDPOINT": server.endpoint})
    assert re.search(rb"^ok +source .* can be listed$", done.stdout, re.MULTILINE), done.stdout


def test_packing_and_removing(place: str, lines: Run, tmp_path: Path):
    files = tmp_path / "pics[1]"
    fill(files, {"1.jpg": b"1"})
    target = f"{place}/run[1]/new-{{0..}}.tar"
    assert lines("pack", files, target)[0].startswith("1 sample: 1 shard written")
    assert f"{place}/run[1]/new-0.tar" in lines("rm", "-n", f"{place}/run[1]/new-*.tar")
    lines("pack", f"{place}/run[1]/", tmp_path / "s.tar", "--include", "notes.txt")
    assert run("tar", "-tf", tmp_path / "s.tar").stdout == b"notes.txt\n"
    lines("rm", f"{place}/run[1]/new-0.tar")
    assert lines("ls", f"{place}/run[1]/") == ["notes.txt", "x-0.tar", "x-1.tar"]
    quoted = f"{place}/made\\{{2\\}}/s-{{0..}}.tar"
    lines("pack", files, quoted)
    assert lines("ls", f"{place}/made{{2}}/") == ["s-0.tar"]
    lines("rm", "-r", f"{place}/made{{2}}/")
