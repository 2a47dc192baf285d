"""A cluster that signs its redirects, as AIStore 5.1 can: the mount keeps to what was signed."""

import os
from pathlib import Path

import pytest

from tests.mount.writable import writable
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

LARGE = 12 << 20
"""Bytes that go in parts."""
NAMES = [
    "plain",
    "a b",
    "a\nb",
    "a\x01b",
    "100%",
    "q?x",
    "h#y",
    "a+b&c=d",
    "ä€",
    "%41",
    "\udcff",
    "~",
]


def test_files_are_written_read_and_removed(tmp_path: Path):
    root = tmp_path / "store"
    (root / "b").mkdir(parents=True)
    with (
        running_server(root, signs=True, targets=3) as server,
        writable(tmp_path, server=server, options=["--part-size", "5MiB"]) as place,
    ):
        for name in NAMES:
            file = place.path / name
            file.write_bytes(b"first")
            file.write_bytes(b"second, and longer")
            assert place.stored(name) == file.read_bytes() == b"second, and longer"
            with open(file, "ab") as stream:
                stream.write(b" more")
            file.rename(place.path / "moved")
            assert place.stored("moved") == b"second, and longer more"
            (place.path / "moved").unlink()
        large = os.urandom(LARGE)
        (place.path / "large").write_bytes(large)
        (place.path / "empty").touch()
        assert place.stored("large") == (place.path / "large").read_bytes() == large
        assert sorted(os.listdir(place.path)) == ["empty", "large"]
