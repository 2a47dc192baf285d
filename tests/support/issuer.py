"""An issuer of tokens as Kubernetes is one, and a token endpoint that exchanges them."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

READ, WRITE, LIST = 1 | 2, 4 | 8 | 16 | 32, 256 | 512


@dataclass
class Issuer:
    """Has a key, and publishes it as a file."""

    jwks: Path
    issued: list[str] = field(default_factory=list)
    """All tokens, none of which may be seen anywhere."""

    def __post_init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": "1", "alg": "RS256"}
        key |= {
            name: _text(value.to_bytes(256)) for name, value in (("n", numbers.n), ("e", numbers.e))
        }
        self.jwks.write_text(json.dumps({"keys": [key]}))

    def token(self, seconds: float = 600, audience: str = "aistore", **claims: object) -> str:
        """Return a token that ends after so many seconds."""
        now = time.time()
        said = {
            "sub": "system:serviceaccount:default:trainer",
            "iat": now,
            "exp": now + seconds,
            "aud": [audience],
        }
        return self.sign({"alg": "RS256", "kid": "1"}, said | claims)

    def sign(self, head: dict[str, object], claims: dict[str, object]) -> str:
        """Return a token that says what it likes."""
        text = ".".join(_text(json.dumps(part).encode()) for part in (head, claims))
        signature = self._key.sign(text.encode(), padding.PKCS1v15(), SHA256())
        self.issued.append(f"{text}.{_text(signature)}")
        return self.issued[-1]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass
class TokenEndpoint:
    """Exchanges tokens; what it was asked is kept."""

    url: str
    asked: list[dict[str, str]]


@contextmanager
def token_endpoint(issuer: Issuer, refuses: str = "", **claims: object) -> Iterator[TokenEndpoint]:
    """Run a token endpoint (RFC 8693) whose tokens say `claims`; it refuses the subject token `refuses`."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append({name: values[0] for name, values in parse_qs(form).items()})
            refused = asked[-1]["subject_token"] == refuses
            said = (
                {"error": "invalid_grant"} if refused else {"access_token": issuer.token(**claims)}
            )
            body = json.dumps(said).encode()
            self.send_response(400 if refused else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield TokenEndpoint(f"http://127.0.0.1:{server.server_port}/token", asked)
        finally:
            server.shutdown()
