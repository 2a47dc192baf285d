"""A second try for tests of real mounts, servers and processes, as a plugin of pytest.

On a loaded machine something may fail that is right: a process gets no processor time, the kernel
drops pages or reads ahead late. One such failure shall not refuse a change. A failure must not stay
unseen either: every first try that failed is printed, and only `SECOND_TRIES_MAX` tests of a run
get a second one. pytest-rerunfailures tries again; this module decides what, and what is new then.
"""

from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TRIED_ONCE = (
    "tests/settings/",
    "tests/core/",
    "tests/docs/",
    "tests/torch/test_order",
    "tests/torch/test_sampler",
)
"""Only the code decides how these end. A test in there that mounts is marked so, and tried again."""
SECOND_TRIES_MAX = 8
"""Of thousands of tests, one or two needed it in a bad run; more is no longer the machine."""
_failed = pytest.StashKey[bool]()
_time_limit = pytest.StashKey[Any]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Limit the second tries, unless the command line does."""
    if config.option.max_suite_reruns is None:
        config.option.max_suite_reruns = SECOND_TRIES_MAX


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose what is tried again."""
    for item in items:
        if not item.nodeid.startswith(TRIED_ONCE) or item.get_closest_marker("mount"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> None:
    """Remember the time limit; pytest-timeout sets its timer once for both tries."""
    item.stash[_time_limit] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give each try all of its time."""
    item.stash[_failed] = False
    _restart_timer(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Remember a failure."""
    report = yield
    item.stash[_failed] |= report.failed
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Take down everything after a failure: the next try or test begins with a new server and mount."""
    if item.stash[_failed]:
        _restart_timer(item)  # the failure stopped it
        item.session._setupstate.teardown_exact(None)


def _restart_timer(item: pytest.Item) -> None:
    if _time_limit in item.stash:
        item.config.hook.pytest_timeout_cancel_timer(item=item)
        item.config.hook.pytest_timeout_set_timer(item=item, settings=item.stash[_time_limit])


class _Scheduling(LoadFileScheduling):
    """Files to workers, and the test that a worker died of to another one."""

    def mark_test_pending(self, item: str) -> None:
        """Do nothing: `remove_node` has put all of the file that is not done back into the queue."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Let a test that killed its worker be tried again, too."""
    return _Scheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests needed their second try, which may have hidden it."""
    reports = terminalreporter.getreports("rerun")
    for report in reports:
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
    tried_again = {report.nodeid for report in reports}
    if tried_again and len(tried_again) >= terminalreporter.config.option.max_suite_reruns:
        terminalreporter.section("no more second tries", sep="_")
        terminalreporter.write_line(
            f"{len(tried_again)} tests needed one. Each test that failed after them was tried only once."
        )
