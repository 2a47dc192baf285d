"""What a daemon says of its start reaches the parent, and nothing of it can make the daemon wait."""

import json
import logging
import os
import threading
import time

import pytest

from aisfs.system import daemon
from aisfs.system.daemon import WARNINGS_MAX, Reporter
from aisfs.system.logs import KEPT, RecentWarnings
from tests.support.for_each import for_each

MINUTE = 60.0
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a worker's threads


def test_messages_arrive_in_order():
    told = []

    def work(reporter: Reporter) -> None:
        reporter.progress({"shards": 3})
        reporter.warn("error", "a\n" + "ü" * 5000)
        reporter.ready()
        reporter.failed("too late", 9)

    assert daemon.detach(work, told.append) == (0, "")
    progress, warning = told
    assert progress == {"progress": {"shards": 3}}
    assert warning["level"] == "error"
    assert warning["warning"].startswith("a\nüü")
    assert len(warning["warning"]) < 1000


@for_each(
    "end, code, said",
    [
        (lambda reporter: reporter.failed("no 'such' \udc80 bucket", 5), 5, "no 'such' \\udc80 bucket"),
        (lambda _: None, 1, "ended before"),
        (lambda _: os.kill(os.getpid(), 9), 1, "killed by SIGKILL before"),
        (lambda _: 1 / 0, 1, "ended before"),
    ],
)  # fmt: skip
def test_a_start_that_fails(end, code: int, said: str):
    found, reason = daemon.detach(end)
    assert found == code
    assert said in reason


def test_a_parent_that_does_not_read_holds_nothing_up():
    reader, writer = os.pipe()
    reporter = Reporter(writer)

    def report() -> None:
        for number in range(10_000):
            reporter.progress({"shards": 10**9, "opened": number})
        for number in range(100):
            reporter.warn("warning", f"{number} " + '"' * 5000)
        reporter.ready()

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    thread.join(MINUTE)
    assert not thread.is_alive()
    os.close(writer)
    with os.fdopen(reader) as pipe:
        messages = [json.loads(line) for line in pipe]
    assert sum("warning" in message for message in messages) == WARNINGS_MAX
    assert messages[-2:] == [{"unsaid": 100 - WARNINGS_MAX}, {"ready": ""}]


def test_a_parent_that_is_gone_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    reporter = Reporter(writer)
    reporter.progress({})
    reporter.warn("warning", "x")
    reporter.failed("y", 1)
    os.close(writer)


def test_recent_warnings_are_the_last_and_have_no_secret():
    told = []
    recent = RecentWarnings()
    recent.listener = lambda level, text: told.append((level, text))
    log = logging.getLogger("tests.recent_warnings")
    log.propagate = False
    log.addHandler(recent)
    before = time.time()
    log.info("not this")
    for _ in range(3):
        log.warning("refused: %s", "Authorization: Bearer abc.def")
    log.error("a\nb \udc80")
    log.error("%d of", "x" * 10_000)  # it cannot be formatted, which must not reach who logs
    assert told == [("warning", "refused: [struck out]"), ("error", "a b \\udc80")]
    first, second = recent.all()
    assert (first.text, first.count, second.count) == ("refused: [struck out]", 3, 1)
    assert before <= first.time <= second.time
    for number in range(2 * KEPT):
        log.warning("%d %s", number, "x" * 10_000)
    assert [each.text.split()[0] for each in recent.all()] == [
        str(n) for n in range(KEPT, 2 * KEPT)
    ]
    assert sum(len(each.text) for each in recent.all()) < 16_000
