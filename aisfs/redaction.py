"""What may be shown of a text that others wrote: no secret, and nothing that a terminal obeys.

A server may quote the token in what it says (AIStore does when one expires), a gateway whole headers.
So errors, log lines and extended attributes all pass here, wherever their text came from. A secret is
known until the process ends: servers and logs may talk of tokens that were replaced long ago.
"""

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

_STRUCK = "[struck out]"
_SHORT = 8
"""Characters; a shorter secret may be a part of words, and is struck out only as a word."""

# A JWT, also the beginning of one that was cut; what follows the name of the header or of a scheme;
# a password or a signature in a URL.
_SECRET_NAMES = r"sig|[\w-]*(?:signature|password|passwd|secret|api_?key|access_?key|credential|security[_-]token|access[_-]token|auth[_-]token)"
_USUAL = re.compile(
    r"eyJ[\w=-]{5,}(?:\.[\w=-]*)*"
    r"|(?i:\bauthorization(?:[\"']?\s*[:=]\s*[\"'][^\"']*|\s*[:=]\s*(?:[a-z]+\s+)?\S+))"
    r"|(?i:\b(?:bearer|basic)(?:\s|%20|\+)+[\"']?[^\s\"',;]+)"
    r"|(?<=://)[^\s/?#@:]*:[^\s/?#]*(?=@)"
    rf"|(?i:(?<=[?&;])(?:{_SECRET_NAMES})=[^\s&;\"'<>]+)"
    r"|(?<=[?&])u=[\w%-]{40,}"  # the signature of a redirect of AIStore
)
_SIGNS = ("eyj", "authorization", "bearer", "basic", "@", "?", "&")
"""One of these is in lower case wherever such a secret is; looking for them costs a tenth."""
_NAMES_SECRET = re.compile(rf"(?i)token|auth|cookie|key|pass|{_SECRET_NAMES}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_long: dict[str, dict[str, None]] = {}
"""All spellings of secrets by their first `_SHORT` characters, so that a thousand cost no more than one."""
_short: dict[str, None] = {}
"""Shorter ones."""


def remember(secret: str) -> None:
    """Strike out this one too, from now on, in whatever way it is written. For any thread."""
    for spelling in {secret, *_spellings(secret)} - {""}:
        if len(spelling) < _SHORT:
            _short[spelling] = None
        else:
            _long.setdefault(spelling[:_SHORT], {})[spelling] = None


def _spellings(secret: str) -> Iterator[str]:
    yield unquote(secret)
    for quoted in (quote(secret), quote(secret, safe=""), quote_plus(secret)):
        yield quoted
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
    for text in (secret, secret.replace("/", "\\/")):
        yield json.dumps(text, ensure_ascii=False)[1:-1].replace("\\\\/", "\\/")


def remember_header(name: str, value: str) -> None:
    """Strike out what a header says, also without its scheme, and each value of a cookie."""
    parts = {value, value.rpartition(" ")[2]}
    if name.lower() == "cookie":
        parts |= {pair.partition("=")[2].strip() for pair in value.split(";")}
    if value.lower().startswith("basic "):
        try:
            user = b64decode(value[6:].strip(), validate=True).decode()
        except ValueError:
            user = ""
        parts |= {user, user.partition(":")[2]}
    least = _SHORT // 2 if _NAMES_SECRET.search(name) else _SHORT  # others are words, and numbers
    for part in parts:
        if len(part) >= least:
            remember(part)


def remember_url(url: str) -> None:
    """Strike out the password of a URL, and what in its query is a signature or another secret."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:  # no URL, so nothing is asked with it
        return
    if password:
        remember(password)
        remember(unquote(password))
    remember_query(parts.query)


def remember_query(query: str) -> None:
    """Strike out the secrets of a query, such as a SAS token of Azure."""
    for name, value in parse_qsl(query.lstrip("?")):
        if value and _NAMES_SECRET.search(name):
            remember(value)


def remember_settings(settings: object, name: str = "") -> None:
    """Strike out the secrets among the settings of a library: values under names that say so."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            remember_settings(value, str(key))
    elif isinstance(settings, str) and settings and _NAMES_SECRET.search(name):
        remember(settings)


def _known_in(text: str) -> list[str]:
    """Return the spellings of secrets that are in a text, the longest first."""
    known = [secret for secret in list(_short) if secret in text]
    if _long:
        starts = {text[at : at + _SHORT] for at in range(len(text) - _SHORT + 1)}
        for start in starts & _long.keys():
            known += [secret for secret in list(_long[start]) if secret in text]
    return sorted(known, key=len, reverse=True)


def _pattern(secret: str) -> str:
    pattern = re.escape(secret)
    return pattern if len(secret) >= _SHORT else rf"(?<![^\s\"=:]){pattern}(?![^\s\"',;])"


def shown(text: str) -> str:
    """Return the text as it may be shown."""
    known = _known_in(text)
    if known:
        text = re.sub("|".join([*map(_pattern, known), _USUAL.pattern]), _STRUCK, text)
    else:
        lower = text.lower()
        if any(sign in lower for sign in _SIGNS):
            text = _USUAL.sub(_STRUCK, text)
    return text if text.isprintable() else _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """Return the text as it may be shown, in one line that is one: a name may have line breaks in it."""
    text = text.encode(errors="backslashreplace").decode()
    return shown(text if text.isprintable() else "".join(map(_escaped, text)))


def _escaped(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
