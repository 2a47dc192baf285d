"""Sizes as people, and Kubernetes, write them."""

import pytest

from aisfs.errors import ConfigError
from aisfs.settings import CacheSettings, parse_size
from tests.support.for_each import for_each


@for_each(
    "text, size",
    [
        ("1000", 1000), ("1.5MiB", 3 << 19), ("50G", 50 * 10**9), ("1 kb", 1000),
        ("10Gi", 10 << 30), ("500Mi", 500 << 20), ("1.5Ki", 1536), ("2Ti", 2 << 40), ("1Ei", 1 << 60),
        ("1k", 1000), ("1G", 10**9), ("1e9", 10**9), ("12E6", 12 * 10**6), ("3E", 3 * 10**18),
    ],
)  # fmt: skip
def test_what_a_size_means(text: str, size: int):
    assert parse_size(text) == size


@for_each("text", ["10Gigs", "Gi", "i", "1i", "10Xi", "1e999", "", "1Gi2"])
def test_what_is_no_size(text: str):
    with pytest.raises(ConfigError, match="a size is a number"):
        CacheSettings.load({"cache_size": text})
