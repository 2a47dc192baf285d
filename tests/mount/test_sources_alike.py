"""A SOURCE means the same shards to every command that reads shards."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.cache_tools import Meter
from tests.mount.content import fill
from tests.support.mounts import aisfs, mounted
from tests.support.servers import RunningServer, running_server
from tests.support.tars import shard

pytestmark = pytest.mark.mount

TRAIN = [f"ais://pets/train/s-{n:03}.tar" for n in (0, 1, 2, 12)]
MORE = "ais://more/t.tar"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("alike") / "store"
    for number, url in enumerate([*TRAIN, MORE]):
        bucket, _, key = url.removeprefix("ais://").partition("/")
        fill(root / bucket, {key: shard([f"{number}.txt"])})
    fill(root / "pets", {"train/notes.txt": b"hi"})
    with running_server(root, faulty=True) as server:
        yield server


@pytest.fixture
def run(server: RunningServer, tmp_path: Path):
    def run(*words: str | Path, code: int = 0) -> str:
        env = {"AIS_ENDPOINT": server.endpoint, "AISFS_CACHE_DIR": str(tmp_path / "cache")}
        done = aisfs(*words, env=env, cwd=tmp_path)
        assert done.returncode == code, (words, done)
        assert done.stdout, done.stderr
        return done.stdout.decode()

    return run


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["ais://pets/train/s-{001..}.tar"], TRAIN[1:]),
        (["--files-from", "list.txt"], [*TRAIN[:2], MORE]),
        (["list.json"], [TRAIN[3], MORE]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else str(value),
)
def test_all_commands_agree(run, tmp_path: Path, words: list[str], meant: list[str]):
    (tmp_path / "list.txt").write_text("ais://pets/train/s-00{0,1}.tar\n# a remark\nais://more\n")
    urls = [{"url": TRAIN[3]}, {"url": MORE}]
    (tmp_path / "list.json").write_text(json.dumps({"wids_version": 1, "shardlist": urls}))
    count = len(meant)
    assert run("ls", *words).split() == meant
    assert json.loads(run("inspect", "--json", *words))["shards"] == count
    assert [line.partition(": ")[0] for line in run("unpack", "--dry-run", *words, ".").splitlines()] == meant  # fmt: skip
    said = run("index", "--check", *words, code=1)
    shards = "1 shard" if count == 1 else f"{count} shards"
    assert f"{shards}: 0 indexes are current" in said
    assert run("warm", *words).startswith(f"{shards}, 0 objects, ")


def test_a_job_reads_the_same_shards(run, tmp_path: Path):
    (tmp_path / "list.txt").write_text("s-000.tar\ns-012.tar\n")
    target = "ais://pets/new-{00..}.tar"
    for words in (
        ["ais://pets/train/s-{002..}.tar"],
        ["ais://pets/train/", "--files-from", "list.txt"],
        ["ais://pets/train/*.tar", "--exclude", "s-00[01]*"],
    ):
        assert run("sort", "--dry-run", *words, target).startswith("2 shards of ais://pets")
        assert run("index", "--server", "--check", *words, code=1).splitlines()[-1].startswith(
            "2 shards"
        )  # fmt: skip


def test_a_mount_finds_what_was_warmed_without_it(
    run, server: RunningServer, tmp_path: Path, mountpoint: Path
):
    size = sum((server.root / url.removeprefix("ais://")).stat().st_size for url in TRAIN)
    assert run("warm", "ais://pets") == f"4 shards, 1 object, {size + 2} bytes read\n"
    meter = Meter(server)
    options = ("--cache-dir", str(tmp_path / "cache"))
    with mounted("ais://pets", mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert (mount.path / "train/notes.txt").read_bytes() == b"hi"
        for number, url in enumerate(TRAIN):
            folder = mount.path / f"{url.removeprefix('ais://pets/')}.d"
            assert (folder / f"{number}.txt").read_bytes() == b"x"
        meter.nothing()
        said = run("warm", f"{mount.path}/train/s-{{001..}}.tar")
        assert said.startswith("3 shards, 0 objects, ")
