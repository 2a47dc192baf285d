"""Buckets of an attached cluster, whose objects change behind AIStore: what was never read is never stale."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.support.archives import make_tar
from tests.support.mounts import mounted, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(200)]

CHANGES = {"longer": b"longer than before", "shorter": b"less", "alike": b"NEW CONTENT"}
OLD = b"old content"
AT_ONCE = ["--list-ttl", "0", "--attr-ttl", "0"]


@dataclass
class Pair:
    """Two clusters, the second of which is attached to the first as `far`, and a place to mount it."""

    near: RunningServer
    far: RunningServer
    place: Path

    def put(self, key: str, data: bytes) -> None:
        """Write an object there."""
        url = f"{self.far.endpoint}/v1/objects/b/{key}"
        requests.put(url, data=data, timeout=30).raise_for_status()

    def delete(self, key: str) -> None:
        """Remove an object there."""
        requests.delete(f"{self.far.endpoint}/v1/objects/b/{key}", timeout=30).raise_for_status()

    def copy(self, key: str) -> bytes:
        """Read an object here, of which AIStore has a copy from then on."""
        space = {"namespace": "@far#"}
        reply = requests.get(f"{self.near.endpoint}/v1/objects/b/{key}", space, timeout=30)
        reply.raise_for_status()
        return reply.content

    @contextmanager
    def mounted(self, *options: str) -> Iterator[Path]:
        with mounted("ais://b@far#", self.place, endpoint=self.near.endpoint, options=options):
            yield self.place


@pytest.fixture
def pair(fastpath: bool, tmp_path: Path) -> Iterator[Pair]:
    base = tmp_path.resolve()
    for name in ("near/b", "far/b", "mnt"):
        (base / name).mkdir(parents=True)
    with running_server(base / "near") as near, running_server(base / "far") as far:
        near.attach("far", far)
        yield Pair(near, far, base / "mnt")


@pytest.fixture
def changed(pair: Pair) -> Pair:
    """Objects of which AIStore has old copies."""
    for name in CHANGES:
        pair.put(f"d/{name}", OLD)
        assert pair.copy(f"d/{name}") == OLD
        pair.put(f"d/{name}", CHANGES[name])
        assert pair.copy(f"d/{name}") == OLD
    return pair


@pytest.mark.parametrize("options", [[], AT_ONCE, ["--writable"]], ids=["", "ttl 0", "writable"])
@pytest.mark.parametrize("looks", [[], ["ls", "-l"]], ids=["by name", "listed"])
def test_a_fresh_mount_shows_what_is_there(changed: Pair, options: list[str], looks: list[str]):
    if options == ["--writable"]:
        options = [*options, "--staging-dir", str(changed.place.parent / "staging")]
    with changed.mounted(*options) as mnt:
        if looks:
            succeed(*looks, str(mnt / "d"))
        for name, content in CHANGES.items():
            assert succeed("cat", str(mnt / "d" / name)) == content
            assert (mnt / "d" / name).stat().st_size == len(content)


def test_with_no_time_to_live_a_change_shows_at_once(pair: Pair):
    pair.put("d/gone", OLD)
    for name in CHANGES:
        pair.put(f"d/{name}", OLD)
    with pair.mounted(*AT_ONCE) as mnt:
        assert {each.name: each.read_bytes() for each in (mnt / "d").iterdir()} == {
            **dict.fromkeys(CHANGES, OLD),
            "gone": OLD,
        }
        for name, content in CHANGES.items():
            pair.put(f"d/{name}", content)
        pair.delete("d/gone")
        for name, content in CHANGES.items():
            assert (mnt / "d" / name).stat().st_size == len(content)
            assert (mnt / "d" / name).read_bytes() == content
        assert not (mnt / "d/gone").exists()
        assert sorted(os.listdir(mnt / "d")) == sorted(CHANGES)


def test_what_is_open_stays_one_version(pair: Pair):
    pair.put("k", OLD)
    with pair.mounted(*AT_ONCE) as mnt, (mnt / "k").open("rb") as before:
        assert before.read(3) == OLD[:3]
        pair.put("k", CHANGES["alike"])
        assert (mnt / "k").read_bytes() == CHANGES["alike"]
        assert before.read() == OLD[3:]


def test_a_shard(pair: Pair):
    pair.put("x.tar", make_tar({"a": b"1", "b": b"22"}))
    pair.copy("x.tar")
    pair.put("x.tar", make_tar({"a": b"333", "c": b"4"}))
    with pair.mounted() as mnt:
        found = {each.name: each.read_bytes() for each in (mnt / "x.tar.d").iterdir()}
        assert found == {"a": b"333", "c": b"4"}


def test_what_is_written_builds_on_what_is_there(changed: Pair):
    staging = ["--writable", "--staging-dir", str(changed.place.parent / "staging")]
    with changed.mounted(*staging, *AT_ONCE) as mnt:
        for name in CHANGES:
            with (mnt / "d" / name).open("ab") as file:
                file.write(b" and more")
        os.rename(mnt / "d/alike", mnt / "renamed")
        names = {"longer": "d/longer", "shorter": "d/shorter", "alike": "renamed"}
        for name, key in names.items():
            assert (mnt / key).read_bytes() == CHANGES[name] + b" and more"
    for name, key in names.items():
        reply = requests.get(f"{changed.far.endpoint}/v1/objects/b/{key}", timeout=30)
        assert reply.content == CHANGES[name] + b" and more"


def test_a_rename_takes_the_original(changed: Pair):
    staging = ["--writable", "--staging-dir", str(changed.place.parent / "staging")]
    with changed.mounted(*staging) as mnt:
        for name in CHANGES:
            os.rename(mnt / "d" / name, mnt / name)
    for name, content in CHANGES.items():
        reply = requests.get(f"{changed.far.endpoint}/v1/objects/b/{name}", timeout=30)
        assert reply.content == content


def test_modes_and_times_are_listed(pair: Pair):
    """They are kept with AIStore's copy, which is made, or renewed, for them."""
    staging = ["--writable", "--staging-dir", str(pair.place.parent / "staging")]
    pair.put("d/new", b"1")
    pair.put("d/copied", b"1")
    pair.copy("d/copied")
    pair.put("d/copied", b"22")
    with pair.mounted(*staging) as mnt:
        for name in ("new", "copied"):
            os.chmod(mnt / "d" / name, 0o640)
            os.utime(mnt / "d" / name, (1e9, 1e9))
    with pair.mounted() as mnt:
        for name in ("new", "copied"):
            found = (mnt / "d" / name).stat()
            assert (stat.S_IMODE(found.st_mode), found.st_mtime) == (0o640, 1e9)
    pair.put("d/new", b"another version")
    with pair.mounted() as mnt:
        assert (mnt / "d/new").stat().st_mtime != 1e9
