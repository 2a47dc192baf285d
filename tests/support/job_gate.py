"""Jobs of the embedded server that wait: how tests meet a job while it runs.

    POST /-/jobs    {"steps": 2} lets jobs do so many more steps, `null` as many as they like
    GET /-/jobs     {"waiting": 1}: how many jobs wait for a step

A step is a shard that is read or written.
"""

import json
import threading
from collections.abc import Iterable
from typing import Any

from aisfs.server.api.jobs.registry import Job
from aisfs.server.messages import Environ, StartResponse, WsgiApp

_LOOK_SECONDS = 0.02
"""How soon a waiting job notices that it was stopped."""


class JobGate:
    """What jobs pass before each step; open until it is told otherwise."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps: int | None = None
        self._waiting = 0

    def before_step(self, job: Job) -> None:
        with self._changed:
            self._waiting += 1
            while self._steps == 0 and not job.stopped.is_set():
                self._changed.wait(_LOOK_SECONDS)
            self._waiting -= 1
            if self._steps:
                self._steps -= 1

    def around(self, app: WsgiApp) -> WsgiApp:
        """Return the application with the control of this gate."""

        def serve(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            if environ["PATH_INFO"] != "/-/jobs":
                return app(environ, start_response)
            value: Any = json.loads(environ["wsgi.input"].read() or b"null")
            with self._changed:
                if environ["REQUEST_METHOD"] == "POST":
                    self._steps = value["steps"]
                    self._changed.notify_all()
                body = json.dumps({"waiting": self._waiting}).encode()
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
            start_response("200 OK", headers)
            return [body]

        return serve
