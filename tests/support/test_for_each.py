"""Tables in one test, and tests of which not all combinations are tried: nothing is left out unseen."""

import re
import subprocess
import sys

import pytest

from tests.mount.faulty_stores import STORES
from tests.mount.test_faults import PASSING
from tests.support.for_each import for_each
from tests.support.servers import REPOSITORY


def test_all_rows_are_tried_and_all_that_fail_are_named():
    tried = []

    @for_each("a, b", [(1, 1), (2, 3), (4, 4), (5, 6)])
    @for_each("c", [7, 8])
    def equal(a, b, c, fixture):
        tried.append((a, b, c, fixture))
        assert a == b

    with pytest.raises(AssertionError, match="2 of 4 rows fail") as caught:
        equal(fixture="x")
    assert len(tried) == 8
    for row in ("'a': 2, 'b': 3", "'a': 5, 'b': 6"):
        assert row in str(caught.value)
    assert "'a': 4" not in str(caught.value)


async def test_rows_of_what_is_awaited():
    tried = []

    @for_each("a", [1, 2])
    async def raises(a):
        tried.append(a)
        with pytest.raises(ValueError, match="x"):
            pass

    with pytest.raises(AssertionError, match="2 of 2 rows fail"):
        await raises()
    assert tried == [1, 2]


def test_a_table_has_rows():
    with pytest.raises(AssertionError, match="empty"):
        for_each("a", [])


def collected(*words: str) -> set[tuple[str, str]]:
    """Return the kinds of stores and the faults of a test, as pytest chooses them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *words], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(
        re.findall(r"test_passing_failures_are_invisible\[(\w+)-fastpath-(.*)\]", done.stdout)
    )


def test_each_parameter_is_tried_and_each_combination_on_demand():
    file = "tests/mount/test_faults.py"
    some = collected(file)
    assert {store for store, _ in some} == {*STORES, "whole"}
    assert sorted(fault for _, fault in some) == sorted(PASSING)
    every = {(store, fault) for store in (*STORES, "whole") for fault in PASSING}
    assert collected(f"{file}::test_passing_failures_are_invisible") == every
    assert collected("--all", file) == every
