"""What takes pages out of the page cache without need, and which rows it spoils."""

import os

import pytest

from bench import reclaim, report
from bench.engine import Row, epoch
from bench.server import Endpoint

PAGE = os.sysconf("SC_PAGE_SIZE")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def vmstat(tmp_path, monkeypatch):
    """A function that sets the kernel's counters."""
    path = tmp_path / "vmstat"
    monkeypatch.setattr(reclaim, "VMSTAT", path)

    def put(**counters):
        text = "".join(f"{name} {number}\n" for name, number in counters.items())
        write(path, text.rstrip("\n"))

    put(workingset_refault_file=0)
    return put


@pytest.mark.usefixtures("vmstat")
def test_damon_is_found(tmp_path):
    assert reclaim.describe(tmp_path) == "none seen"
    kdamond = tmp_path / "kernel/mm/damon/admin/kdamonds/0"
    scheme = kdamond / "contexts/0/schemes/0"
    write(kdamond / "state", "off")
    write(kdamond / "contexts/0/monitoring_attrs/intervals/aggr_us", 5_000_000)
    write(scheme / "action", "pageout")
    write(scheme / "access_pattern/age/min", 12)
    write(scheme / "quotas/bytes", 134_217_728)
    assert reclaim.describe(tmp_path) == "none seen"
    write(kdamond / "state", "on")
    found = "DAMON pages out what was not used for 60 s, up to 134 MB at a time"
    assert reclaim.describe(tmp_path) == found
    write(scheme / "action", "stat")
    assert reclaim.describe(tmp_path) == "none seen"


def test_other_ways_are_found(tmp_path, vmstat):
    parameters = tmp_path / "module/damon_reclaim/parameters"
    write(parameters / "enabled", "Y")
    write(parameters / "min_age", 120_000_000)
    write(parameters / "quota_sz", 0)
    vmstat(pgscan_proactive=5)
    assert reclaim.describe(tmp_path) == (
        "DAMON pages out what was not used for 120 s; programs by memory.reclaim"
    )


def counted(vmstat, **after):
    def work():
        vmstat(**{"workingset_refault_file": 0, "pgscan_kswapd": 0, "drop_pagecache": 0, **after})

    vmstat(workingset_refault_file=0, pgscan_kswapd=0, drop_pagecache=0)
    found = epoch(work, Endpoint("http://nowhere", counted=False))
    return {name: [number] for name, number in found.items()}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({}, ""),
        ({"workingset_refault_file": 10}, ""),  # less than says anything
        (
            {"workingset_refault_file": 50_000_000 // PAGE},
            "1 of 1 rounds spoiled: up to 50 MB read again that the kernel took without need",
        ),
        (
            {"workingset_refault_file": 50_000_000 // PAGE, "pgscan_kswapd": 99},
            "1 of 1 rounds: memory was short: up to 50 MB read again",
        ),
        ({"drop_pagecache": 1}, "1 of 1 rounds spoiled: another program dropped all caches"),
    ],
)
def test_a_row_says_what_spoiled_it(vmstat, after, said):
    row = Row("g", "c", "n", "warm", "u", False, [1.0], counted(vmstat, **after))
    assert row.document()["spoiled"] == said
    table = report.markdown(
        {
            "time": "", "git": "", "endpoint": "", "page_cache": "", "settings": {"size": "tiny"},
            "versions": {},
            "machine": {
                "cpu": "", "cores": 1, "memory_gb": 1, "kernel": "", "system": "",
                "file_system": "", "load": 0.0, "reclaim": "a daemon",
            },
        },
        {},
        [row],
        [],
    )  # fmt: skip
    assert "reclaimed without need by: a daemon." in table
    assert said in table
    assert ("spoiled" in table) == ("spoiled" in said)


def test_a_kernel_without_counters_says_nothing(vmstat):
    vmstat(something=1)
    assert reclaim.counts() == {}
    assert reclaim.verdict(counted(vmstat)) == ""
