"""The modelled link: what it delays, what it leaves alone. Times are bounded from below only."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.interruptions import Interrupts
from bench.pace import Link, paced
from bench.server import running_server


class Reply:
    def __init__(self, pieces):
        self.pieces = pieces
        self.closed = False

    def __iter__(self):
        return iter(self.pieces)

    def close(self):
        self.closed = True


def app_with(reply):
    return lambda environ, start_response: reply


def call(app, path="/v1/objects/b/k"):
    return app({"PATH_INFO": path}, lambda *_: None)


def test_nothing_to_slow_down_is_the_application_itself():
    app = app_with([])
    assert paced(app) is app


def test_a_delay_leaves_the_reply_to_sendfile():
    reply = Reply([b"x"])
    app = paced(app_with(reply), delay=0.02)
    start = time.monotonic()
    assert call(app) is reply
    assert time.monotonic() - start >= 0.02


def test_a_bandwidth_keeps_the_bytes_and_closes_the_reply():
    data = bytes(range(256)) * 1000
    reply = Reply([data[:100], data[100:]])
    slow = call(paced(app_with(reply), bandwidth=4e6))
    start = time.monotonic()
    assert b"".join(slow) == data
    assert time.monotonic() - start >= len(data) / 4e6 - 0.02
    slow.close()
    assert reply.closed


def test_all_replies_share_the_link():
    link = Link(1e6)
    start = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(link.pass_on, [50_000] * 4))
    assert time.monotonic() - start >= 0.2 - 0.02


def test_control_paths_are_not_slowed_down():
    reply = Reply([b"x"])
    assert call(paced(app_with(reply), delay=30, bandwidth=1), "/-/requests") is reply


@pytest.mark.parametrize("bandwidth", [None, 50e6])
def test_a_paced_server_serves_the_same_bytes(tmp_path, bandwidth):
    import requests

    data = bytes(range(256)) * 4000
    root = tmp_path / "store"
    (root / "bucket").mkdir(parents=True)
    (root / "bucket" / "key").write_bytes(data)
    with (
        running_server(
            root,
            interruptions=Interrupts(),
            log=tmp_path / "log",
            delay=0.001,
            bandwidth=bandwidth,
        ) as far,
        requests.Session() as session,
    ):
        url = f"{far.url}/v1/objects/bucket/key?provider=ais"
        assert session.get(url, timeout=30).content == data
        part = session.get(url, headers={"Range": "bytes=1000-1999"}, timeout=30)
        assert part.content == data[1000:2000]
        assert far.counters()["get"] == 2
    # Nothing of its requests; gunicorn may say that its worker took over a second to end.
    assert "Traceback" not in (tmp_path / "log").read_text()
