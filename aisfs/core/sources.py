"""What a user can mount, parsed from what was typed."""

import os
from dataclasses import dataclass
from pathlib import Path

from aisfs.core.names import is_bucket_name, parse_bucket_name
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider


@dataclass(frozen=True, slots=True)
class Everything:
    """Every bucket the cluster shows, by provider."""

    def __str__(self) -> str:
        return "aisfs"


@dataclass(frozen=True, slots=True)
class BucketSource:
    """A bucket, or one directory of it."""

    bucket: Bucket
    prefix: str
    """Empty, or ends in `/`."""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.prefix}" if self.prefix else str(self.bucket)


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A local directory that plays the bucket."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Source = Everything | BucketSource | DirectorySource


def parse_source(text: str | None) -> Source:
    """Read `ais://bucket[/prefix/]`, a directory, or nothing at all.

    Raises:
        ConfigError: the URL names no provider we know, or no bucket.
    """
    if text is None:
        return Everything()
    scheme, separator, rest = text.partition("://")
    if not separator:
        return DirectorySource(Path(text))
    try:
        provider = Provider.parse(scheme)
    except ValueError:
        known = ", ".join(f"{p.scheme}://" for p in Provider)
        raise ConfigError(f"{text}: unknown provider {scheme!r}; use one of {known}") from None
    name, _, prefix = rest.partition("/")
    if name[:1] in ("@", "#"):  # as the ais CLI writes it: ais://@uuid#ns/bucket
        space = name
        name, _, prefix = prefix.partition("/")
        name = name and name + space
    if not name:
        raise ConfigError(
            f"{text}: no bucket; write {scheme}://BUCKET or {scheme}://BUCKET/PREFIX/"
        )
    if any(part in ("", ".", "..") for part in prefix.strip("/").split("/")) and prefix.strip("/"):
        raise ConfigError(f"{text}: a prefix has no empty part, `.` or `..`")
    if not is_bucket_name(os.fsencode(name)):
        raise ConfigError(f"{text}: a bucket's name has only letters, digits, `.`, `-` and `_`")
    directory = prefix.strip("/")
    bucket = parse_bucket_name(provider, name.encode(errors="surrogateescape"))
    return BucketSource(bucket, f"{directory}/" if directory else "")
