"""Options of the test run."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import tests.support.checked_locks  # noqa: F401 - before the package
from aisfs.system.daemon import loading
from tests.support.preloaded import Preloader

pytest_plugins = ["tests.support.second_try"]

# What CI says shall be about the change: `--hypothesis-profile=search` looks for new examples.
# How long an example takes says only how busy the machine is.
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("search", derandomize=False)
settings.load_profile("steady")

# Programs that tests start inherit what is ignored here, and a shell ignores these for what it runs
# in the background or under nohup: then nothing would end by Ctrl-C or by a hang-up.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

STRESS_MINUTES = 1 / 12
LATER = (
    "tests/bench",
    "tests/commands/test_pack.py::test_unpacking_takes_no_memory_in_proportion",
    "tests/core/index/test_published.py::test_descriptions_that_swell_are_refused_cheaply",
    "tests/csi/test_tenants.py::test_a_namespace_leaves_room_for_others",
    "tests/demo/test_endings.py",
    "tests/docs/test_readme.py::test_torchvision_reads_the_classes_of_the_first_lines",
    "tests/docs/test_recipes.py",
    "tests/mount/test_clouds.py",
    "tests/mount/test_transformed.py::test_two_hundred_reads_while_everything_changes",
    "tests/programs",
    "tests/server/s3",
    "tests/server/test_attached.py",
    "tests/server/test_bucket_jobs.py",
    "tests/server/test_hostile_clients.py",
    "tests/server/test_jobs.py",
    "tests/server/test_moving.py",
    "tests/server/test_paging.py",
    "tests/server/test_refusals.py",
    "tests/server/test_targets.py",
    "tests/torch/test_resume.py::test_a_trainer_is_killed",
    "tests/torture",
)
"""What `make test-all` adds: folders, files and tests. Tests of the embedded server and of the tools of this
repository, which a change elsewhere does not break, foreign programs and clouds on mounts, and what takes many
seconds of a processor and has a shorter test beside it. `make test` keeps the server's traps and the contracts of
all stores."""
COMBINED = ("tests/mount/", "tests/stores/", "tests/torch/")
"""Of a test in there that has several parameters, such as faults and stores, `make test` takes as many
combinations as try each of these once, and `make test-all` takes all: each starts a server or talks to one, or has
processes of PyTorch.
The tests of a file in tests/mount take turns with the kinds of stores that its fixtures mount."""
LONG = (
    "tests/programs/",
    "tests/docs/test_recipes.py",
    "tests/demo/test_endings.py",
    "tests/mount/test_clouds.py",
    "tests/mount/test_transformed.py",
    "tests/mount/test_keeper_writing.py",
    "tests/mount/test_writing_faults.py",
    "tests/mount/test_moving_data.py",
    "tests/mount/test_archive_forms.py",
    "tests/mount/test_write_back.py",
    "tests/csi/test_identity.py",
    "tests/mount/test_keeper.py",
    "tests/torch/test_resume.py",
    "tests/mount/test_plan.py",
    "tests/mount/test_cache_epochs.py",
    "tests/mount/test_cache_faults.py",
    "tests/mount/test_removed_directories.py",
    "tests/contract/test_writable_store.py",
    "tests/mount/test_faults.py",
    "tests/mount/test_warm.py",
    "tests/mount/test_writing_many.py",
    "tests/mount/test_writing_model.py",
    "tests/mount/test_class_view.py",
    "tests/contract/test_object_store.py",
    "tests/mount/test_writing_ahead.py",
    "tests/mount/test_outages.py",
    "tests/mount/test_cache_limit.py",
    "tests/mount/test_misleading_errors.py",
    "tests/mount/test_lifecycle.py",
    "tests/mount/test_index_command.py",
    "tests/mount/test_left_listings.py",
    "tests/csi/test_recovery.py",
    "tests/commands/test_pack.py",
    "tests/filesystem/test_reference.py",
)
"""Half a minute and more each. They begin first, in this order: a file is one worker's, and at the end all would
wait for it."""

Choice = tuple[Any, ...]
"""Whether it is a row of a test's own table; names of parameters that belong together, and their values."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a user test for longer than the pipeline can."""
    parser.addoption(
        "--stress-minutes",
        type=float,
        default=STRESS_MINUTES,
        metavar="N",
        help="how long tests/mount/test_stress.py reads, in minutes [5 seconds]",
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
    return True if path in LATER and not _is_asked_for(path, config) else None


def _is_asked_for(path: str, config: pytest.Config) -> bool:
    """Return whether all shall run, or just this or something in it."""
    asked = [argument.rstrip("/") for argument in config.args]
    return config.getoption("all") or any(
        one == path or one.startswith((f"{path}/", f"{path}::", f"{path}[")) for one in asked
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for later, begin with the long files, and give the stress test its time."""
    later = [
        item
        for item in items
        if (test := item.nodeid.partition("[")[0]) in LATER and not _is_asked_for(test, config)
    ]
    if not config.getoption("all") and not any("::" in argument for argument in config.args):
        later += _needless_combinations(items)
    config.hook.pytest_deselected(items=later)
    left_out = set(later)
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: next(_places(item.nodeid), len(LONG)))
    seconds = 60 * config.getoption("--stress-minutes") + 120
    for item in items:
        if item.get_closest_marker("stress") is not None:
            item.add_marker(pytest.mark.timeout(seconds))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Let garbage collections pass by what is imported and collected: a twelfth of the tests' time."""
    with loading():
        return (yield)


def _places(name: str) -> Iterator[int]:
    """Return where among the long files a test is."""
    return (place for place, file in enumerate(LONG) if name.startswith(file))


def _needless_combinations(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of each test find the items whose parameters others try, each with something else."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.startswith(COMBINED) and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    needless: list[pytest.Item] = []
    tried: Counter[tuple[Path, Choice]] = Counter()
    for left in tests.values():
        file = left[0].path
        choices = {item: _choices(item) for item in left}
        untried = {
            choice
            for found in choices.values()
            for choice in found
            if not _goes_by_turns(choice, left[0])
        }
        first = True
        while untried or first:  # what tries most, and of these what was tried least
            chosen = max(
                left,
                key=lambda item: (
                    len(choices[item] & untried),
                    -sum(tried[file, choice] for choice in choices[item]),
                ),
            )
            left.remove(chosen)
            untried -= choices[chosen]
            tried.update((file, choice) for choice in choices[chosen])
            first = False
        needless += left
    return needless


def _goes_by_turns(choice: Choice, item: pytest.Item) -> bool:
    """Return whether the tests of a file share the values of a parameter: kinds of stores that are mounted."""
    is_of_a_table, (name, _), *_ = choice
    return item.nodeid.startswith("tests/mount/") and not is_of_a_table and name != "fastpath"


def _choices(item: pytest.Item) -> frozenset[Choice]:
    """Return what was chosen for an item: a row of each of its tables, and the parameters of fixtures."""
    values = dict(item.callspec.params)
    tables = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [t.replace(" ", "").split(",") if isinstance(t, str) else t for t in tables]
    rows = [(True, *((name, id(values.pop(name))) for name in table)) for table in names]
    return frozenset([*rows, *((False, (name, id(value))) for name, value in values.items())])


def pytest_unconfigure() -> None:
    """End the processes that started others; they would end with this one, but a little later."""
    Preloader.end_all()
