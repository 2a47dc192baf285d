"""What the kernel takes out of the page cache although nobody needs the memory, and rows it spoils.

Some machines page out what was not used for a while (DAMON, or a program that writes to `memory.reclaim`). A
warm epoch then reads again what it should find. The kernel counts such pages: those that it has
reclaimed and that are read again (`workingset_refault_file`). Pages that the bench drops itself, by
`drop_caches` or by `posix_fadvise`, are not among them.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SYS = Path("/sys")
VMSTAT = Path("/proc/vmstat")
SPOILED_MB = 1.0
"""Less than this in an epoch may be pages of other programs."""
_SCANNED = ("pgscan_kswapd", "pgscan_direct")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def describe(sys: Path = SYS) -> str:
    """Say what reclaims pages without need, as far as it can be seen; `sys` is where sysfs is."""
    found = [_by_sysfs(scheme) for scheme in sorted(sys.glob(_SCHEMES)) if _pages_out(scheme)]
    parameters = sys / "module" / "damon_reclaim" / "parameters"
    if _word(parameters / "enabled") == "Y":
        found.append(_text(_number(parameters / "min_age") / 1e6, _number(parameters / "quota_sz")))
    if _counts().get("pgscan_proactive"):
        found.append("programs by memory.reclaim")
    return "; ".join(dict.fromkeys(found)) or "none seen"


def counts() -> dict[str, float]:
    """Give the kernel's counters so far; empty where it has none."""
    now = _counts()
    if "workingset_refault_file" not in now:
        return {}
    return {
        "refault_mb": now["workingset_refault_file"] * _PAGE / 1e6,
        "scanned_mb": sum(now.get(name, 0) for name in _SCANNED) * _PAGE / 1e6,
        "drops": float(now.get("drop_pagecache", 0)),
    }


def since(before: Mapping[str, float]) -> dict[str, float]:
    """Give by how much the counters have grown."""
    after = counts()
    return {name: after[name] - number for name, number in before.items() if name in after}


def verdict(counted: Mapping[str, list[float]]) -> str:
    """Say which rounds of a row were spoiled; empty when none was."""
    said = []
    again, scanned = (counted.get(name, []) for name in ("refault_mb", "scanned_mb"))
    pairs = list(zip(again, scanned, strict=False))
    taken = [mb for mb, pressure in pairs if mb >= SPOILED_MB and not pressure]
    pressed = [mb for mb, pressure in pairs if mb >= SPOILED_MB and pressure]
    if taken:
        text = f"up to {max(taken):,.0f} MB read again that the kernel took without need"
        said.append(f"{len(taken)} of {len(pairs)} rounds spoiled: {text}")
    if pressed:
        text = f"memory was short: up to {max(pressed):,.0f} MB read again"
        said.append(f"{len(pressed)} of {len(pairs)} rounds: {text}")
    if dropped := sum(number > 0 for number in counted.get("drops", [])):
        said.append(f"{dropped} of {len(pairs)} rounds spoiled: another program dropped all caches")
    return "; ".join(said)


_SCHEMES = "kernel/mm/damon/admin/kdamonds/*/contexts/*/schemes/[0-9]*"


def _pages_out(scheme: Path) -> bool:
    kdamond = scheme.parents[3]
    return _word(kdamond / "state") == "on" and _word(scheme / "action") == "pageout"


def _by_sysfs(scheme: Path) -> str:
    context, quotas = scheme.parents[1], scheme / "quotas"
    interval = _number(context / "monitoring_attrs" / "intervals" / "aggr_us") / 1e6
    age = _number(scheme / "access_pattern" / "age" / "min") * interval
    return _text(age, _number(quotas / "bytes"))


def _text(seconds: float, quota: float) -> str:
    limit = f", up to {quota / 1e6:,.0f} MB at a time" if quota else ""
    return f"DAMON pages out what was not used for {seconds:,.0f} s{limit}"


def _counts() -> dict[str, int]:
    with suppress(OSError):
        lines = (line.split() for line in VMSTAT.read_text().splitlines())
        return {name: int(number) for name, number in lines}
    return {}


def _word(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def _number(path: Path) -> float:
    with suppress(ValueError):
        return float(_word(path))
    return 0.0
