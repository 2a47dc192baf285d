"""The token: where it comes from, and how a mount outlives its expiry.

The chain is that of the `ais` CLI: a literal token, a named file, the file `ais auth login` keeps.
Tokens expire while mounts live on, so a refused token is looked up again in its file.

Invariant: no token in a message, a log line or a repr. Must not know HTTP beyond one header.
"""

from pathlib import Path
from typing import Self

import msgspec

from aisfs.errors import ConfigError
from aisfs.redaction import remember
from aisfs.settings import ClusterSettings
from aisfs.system.threads import any_thread


class _TokenFile(msgspec.Struct):
    token: str


@any_thread
class Credentials:
    """The current token. Methods read files."""

    def __init__(self, token: str | None, source: Path | None) -> None:
        self._token = token
        self._source = source

    def __repr__(self) -> str:
        origin = str(self._source) if self._source else "given" if self._token else "none"
        return f"<Credentials {origin}>"

    @classmethod
    def load(cls, settings: ClusterSettings) -> Self:
        """Go through the chain; the first source that is there counts.

        Raises:
            ConfigError: a token is unusable, or a file named by the user is not there.
        """
        if settings.token and settings.token.strip():
            return cls(_checked(settings.token, "AIS_AUTHN_TOKEN"), None)
        if settings.authn_token_file:
            return cls(_read(settings.authn_token_file), settings.authn_token_file)
        default = settings.cli_token_file
        try:
            # Kept as the source even when absent: `ais auth login` may come after the mount.
            return cls(_read(default) if default.exists() else None, default)
        except PermissionError:
            return cls(None, None)

    def authorization(self) -> str | None:
        """Return the value of the Authorization header, None without a token."""
        return f"Bearer {self._token}" if self._token else None

    def renew(self, refused: str | None) -> str | None:
        """Look for a newer token after `refused` was answered with 401.

        Returns:
            The header's new value; None when there is nothing newer to try.
        """
        # Another request may have been refused, and have renewed it, before this one.
        if self._source and self.authorization() == refused:
            try:
                self._token = _read(self._source)
            except ConfigError:
                # Gone or half written: the token at hand is as good as any.
                return None
        current = self.authorization()
        return current if current != refused else None


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"token file {path}: {error.strerror}") from error
    try:
        token = msgspec.json.decode(content, type=_TokenFile).token
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Not chained: the error would quote what the file holds.
        raise ConfigError(f'token file {path}: not JSON of the form {{"token": "…"}}') from None
    return _checked(token, f"token file {path}")


def _checked(token: str, origin: str) -> str:
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        # Said here, since later http.client would quote the token in its own message.
        raise ConfigError(f"{origin}: the token is empty or holds characters no token has")
    remember(token)
    return token
