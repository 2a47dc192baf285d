"""The manual pages are those of the commands, and readers of manuals print them without a complaint."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.docs.documents import ROOT
from tests.docs.manual import COMPLETION_FILES, COMPLETIONS, MAN, pages
from tests.support.for_each import for_each

COMMITTED = sorted(MAN.glob("man*/*"))
_AGAIN = "run: python -m tests.docs.manual"


def test_the_manual_is_that_of_the_commands():
    made = pages()
    assert set(COMMITTED) == set(made), _AGAIN
    for file, text in made.items():
        assert file.read_text() == text, f"{file.name}: {_AGAIN}"


@for_each("file", COMMITTED)
def test_pages_are_printed_without_warnings(file: Path):
    if shutil.which("groff"):
        command = ["groff", "-man", "-Tutf8", "-ww", file]
    elif shutil.which("mandoc"):
        command = ["mandoc", "-man", "-Tutf8", "-W", "error", file]
    else:
        pytest.skip("neither groff nor mandoc is installed")
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert done.stderr == b""
    plain = re.sub(r".\x08", "", done.stdout.decode())  # a printed x, then x again, is a bold x
    assert "EXIT STATUS" in plain


def test_a_wheel_has_the_manual_and_the_completions():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    data = build["targets"]["wheel"]["shared-data"]
    for file in COMMITTED:
        assert data[str(file.parent.relative_to(ROOT))] == f"share/man/{file.parent.name}"
    for shell, name in COMPLETION_FILES.items():
        folder = COMPLETIONS / shell
        assert f"_AISFS_COMPLETE={shell}_" in (folder / name).read_text()
        assert str(folder.relative_to(ROOT)) in data
