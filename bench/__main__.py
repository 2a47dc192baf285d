"""Measures aisfs beside the readers people use today: `python -m bench` (or `make bench`).

Prints tables and keeps JSON lines, the tables and charts in the directory of `--out`. It starts
its own server unless an endpoint is given, works in a temporary directory, and leaves nothing else
behind, also after Ctrl-C.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench import charts, machine, report
from bench.engine import Row
from bench.goals import judge
from bench.groups import GROUPS, Group
from bench.interruptions import Interrupted, Interrupts
from bench.processes import NotMeasured
from bench.server import REPOSITORY
from bench.settings import Settings, choose
from bench.stage import Stage, stage

_NO_PROXIES = "127.0.0.1,localhost"


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args(words)
    _quieten()
    size = "tiny" if options.tiny else "quick" if options.quick else "full"
    endpoint = options.endpoint or os.environ.get("AIS_ENDPOINT") or None
    settings = choose(
        size, repeats=options.repeats, samples=options.samples, remote=endpoint is not None
    )
    interruptions = Interrupts()
    interruptions.begin()
    try:
        with stage(settings, endpoint, interruptions) as place:
            _run(place, settings, _chosen(options.only), options)
    except Interrupted as interrupted:
        print(f"bench: {interrupted}: stopped, nothing is left behind", file=sys.stderr)
        return interrupted.exit_code
    except NotMeasured as reason:
        print(f"bench: {reason}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=(__doc__ or "").splitlines()[0]
    )
    names = [group.name for group in GROUPS]
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="little data: about four minutes")
    sizes.add_argument("--tiny", action="store_true", help="next to no data, for the tests")
    parser.add_argument("--endpoint", metavar="URL", help="a cluster's proxy [AIS_ENDPOINT]")
    parser.add_argument("--only", action="append", choices=names, metavar="GROUP",
                        help=f"one of {', '.join(names)}; may be repeated")  # fmt: skip
    parser.add_argument("--repeats", type=_positive, metavar="N", help="rounds of each group")
    parser.add_argument("--samples", type=_positive, metavar="N", help="1 KB samples in shards")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "bench" / "out", metavar="DIR",
                        help="for results.jsonl, table.md and charts [bench/out]")  # fmt: skip
    parser.add_argument("--write-docs", action="store_true",
                        help="also put tables and charts into docs/; with --only, in place of those groups")  # fmt: skip
    return parser


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _chosen(names: list[str] | None) -> list[Group]:
    return [group for group in GROUPS if names is None or group.name in names]


def _quieten() -> None:
    """Keep libraries from starting threads (we fork) and from sending loopback to a proxy."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = _NO_PROXIES


def _run(
    place: Stage, settings: Settings, groups: Sequence[Group], options: argparse.Namespace
) -> None:
    start = time.monotonic()
    titles = {group.name: group.title for group in GROUPS}
    about = report.run_document(
        machine.describe(place.directory), settings, _endpoint_name(place), place.can_drop
    )
    _progress(f"bench: {settings.size}, {about['machine']['cpu']}, endpoint {about['endpoint']}")
    if not place.can_drop:
        _progress("bench: not root, or tiny: only the page cache of known files is dropped")
    lines = _open_results(options.out, about)
    rows: list[Row] = []
    for group in groups:
        found = _measure(group, place, _progress)
        rows += found
        report.write_lines(lines, (row.document() for row in found))
    goals = judge(rows)
    report.write_lines(lines, (goal.document() for goal in goals))
    report.write_lines(lines, [{"kind": "end", "seconds": round(time.monotonic() - start, 1)}])
    text = report.markdown(about, titles, rows, goals)
    (options.out / "table.md").write_text(text)
    charts.write(text, options.out)
    print(text)
    if options.write_docs:
        shown = text.replace("\n## ", "\n### ")
        if options.only:
            shown = report.with_groups_of(shown, charts.tables_of(report.PAGE))
        charts.write_page(shown)
    _progress(f"bench: {time.monotonic() - start:.0f} s, results in {options.out}")


def _endpoint_name(place: Stage) -> str:
    return "embedded server" if place.embedded else place.endpoint.url


def _open_results(out: Path, about: dict[str, Any]) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    ignore = out / ".gitignore"
    if not ignore.exists() and REPOSITORY in out.resolve().parents:
        ignore.write_text("*\n")
    lines = out / "results.jsonl"
    lines.unlink(missing_ok=True)
    report.write_lines(lines, [about])
    return lines


def _measure(group: Group, place: Stage, progress: Callable[[str], None]) -> list[Row]:
    for name in group.imports:
        # A peer that does not import says so in its own row: it is imported there again.
        with suppress(Exception, SystemExit):
            importlib.import_module(name)
    start = time.monotonic()
    try:
        rows = group.run(place, progress)
    except Exception as error:  # noqa: BLE001 (the other groups can still be measured)
        reason = str(error) if isinstance(error, NotMeasured) else repr(error)
        progress(f"{group.name}: not measured: {reason}")
        rows = [Row(group.name, "all", "all", "", "", False, reason=reason)]
    progress(f"{group.name}: {len(rows)} rows in {time.monotonic() - start:.0f} s")
    return rows


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
