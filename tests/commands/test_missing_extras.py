"""What an installation without extras lacks: one line that names the extra, and no traceback."""

import re
import subprocess
import sys
import tomllib

import pytest

from tests.support.servers import REPOSITORY

NEEDS = {
    "gunicorn": ("serve", ["serve", "."]),
    "re2": ("serve", ["serve", "."]),
    "grpc": ("csi", ["csi", "controller"]),
    "google": ("csi", ["csi", "driver", "--node-id", "n"]),
    "obstore": ("cloud", ["ls", "s3+direct://b"]),
    "huggingface_hub": ("hf", ["ls", "hf://datasets/o/n"]),
    "fsspec": ("fsspec", ["ls", "memory://x/y"]),
}
"""Packages, the extra that has them, and a command that needs them."""
ELSEWHERE = {"torch": "aisfs.torch", "zstd": "shards", "lz4": "shards", "yaml": "a file of ETLs"}
"""Extras of what no command needs as a whole: tests/programs, test_archive_forms and test_etl have them."""


@pytest.mark.parametrize("package", NEEDS)
def test_a_missing_extra_is_named(package: str):
    extra, words = NEEDS[package]
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from aisfs.commands.main import main\n"
        f"sys.argv = ['aisfs', *{words!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert re.search(
        rf"needs {package}[.a-z]*; in a clone of aisfs: pip install '\.\[{extra}\]'", done.stderr
    )


def test_every_extra_is_tried():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    tried = {extra for extra, _ in NEEDS.values()} | ELSEWHERE.keys()
    assert tried == project["optional-dependencies"].keys()
