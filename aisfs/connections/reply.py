"""A reply as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply; header names are in lower case, repeated headers joined by `, `."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
