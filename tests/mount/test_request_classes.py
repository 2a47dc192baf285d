"""`aisfs status` and the metrics count requests by class as the store's own log does."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.content import payload
from tests.support.clouds import moto, s3_environment
from tests.support.hub import running_hub
from tests.support.mounts import Mount, aisfs, eventually, mounted
from tests.support.servers import running_server
from tests.support.web_servers import nginx

pytestmark = pytest.mark.mount

BIG = payload(6 << 20)
SLOW = ["--list-ttl", "3600", "--attr-ttl", "3600", "--negative-ttl", "3600"]
"""Nothing is asked for again by itself."""


def counted(mount: Mount) -> dict[str, int]:
    """Return what was counted so far; the same in JSON, in text and in the metrics."""
    said = json.loads(aisfs("status", mount.path, "--json").stdout)
    found: dict[str, int] = said.get("requests_by_class", {})
    text = " ".join(aisfs("status", mount.path).stdout.decode().split())
    for kind, number in found.items():
        assert re.search(rf"requests by class\b.*\b{kind} {number}\b", text), text
    assert said["mount"]["cluster"] == ("reachable" if said["mount"]["endpoint"] else "none")
    metrics = os.getxattr(mount.path, "user.aisfs.stats").decode()
    shown = re.findall(r'^aisfs_store_requests_total\{class="(\w+)"\} (\d+)', metrics, re.M)
    assert {kind: int(number) for kind, number in shown} == found
    return found


@contextmanager
def alike(mount: Mount, seen: Callable[[], Counter[str]]) -> Iterator[None]:
    """Check that a block makes the requests that the server sees."""
    before, there = Counter(counted(mount)), seen()
    yield
    here = {}

    def agree() -> bool:
        nonlocal here
        here = dict(Counter(counted(mount)) - before)
        return here == dict(seen() - there)

    assert eventually(agree, 5), (here, dict(seen() - there))


def test_s3(mountpoint: Path, tmp_path: Path):
    (tmp_path / "proxy").mkdir()
    with (
        moto(page_size=100) as s3,
        running_server(tmp_path / "proxy", faulty=True, forward=s3.url) as server,
    ):
        s3.make_bucket("pets")
        s3.put("pets", "big.bin", BIG)
        for number in range(100):
            s3.put("pets", f"many/{number}", b"")

        def seen() -> Counter[str]:
            return Counter({k: n for k, n in server.requests().items() if k != "get_bytes"})

        options = [*SLOW, "--writable", "--staging-dir", str(tmp_path / "staging")]
        env = s3_environment(server.endpoint)
        with mounted("s3+direct://pets", mountpoint, options=options, env=env) as mount:
            assert counted(mount) == dict(seen())
            with alike(mount, seen):
                assert len(os.listdir(mount.path / "many")) == 100
            with alike(mount, seen):
                assert (mount.path / "big.bin").read_bytes() == BIG
            with alike(mount, seen):
                (mount.path / "new").write_text("content")
            with alike(mount, seen):
                os.rename(mount.path / "new", mount.path / "newer")
            with alike(mount, seen):
                os.unlink(mount.path / "newer")


def test_a_web_server(mountpoint: Path, tmp_path: Path):
    root = tmp_path / "site"
    root.mkdir()
    (root / "big.bin").write_bytes(BIG)
    for number in range(5):
        (root / f"{number}.txt").write_text("content")
    with nginx(root) as server:

        def seen() -> Counter[str]:
            asked = re.findall(r'"(HEAD|GET) (\S*) HTTP', server.log())
            return Counter(
                "list" if path.endswith("/") else method.lower() for method, path in asked
            )

        with mounted(f"{server.url}/", mountpoint, options=SLOW) as mount:
            assert counted(mount) == dict(seen())
            with alike(mount, seen):
                assert len(os.listdir(mount.path)) == 6
            with alike(mount, seen):
                assert (mount.path / "big.bin").read_bytes() == BIG
            assert counted(mount)["head"] == 6


def test_the_hub(mountpoint: Path):
    with running_hub() as hub:
        hub.files |= {f"data/{number}.txt": b"content of it" for number in range(2)}

        def seen() -> Counter[str]:
            kinds = {"/tree/": "list", "/resolve/": "get", "": "head"}
            found = Counter(["get"] * len(hub.to_storage))
            for line in hub.seen:
                if "/datasets/" in line:  # the library asks for something of its own once a day
                    found[next(kind for part, kind in kinds.items() if part in line)] += 1
            return found

        env = {"HF_ENDPOINT": hub.url}
        with mounted("hf://datasets/own/pets", mountpoint, options=SLOW, env=env) as mount:
            assert counted(mount) == dict(seen())
            with alike(mount, seen):
                assert (mount.path / "data" / "1.txt").read_bytes() == b"content of it"


def test_aistore_charges_nothing(mountpoint: Path, tmp_path: Path):
    """Its calls are counted by their names, once for all attempts."""
    root = tmp_path / "store"
    (root / "pets").mkdir(parents=True)
    (root / "pets" / "big.bin").write_bytes(BIG)
    with (
        running_server(root) as server,
        mounted("ais://pets", mountpoint, endpoint=server.endpoint, options=SLOW) as mount,
    ):
        before = server.requests()
        assert (mount.path / "big.bin").read_bytes() == BIG
        assert counted(mount) == {}
        calls = json.loads(aisfs("status", mount.path, "--json").stdout)["store_calls"]
        seen = server.requests()
        assert calls["list_page"] == seen["list_page"] - before["list_page"]
        assert calls["read_range"] == seen["get"]
