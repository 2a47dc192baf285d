"""Runs programs on a mount in processes of their own, as their users do."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired

from tests.support.mounts import environment

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 90.0
"""Seconds until a program counts as hung."""


def program_environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a program sees: this Python, and one thread each."""
    plain = environment(home=home)
    return {
        **plain,
        "PATH": f"{Path(sys.executable).parent}:{plain['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **(extra or {}),
    }


def run_all(home: Path, *runs: tuple[list[str], Mapping[str, str]]) -> list[str]:
    """Run Python programs at the same time, each with variables of its own; give their outputs."""
    with ExitStack() as stack:
        processes = []
        for arguments, variables in runs:
            process = Popen(
                [sys.executable, *arguments], stdout=PIPE, stderr=PIPE, text=True, cwd=ROOT,
                env=program_environment(home, variables), start_new_session=True,
            )  # fmt: skip
            stack.callback(_end, process)
            processes.append(process)
        outputs = []
        for process in processes:
            out, err = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, err[-4000:]
            outputs.append(out)
        return outputs


def _end(process: Popen[str]) -> None:
    process.kill()
    try:
        process.communicate(timeout=20)
    except TimeoutExpired:
        raise AssertionError(f"process {process.pid} cannot be killed") from None
