"""An object that does not have the checksum AIStore told: what was noticed does not stay visible."""

import os
from pathlib import Path

import pytest

from tests.mount.content import payload, put
from tests.support.mounts import eventually, mounted
from tests.support.servers import running_server
from tests.support.tars import END, entry

pytestmark = pytest.mark.mount

CONTENT = payload(9 << 20, "right")
MEMBERS = {f"{row:03}.bin": payload(50_000, row) for row in range(60)}
SHARD = b"".join(entry(name.encode(), data) for name, data in MEMBERS.items()) + END


def spoil(path: Path, places: list[int]) -> None:
    """Flip bytes behind the back of the server: size, time and so the checksum it tells stay."""
    times = path.stat()
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 0x41]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_what_was_noticed_to_be_wrong_is_read_anew(
    tmp_path: Path, mountpoint: Path, fastpath: bool
):
    root = tmp_path / "store"
    (root / "b").mkdir(parents=True)
    options = ["--cache-dir", str(tmp_path / "cache"), "--cache-size", "64MiB"]
    wrong = [3_000_000, 8_000_000]
    inside = [SHARD.index(MEMBERS[name]) + 100 for name in ("007.bin", "050.bin")]
    with running_server(root) as server:
        put(server.endpoint, "b", "x.bin", CONTENT)
        put(server.endpoint, "b", "y.tar", SHARD)
        spoil(root / "b/x.bin", wrong)
        spoil(root / "b/y.tar", inside)
        with mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=options, fastpath=fastpath,
            expected_log=["readers got wrong bytes"],
        ) as mount:  # fmt: skip
            folder = mountpoint / "y.tar.d"
            assert (mountpoint / "x.bin").read_bytes() != CONTENT
            found = {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}
            assert sum(found[name] != data for name, data in MEMBERS.items()) == 2
            assert (mountpoint / "y.tar").read_bytes() != SHARD
            for key in ("x.bin", "y.tar"):
                line = f"ais://b/{key}: readers got wrong bytes of version 1"
                assert eventually(lambda line=line: line in mount.log()), mount.log()
            spoil(root / "b/x.bin", wrong)  # back to what they were
            spoil(root / "b/y.tar", inside)
            assert eventually(lambda: (mountpoint / "x.bin").read_bytes() == CONTENT)
            assert eventually(lambda: (mountpoint / "y.tar").read_bytes() == SHARD)
            for name, data in MEMBERS.items():
                assert (folder / name).read_bytes() == data, name
