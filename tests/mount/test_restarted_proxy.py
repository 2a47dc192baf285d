"""A writable mount lives through a proxy that is started again and does not know its targets yet."""

import threading
import time

import pytest
import requests

from tests.support.mounts import mounted
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

FILES = [f"f{number}" for number in range(12)]
"""Some on each of three targets."""


def test_what_is_acknowledged_while_the_proxy_starts_is_what_others_read(tmp_path):
    served, mountpoint = tmp_path / "served", tmp_path / "mnt"
    (served / "b").mkdir(parents=True)
    mountpoint.mkdir()
    failed: list[OSError] = []

    def overwrite() -> None:
        try:
            for name in FILES[:-2]:
                (mountpoint / name).write_bytes(b"new " + name.encode())
            (mountpoint / FILES[-2]).unlink()
            (mountpoint / FILES[-1]).rename(mountpoint / "renamed")
        except OSError as error:
            failed.append(error)

    with running_server(served, targets=3, traps=True) as first:
        port = int(first.endpoint.rpartition(":")[2])
        options = ("--writable", "--staging-dir", str(tmp_path / "staging"))
        with mounted("ais://b", mountpoint, endpoint=first.endpoint, options=options):
            for name in FILES:
                (mountpoint / name).write_bytes(b"old " + name.encode())
            first.kill()
            with running_server(served, targets=3, joined=1, traps=True, port=port) as second:
                writer = threading.Thread(target=overwrite)
                writer.start()
                time.sleep(1.0)  # in which all would be done over the one target
                assert writer.is_alive()
                second.join(3)
                writer.join()
                assert failed == []
                found = {
                    name: requests.get(f"{second.endpoint}/v1/objects/b/{name}", timeout=30)
                    for name in [*FILES, "renamed"]
                }
                assert {name: reply.status_code for name, reply in found.items()} == {
                    **dict.fromkeys(FILES[:-2], 200),
                    **dict.fromkeys(FILES[-2:], 404),
                    "renamed": 200,
                }
                for name in FILES[:-2]:
                    assert found[name].content == b"new " + name.encode()
                assert found["renamed"].content == b"old " + FILES[-1].encode()
                assert sorted(path.name for path in mountpoint.iterdir()) == sorted(
                    [*FILES[:-2], "renamed"]
                )
