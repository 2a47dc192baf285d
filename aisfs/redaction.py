"""What may be shown of a text that others wrote: no secret, and nothing that a terminal obeys.

A server may quote the token in what it says (AIStore does when one expires), a gateway whole headers.
So errors, log lines and extended attributes all pass here, wherever their text came from.
"""

import re
from urllib.parse import quote

_STRUCK = "[struck out]"
_SHORT = 8
"""Characters; a shorter secret may be a part of words, and is struck out only as a word."""
_MOST_OWN = 16
"""Tokens that are remembered: those that are valid, and those that a server may still talk of."""

# A JWT, also the beginning of one that was cut; what follows the name of the header or of a scheme.
_USUAL = (
    r"eyJ[\w=-]{5,}(?:\.[\w=-]*)*"
    r"|(?i:\bauthorization(?:[\"']?\s*[:=]\s*[\"'][^\"']*|\s*[:=]\s*(?:[a-z]+\s+)?\S+))"
    r"|(?i:\b(?:bearer|basic)(?:\s|%20|\+)+[\"']?[^\s\"',;]+)"
)
_SIGNS = ["eyj", "authorization", "bearer", "basic"]
"""One of these is in lower case wherever such a secret is; looking for them costs a tenth."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_own: list[str] = []
_patterns = _SIGNS, re.compile(_USUAL)


def remember(secret: str) -> None:
    """Strike out this one too, from now on."""
    global _own, _patterns
    _own = [*(known for known in _own if known != secret), secret][-_MOST_OWN:]
    spellings = sorted({*_own, *(quote(known, safe="") for known in _own)}, key=len, reverse=True)
    alternatives = [*map(_pattern, spellings), _USUAL]
    _patterns = [*_SIGNS, *map(str.lower, spellings)], re.compile("|".join(alternatives))


def _pattern(secret: str) -> str:
    pattern = re.escape(secret)
    return pattern if len(secret) >= _SHORT else rf"(?<![^\s\"=:]){pattern}(?![^\s\"',;])"


def shown(text: str) -> str:
    """Return the text as it may be shown."""
    signs, secrets = _patterns
    lower = text.lower()
    if any(sign in lower for sign in signs):
        text = secrets.sub(_STRUCK, text)
    return text if text.isprintable() else _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
