"""Cold pictures over a shaped link, as a share of what the link can carry.

The server is in a network namespace of its own. Where the kernel cannot delay packets, the server
delays each reply instead, and a note says so.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.data import IMAGE, EmbeddedStore, Samples, write_shards
from bench.engine import Contender, Reading, Row, measure
from bench.groups.epochs import WEB
from bench.groups.measures import few
from bench.groups.pictures import ON_DISK, STEADY, PictureEpoch, repeated
from bench.link import shaped
from bench.processes import NotMeasured
from bench.stage import Stage

UNIT = "of the link"
GIGABIT = 1e9
MODELLED = "this kernel delays no packets (no netem): the server delays each reply"


def case_of(gigabits: float, delay: float) -> str:
    """Name a case: `10 Gbit/s, 0.2 ms`."""
    return f"{gigabits:g} Gbit/s, {delay * 1000:g} ms"


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure each link in turn, on the embedded server whatever the endpoint."""
    settings = stage.settings
    share = replace(settings, budget=settings.budget / len(settings.links))
    rows: list[Row] = []
    with stage.folder("linked-store") as root:
        store = EmbeddedStore(root)
        once = write_shards(
            store,
            "linked",
            samples=settings.pictures,
            shards=settings.shards,
            size=IMAGE,
            extract_to=None,
        )
        again = repeated(store, once, settings.picture_repeats - 1)
        with few(stage, store) as (_, others):
            for gigabits, delay in settings.links:
                rate, case = gigabits * GIGABIT, case_of(gigabits, delay)
                try:
                    with linked(stage, store, root, rate, delay) as (place, note):
                        enough = _first(again, rate / 8 * settings.link_seconds)
                        reader = PictureEpoch(place, once, enough, others, settings.link_workers)
                        found = measure("link", _contenders(reader, case, rate), share, progress)
                except NotMeasured as reason:
                    progress(f"link · {case}: not measured: {reason}")
                    found, note = _unmeasured(case, str(reason)), ""
                for row in found:
                    row.note = note
                rows += found
    return rows


@contextmanager
def linked(
    stage: Stage, store: EmbeddedStore, root: Path, rate: float, delay: float
) -> Iterator[tuple[Stage, str]]:
    """Give a stage whose server is at the other end of a link, and what is to be said of it."""
    with (
        shaped(rate, delay, stage.interruptions) as link,
        stage.far_server(root, delay=0.0 if link.delayed else delay, link=link) as endpoint,
    ):
        place = copy(stage)
        place.endpoint, place.store = endpoint, store
        yield place, "" if link.delayed else MODELLED


def _contenders(reader: PictureEpoch, case: str, rate: float) -> list[Contender]:
    ways = ((WEB, reader.of_web, True), (ON_DISK, reader.of_files, False))
    return [
        Contender(case, name, UNIT, partial(_share, read, reader, rate), (STEADY,), baseline)
        for name, read, baseline in ways
    ]


def _share(
    read: Callable[[], Mapping[str, Reading]], reader: PictureEpoch, rate: float
) -> dict[str, Reading]:
    """Turn pictures a second into a share of the link."""
    found = read()[STEADY]
    bits = found.value / reader.again.samples * reader.again.stored * 8
    return {STEADY: Reading(bits / rate, found.counted)}


def _unmeasured(case: str, reason: str) -> list[Row]:
    names = ((WEB, True), (ON_DISK, False))
    return [Row("link", case, name, STEADY, UNIT, base, reason=reason) for name, base in names]


def _first(data: Samples, size: float) -> Samples:
    """Give as many of some shards of about the same size as have so many bytes."""
    number = max(1, min(len(data.keys), round(size / data.stored * len(data.keys))))
    return data.first(number)
