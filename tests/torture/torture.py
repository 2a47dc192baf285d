"""One run: phases of writing while things go wrong, and a look at every byte after each."""

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.cluster import Chaos, Cluster, Daemon, real_bucket
from tests.torture.reader import Reader
from tests.torture.writers import Writers

READY_SECONDS = 120.0
"""A restarted proxy of AIStore needs some 40 s to find its targets."""


@dataclass
class Outcome:
    """What came of it."""

    acknowledged: int = 0
    failed: int = 0
    differences: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    """What the writers did since the last look that found nothing."""
    refusals: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)


def torture(
    base: Path,
    *,
    changes: int,
    seconds: float = 1e9,
    phase: int = 200,
    workers: int = 4,
    largest: int = 64 << 20,
    seed: int = 1,
    endpoint: str = "",
    write_back: float = 0.0,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Return how many changes were acknowledged, and which of them were lost.

    Args:
        base: A directory for the mount, the server's files and the log.
        changes: Ends after so many changes that were acknowledged,
        seconds: or after this time.
        phase: Changes by each worker between two looks.
        workers: Processes that write.
        largest: Bytes of the largest file.
        seed: Decides all that chance decides here.
        endpoint: A real cluster, which is not made to fail; else an embedded server, which is.
        write_back: Seconds that a closed file waits for its upload.
        say: Told how far it is.
    """
    outcome, started = Outcome(), time.monotonic()
    with ExitStack() as stack:
        cluster = None
        if endpoint:
            bucket = stack.enter_context(real_bucket(endpoint))
        else:
            (base / "store").mkdir()
            cluster, bucket = Cluster(base / "store", stack), "b"
            cluster.create(bucket)
            endpoint = cluster.endpoint
        daemon = Daemon(f"ais://{bucket}", endpoint, base, write_back)
        stack.callback(daemon.stop)
        daemon.start()
        writers = Writers(daemon.path, workers, seed, largest)
        stack.callback(writers.end)
        chaos, reader = Chaos(daemon, cluster, seed), Reader(endpoint, bucket)
        while outcome.acknowledged < changes and not outcome.differences:
            left = seconds - (time.monotonic() - started)
            if left <= 0:
                break
            with chaos.running():
                writers.begin(phase, left)
                ledgers = writers.ledgers()
            if cluster is not None:
                cluster.heal()
            reader.wait_until_ready(READY_SECONDS)
            daemon.flush(READY_SECONDS)
            outcome.differences += [
                difference
                for name, ledger in zip(writers.names, ledgers, strict=True)
                for difference in reader.compare(name, ledger)
            ]
            outcome.acknowledged = sum(ledger.acknowledged for ledger in ledgers)
            outcome.failed = sum(ledger.failed for ledger in ledgers)
            say(
                f"{time.monotonic() - started:6.0f} s: {outcome.acknowledged} changes acknowledged, "
                f"{outcome.failed} failed, {len(chaos.told)} faults, "
                f"{len(outcome.differences)} differences"
            )
            if not outcome.differences:
                for ledger in ledgers:
                    ledger.history.clear()
            writers.learn(ledgers)
        for name, ledger in zip(writers.names, ledgers, strict=True):
            outcome.refusals.update(ledger.refusals)
            outcome.history += [f"{name} {line}" for line in ledger.history]
        outcome.events.update(chaos.told)
    log = daemon.log.read_text(errors="replace")
    outcome.differences += re.findall(r".*Traceback.*|.* CRITICAL .*", log)
    return outcome
