"""What can be typed as SOURCE."""

from pathlib import Path

import pytest

from aisfs.core.sources import BucketSource, DirectorySource, Everything, parse_source
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (None, Everything()),
        ("ais://pets", BucketSource(Bucket("pets"), "")),
        ("ais://pets/", BucketSource(Bucket("pets"), "")),
        ("ais://pets/train", BucketSource(Bucket("pets"), "train/")),
        ("ais://pets/train/a/", BucketSource(Bucket("pets"), "train/a/")),
        ("s3://b", BucketSource(Bucket("b", Provider.AWS), "")),
        ("gs://b", BucketSource(Bucket("b", Provider.GCP), "")),
        ("ais://b@remote#", BucketSource(Bucket("b", Provider.AIS, "@remote#"), "")),
        ("ais://@remote#/b/p", BucketSource(Bucket("b", Provider.AIS, "@remote#"), "p/")),
        ("./dir", DirectorySource(Path("dir"))),
    ],
)
def test_sources(text, source):
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    ["ftp://x", "ais://", "ais:///x", "ais://@u#/", "ais://b!/x", "ais://b/../x", "ais://b/a//b"],
)
def test_what_cannot_be_a_source_is_named(text):
    with pytest.raises(ConfigError, match="://"):
        parse_source(text)
