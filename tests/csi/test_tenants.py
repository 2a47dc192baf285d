"""Volumes that other tenants of a node, and hostile ones, would feel: slow ones, links, what was permitted."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import grpc
import pytest

from aisfs.csi import targets
from aisfs.csi.volumes import Code, VolumeError, parse_volume
from tests.csi.conftest import Kubelet, mounter_after, running_kubelet
from tests.csi.test_driver import refusal
from tests.support.mounts import eventually, is_mountpoint
from tests.support.web_servers import nginx

pytestmark = pytest.mark.mount

SLOW = {
    "match": {"path_contains": "slow.tar", "method": "GET"},
    "action": "stall", "seconds": 300, "until_cleared": True, "times": -1,
}  # fmt: skip
NUMBERS = count()
MANY = 17
"""Slow volumes. The driver once had 16 threads."""


@contextmanager
def slow_volumes(kubelet: Kubelet, number: int) -> Iterator[dict[Path, grpc.RpcError | None]]:
    """Publish volumes that are not ready while the block runs; yield how each call ended, once it has."""
    ended: dict[Path, grpc.RpcError | None] = {}
    # Another one each time: the cache of the node may have what an earlier mount got after all.
    name, folder = f"{next(NUMBERS)}-slow.tar", kubelet.server.root / "b"
    shutil.copy(folder / "slow.tar", folder / name)

    def publish(target: Path) -> None:
        try:
            kubelet.publish(target, f"ais://b/{name}", view="class", scan="stream")
            ended[target] = None
        except grpc.RpcError as error:
            ended[target] = error

    kubelet.server.faults([SLOW])
    places = [kubelet.place / "pods" / f"slow-{place}" for place in range(number)]
    threads = [threading.Thread(target=publish, args=(place,)) for place in places]
    kubelet.call("Probe", "Identity")  # connects
    try:
        for thread in threads:
            thread.start()
        assert eventually(lambda: all(map(is_mountpoint, places)), 90), ended
        assert eventually(lambda: kubelet.server.struck()[0] >= number, 90), ended
        yield ended
    finally:
        for place in places:
            kubelet.unpublish(place)
        for thread in threads:
            thread.join(60)
        kubelet.server.faults([])
    assert eventually(lambda: not kubelet.daemons(), 60)


def test_slow_volumes_hold_up_nobody_else(kubelet: Kubelet, target: Path):
    with slow_volumes(kubelet, MANY) as ended:
        assert kubelet.call("Probe", "Identity").ready.value
        kubelet.publish(target)
        assert (target / "a.txt").read_bytes() == b"a"
        kubelet.unpublish(target)
        assert not target.exists()
        code, said = refusal(
            kubelet.publish, kubelet.place / "pods" / "slow-0", "ais://b/slow.tar", view="class"
        )
        assert (code, "another call" in said) == (grpc.StatusCode.ABORTED, True)
        assert not ended
    assert {error and error.code() for error in ended.values()} == {grpc.StatusCode.ABORTED}
    assert len(ended) == MANY
    assert not any(is_mountpoint(place) or place.exists() for place in ended)


def test_the_driver_ends_beside_a_volume_that_is_not_ready(kubelet: Kubelet):
    with slow_volumes(kubelet, 1) as ended:
        kubelet.end("driver")
        kubelet.start("driver")
        assert kubelet.call("Probe", "Identity").ready.value
        assert all(map(is_mountpoint, ended))


def test_of_too_many_at_once_the_rest_is_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(targets, "PUBLISHES_AT_ONCE", 0)
    node = targets.Targets(tmp_path / "mounter.sock", tmp_path / "left")
    with pytest.raises(VolumeError, match="try again later") as caught:
        node.publish(tmp_path / "v", parse_volume({"source": "ais://b"}, read_only=True))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert not (tmp_path / "v").exists()
    node.unpublish(tmp_path / "v")  # has room of its own


def test_a_namespace_leaves_room_for_others():
    with running_kubelet() as kubelet, slow_volumes(kubelet, targets.PUBLISHES_OF_NAMESPACE):
        target = kubelet.place / "pods" / "v"
        code, said = refusal(kubelet.publish, target)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "of the namespace default are being published" in said
        assert not target.exists()
        kubelet.publish(target, namespace="another")
        assert (target / "a.txt").read_bytes() == b"a"
        kubelet.unpublish(target)


def test_a_volume_that_is_not_ready_in_time_is_given_up(tmp_path: Path):
    change = "m.OPEN_SECONDS = 2.0; m.END_SECONDS = 2"
    with running_kubelet() as kubelet, mounter_after(kubelet, tmp_path, change):
        kubelet.server.faults([SLOW])
        target = kubelet.place / "pods" / "v"
        code, said = refusal(kubelet.publish, target, "ais://b/slow.tar", view="class")
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "not ready within 2 s" in said
        assert not target.exists()
        assert eventually(lambda: not kubelet.daemons())
        kubelet.server.faults([])


@pytest.mark.parametrize("where", ["target", "parent", "above"])
def test_no_volume_is_mounted_through_a_symbolic_link(kubelet: Kubelet, target: Path, where: str):
    elsewhere = kubelet.place / "elsewhere"
    (elsewhere / "d").mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.symlink_to(elsewhere)
    path = {"target": target, "parent": target / "new", "above": target / "d" / "new"}[where]
    code, said = refusal(kubelet.publish, path)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert f"{target} is a symbolic link, or no directory" in said
    assert sorted(os.listdir(elsewhere)) == ["d"]
    assert not os.listdir(elsewhere / "d")
    assert str(elsewhere) not in Path("/proc/mounts").read_text()
    kubelet.unpublish(path)  # as kubelet does after a failure, or the pod would never end
    assert target.is_symlink()
    target.unlink()
    kubelet.publish(target)
    kubelet.unpublish(target)
    assert not target.exists()


@pytest.mark.parametrize("path", ["/a/../b", "relative", "/", "/a\0b"])
def test_paths_that_are_none(kubelet: Kubelet, path: str):
    for name in ("NodePublishVolume", "NodeUnpublishVolume"):
        assert refusal(kubelet.call, name, volume_id="v", target_path=path)[0] is (
            grpc.StatusCode.INVALID_ARGUMENT
        )


def test_a_web_server_that_is_permitted_leads_to_no_other(tmp_path: Path):
    (tmp_path / "open" / "away").mkdir(parents=True)
    (tmp_path / "open" / "away" / "secret.txt").write_text("is named here")
    (tmp_path / "inner").mkdir()
    (tmp_path / "open" / "a.txt").write_text("for all")
    (tmp_path / "inner" / "secret.txt").write_text("for nobody")
    with running_kubelet() as kubelet, nginx(tmp_path / "inner") as inner:
        more = f"rewrite ^/away/(.+)$ {inner.url}/$1 redirect;"
        with nginx(tmp_path / "open", more=more) as server:
            host = server.url.partition("://")[2]
            kubelet.end("driver")
            kubelet.start("driver", "--allow-scheme", "http", "--allow-host", host)
            target = kubelet.place / "pods" / "v"
            kubelet.publish(target, f"{server.url}/")
            assert (target / "a.txt").read_text() == "for all"
            with pytest.raises(PermissionError):
                (target / "away" / "secret.txt").read_text()
            kubelet.unpublish(target)
            wrong = grpc.StatusCode.INVALID_ARGUMENT
            for url in (f"{inner.url}/", f"{{{server.url},{inner.url}}}/x.tar", "file://etc/"):
                assert refusal(kubelet.publish, target, url)[0] is wrong
            braces = f"http://{{{host},{inner.url.partition('://')[2]}}}/x.tar"
            assert refusal(kubelet.publish, target, braces, view="flat")[0] is wrong
        assert "secret" not in inner.log()
