"""Rows, ratios, isolation and the page, without a server."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench import report
from bench.engine import Contender, Reading, Row, measure
from bench.goals import judge
from bench.groups import link, pictures, s3, shard, writing
from bench.groups.measures import bounded_cache, check_fetched
from bench.interruptions import Interrupts
from bench.processes import NotMeasured, isolated
from bench.readers import checked, size_of, tally
from bench.settings import SIZES, TINY, choose

SETTINGS = replace(TINY, repeats=3, least=3)


def contender(name, values, baseline=False, states=("cold",)):
    left = list(values)
    return Contender(
        "case", name, "MB/s", lambda: {"cold": Reading(left.pop(0))}, states, baseline=baseline
    )


def test_rounds_are_interleaved_and_ratios_are_of_the_same_round():
    said = []
    rows = measure(
        "g",
        [contender("base", [10, 20, 40], baseline=True), contender("other", [20, 40, 800])],
        SETTINGS,
        said.append,
    )
    assert [line.split(" · ")[2].partition(":")[0] for line in said] == ["base", "other"] * 3
    base, other = rows
    assert (base.median, base.ratio) == (20, 1)
    assert (other.median, other.ratio) == (40, 2)
    assert other.quartiles == (30, 420)
    json.dumps(other.document())


def test_a_broken_contender_is_a_row_with_a_reason():
    def broken():
        raise ImportError("No module named 'peer'")

    rows = measure(
        "g",
        [Contender("case", "peer", "x/s", broken), contender("b", [1, 2, 3], baseline=True)],
        SETTINGS,
        lambda _: None,
    )
    assert [row.reason for row in rows if row.name == "peer"] == [
        "ImportError(\"No module named 'peer'\")"
    ] * 2
    assert rows[-1].values == [1, 2, 3]
    table = report.markdown(RUN, {"g": "Group"}, rows, [])
    assert "not measured: ImportError" in table


def test_what_was_measured_before_a_failure_stays():
    values = [5.0]

    def once():
        if not values:
            raise NotMeasured("worn out")
        return {"cold": Reading(values.pop())}

    (row,) = measure("g", [Contender("c", "n", "u", once, ("cold",))], SETTINGS, lambda _: None)
    assert (row.values, row.reason) == ([5.0], "round 2: worn out")


def test_the_budget_ends_rounds_but_not_before_the_least():
    settings = replace(TINY, repeats=9, least=2, budget=0.0)
    rows = measure("g", [contender("a", range(1, 10))], settings, lambda _: None)
    assert len(rows[0].values) == 2


def run_isolated(work, tmp_path, limit=20.0):
    return isolated(work, interruptions=Interrupts(), limit=limit, log=tmp_path / "log")


def children():
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()


def test_isolated_results(tmp_path):
    before = children()
    assert run_isolated(lambda: {"a": [1, 2.5]}, tmp_path) == {"a": [1, 2.5]}
    with pytest.raises(NotMeasured, match="ZeroDivisionError"):
        run_isolated(lambda: 1 / 0, tmp_path)
    with pytest.raises(NotMeasured, match="SystemExit"):
        run_isolated(lambda: (_ for _ in ()).throw(SystemExit(3)), tmp_path)
    with pytest.raises(NotMeasured, match="SIGKILL"):
        run_isolated(lambda: os.kill(os.getpid(), signal.SIGKILL), tmp_path)
    with pytest.raises(NotMeasured, match="hung"):
        run_isolated(lambda: time.sleep(60), tmp_path, limit=0.3)
    assert children() == before


def test_every_form_of_a_sample_is_counted():
    assert tally([b"abc", ("name", b"ab"), ("key", {"jpg": b"a", "cls": b""})]) == (3, 6)
    assert size_of({"__key__": "x", "__url__": "y", "bin": b"abcd"}) == 4


def test_a_reader_that_skips_has_no_result():
    with pytest.raises(NotMeasured, match="read 9 samples"):
        checked(lambda: (9, 90), 10, 100)()
    assert checked(lambda: (10, 100), 10, 100)() == (10, 100)


def test_settings():
    assert list(SIZES) == ["full", "quick", "tiny"]
    assert choose("quick", repeats=7).least == 7
    assert choose("full", samples=5).samples == 5
    assert max(choose("full", remote=True).listings) == 10_000


def test_a_share_that_no_cache_explains_is_refused():
    """Once, 0.00 of the data counted as fetched: the daemon's memory held the other half."""
    check_fetched(0.5, 1000, 500)
    check_fetched(0.0, 1000, 2000)
    with pytest.raises(NotMeasured, match="invalid"):
        check_fetched(0.0, 1000, 500)


def test_disk_cache_and_memory_are_bounded_together():
    words = bounded_cache(100 << 20)
    assert words[::2] == ["--cache-size", "--memory-limit"]
    assert sum(map(int, words[1::2])) == 100 << 20
    with pytest.raises(NotMeasured, match="too little data"):
        bounded_cache(20 << 20)


def test_goals_come_from_the_rows():
    def row(name, values):
        return Row("shard", shard.ALONE, name, "cold", "MB/s", False, values)

    goals = judge([row(shard.CURL, [100.0, 200.0]), row(shard.READ, [45.0, 80.0])])
    (goal,) = goals
    assert goal.measured == pytest.approx(0.425)
    assert goal.reached
    assert judge([]) == []


def over_the_link(share, busy, ours):
    case = link.case_of(10, 0.0002)
    counted = {"busy": [busy], "busy_ours": [ours]}
    row = Row("link", case, pictures.ON_DISK, pictures.STEADY, "", False, [share], counted)
    (goal,) = judge([row])
    return goal


def test_a_link_need_not_be_full_where_the_processors_are():
    assert over_the_link(0.85, 0.5, 0.5).reached
    assert not over_the_link(0.5, 0.9, 0.9).reached
    full = over_the_link(0.5, 0.99, 0.95)
    assert full.reached
    assert "0.50 of the link" in full.text
    # Full, but with the work of others.
    assert not over_the_link(0.5, 0.99, 0.5).reached


def test_what_is_fetched_without_a_cache_is_summed_over_both_states():
    def row(state, got):
        counted = {"get_bytes": got, "stored": [100.0, 100.0]}
        name = pictures.NO_CACHE
        return Row("pictures", "0 workers", name, state, "", False, [1.0, 1.0], counted)

    # What is read first fetches some of what comes next.
    first, steady = row(pictures.FIRST, [120.0, 110.0]), row(pictures.STEADY, [80.0, 94.0])
    (goal,) = judge([first, steady])
    assert goal.measured == pytest.approx(1.02)
    assert judge([steady]) == []


def test_many_cold_readers_and_late_uploads_have_goals():
    def at_once(number, rate):
        name = pictures.AT_ONCE.format(number)
        return Row("pictures", pictures.TOGETHER, name, pictures.STEADY, "", False, [rate])

    (goal,) = judge([at_once(1, 100.0), at_once(8, 160.0)])
    assert (goal.measured, goal.reached) == (1.6, True)
    many = writing.many_case(10)
    late = Row("writing", many, writing.CP_WAITING, "written", "", False, [6.0])
    puts = Row("writing", many, writing.SDK, "written", "", False, [1.0])
    (goal,) = judge([late, puts])
    assert (goal.wanted, goal.measured, goal.reached) == (5.0, 6.0, True)


def test_over_s3_the_best_peer_of_each_way_counts():
    def row(name, *values, state="cold"):
        return Row("s3", s3.PICTURES, name, state, "samples/s", False, list(values))

    one, other = s3.PEERS
    rows = [
        row(s3.OURS, 300.0, 330.0, 310.0),
        row(s3.FILES.format(one), 10.0, 11.0, 10.0),
        row(s3.FILES.format(other), 90.0, 110.0, 100.0),
        row(s3.FILES.format(one), 900.0, state="warm"),
        row(s3.WEB.format(one), 200.0, 200.0, 200.0),
        row(s3.WEB.format(other)),  # not measured
    ]
    files, web = judge(rows)
    assert (files.measured, files.reached) == (pytest.approx(3.1), True)
    assert s3.FILES.format(other) in files.text
    assert (web.measured, web.reached) == (pytest.approx(1.55), False)
    assert s3.WEB.format(one) in web.text
    assert judge(rows[1:]) == []


RUN = {
    "time": "now",
    "git": "abc",
    "endpoint": "embedded",
    "page_cache": "dropped",
    "settings": {"size": "tiny"},
    "versions": {"aisfs": "1", "rclone": None},
    "machine": {
        "cpu": "c", "cores": 2, "memory_gb": 1.0, "kernel": "6", "system": "s",
        "file_system": "ext4", "load": 0.5, "reclaim": "none seen",
    },
}  # fmt: skip


def test_the_page_keeps_what_people_wrote(tmp_path):
    page = tmp_path / "PERFORMANCE.md"
    report.write_docs(page, "first")
    assert page.read_text().startswith("# Performance\n")
    page.write_text("before\n" + page.read_text() + "after\n")
    report.write_docs(page, "second")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "second" in text
    assert "first\n" not in text
    assert text.count(report.BEGIN) == text.count(report.END) == 1
