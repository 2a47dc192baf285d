"""What second_try.py promises, in runs of pytest of their own."""

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.mounts import environment, run
from tests.support.second_try import SECOND_TRIES_MAX

REPOSITORY = Path(__file__).resolve().parents[2]
CONFTEST = """
import pytest
from pathlib import Path

TRIES = Path(__file__).parent / "tries"

def nth(name):
    "Count how often this is done, over all processes."
    with TRIES.open("a") as tries:
        tries.write(name + "\\n")
    return TRIES.read_text().split("\\n").count(name)

@pytest.fixture
def count():
    return nth

@pytest.fixture(scope="session")
def daemon():
    yield nth("daemon up")
    nth("daemon down")

@pytest.fixture(scope="module")
def server(daemon):
    yield nth("server up")
    nth("server down")
"""


def pytest_run(
    directory: Path, files: dict[str, str], *options: str
) -> subprocess.CompletedProcess[bytes]:
    """Run test files with the plugin."""
    (directory / "tests").mkdir()
    (directory / "tests" / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = mount: mounts\n")
    for name, text in files.items():
        path = directory / "tests" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "pytest", "--import-mode=importlib", "-rR", *options, "tests"]
    for plugin in ("xdist", "pytest_timeout", "pytest_rerunfailures", "tests.support.second_try"):
        command += ["-p", plugin]
    env = {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run(*command, env=environment(env), cwd=directory)


def test_failures_are_tried_again_with_new_processes(tmp_path: Path):
    files = {
        "mount/test_fails.py": """
            def test_before(server):
                assert server == 1

            def test_fails_once(server, daemon, count):
                assert server == daemon == 2, "this is why"

            def test_after(server):
                assert server == 2
        """,
        "mount/test_crashes.py": """
            import os

            def test_before():
                pass

            def test_kills_its_worker(count):
                if count("crash") == 1:
                    os._exit(1)

            def test_after(count):
                assert count("after the crash") == 1
        """,
    }
    done = pytest_run(tmp_path, files, "-n", "2", "--dist", "loadfile")
    text = done.stdout.decode()
    assert done.returncode == 0, text
    assert "6 passed, 2 rerun" in text
    assert "first try of tests/mount/test_fails.py::test_fails_once" in text
    assert "this is why" in text
    assert "first try of tests/mount/test_crashes.py::test_kills_its_worker" in text


def test_what_still_fails_and_what_only_code_decides_fail(tmp_path: Path):
    files = {
        "core/test_code.py": """
            import pytest

            def test_fails_once(count):
                assert count("code") == 2

            @pytest.mark.mount
            def test_mounts(count):
                assert count("mount") == 2
        """,
        "mount/test_hangs.py": """
            import threading

            import pytest

            @pytest.mark.timeout(0.5)
            def test_hangs_each_time():
                threading.Event().wait()
        """,
    }
    done = pytest_run(tmp_path, files)
    text = done.stdout.decode()
    assert done.returncode == 1, text
    assert "2 failed, 1 passed, 2 rerun" in text


def test_many_second_tries_are_a_failure(tmp_path: Path):
    files = {
        "mount/test_many.py": f"""
            import pytest

            @pytest.mark.parametrize("number", range({SECOND_TRIES_MAX + 1}))
            def test_fails_once(count, number):
                assert count(f"number {{number}}") == 2
        """
    }
    done = pytest_run(tmp_path, files)
    text = done.stdout.decode()
    assert done.returncode == 1, text
    assert f"1 failed, {SECOND_TRIES_MAX} passed, {SECOND_TRIES_MAX} rerun" in text
    assert "no more second tries" in text
