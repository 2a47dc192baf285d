"""ETLs: objects that are transformed while they are read, by commands of this machine.

In AIStore a transformer is a pod of Kubernetes. Here it is a command that was named at the server's start, a filter
that runs once for each object: the object on standard input, the result on standard output, the request's arguments
in `AISFS_ETL_ARGS`, and the environment of the definition as a JSON object in `AISFS_ETL_ENV`. (As variables of their
own, a client could make the dynamic linker load what it has uploaded.) An exit code other than 0 is a pod that
answers 500, with what the command wrote to standard error; one that a signal ends is a pod that has died, which
aborts the ETL. When the server ends, commands end by themselves, at the latest when they write.

With traps (see `Kindness.breaks_transforms`) a result is sent while it is made, so that what goes wrong later is
appended to it; names are part of a URL; and the time for an object ends when the client has read all of it. Without,
it is made first. Not imitated: a name that has the path of another file in it, which AIStore's pod would then read.
"""

import base64
import json
import logging
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from aisfs.errors import ConfigError
from aisfs.server.api.jobs.registry import ETL, Job, Registry, new_id
from aisfs.server.api.objects import STALL_SECONDS, Objects
from aisfs.server.failures import Failure, uri_of
from aisfs.server.messages import (
    PIECE,
    Counters,
    HeldFile,
    Reply,
    Request,
    error_reply,
    json_reply,
    text_reply,
)
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.objects import Storage

log = logging.getLogger(__name__)

Commands = Mapping[str, list[str]]
"""The words of each command, by its name."""
ObjectErrors = deque[dict[str, Any]]
"""Objects that could not be transformed, and why."""

_NAME = re.compile(r"[a-z0-9-]{6,32}")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|ms|s|m|h))+")
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_IMAGE = re.compile(r"^[ \t-]*image:[ \t]*[\"']?([^\s\"']+)", re.MULTILINE)
_TYPES = ("", "hpush://", "hpull://", "ws://")
_OBJECT_SECONDS = 10.0
"""AIStore's default for one object."""
_MOST_SECONDS = 86_400.0
"""As much as `poll` can wait for, and more than anybody means."""
_BUFFERED = 2048
"""Bytes that Go keeps before it sends headers: a shorter reply gets its length."""
_STREAMED = 64 << 10
MOST_ERRORS = 128
"""Of each ETL, and of each job that uses one."""
_MOST_TEXT = 64 << 10
"""Bytes of standard error that are kept of a process, and of each ETL."""
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_SNIFFED = 512


def parse_commands(words: Iterable[str]) -> dict[str, list[str]]:
    """Return the commands of `NAME=COMMAND`, each split as a shell would.

    Raises:
        ConfigError: there is no such program, or a word is none of these.
    """
    found = {}
    for word in words:
        name, equals, line = word.partition("=")
        try:
            command = shlex.split(line)
        except ValueError as error:
            raise ConfigError(f"--etl {word}: {error}") from error
        if not (name and equals and command):
            raise ConfigError(f"--etl {word}: write NAME=COMMAND")
        if shutil.which(command[0]) is None:
            raise ConfigError(f"--etl {word}: there is no program {command[0]}")
        found[name] = command
    return found


def not_built() -> Failure:
    """Return what a build without the tag `etl` says."""
    text = "cannot use ETL in a build without ETL support - operation not supported"
    return Failure(501, text, "ErrUnsupp")


class _Variable(msgspec.Struct):
    name: str = ""
    value: str = ""


class _Runtime(msgspec.Struct):
    image: str = ""
    env: list[_Variable] | None = None


class _Definition(msgspec.Struct):
    """An ETL as a client defines it; fields that the server does not use are ignored."""

    name: str = ""
    communication: str = ""
    obj_timeout: str = ""
    init_timeout: str = ""
    runtime: _Runtime = msgspec.field(default_factory=_Runtime)
    spec: bytes = b""
    """A pod in YAML, in the form that AIStore took until 5.0."""

    @property
    def image(self) -> str:
        """The image that is to run."""
        found = _IMAGE.search(self.spec.decode("utf-8", "replace"))
        return self.runtime.image or (found[1] if found else "")

    def wrong(self) -> str:
        """Return what AIStore finds wrong with it; empty if nothing."""
        if not self.image:
            return f'[etl="{self.name}"] runtime.image must be specified'
        about = f'ETL name "{self.name}" is'
        shown = f"[init-spec[{self.name}-{self.communication}]]"
        if len(self.name) < 6:
            return f"{about} too short {shown}"
        if len(self.name) > 32:
            return f"{about} too long {shown}"
        if not _NAME.fullmatch(self.name):
            return f"{about} invalid: can only contain [a-z0-9-] {shown}"
        if self.communication not in _TYPES:
            return f'[etl="{self.name}"] unknown comm-type "{self.communication}" {shown}'
        for given in filter(None, (self.init_timeout, self.obj_timeout)):
            if not _DURATION.fullmatch(given):
                return f'time: invalid duration "{given}"'
        return ""


@dataclass(slots=True, eq=False)
class Etl:
    """An ETL, which runs until its job ends."""

    message: dict[str, Any]
    definition: _Definition
    command: list[str]
    job: Job = field(default_factory=lambda: Job(ETL, uuid=f"etl-{new_id()}"))
    errors: "ObjectErrors" = field(default_factory=lambda: ObjectErrors(maxlen=MOST_ERRORS))
    log: bytes = b""
    runs: set["Run"] = field(default_factory=set)
    """The transformations that go on."""
    pods: dict[str, "_Pod"] = field(default_factory=dict)
    """What listens for those that are redirected, by the address."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        """Its name."""
        return self.definition.name

    @property
    def is_pulled(self) -> bool:
        """Whether clients are redirected to the pod."""
        return self.definition.communication == "hpull://"

    @property
    def stage(self) -> str:
        """How far it is."""
        return "Aborted" if self.job.stopped.is_set() else "Running"

    @property
    def seconds(self) -> float:
        """How long one object may take."""
        parts = re.findall(r"([\d.]+)([a-z]+)", self.definition.obj_timeout)
        given = sum(float(number) * _UNITS[unit] for number, unit in parts)
        return min(given or _OBJECT_SECONDS, _MOST_SECONDS)

    def environment(self, arguments: str) -> dict[str, str]:
        """Return the variables of its processes."""
        given = {each.name: each.value for each in self.definition.runtime.env or ()}
        own = {"AISFS_ETL_ARGS": arguments, "AISFS_ETL_ENV": json.dumps(given)}
        return {**os.environ, **own}  # noqa: TID251 - what it finds there is its own

    def info(self) -> dict[str, Any]:
        """Return what the list has of it."""
        counts = {"obj_count": self.job.objects, "in_bytes": 0, "out_bytes": 0}
        return {"id": self.name, "stage": self.stage, "xaction_id": self.job.uuid, **counts}

    def said(self, text: bytes) -> None:
        """Keep what a process wrote to standard error."""
        with self.lock:
            self.log = (self.log + text)[-_MOST_TEXT:]


class Broken(Exception):
    """A transformation failed."""

    def __init__(self, early: Failure, late: Failure) -> None:
        """Take what a client gets `early`, before any byte, and `late`, after the content so far."""
        super().__init__(early.message)
        self.early, self.late = early, late


class Run:
    """One object that goes through one ETL after the other, a process each."""

    def __init__(self, etls: list[Etl], source: int, arguments: str, url: str) -> None:
        """Start; `url` is what AIStore would ask the pod for."""
        self._url = url
        self._deadline = time.monotonic() + etls[0].seconds
        self._etls = etls
        self._processes: list[tuple[Etl, subprocess.Popen[bytes], IO[bytes]]] = []
        for etl in etls:
            errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
            process = subprocess.Popen(
                etl.command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=etl.environment(arguments),
            )
            if self._processes:
                os.close(source)
            assert process.stdout is not None
            source = os.dup(process.stdout.fileno())
            process.stdout.close()
            self._processes.append((etl, process, errors))
            etl.runs.add(self)
        self._output = source
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)

    def read(self, size: int) -> bytes:
        """Return the next bytes of the result; none at its end.

        Raises:
            Broken: the time is over.
        """
        left = self._deadline - time.monotonic()
        if left <= 0 or not self._poll.poll(left * 1000):
            raise self._timed_out()
        return os.read(self._output, size)

    def finish(self) -> None:
        """Check, when all was read, that the transformation was successful.

        Raises:
            Broken: it was not.
        """
        for etl, process, errors in self._processes:
            try:
                code = process.wait(max(self._deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                raise self._timed_out() from None
            late = Failure(400, "unexpected EOF")
            if code < 0 and code != -signal.SIGPIPE:
                etl.job.abort()
                raise Broken(Failure(400, f'Put "{self._url}": EOF', "Error"), late)
            if code:
                text = _end_of(errors).decode("utf-8", "replace")
                raise Broken(Failure(500, f"ETL error: {text}"), late)

    def write(self, file: IO[bytes]) -> int:
        """Write the whole result; return its size.

        Raises:
            Broken: the transformation failed.
        """
        while piece := self.read(PIECE):
            file.write(piece)
        self.finish()
        file.flush()
        return file.tell()

    def kill(self) -> None:
        """End the processes, as when a pod dies."""
        for _, process, _ in self._processes:
            process.kill()

    def close(self) -> None:
        """End it, however far it is."""
        self.kill()
        os.close(self._output)
        for etl, process, errors in self._processes:
            process.wait()
            etl.runs.discard(self)
            etl.said(_end_of(errors))
            errors.close()

    def _timed_out(self) -> Broken:
        text = "context deadline exceeded (Client.Timeout"
        early = Failure(400, f'Put "{self._url}": {text} exceeded while awaiting headers)', "Error")
        late = Failure(400, f"{text} or context cancellation while reading body)", "timeoutError")
        return Broken(early, late)


def _end_of(errors: IO[bytes]) -> bytes:
    errors.seek(max(os.fstat(errors.fileno()).st_size - _MOST_TEXT, 0))
    return errors.read()


class Etls:
    """All ETLs of a server."""

    def __init__(
        self,
        storage: Storage,
        objects: Objects,
        registry: Registry,
        node_id: str,
        counters: Counters,
        commands: Commands | None,
    ) -> None:
        """Start an ETL for each command whose name it can have; without commands, there are no ETLs at all."""
        self._storage = storage
        self._objects = objects
        self._registry = registry
        self._node_id = node_id
        self._counters = counters
        self._commands = commands
        self._known: dict[str, Etl] = {}
        self.offline: dict[str, ObjectErrors] = {}
        """What went wrong with single objects, by the id of the job that transforms a bucket."""
        for name in filter(_NAME.fullmatch, commands or ()):
            timeouts = {"init_timeout": "5m", "obj_timeout": "45s"}
            runtime = {"runtime": {"image": name}}
            self._begin({"name": name, "communication": "hpush://", **timeouts, **runtime})

    def named(self, name: str) -> Etl:
        """Return the ETL that a job is to use.

        Raises:
            Failure: it does not run here.
        """
        if self._commands is None:
            raise not_built()
        etl = self._find(name)
        if etl is None:
            raise Failure(404, f"ETL {name} doesn't exist")
        return etl

    def _find(self, name: str) -> Etl | None:
        etl = self._known.get(name)
        return etl if etl is not None and etl.stage == "Running" else None

    # Requests about ETLs --------------------------------------------------------------------

    def serve(self, request: Request, path: str) -> Reply:
        """Answer a request below `/v1/etl`."""
        if self._commands is None:
            request.drain()
            raise not_built()
        name, _, verb = path.strip("/").partition("/")
        if request.method == "PUT":
            return self._init(request.body())
        request.drain()
        if request.method == "GET" and not name:
            return json_reply([etl.info() for etl in list(self._known.values())])
        etl = self._known.get(name)
        if etl is None:
            raise Failure(404, f"p[{{node}}]: etl job {name} does not exist", "ErrNotFound")
        match request.method, verb.split("/"):
            case "GET", [what, *_]:
                return self._tell(etl, what, request.query.get("uuid", ""))
            case "POST", ["start"]:
                if etl.stage == "Running":
                    text = f'invalid action "can\'t start ETL[{name}] during Running stage"'
                    raise Failure(400, text)
                return text_reply(self._begin(etl.message).job.uuid)
            case "POST", ["stop"]:
                etl.job.abort()
                return Reply()
            case "DELETE", [""]:
                etl.job.abort()
                self._known.pop(name, None)
                return Reply()
        raise _invalid(verb)

    def _tell(self, etl: Etl, what: str, uuid: str) -> Reply:
        if etl.stage != "Running":
            raise Failure(404, f"t[{{node}}]: etl job {etl.name} does not exist", "ErrNotFound")
        match what:
            case "":
                errors = list(self.offline.get(uuid, ()) if uuid else etl.errors)
                message = {"resources": {}, **etl.message}
                return json_reply({"init_msg": message, "obj_errors": errors or None})
            case "health":
                return json_reply([{"target_id": self._node_id, "health_status": "Running"}])
            case "logs":
                logs = base64.b64encode(etl.log).decode()
                return json_reply([{"target_id": self._node_id, "logs": logs}])
            case "metrics":
                raise Failure(404, "the server could not find the requested resource")
        raise _invalid(what)

    def _init(self, body: bytes) -> Reply:
        try:
            message = json.loads(body)
            definition = msgspec.convert(message, _Definition)
        except (ValueError, RecursionError) as error:
            raise _not_valid(str(error)) from error
        if wrong := definition.wrong():
            raise _not_valid(wrong)
        if definition.name in self._known:
            raise Failure(409, f"p[{{node}}]: etl job {definition.name} already exists")
        return text_reply(self._begin(message).job.uuid)

    def _begin(self, message: dict[str, Any]) -> Etl:
        definition = msgspec.convert(message, _Definition)
        command = (self._commands or {}).get(definition.image, [])
        etl = self._known[definition.name] = Etl(message, definition, command)
        self._registry.start(etl.job, lambda: _live(etl))
        if not command:  # the entry stays, as after any start that failed
            etl.job.abort()
            pod = f"{etl.name}-{self._node_id}"
            status = f"container: {etl.name}, state: Waiting, reason: ErrImagePull"
            about = f't[{{node}}],pod="{pod}",service="{pod}",pod_status="{status}"'
            raise Failure(400, f"[{about}] context deadline exceeded", "ErrETL", node="t")
        return etl

    # Reading --------------------------------------------------------------------------------

    def asked(self, request: Request) -> list[Etl]:
        """Return the ETLs that a request to read or copy an object names, in their order; none if it names none.

        Raises:
            Failure: one of them does not run here.
        """
        pairs: list[str] = request.environ.get("QUERY_STRING", "").split("&")
        raw = dict(pair.partition("=")[::2] for pair in reversed(pairs))
        name = raw.get("etl_name", "")
        if not name:
            return []
        if self._commands is None:
            request.drain()
            raise not_built()
        first = self._find(name)  # as it was sent: AIStore does not decode it
        if first is None and request.method != "GET":
            raise Failure(400, f"ETL {name} doesn't exist")
        if first is None:
            raise _not_running(request, name)
        more = [word for word in request.query.get("etl_pipeline", "").split(",") if word]
        if more and first.is_pulled and request.method == "GET":
            raise Failure(400, "ETL pipeline is not supported with hpull://")
        return [first, *map(self._next, more)]

    def _next(self, name: str) -> Etl:
        etl = self._find(name)
        if etl is None:
            text = f'[t[{{node}}],etl="{name}"] entry not found in the target'
            raise Failure(400, text, "ErrETL")
        return etl

    def read(self, request: Request, etls: list[Etl], bucket: Bucket, key: bytes) -> Reply:
        """Return an object as ETLs transform it, whatever else the request asks for."""
        self._counters.add("transform")
        arguments = request.query.get("etl_args", "")
        if etls[0].is_pulled:
            return self._redirect(request, etls[0], bucket, key, arguments)
        request.set_timeout(STALL_SECONDS)
        run = self._start(etls, bucket, key, arguments)
        sent = False
        try:
            if self._storage.traps.breaks_transforms:
                head = b""
                while len(head) < _BUFFERED and (piece := run.read(_STREAMED)):
                    head += piece
                headers = [("Content-Type", _kind_of(head))]
                if len(head) >= _BUFFERED:
                    sent = True
                    stream = self._stream(request, etls[0], run, head, uri_of(bucket.name, key))
                    return Reply(headers=headers, stream=stream)
                run.finish()
                reply = Reply(headers=headers, body=head)
            else:
                reply = self._whole(run)
        except Broken as broken:
            raise self._noted(etls[0], uri_of(bucket.name, key), broken.early) from broken
        finally:
            if not sent:
                run.close()
        self._did(etls[0])
        return reply

    def _start(self, etls: list[Etl], bucket: Bucket, key: bytes, arguments: str) -> Run:
        """Start to transform an object; the caller ends it."""
        name = b"%s/%s" % (bucket.name.encode(), key)
        url = f"http://{self._node_id}:8000/{name.decode('utf-8', 'replace')}"
        with ExitStack() as held:
            source, _ = self._objects.open(bucket, key, held)
            if self._storage.traps.breaks_transforms and not etls[0].is_pulled:
                if b"?" in key or b"#" in key:
                    source = os.open(os.devnull, os.O_RDONLY)
                    held.callback(os.close, source)
                elif wrong := _BAD_ESCAPE.search(key):
                    escape = wrong[0].decode("utf-8", "replace")
                    text = f'parse "{url}": invalid URL escape "{escape}"'
                    raise Failure(400, text, "Error")
            return Run(etls, source, arguments, url)

    def write(
        self, etls: list[Etl], bucket: Bucket, key: bytes, file: IO[bytes], arguments: str = ""
    ) -> int:
        """Write a transformed object; return its size.

        Raises:
            Failure: it could not be transformed.
        """
        run = self._start(etls, bucket, key, arguments)
        try:
            size = run.write(file)
        except Broken as broken:
            raise self._noted(etls[0], uri_of(bucket.name, key), broken.early) from broken
        finally:
            run.close()
        self._did(etls[0])
        return size

    def copy(self, request: Request, etls: list[Etl], bucket: Bucket, key: bytes, to: str) -> Reply:
        """Store a transformed object as `ais/@#/bucket/name`, without a version."""
        target, new_key = self._objects.target_of(to)
        with self._storage.work_file() as work:
            with work.open("xb") as file:
                self.write(etls, bucket, key, file, request.query.get("etl_args", ""))
            self._objects.publish(target, new_key, work, versioned=False)
        return Reply()

    def _whole(self, run: Run) -> Reply:
        with ExitStack() as held:
            file = held.enter_context(tempfile.TemporaryFile(dir=self._storage.work))
            size = run.write(file)
            kind = _kind_of(os.pread(file.fileno(), _SNIFFED, 0))
            headers = [("Content-Type", kind), ("Content-Length", str(size))]
            if not size:
                return Reply(headers=headers[:1])
            reply = Reply(headers=headers, file=HeldFile(file.fileno(), 0, size, None))
            assert reply.file is not None
            reply.file.hold(held)
        return reply

    def _stream(
        self, request: Request, etl: Etl, run: Run, head: bytes, name: str
    ) -> Iterator[bytes]:
        """Send a result of which `head` was read; what breaks it off ends it like any other."""
        try:
            yield head
            while piece := run.read(_STREAMED):
                yield piece
            run.finish()
            self._did(etl)
        except Broken as broken:
            yield error_reply(self._noted(etl, name, broken.late), request, self._node_id).body
        finally:
            run.close()

    def _noted(self, etl: Etl, name: str, failure: Failure) -> Failure:
        etl.errors.append({"obj_name": name, "msg": failure.message, "ecode": failure.status})
        return failure

    @staticmethod
    def _did(etl: Etl) -> None:
        with etl.lock:
            etl.job.objects += 1

    # What clients are redirected to ---------------------------------------------------------

    def _redirect(
        self, request: Request, etl: Etl, bucket: Bucket, key: bytes, arguments: str
    ) -> Reply:
        with ExitStack() as held:
            self._objects.open(bucket, key, held)
        sock: socket.socket = request.environ["gunicorn.socket"]
        host = sock.getsockname()[0]
        with etl.lock:
            if etl.stage != "Running":
                raise _not_running(request, etl.name)
            if host not in etl.pods:
                etl.pods[host] = _Pod(host, self, etl)
        name = quote(b"ais/@#/%s/%s" % (bucket.name.encode(), key), safe="@$&+=:")
        asked = {"etl_args": arguments} if arguments else {}
        query = urlencode(asked | {"etl_fqn": quote(bucket.path_of(key), safe="")})
        return Reply(307, [("Location", f"{etl.pods[host].url}/{name}?{query}")])

    def answer_pull(self, etl: Etl, target: str, *, has_token: bool, file: IO[bytes]) -> int:
        """Write what the pod of an ETL answers to a redirected request; return the status."""
        if has_token:
            self._counters.add("token_leaked")
        path, _, query = target.partition("?")
        arguments = dict(parse_qsl(query)).get("etl_args", "")
        name = path.encode("latin-1").removeprefix(b"/ais%2F@%23%2F")
        bucket, _, key = _unquoted(name).partition(b"/")
        try:
            self.write([etl], self._storage.bucket(bucket.decode()), key, file, arguments)
        except (Failure, ValueError) as error:
            file.seek(0)
            file.truncate()
            file.write(str(error).removeprefix("ETL error: ").encode())
            return error.status if isinstance(error, Failure) else 400
        return 200


def _live(etl: Etl) -> None:
    """Wait until an ETL is stopped, and end what belongs to it."""
    etl.job.stopped.wait()
    for run in list(etl.runs):
        run.kill()
    with etl.lock:
        for pod in etl.pods.values():
            pod.shutdown()
            pod.server_close()


def _not_valid(wrong: str) -> Failure:
    text = f"ETLSpecMsg error: {wrong}; InitSpecMsg error: {wrong}"
    return Failure(400, f"invalid etl.InitMsg: {text}")


def _not_running(request: Request, name: str) -> Failure:
    url = f"{request.base_url}/v1/etl/init"
    text = f'{name} does not exist - try starting new ETL with "{url}" endpoint'
    return Failure(404, f"t[{{node}}]: {text}")


def _unquoted(name: bytes) -> bytes:
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda code: bytes([int(code[1], 16)]), name)


def _invalid(verb: str) -> Failure:
    return Failure(400, f'invalid action "invalid operation: {verb}"')


def _kind_of(head: bytes) -> str:
    """Return what Go takes content for: of its guesses only text and anything else."""
    is_binary = _BINARY.search(head[:_SNIFFED]) is not None
    return "application/octet-stream" if is_binary else "text/plain; charset=utf-8"


class _Pod(ThreadingHTTPServer):
    """Listens where clients are redirected to, and nowhere else: at the address that they know the server by."""

    daemon_threads = True

    def __init__(self, host: str, etls: Etls, etl: Etl) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _PodHandler)
        self.etls, self.etl = etls, etl
        shown = f"[{host}]" if ":" in host else host
        self.name = f"{shown}:{self.server_address[1]}"
        self.url = f"http://{self.name}"
        threading.Thread(target=self.serve_forever, name=f"pod {etl.name}", daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Go on; a client that has left is no error."""
        error = sys.exception()
        level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
        log.log(level, "a pull from %s failed", client_address, exc_info=error)


class _PodHandler(BaseHTTPRequestHandler):
    server: _Pod
    timeout = STALL_SECONDS

    def do_GET(self) -> None:
        """Transform one object."""
        if self.headers.get("Host") != self.server.name:
            self.send_error(403)  # a page of another site, by a name of its own
            return
        with tempfile.TemporaryFile() as file:
            has_token = "Authorization" in self.headers
            etls, etl = self.server.etls, self.server.etl
            status = etls.answer_pull(etl, self.path, has_token=has_token, file=file)
            self.send_response(status)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(file.tell()))
            self.end_headers()
            file.seek(0)
            shutil.copyfileobj(file, self.wfile)

    def log_message(self, format: str, *args: object) -> None:
        """Log as the server does."""
        log.debug(format, *args)
