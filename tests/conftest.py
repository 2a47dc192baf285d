"""Options of the test run."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

import tests.support.checked_locks  # noqa: F401 - before the package
from tests.support.preloaded import Preloader

pytest_plugins = ["tests.support.second_try"]

# What CI says shall be about the change: `--hypothesis-profile=search` looks for new examples.
# How long an example takes says only how busy the machine is.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False)
settings.load_profile("steady")

# Programs that tests start inherit what is ignored here, and a shell ignores these for what it runs
# in the background or under nohup: then nothing would end by Ctrl-C or by a hang-up.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

STRESS_MINUTES = 1 / 6
LATER = (
    "tests/bench",
    "tests/demo/test_endings.py",
    "tests/docs/test_recipes.py",
    "tests/mount/test_clouds.py",
    "tests/programs",
    "tests/server/s3",
    "tests/server/test_attached.py",
    "tests/server/test_bucket_jobs.py",
    "tests/server/test_hostile_clients.py",
    "tests/server/test_jobs.py",
    "tests/server/test_paging.py",
    "tests/server/test_refusals.py",
    "tests/server/test_targets.py",
    "tests/torture",
)
"""What `make test-all` adds: tests of the embedded server and of the tools of this repository, which a
change elsewhere does not break, and foreign programs and clouds on mounts. Single tests are marked `later`.
`make test` keeps the server's traps and the contracts of all stores."""
LONG = (
    "tests/mount/test_moving_data.py",
    "tests/mount/test_writing_model.py",
    "tests/mount/test_faults.py",
    "tests/mount/test_writing_faults.py",
    "tests/mount/test_cache_epochs.py",
    "tests/mount/test_outages.py",
    "tests/mount/test_archive_forms.py",
    "tests/demo/",
    "tests/commands/test_pack.py",
    "tests/core/index/test_published.py",
    "tests/csi/test_tenants.py",
    "tests/filesystem/test_reference.py",
    "tests/mount/test_consistency.py",
    "tests/mount/test_removed_directories.py",
    "tests/mount/test_left_listings.py",
    "tests/mount/test_cache_faults.py",
    "tests/docs/test_recipes.py",
    "tests/programs/",
)
"""Minutes each. They begin first: a file is one worker's, and at the end all would wait for it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a user test for longer than the pipeline can."""
    parser.addoption(
        "--stress-minutes",
        type=float,
        default=STRESS_MINUTES,
        metavar="N",
        help="how long tests/mount/test_stress.py reads, in minutes [10 seconds]",
    )
    parser.addoption(
        "--all",
        action="store_true",
        help="run what tests/conftest.py keeps for later, too: the server's own tests, programs, clouds, recipes",
    )
    parser.addoption(
        "--both-ways",
        action="store_true",
        help="run all of tests/mount with and without the fast path, not only the modules that say BOTH_WAYS",
    )
    parser.addoption(
        "--moving-data",
        action="store_true",
        help="let the embedded server move data at the start of each test that writes: a quarter of a minute more each",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Keep for later what neither `--all` nor a path on the command line asks for."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    if path not in LATER or config.getoption("all"):
        return None
    asked = [argument.partition("::")[0].rstrip("/") for argument in config.args]
    named = any(one == path or one.startswith(f"{path}/") for one in asked)
    return None if named else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long files, and give the stress test its time."""
    if not config.getoption("all"):
        later = [item for item in items if item.get_closest_marker("later")]
        if later and len(later) < len(items):  # else somebody asked for just these
            config.hook.pytest_deselected(items=later)
            items[:] = [item for item in items if item not in later]
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    seconds = 60 * config.getoption("--stress-minutes") + 120
    for item in items:
        if item.get_closest_marker("stress") is not None:
            item.add_marker(pytest.mark.timeout(seconds))


def pytest_unconfigure() -> None:
    """End the processes that started others; they would end with this one, but a little later."""
    Preloader.end_all()
