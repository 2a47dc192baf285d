"""The embedded server with faults on demand: `python -m tests.support.faulty_server DIR --port N`.

Prints `ready <port>` once it accepts connections. The rules travel over the same listener:

    POST /-/faults     a JSON list of rules, added to those there are
    DELETE /-/faults   no more faults
    GET /-/faults      the rules, each with the number of times it has struck (`struck`), and, of
                       those that stall, how many requests it held at once, at most (`held_most`)

A rule is `{"match": {...}, "action": "...", "times": 1, ...}`. All that `match` names must hold:

    method "GET" · path_contains "x.tar" · query_contains "archpath" · marked true (at the target)
    range true (has a Range header) · other_token "t" (has another token than this, or none)

Actions:

    status    answer `status` (default 503) with `body`, any JSON value; absent means an empty body
    reset     drop the connection before the reply
    kill      kill the whole server, as a power cut would
    truncate  announce the whole length, send `fraction` of it (default 0.5), drop the connection
    stall     wait `seconds` before the body, or after `fraction` of it when that is given; with
              `until_cleared` only until the rules are removed
    strip     serve the request without the headers `names`
    drip      send `piece` bytes (default 1024) every `seconds` (default 0.05)
    ignore    serve the request as one without the headers `names`, as servers do that do not know them
    shift     serve a range that begins, and ends, `by` bytes further on
    lie       serve the request, but with another `status`, other `headers`, another `body` (text), or
              without its last `missing` bytes, which are not announced either
    expire    refuse the token of the request with 401, as a proxy that knew it until now: quoting it

The first three have a `stage`, for requests with a body: `headers` (nothing of the body was read;
the default of reset and kill), `mid` (half of it was), `body` (all of it was, and nothing done; the
default of status), `done` (the request was served, only its reply is lost). An answer before the
end of the body closes the connection, as a server does that does not want the rest.

Jobs wait where `tests.support.job_gate` says so; `--without-job KIND` leaves a kind of job out.

`times` is how often the rule strikes; -1 means always. With `every` only each so-manieth request that
matches is struck. The first rule that strikes is applied.

With `--forward URL` all requests that are not spoiled go to the server there, whose own state outlives
this one's: see `tests.support.forward`.
"""

import argparse
import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs

from aisfs.errors import AisfsError
from aisfs.server.api.jobs.etl import parse_commands
from aisfs.server.api.jobs.registry import JobRules
from aisfs.server.app import Server, Tokens, make_app
from aisfs.server.failures import Failure
from aisfs.server.messages import (
    Environ,
    Request,
    StartResponse,
    WsgiApp,
    error_reply,
    send,
)
from aisfs.server.run import serve_app
from aisfs.server.storage.objects import STATE_DIRECTORY
from aisfs.server.storage.traps import Kindness
from tests.support.forward import Forward
from tests.support.job_gate import JobGate
from tests.support.targets import SpreadTraps, Targets

_UNUSED = {
    "times": 1, "every": 1, "match": {}, "met": 0, "struck": 0, "held": 0, "held_most": 0,
}  # fmt: skip


class FaultInjector:
    """Middleware that spoils the replies its rules match."""

    def __init__(self, app: WsgiApp) -> None:
        self._app = app
        self._rules: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._cleared = threading.Event()
        """Set when the present rules are removed."""

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/-/faults":
            return self._control(environ, start_response)
        rule = None if environ["PATH_INFO"].startswith("/-/") else self._strike(environ)
        if rule is None:
            return self._app(environ, start_response)
        match rule["action"]:
            case "status":
                return self._status(rule, environ, start_response)
            case "reset" | "kill":
                self._end(rule, environ)
            case "truncate":
                return self._truncate(rule, environ, start_response)
            case "stall":
                return self._stall(rule, environ, start_response)
            case "drip":
                return self._drip(rule, environ, start_response)
            case "expire":
                return self._expire(environ, start_response)
        return self._deceive(rule, environ, start_response)

    def _deceive(
        self, rule: dict[str, Any], environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Serve a request otherwise than was asked, or not say what was served."""
        match rule["action"]:
            case "strip":
                return self._app(environ, _stripped(start_response, rule["names"]))
            case "ignore":
                return self._app(_without(environ, rule["names"]), start_response)
            case "shift":
                return self._app(_shifted(environ, rule["by"]), start_response)
            case "lie":
                return self._lie(rule, environ, start_response)
        raise ValueError(f"no such action: {rule}")

    def _end(self, rule: dict[str, Any], environ: Environ) -> NoReturn:
        self._reach(rule.get("stage", "headers"), environ)
        if rule["action"] == "kill":
            os.killpg(0, signal.SIGKILL)
        _reset(environ["gunicorn.socket"])
        raise ConnectionResetError(104, "injected")

    def _status(
        self, rule: dict[str, Any], environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        stage = rule.get("stage", "body")
        self._reach(stage, environ)
        body = json.dumps(rule["body"]).encode() if "body" in rule else b""
        headers = [("Content-Length", str(len(body)))]
        headers += [("Content-Type", "application/json")] if body else []
        headers += [("Connection", "close")] if stage in ("headers", "mid") else []
        start_response(f"{rule.get('status', 503)} Injected", headers)
        return [body]

    def _reach(self, stage: str, environ: Environ) -> None:
        if stage == "mid":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
        elif stage == "body":
            _drain(environ)
        elif stage == "done":
            self._whole(environ, lambda *_: None)

    def _control(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        data = environ["wsgi.input"].read()
        with self._lock:
            if environ["REQUEST_METHOD"] == "POST":
                self._rules += [{**_UNUSED, **rule} for rule in json.loads(data)]
            elif environ["REQUEST_METHOD"] == "DELETE":
                self._rules.clear()
                self._cleared.set()
                self._cleared = threading.Event()
            body = json.dumps(self._rules).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response("200 OK", headers)
        return [body]

    def _strike(self, environ: Environ) -> dict[str, Any] | None:
        with self._lock:
            for rule in self._rules:
                if rule["times"] != 0 and _matches(rule["match"], environ):
                    rule["met"] += 1
                    if rule["met"] % rule["every"]:
                        continue
                    rule["times"] -= 1 if rule["times"] > 0 else 0
                    rule["struck"] += 1
                    return rule
        return None

    def _truncate(
        self, rule: dict[str, Any], environ: Environ, start_response: StartResponse
    ) -> Iterator[bytes]:
        body = self._whole(environ, start_response)
        yield body[: int(len(body) * rule.get("fraction", 0.5))]
        environ["gunicorn.socket"].shutdown(socket.SHUT_RDWR)

    def _stall(
        self, rule: dict[str, Any], environ: Environ, start_response: StartResponse
    ) -> Iterator[bytes]:
        body = self._whole(environ, start_response)
        at = int(len(body) * rule.get("fraction", 0))
        if at:
            yield body[:at]
        with self._lock:  # whoever asked has no answer before it is let go
            cleared = self._cleared if rule in self._rules else None
            rule["held"] += 1
            rule["held_most"] = max(rule["held_most"], rule["held"])
        if rule.get("until_cleared"):
            if cleared is not None:
                cleared.wait(rule["seconds"])
        else:
            time.sleep(rule["seconds"])
        with self._lock:
            rule["held"] -= 1
        yield body[at:]

    def _drip(
        self, rule: dict[str, Any], environ: Environ, start_response: StartResponse
    ) -> Iterator[bytes]:
        body, piece = self._whole(environ, start_response), rule.get("piece", 1024)
        for at in range(0, len(body), piece):
            yield body[at : at + piece]
            time.sleep(rule.get("seconds", 0.05))

    @staticmethod
    def _expire(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        token = environ.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
        text = 'invalid token from header "Authorization": invalid token [err: token expired]'
        failure = Failure(401, f"{text}: {token}", "wrapError")
        request = Request(environ)
        request.drain()
        return send(error_reply(failure, request, "proxy"), environ, start_response)

    def _lie(
        self, rule: dict[str, Any], environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        told: list[Any] = []
        body = self._whole(environ, lambda *reply: told.extend(reply))
        if "body" in rule:
            body = rule["body"].encode()
        body = body[: len(body) - rule.get("missing", 0)]
        changed = {"Content-Length": str(len(body)), **rule.get("headers", {})}
        if environ["REQUEST_METHOD"] == "HEAD" and "Content-Length" not in rule.get("headers", {}):
            del changed["Content-Length"]
        names = {name.lower() for name in changed}
        headers = [pair for pair in told[1] if pair[0].lower() not in names]
        status = f"{rule['status']} Injected" if "status" in rule else told[0]
        start_response(status, [*headers, *changed.items()])
        return [body]

    def _whole(self, environ: Environ, start_response: StartResponse) -> bytes:
        """Get the real reply in one piece; locks are released before anything is delayed."""
        reply = self._app(environ, start_response)
        try:
            return b"".join(reply)
        finally:
            if hasattr(reply, "close"):
                reply.close()


def _matches(match: dict[str, Any], environ: Environ) -> bool:
    query = environ.get("QUERY_STRING", "")
    marked = {"pid", "utm"} <= parse_qs(query, keep_blank_values=True).keys()
    path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "surrogateescape")
    tests = {
        "method": lambda wanted: environ["REQUEST_METHOD"] == wanted,
        "path_contains": lambda wanted: wanted in path,
        "query_contains": lambda wanted: wanted in query,
        "marked": lambda wanted: marked == wanted,
        "range": lambda wanted: ("HTTP_RANGE" in environ) == wanted,
        "other_token": lambda wanted: environ.get("HTTP_AUTHORIZATION") != f"Bearer {wanted}",
    }
    return all(tests[name](wanted) for name, wanted in match.items())


def _stripped(start_response: StartResponse, names: list[str]) -> StartResponse:
    """Leave headers out, as some gateways do."""

    left_out = {name.lower() for name in names}

    def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        kept = [pair for pair in headers if pair[0].lower() not in left_out]
        return start_response(status, kept, *more)

    return start


def _without(environ: Environ, names: list[str]) -> Environ:
    left_out = {f"HTTP_{name.upper().replace('-', '_')}" for name in names}
    return {name: value for name, value in environ.items() if name not in left_out}


def _shifted(environ: Environ, by: int) -> Environ:
    first, last = environ["HTTP_RANGE"].removeprefix("bytes=").split("-")
    return {**environ, "HTTP_RANGE": f"bytes={int(first) + by}-{int(last) + by}"}


def _drain(environ: Environ) -> None:
    while environ["wsgi.input"].read(1 << 20):
        pass


def _reset(sock: Any) -> None:
    """Make the coming close send RST, as a crashed peer does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _follow_stdin() -> None:
    """Stop when whoever started this server is gone."""

    def wait() -> None:
        while sys.stdin.buffer.read(65536):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _issuer(keys: Path | None, audience: str) -> Tokens | None:
    if keys is None:
        return None
    from tests.support.token_checks import Issuer

    return Issuer(keys, audience=audience)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token")
    parser.add_argument("--jwks", type=Path)
    parser.add_argument("--audience", default="")
    parser.add_argument("--traps", action="store_true")
    parser.add_argument("--signs", action="store_true")
    parser.add_argument("--targets", type=int, default=1)
    parser.add_argument("--joined", type=int)
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--forward")
    parser.add_argument("--etl", action="append", default=[])
    parser.add_argument("--without-job", action="append", default=[])
    parser.add_argument("--stop-with-stdin", action="store_true")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")

    def factory() -> WsgiApp:
        if options.forward:
            return FaultInjector(Forward(options.forward))
        root, count, joined = options.directory, options.targets, options.joined
        gate = JobGate()
        rules = JobRules(frozenset(options.without_job), gate.before_step)
        signs, etls = options.signs, parse_commands(options.etl) or None
        if count > 1:
            disks = root / STATE_DIRECTORY / "disks"
            traps = SpreadTraps(disks, count) if options.traps else Kindness()
            server = Server(root, options.token, traps, rules, signs=signs, etls=etls)
            closed = signs or options.token is not None
            joined = count if joined is None else joined
            app: WsgiApp = Targets(server, root, count, joined, options.traps, closed=closed)
        else:
            app = make_app(
                root,
                options.token,
                tokens=_issuer(options.jwks, options.audience),
                traps=options.traps,
                jobs=rules,
                signs=signs,
                etls=etls,
            )
        return gate.around(app if options.no_faults else FaultInjector(app))

    def ready(port: int) -> None:
        if options.stop_with_stdin:
            _follow_stdin()
        print(f"ready {port}", flush=True)

    try:
        serve_app(factory, options.directory, host=options.host, port=options.port, ready=ready)
    except AisfsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
