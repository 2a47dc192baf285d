"""Which proxy a request goes through, as requests decides it: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

Not AIStore's proxies: those are endpoints.
"""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from requests.auth import _basic_auth_str
from requests.utils import get_environ_proxies, select_proxy

from aisfs.errors import ConfigError
from aisfs.redaction import remember_url

BY_OPTION = "--proxy"
BY_ENVIRONMENT = "the environment, or --proxy"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that forwards requests, and makes tunnels for TLS."""

    scheme: str
    host: str
    port: int
    authorization: str
    """Value of `Proxy-Authorization`; empty for none."""
    named_by: str
    """`BY_OPTION` or `BY_ENVIRONMENT`."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"the proxy {self.scheme}://{host}:{self.port} (from {self.named_by})"


ProxyOf = Callable[[str], Proxy | None]
"""Returns the proxy for a URL; None for none."""


def no_proxy(url: str) -> None:
    """Go through no proxy."""


def environment_proxy(url: str) -> Proxy | None:
    """Return the proxy that the environment names for a URL.

    Raises:
        ConfigError: what it names is no proxy.
    """
    found = select_proxy(url, get_environ_proxies(url))
    return parse_proxy(found, BY_ENVIRONMENT) if found else None


def through_proxy(url: str) -> str:
    """Return the words of an error which say that a library went through a proxy; empty if it did not."""
    found = select_proxy(url, get_environ_proxies(url))
    if not found:
        return ""
    remember_url(found)
    return f" through the proxy {found.rpartition('@')[2]} (from {BY_ENVIRONMENT})"


def parse_proxy(text: str, named_by: str) -> Proxy:
    """Return a proxy by its URL; without a scheme it is http.

    Raises:
        ConfigError: it is no URL of a proxy.
    """
    text = text.strip()
    remember_url(text)
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host = (parts.hostname or "").encode("idna").decode()
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    if not host or parts.scheme not in ("http", "https"):
        place = text.rpartition("@")[2]
        raise ConfigError(
            f"the proxy {place} (from {named_by}) is no HTTP proxy such as http://host:3128"
        )
    authorization = ""
    if parts.username:
        user, password = unquote(parts.username), unquote(parts.password or "")
        authorization = _basic_auth_str(user, password)
    return Proxy(parts.scheme, host, port, authorization, named_by)
