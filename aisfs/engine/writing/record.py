"""The record beside a staged file: which object its bytes belong to, for recovery after a crash.

A record exists exactly as long as the staged bytes are not in the store. It is JSON, so that users can
read it; bytes of a key that are not UTF-8 are written as escaped lone surrogates.
"""

import json

import msgspec

from aisfs.model import Bucket, ObjectInfo, Provider

LAYOUT = 1
_TEXTS = ("endpoint", "key", "member", "base", "reason", "upload", "only_new")


class StagedRecord(msgspec.Struct, frozen=True, gc=False):
    """The object or member that a staged file will become."""

    endpoint: str
    """The cluster or directory it belongs to."""
    bucket: Bucket
    key: str
    member: str = ""
    """Name of a new member of the shard `key`; empty for an object."""
    base: str = ""
    """The changed version, as `version_text` returns it; empty for a new object."""
    mode: int | None = None
    reason: str = ""
    """Why it is not in the store, if that is known."""
    upload: str = ""
    """The store's id of an upload that began before the file was closed."""
    only_new: str = ""
    """What `Upload` calls so, for a file made with O_EXCL; empty for others."""

    @property
    def name(self) -> str:
        """The name shown to users."""
        return f"{self.bucket}/{self.key}" + (f".d/{self.member}" if self.member else "")

    def encode(self) -> bytes:
        """Return the record as JSON."""
        bucket = self.bucket
        fields = {
            "layout": LAYOUT,
            "provider": bucket.provider.value,
            "bucket": bucket.name,
            "namespace": bucket.namespace,
            "mode": self.mode,
            **{name: getattr(self, name) for name in _TEXTS},
        }
        try:
            return msgspec.json.encode(fields)  # in a tenth of the time
        except UnicodeEncodeError:
            return json.dumps(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> "StagedRecord":
        """Return the record that `encode` encoded.

        Raises:
            ValueError: this is not a record of this layout.
        """
        try:
            fields = {"upload": "", "only_new": "", **json.loads(data)}  # older records have none
            if fields["layout"] != LAYOUT:
                raise ValueError(f"a record of layout {fields['layout']}, not {LAYOUT}")
            provider, mode = Provider(fields["provider"]), fields["mode"]
            endpoint = str(fields["endpoint"])
            path = endpoint if endpoint.startswith("/") else ""  # a directory is called by its path
            return cls(
                bucket=Bucket(str(fields["bucket"]), provider, str(fields["namespace"]), path),
                mode=None if mode is None else int(mode),
                **{name: str(fields[name]) for name in _TEXTS},
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a record of a staged file: {error}") from error


def version_text(info: ObjectInfo | None) -> str:
    """Return a version as text, for a record."""
    return "" if info is None else f"{info.version} {info.checksum} {info.size}"
