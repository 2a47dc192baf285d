"""Thousands of files that are written and closed: the daemon does not keep them all."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from aisfs.work.mounts import read_counters
from tests.mount.writable import writable
from tests.support.mounts import eventually

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

FILES = 1500


def inodes(path: Path) -> int:
    return read_counters(path).value("aisfs_inodes")


def test_files_that_were_written_are_forgotten_in_time(tmp_path: Path):
    with writable(tmp_path, backend="directory") as place, ExitStack() as stack:
        (place.path / "first").write_bytes(b"first")
        file = stack.enter_context(open(place.path / "first", "r+b", buffering=0))
        for number in range(FILES):
            (place.path / f"f{number}").write_bytes(b"%d" % number)
        assert eventually(lambda: inodes(place.path) < FILES - 200)
        # What somebody has open stays what it is, and so does what a name shows.
        file.write(b"FIRST")
        file.close()
        assert (place.path / "first").read_bytes() == b"FIRST"
        for number in range(0, FILES, 100):
            path = place.path / f"f{number}"
            assert path.read_bytes() == b"%d" % number
            with path.open("ab") as more:
                more.write(b" more")
            assert path.read_bytes() == place.stored(path.name) == b"%d more" % number
