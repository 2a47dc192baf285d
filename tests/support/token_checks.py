"""Tokens of other issuers (JWT), checked as AIStore does with `auth.oidc`: by the keys that the issuer publishes.

What a token permits is in the token: `admin`, or bits for clusters and buckets.
"""

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from aisfs.server.failures import Failure

_BITS = {
    ("objects", "GET"): 1 << 0,
    ("objects", "HEAD"): 1 << 1,
    ("objects", "PUT"): 1 << 2,
    ("objects", "DELETE"): 1 << 4,
    ("objects", "POST"): 1 << 5,
    ("objects", "PATCH"): 1 << 7,
    ("buckets", "HEAD"): 1 << 8,
    ("buckets", "GET"): 1 << 9,
    ("buckets", "PATCH"): 1 << 10,
    ("buckets", "POST"): 1 << 14,
    ("buckets", "DELETE"): 1 << 15,
    ("ml", "GET"): 1 << 0,
}
"""AIStore's bits of permission, for the requests of clients such as ours; about right for jobs."""
_LIST_BUCKETS, _SHOW_CLUSTER, _ADMIN = 1 << 12, 1 << 13, 1 << 17
_JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+")


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who issues tokens that are taken."""

    keys: Path
    """A file with its keys (JWKS), which may be replaced at any time."""
    issuer: str = ""
    audience: str = ""
    now: Callable[[], float] = time.time

    def check(self, token: str, cluster: str, bucket: str, root: str, method: str) -> None:
        """Refuse a request whose token is not valid, or does not permit it.

        Args:
            token: What came in the header; empty if none did.
            cluster: The UUID of this cluster.
            bucket: Which bucket it is about; empty for none.
            root: The first part of its path, such as `objects`.
            method: Its method.

        Raises:
            Failure: 401 or 403, in AIStore's words.
        """
        if not token:
            raise Failure(401, "token required")
        claims = self._claims(token)
        wanted = _BITS.get((root, method), _SHOW_CLUSTER)
        if root == "buckets" and not bucket:
            wanted = _LIST_BUCKETS
        if root == "etl":
            wanted = _ADMIN
        if claims.get("admin") is not True and wanted & ~_granted(claims, cluster, bucket):
            text = f"user `{claims['sub']}` has insufficient permissions"
            raise Failure(403, text)

    def _claims(self, token: str) -> Mapping[str, Any]:
        """Return what a valid token says."""
        try:
            if not _JWT.fullmatch(token):
                raise ValueError("token is malformed")
            head, body, signature = token.split(".")
            self._check_signature(json.loads(_decoded(head)), f"{head}.{body}", _decoded(signature))
            claims = json.loads(_decoded(body))
            if not claims.get("sub"):
                raise ValueError("no subject")
            if self.issuer and claims.get("iss") != self.issuer:
                raise ValueError("token has invalid claims: issuer is not allowed")
            audiences = claims.get("aud") or []
            if self.audience and self.audience not in (
                [audiences] if isinstance(audiences, str) else audiences
            ):
                raise ValueError("token has invalid claims: token has invalid audience")
            if self.now() >= float(claims["exp"]):
                # AIStore quotes a token that it has known before.
                raise ValueError(f"token expired]: {token}")
        except (ValueError, KeyError, TypeError, InvalidSignature) as error:
            why = str(error) or "token signature is invalid"
            end = "" if "]: " in why else "]"
            text = f'invalid token from header "Authorization": invalid token [err: {why}{end}'
            raise Failure(401, text) from error
        found: Mapping[str, Any] = claims
        return found

    def _check_signature(self, head: Mapping[str, Any], signed: str, signature: bytes) -> None:
        if head.get("alg") != "RS256":
            raise ValueError(f"signing method {head.get('alg')} is invalid")
        for key in json.loads(self.keys.read_bytes())["keys"]:
            if key["kid"] == head["kid"]:
                numbers = RSAPublicNumbers(*(int.from_bytes(_decoded(key[name])) for name in "en"))
                numbers.public_key().verify(signature, signed.encode(), PKCS1v15(), SHA256())
                return
        raise ValueError("no such key")


def _granted(claims: Mapping[str, Any], cluster: str, bucket: str) -> int:
    """Return the bits for a bucket: its own if it is named, else those of the cluster, or of any."""
    for each in claims.get("buckets") or []:
        if bucket and each["bck"]["name"] == bucket:
            return int(each["perm"])
    clusters = {each["id"]: int(each["perm"]) for each in claims.get("clusters") or []}
    return clusters.get(cluster, clusters.get("", 0))


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
