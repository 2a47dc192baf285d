"""Publishes every index that a test scans, and reads it again."""

from collections.abc import Iterator
from functools import wraps

import pytest
import requests

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.archive.zip import ZipScanner
from aisfs.core.index.builder import MAX_NESTING
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import (
    LabelColumn,
    ScanRules,
    decode_published,
    encode_published,
)
from aisfs.core.names.listing import published_key
from aisfs.core.views.sample_views import LabelScan
from aisfs.core.views.spec import LabelRule
from aisfs.model import ObjectInfo

SCAN = ScanRules(nesting=MAX_NESTING)


def shard_of(index: MemberIndex) -> ObjectInfo:
    """Return an object that can be the shard."""
    return ObjectInfo("a/b.tar", index.object_size, "7", "xxhash2:0123456789abcdef")


def everything(index: MemberIndex) -> tuple:
    """All that an index says."""
    columns, packing = index.columns, index.packing
    return (
        bytes(columns.names),
        bytes(columns.flags),
        *(list(getattr(columns, name)) for name in ("ends", "offsets", "leads", "sizes", "mtimes")),
        dict(columns.targets),
        dict(columns.contents),
        dict(columns.stored_stops),
        index.object_size,
        index.warnings,
        list(index.skipped.items()),
        index.form,
        packing.to_bytes() if packing is not None else None,
    )


def assert_survives(index: MemberIndex) -> bytes:
    """Check that the published form says the same as the scan; return it."""
    shard = shard_of(index)
    data = encode_published(shard, index, {}, SCAN)
    found = decode_published(data, shard, SCAN)
    assert everything(found.index) == everything(index)
    return data


@pytest.fixture(scope="module", autouse=True)
def every_scan_is_published() -> Iterator[None]:
    """Check the published form of whatever the tests of a module scan."""
    with pytest.MonkeyPatch.context() as patch:
        for scanner in (TarScanner, ZipScanner):
            patch.setattr(scanner, "finish", _published(scanner.finish))
        yield


def _published(finish):
    @wraps(finish)
    def checked(self, *args):
        index = finish(self, *args)
        assert_survives(index)
        return index

    return checked


def publish(endpoint: str, bucket: str, key: str, data: bytes, *rules: LabelRule) -> bytes:
    """Publish the index of a tar in a bucket; return it."""
    url = f"{endpoint}/v1/objects/{bucket}/"
    headers = requests.head(url + key, allow_redirects=True, timeout=30).headers
    checksum = f"{headers['ais-checksum-type']}:{headers['ais-checksum-value']}"
    shard = ObjectInfo(key, len(data), headers.get("ais-version", ""), checksum)
    index, labels = scanned(data, *rules)
    published = encode_published(shard, index, labels, ScanRules())
    place = url + published_key(key)
    requests.put(place, data=published, timeout=30).raise_for_status()
    return published


def scanned(data: bytes, *rules: LabelRule) -> tuple[MemberIndex, dict[str, LabelColumn]]:
    """Scan a tar for its members and labels."""
    scanner = TarScanner(len(data))
    scans = {f"{rule.source.name} {rule.text}": LabelScan(rule, scanner.rows) for rule in rules}
    scanner.feed(data)
    for scan in scans.values():
        scan.feed(0, memoryview(data))
    index = scanner.finish()
    return index, {name: scan.finish(index) for name, scan in scans.items()}
