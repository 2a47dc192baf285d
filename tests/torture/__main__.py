"""`make torture`: torture writing for as long as asked; exit code 1 when something was lost."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.support.preloaded import Preloader
from tests.torture.torture import torture


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture ARGS=…", description=__doc__)
    parser.add_argument("--changes", type=int, default=10_000, help="acknowledged changes [10000]")
    parser.add_argument("--minutes", type=float, default=1e6, help="at most [as long as it takes]")
    parser.add_argument("--workers", type=int, default=4, help="processes that write [4]")
    parser.add_argument("--largest", type=int, default=64 << 20, help="bytes of a file [64 MiB]")
    parser.add_argument("--write-back", type=float, default=0.0, help="seconds, for the mount [0]")
    parser.add_argument("--keeper", action="store_true", help="the mounts outlive their daemons")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="[another each time]")
    options = parser.parse_args()
    endpoint = os.environ.get("AIS_ENDPOINT", "").rstrip("/")
    print(f"seed {options.seed}, {endpoint or 'embedded server with its traps and faults'}")
    with tempfile.TemporaryDirectory(prefix="aisfs-torture-") as base:
        outcome = torture(
            Path(base).resolve(),
            changes=options.changes,
            seconds=60 * options.minutes,
            workers=options.workers,
            largest=options.largest,
            seed=options.seed,
            endpoint=endpoint,
            write_back=options.write_back,
            keeper=options.keeper,
            say=lambda text: print(text, flush=True),
        )
        if outcome.differences:
            kept = Path(tempfile.gettempdir()) / f"aisfs-torture-{options.seed}"
            kept.mkdir(exist_ok=True)
            for log in Path(base).glob("*.log"):
                (kept / log.name).write_bytes(log.read_bytes())
            (kept / "history").write_text("\n".join(sorted(outcome.history)))
            print(f"the daemons' logs, and what the writers did: {kept}")
    for title, counts in (("refused", outcome.refusals), ("what went wrong", outcome.events)):
        print(f"\n{title}:")
        print("\n".join(f"{count:6} {what}" for what, count in counts.most_common()))
    print("\n".join(["", *outcome.differences]))
    print(
        f"{outcome.acknowledged} changes acknowledged, {outcome.kept} of them kept, {len(outcome.differences)} differences"
    )
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    code = main()
    Preloader.end_all()
    sys.exit(code)
