"""One run: phases of writing while things go wrong, and a look at every byte after each."""

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.cluster import IO_TIMEOUT, Chaos, Cluster, Daemon, real_bucket
from tests.torture.foreign import KEEP, Foreign
from tests.torture.ledger import Shelf
from tests.torture.ways import SHARED
from tests.torture.writers import Clients, Writers

TTLS = {"near": 3, "far": 600}
"""The mounts, and how many seconds each believes what it knows."""
LIVES = ("--attr-ttl", "--list-ttl", "--negative-ttl")

READY_SECONDS = 120.0
"""A restarted proxy of AIStore needs some 40 s to find its targets."""


@dataclass
class Outcome:
    """What came of it."""

    acknowledged: int = 0
    failed: int = 0
    kept: int = 0
    """Of those that were acknowledged, kept for `aisfs recover`: another client wrote meanwhile."""
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
    keeper: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Return how many changes were acknowledged, and which of them were lost.

    Args:
        base: A directory for the mounts, the server's files and the logs.
        changes: Ends after so many changes that were acknowledged,
        seconds: or after this time.
        phase: Changes by each worker between two looks.
        workers: Processes that write.
        largest: Bytes of the largest file.
        seed: Decides all that chance decides here.
        endpoint: A real cluster, which is not made to fail; else an embedded server, which is.
        write_back: Seconds that a closed file waits for its upload.
        keeper: Whether the mounts outlive their daemons.
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
        foreign = Foreign(endpoint, bucket)
        for folder in SHARED:
            foreign.put(folder + KEEP, b"")
        mounts = []
        for name, ttl in TTLS.items():
            options = [word for option in LIVES for word in (option, str(ttl))]
            options += ["--write-back", str(write_back)]
            mounts.append(
                Daemon(name, f"ais://{bucket}", endpoint, base, options, stack, keeper=keeper)
            )
            mounts[-1].start()
        shelf = Shelf(base / "known", 2 * workers)
        shelf.make()
        clients = Clients(
            {mount.name: mount.path for mount in mounts},
            {name: ttl + IO_TIMEOUT + write_back for name, ttl in TTLS.items()},
            endpoint,
            bucket,
            write_back > 0,
        )
        writers = Writers(clients, shelf, workers, seed, largest)
        stack.callback(writers.end)
        chaos = Chaos(mounts, cluster, seed)
        while outcome.acknowledged < changes and not outcome.differences:
            left = seconds - (time.monotonic() - started)
            if left <= 0:
                break
            with chaos.running():
                writers.work(phase, left)
            if cluster is not None:
                cluster.heal()
            foreign.wait_until_ready(READY_SECONDS)
            _look(outcome, mounts, foreign, shelf)
            outcome.events = Counter(chaos.told)
            say(
                f"{time.monotonic() - started:6.0f} s: {outcome.acknowledged} changes acknowledged, "
                f"{outcome.failed} refused or failed, {outcome.kept} kept, {len(chaos.told)} faults, "
                f"{len(outcome.differences)} differences"
            )
    for mount in mounts:
        log = mount.log.read_text(errors="replace")
        outcome.differences += re.findall(r".*Traceback.*|.* CRITICAL .*", log)
    return outcome


def _look(outcome: Outcome, mounts: list[Daemon], foreign: Foreign, shelf: Shelf) -> None:
    """Compare all that is there with all that is known."""
    kept = {
        (mount.name, key, content)
        for mount in mounts
        for key, content in mount.flush(READY_SECONDS)
    }
    with ExitStack() as stack:
        ledgers = [stack.enter_context(shelf.taken(group)) for group in shelf.groups]
        found = foreign.compare([ledger for ledger in ledgers if ledger is not None])
        outcome.acknowledged = outcome.failed = 0
        outcome.refusals.clear()
        used = set[str]()
        for group, ledger in enumerate(ledgers):
            assert ledger is not None
            for waited in ledger.to_keep:
                outcome.kept += waited in kept
                if waited not in kept:
                    found.append(f"{waited}: acknowledged, not uploaded, and not kept")
            outcome.acknowledged += ledger.acknowledged
            outcome.failed += ledger.failed
            outcome.refusals.update(ledger.refusals)
            outcome.history += (
                [f"{line} (group {group})" for line in ledger.history] if found else []
            )
            ledger.looked()
            used.update(*ledger.may_be.values())
    outcome.differences += found
    shelf.tidy(used)
