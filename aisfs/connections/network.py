"""TLS settings, how far peers are, and what the failures of connections mean.

Must not know: requests and replies.
"""

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from requests.adapters import DEFAULT_CA_BUNDLE_PATH
from urllib3.exceptions import HTTPError

from aisfs.config import ClusterSettings
from aisfs.connections.proxies import Proxy
from aisfs.connections.replies import SpeaksTls
from aisfs.errors import AccessDenied, AisfsError, ConfigError, Unavailable
from aisfs.redaction import shown

_OTHER_NAME = frozenset({62, 64})
"""What OpenSSL says of a certificate for another host, and for another address."""
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
_NO_CERTIFICATE = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"})

PROXY_PASSWORD = "wants a name and a password: put NAME:PASSWORD@ in front of its host"
_PROBE_SECONDS = 3.0
"""For a handshake that only shows why another request failed."""
_MOST_TEXT = 300
"""Characters of what a library says that are passed on."""


class Distance(IntEnum):
    """How far a peer is, as far as its address tells."""

    MACHINE = 0
    """This one, or what it alone sees: metadata services have addresses of the link."""
    NETWORK = 1
    """A private network."""
    WORLD = 2


@lru_cache(maxsize=1024)
def distance(peer: str, own: str) -> Distance:
    """Return how far a peer is, by its address and that which this machine has towards it."""
    address = ip_address(peer.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    if peer == own or address.is_loopback or address.is_link_local or address.is_unspecified:
        return Distance.MACHINE
    return Distance.WORLD if address.is_global else Distance.NETWORK


def distance_by_name(host: str) -> Distance:
    """Return how far a host is that a proxy is to look up, as far as its name tells."""
    if host == "localhost" or host.endswith(".localhost"):
        return Distance.MACHINE
    try:
        return distance(host, "")
    except ValueError:
        return Distance.WORLD


def distance_of(sock: socket.socket) -> Distance:
    """Return how far the peer of a connected socket is.

    Raises:
        OSError: it is connected no more.
    """
    return distance(sock.getpeername()[0], sock.getsockname()[0])


class WrongHost(OSError):
    """A trusted certificate of another host; the text says of which."""


class ProxyFailed(OSError):
    """No connection to a proxy, or none through it."""

    def __init__(self, proxy: Proxy, what: str, error: OSError) -> None:
        super().__init__(f"{proxy} {what}: {error.strerror or error}")
        self.proxy = proxy
        self.wants_password = " failed: 407 " in str(error)


def tls_options(settings: ClusterSettings) -> dict[str, Any]:
    """Return the `verify` and `cert` that requests takes as TLS settings.

    Raises:
        ConfigError: they are unusable.
    """
    for path in (settings.client_ca, settings.client_cert, settings.client_key):
        if path and not path.exists():
            raise ConfigError(f"{path}: no such file, but the TLS settings name it")
    if settings.client_ca and not settings.skip_verify_crt:
        check_authorities(settings.client_ca)
    if settings.client_key and not settings.client_cert:
        raise ConfigError("AIS_CRT_KEY is of no use without AIS_CRT")
    cert: Any = str(settings.client_cert) if settings.client_cert else None
    if settings.client_cert:
        _check_key(settings)
    if cert and settings.client_key:
        cert = (cert, str(settings.client_key))
    # The bundle that requests brings along, not that of the system, is what it trusts by default.
    trusted = str(settings.client_ca or DEFAULT_CA_BUNDLE_PATH)
    return {"verify": False if settings.skip_verify_crt else trusted, "cert": cert}


def check_authorities(file: Path) -> None:
    """Make sure that a file, or a directory, has certificates to trust.

    Raises:
        ConfigError: it has none.
    """
    if file.is_dir():
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        try:
            holds_key = b"PRIVATE KEY" in file.read_bytes()
        except OSError:
            holds_key = False
        but = ", but a private key: name the certificate of the authority" if holds_key else ""
        raise ConfigError(f"--client-ca {file}: that file holds no certificate{but}") from error
    except OSError as error:
        raise ConfigError(f"--client-ca {file}: {error.strerror}") from error


def _check_key(settings: ClusterSettings) -> None:
    cert, key = settings.client_cert, settings.client_key
    assert cert
    try:
        # An empty password, so that nobody is asked for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
    except OSError as error:
        if key:
            why = f"AIS_CRT and AIS_CRT_KEY ({cert}, {key}) are no certificate and its key"
        else:
            why = f"AIS_CRT ({cert}) holds no certificate with its key: name the key in AIS_CRT_KEY"
        raise ConfigError(f"{why} ({error.strerror or error})") from error


def say_whose(error: ssl.SSLCertVerificationError, address: tuple[str, int], ca: Any) -> None:  # noqa: ANN401 - as requests has it
    """Find out whose certificate it is that is not that of the host.

    Raises:
        WrongHost: it is trusted but for the name.
    """
    if error.verify_code not in _OTHER_NAME:
        return
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    try:
        # A failed handshake shows no certificate: this one is over before anything is sent.
        with (
            socket.create_connection(address, _PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as sock,
        ):
            shown: Any = sock.getpeercert() or {}
            names = [name for _, name in shown.get("subjectAltName", ())]
    except (OSError, ValueError):
        names = []
    whose = " or ".join(names) or "another host"
    raise WrongHost(f"the certificate is for {whose}, not {address[0]}") from error


def speaks_tls(url: str) -> bool:
    """Return whether a server that was spoken to without TLS wants it; its certificate is not checked."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    place = urlsplit(url)
    host = place.hostname or ""
    try:
        with (
            socket.create_connection((host, place.port or 80), _PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return error.reason in _NO_CERTIFICATE
    except (OSError, ValueError):
        return False


def other_scheme(url: str) -> str | None:
    """Return what is wrong with the scheme of a URL whose host gave no answer; None if that is not why."""
    if not url.startswith("https://"):
        return "the server speaks TLS: use https://" if speaks_tls(url) else None
    if _speaks_http(url) and not speaks_tls(url):  # some servers with TLS answer without, too
        return "the server does not speak TLS: use http://"
    return None


def _speaks_http(url: str) -> bool:
    """Return whether a server answers without TLS."""
    place = urlsplit(url)
    host, port = place.hostname or "", place.port or 443
    try:
        with socket.create_connection((host, port), _PROBE_SECONDS) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return sock.recv(5, socket.MSG_WAITALL) == b"HTTP/"
    except (OSError, ValueError):
        return False


@contextmanager
def network(subject: str) -> Iterator[None]:
    """Turn what the libraries below raise into our errors. No sink is called in the block."""
    try:
        yield
    except (HTTPError, http.client.HTTPException, OSError) as error:
        raise _failure(subject, error) from error


def _failure(subject: str, error: Exception) -> AisfsError:
    if (wrong := _setting(error)) is not None:
        return ConfigError(f"{subject}: {wrong}")
    if isinstance(error, ProxyFailed):
        if error.wants_password:
            return AccessDenied(f"{subject}: {error.proxy} {PROXY_PASSWORD}")
        return Unavailable(f"{subject}: {_brief(error)}")
    if isinstance(error, TimeoutError):
        return Unavailable(f"{subject}: no answer in time ({_brief(error)})")
    return Unavailable(f"{subject}: the connection failed ({_brief(error)})")


def _brief(cause: BaseException) -> str:
    """Return what it says, which may be what the server said, as a part of a line."""
    return " ".join(shown(str(cause)).split())[:_MOST_TEXT]


def _setting(cause: BaseException) -> str | None:
    """Return which setting is wrong, if that is why."""
    if isinstance(cause, WrongHost):
        return f"{cause}: use a name it is for in the endpoint, or add this one to it"
    if isinstance(cause, SpeaksTls):
        return str(cause)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"the certificate is not trusted ({cause.verify_message}): name its CA in AIS_CLIENT_CA"
        )
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
        return "the server does not speak TLS: use http://"
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_CERTIFICATE:
        return "the server wants a client certificate: name it in AIS_CRT and AIS_CRT_KEY"
    return None
