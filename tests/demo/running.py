"""Runs of the demo, as a user starts it, and what one leaves behind."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 300
_MARK = "AISFS_TEST_OF_DEMO"


class Place:
    """A directory for all temporary files of one run, and a mark on all its processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        places = dict.fromkeys(("HOME", "TMPDIR", _MARK), str(directory))
        self.environment = inherited | places

    def left(self) -> list[str]:
        """What a run left behind: mounts, processes, files."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [
            *(f"mount: {line}" for line in mounts if str(self.directory) in line),
            *(f"process: {entry.name}" for entry in processes if self._started(entry)),
            *(f"file: {path}" for path in self.directory.iterdir()),
        ]

    def _started(self, process: Path) -> bool:
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False  # it has ended, or is not ours
        return f"{_MARK}={self.directory}".encode() in environment


def demo(place: Place, *arguments: str | Path, env: Mapping[str, str] | None = None):
    with started(place, *arguments, env=env) as process:
        out, err = process.communicate(timeout=LIMIT)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def started(place: Place, *arguments: str | Path, env: Mapping[str, str] | None = None):
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", *map(str, arguments)],
        cwd=REPOSITORY,
        env={**place.environment, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:  # the test has failed; let the demo clean up even so
            process.terminate()
            process.wait(LIMIT)


def losses(output: str) -> list[float]:
    lines = re.findall(r"^epoch \d, num_workers=\d, loss of each batch: (.+)$", output, re.M)
    return [float(word) for line in lines for word in line.split()]


def save(folder: Path, name: str, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (90 + number, 60), (number * 60, 80, 160)).save(folder / name)
