"""Real servers of files as processes: nginx, Python's own, and one of FTP."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_START_SECONDS = 30.0
"""A loaded two-core machine needs seconds. Not a statement about speed."""

_NGINX = """
daemon off; master_process off; pid {state}/pid; error_log {state}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log {state}/access.log;
    client_body_temp_path {state}; proxy_temp_path {state}; fastcgi_temp_path {state};
    uwsgi_temp_path {state}; scgi_temp_path {state};
    keepalive_timeout 60; default_type application/octet-stream;
    server {{
        listen {host}:{port}{ssl};
        root {root};
        {tls}
        location / {{ autoindex {autoindex}; autoindex_format {form}; {more} }}
    }}
}}
"""


@dataclass
class WebServer:
    """A server that is running."""

    url: str
    """Without a slash at the end."""
    root: Path
    state: Path

    def log(self) -> str:
        """Return one line for each request."""
        return (self.state / "access.log").read_text(errors="replace")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 that signs itself; return it and its key."""
    key, crt = folder / "key.pem", folder / "crt.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=aisfs test"]
    # Not every library takes the certificate of an authority for one of a server.
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    command += ["-keyout", str(key), "-out", str(crt)]
    subprocess.run(command, check=True, capture_output=True)
    return crt, key


@contextmanager
def nginx(
    root: Path,
    *,
    form: str = "html",
    autoindex: bool = True,
    certificate: tuple[Path, Path] | None = None,
    trusts: Path | None = None,
    more: str = "",
    host: str = "127.0.0.1",
) -> Iterator[WebServer]:
    """Run nginx over a directory until the block ends.

    Args:
        root: What it serves.
        form: Of its index: `html` or `json`.
        autoindex: Whether it has an index.
        certificate: For TLS, with its key.
        trusts: The certificate that clients must have.
        more: Directives for all files.
        host: Where it listens, as a URL has it.
    """
    port = _free_port()
    crt, key = certificate or ("", "")
    tls = f"ssl_certificate {crt}; ssl_certificate_key {key};" if certificate else ""
    tls += f" ssl_client_certificate {trusts}; ssl_verify_client on;" if trusts else ""
    scheme = "https" if certificate else "http"
    with TemporaryDirectory(prefix="aisfs-nginx-") as directory:
        state = Path(directory)
        config = _NGINX.format(
            state=state, host=host, port=port, root=root, form=form, more=more, tls=tls,
            autoindex="on" if autoindex else "off", ssl=" ssl" if certificate else "",
        )  # fmt: skip
        (state / "nginx.conf").write_text(config)
        command = ["/usr/sbin/nginx", "-e", f"{state}/error.log", "-c", f"{state}/nginx.conf"]
        with _running(command, port, state, root, host=host.strip("[]")):
            yield WebServer(f"{scheme}://{host}:{port}", root, state)


@contextmanager
def python_server(root: Path) -> Iterator[WebServer]:
    """Run `python -m http.server`, which knows no ranges, over a directory until the block ends."""
    port = _free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    command += ["--protocol", "HTTP/1.1", "--directory", str(root)]
    with TemporaryDirectory(prefix="aisfs-httpd-") as directory:
        state = Path(directory)
        with _running(command, port, state, root, "access.log"):
            yield WebServer(f"http://127.0.0.1:{port}", root, state)


@contextmanager
def ftp_server(root: Path) -> Iterator[WebServer]:
    """Run an FTP server for everybody over a directory until the block ends."""
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "pyftpdlib",
        "-i",
        "127.0.0.1",
        "-p",
        str(port),
        "-d",
        str(root),
    ]
    with TemporaryDirectory(prefix="aisfs-ftpd-") as directory:
        state = Path(directory)
        with _running(command, port, state, root):
            yield WebServer(f"ftp://127.0.0.1:{port}", root, state)


@contextmanager
def _running(
    command: list[str],
    port: int,
    state: Path,
    cwd: Path,
    log: str = "output.log",
    host: str = "127.0.0.1",
) -> Iterator[None]:
    with open(state / log, "wb") as output:
        # They end with pytest, also when that is killed.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(host, port):
            if process.poll() is not None or time.monotonic() > deadline:
                said = (state / log).read_text(errors="replace")
                raise AssertionError(f"{command[0]} did not start: {said}")
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port)):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Clock:
    """Times of changes, each in a second of its own: servers tell versions apart by seconds."""

    def __init__(self) -> None:
        self._last = 1_700_000_000

    def stamp(self, path: bytes | Path) -> None:
        """Give a file the next time."""
        self._last += 1
        os.utime(path, (self._last, self._last))
