"""Headers that some hosts want: tokens, cookies, passwords.

A host gets only what was given for it, also after a redirect. Nothing of it is shown anywhere.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from aisfs.errors import ConfigError
from aisfs.redaction import remember_header

_LINE = re.compile(
    r"(\S+)\s+([!#$%&'*+.^_`|~0-9A-Za-z-]+):\s*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)"
)
_OURS = frozenset({"range", "if-match", "if-unmodified-since", "accept-encoding", "host", "connection", "content-length", "transfer-encoding"})  # fmt: skip
"""What requests themselves say."""
_PORTS = {"https": 443, "http": 80}


class HostHeaders:
    """The headers for each host."""

    def __init__(self, headers: Mapping[str, Mapping[str, str]]) -> None:
        """Take headers by host, `HOST` or `HOST:PORT`; each value is a secret from now on."""
        self._headers = {host.lower(): dict(named) for host, named in headers.items()}
        for named in self._headers.values():
            for name, value in named.items():
                remember_header(name, value)

    def __repr__(self) -> str:
        return f"<HostHeaders for {', '.join(self._headers) or 'no host'}>"

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Read a file of lines `HOST NAME: VALUE`; empty lines and those with `#` in front are left out.

        Raises:
            ConfigError: it cannot be read, or a line is none. No line is repeated.
        """
        found: dict[str, dict[str, str]] = {}
        for number, line in enumerate(_lines(path), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = _LINE.fullmatch(line.strip())
            where = f"--http-headers {path}, line {number}"
            if parts is None or "/" in parts[1]:
                raise ConfigError(f"{where}: not of the form `HOST NAME: VALUE`")
            if parts[2].lower() in _OURS:
                raise ConfigError(f"{where}: {parts[2]} is a header that aisfs sends itself")
            found.setdefault(parts[1], {})[parts[2]] = parts[3]
        return cls(found)

    def of(self, url: str) -> Mapping[str, str]:
        """Return what to say to the host of a URL."""
        parts = urlsplit(url)
        if not self._headers or not parts.hostname:
            return {}
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        usual = _PORTS.get(parts.scheme)
        port = parts.port or usual
        named = self._headers.get(f"{host}:{port}")
        if named is None and port == usual:
            named = self._headers.get(host)
        return named or {}


def _lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return path.read_text("ascii").splitlines()
    except OSError as error:
        raise ConfigError(f"--http-headers {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"--http-headers {path}: only ASCII can be a header") from None
