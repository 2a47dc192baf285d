"""Names with line breaks, which AIStore's redirects turn into spaces: the name of another file.

Other control characters stay in its redirects, as they are.
"""

import os
from pathlib import Path

import pytest

from tests.mount.writable import writable

pytestmark = pytest.mark.mount


def test_a_line_break_is_not_a_space(tmp_path: Path):
    with writable(tmp_path, traps=True) as place:
        (place.path / "a b").write_bytes(b"the only copy")
        for name in ("a\nb", "a\rb"):
            file = place.path / name
            file.write_bytes(b"evil")
            assert place.stored("a b") == b"the only copy"
            assert place.stored(name) == b"evil"
            assert file.read_bytes() == b"evil"
            file.rename(place.path / "moved")
            (place.path / "moved").rename(file)
            with open(file, "ab") as stream:
                stream.write(b" more")
            assert place.stored(name) == b"evil more"
            file.unlink()
            assert place.stored("a b") == b"the only copy"
            assert place.stored(name) is None


def test_other_control_characters(tmp_path: Path):
    names = [f"a{chr(code)}b" for code in (1, 9, 11, 12, 27, 28, 31, 127, 0x85)]
    with writable(tmp_path, traps=True) as place:
        for name in names:
            (place.path / name).write_bytes(name.encode())
        assert sorted(os.listdir(place.path)) == sorted(names)
        for name in names:
            file = place.path / name
            assert place.stored(name) == file.read_bytes() == name.encode()
            file.rename(place.path / f"{name}2")
            (place.path / f"{name}2").unlink()
        assert os.listdir(place.path) == []
