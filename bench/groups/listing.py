"""Listing a flat bucket with sizes: the mount, the SDK, and the server alone."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.data import Samples, write_listing
from bench.engine import Contender, Reading, Row, measure
from bench.groups.measures import few, mount_epochs, two_epochs
from bench.processes import NotMeasured
from bench.stage import Stage

UNIT = "objects/s"
PAGES = "the server's pages, not decoded (requests)"
SDK = "list_all_objects_iter (aistore)"
SCANDIR = "os.scandir + stat of the mount"
LARGE = 500_000
"""From here on a round takes a minute or more: fewer of them."""


def case_of(number: int) -> str:
    """Name the case of so many objects."""
    return f"{number:,} objects"


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure each number of objects in turn."""
    rows: list[Row] = []
    for number in stage.settings.listings:
        rows += _run(stage, progress, number)
    return rows


def _run(stage: Stage, progress: Callable[[str], None], number: int) -> list[Row]:
    progress(f"listing: writing {number:,} objects")
    with stage.bucket(f"list-{number}") as bucket, few(stage) as (objects, _):
        data = write_listing(stage.store, bucket, number)

        def with_sdk(data: Samples) -> None:
            from aistore.sdk import Client

            listed = Client(stage.endpoint.url).bucket(data.bucket).list_all_objects_iter()
            _check(sum(found.props_cached.size for found in listed), data.size)

        def with_scandir(path: Path) -> None:
            with os.scandir(path) as entries:
                _check(sum(entry.stat().st_size for entry in entries), data.size)

        def pages(data: Samples) -> None:
            _fetch_pages(stage.endpoint.url, data.bucket)

        def plain(list_all: Callable[[Samples], None]) -> dict[str, Reading]:
            return two_epochs(
                stage,
                data,
                partial(list_all, data),
                number,
                warm_up=partial(list_all, objects),
            )

        case = case_of(number)
        contenders = [
            Contender(case, SDK, UNIT, partial(plain, with_sdk), baseline=True),
            Contender(case, PAGES, UNIT, partial(plain, pages)),
            Contender(
                case, SCANDIR, UNIT, partial(mount_epochs, stage, data, with_scandir, number)
            ),
        ]
        settings = stage.settings
        if number >= LARGE:
            settings = replace(settings, least=min(settings.least, 2), budget=settings.budget * 2)
        return measure("listing", contenders, settings, progress)


def _fetch_pages(endpoint: str, bucket: str) -> None:
    """Ask for page after page as aisfs and the SDK do; only the tokens are looked at."""
    import msgspec
    import requests

    class Page(msgspec.Struct):
        token: str = msgspec.field(name="ContinuationToken", default="")
        uuid: str = msgspec.field(name="UUID", default="")

    decoder = msgspec.msgpack.Decoder(Page)
    # What the mount asks for, since each property is the server's work too.
    props = "name,size,version,checksum,custom"
    value = {"props": props, "flags": "32", "uuid": "", "continuation_token": ""}
    with requests.Session() as session:
        while True:
            reply = session.get(
                f"{endpoint}/v1/buckets/{bucket}?provider=ais",
                json={"action": "list", "value": value},
                headers={"Accept": "application/msgpack"},
                timeout=120,
            )
            reply.raise_for_status()
            page = decoder.decode(reply.content)
            if not page.token:
                return
            value |= {"uuid": page.uuid, "continuation_token": page.token}


def _check(got: int, expected: int) -> None:
    if got != expected:
        raise NotMeasured(f"the sizes add up to {got} instead of {expected}")
