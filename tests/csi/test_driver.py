"""The driver over its real socket: volumes are mounted, read and unmounted, whatever dies in between."""

import os
import signal
import stat
from pathlib import Path

import grpc
import pytest

from tests.csi.conftest import MODES, TOKEN, Kubelet
from tests.support.mounts import eventually, is_mountpoint, run

pytestmark = pytest.mark.mount


def refusal(call, *arguments, **fields) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **fields)
    return caught.value.code(), caught.value.details()


def test_it_says_what_it_is_and_can(kubelet: Kubelet):
    info = kubelet.call("GetPluginInfo", "Identity")
    assert (info.name, bool(info.vendor_version)) == ("csi.aisfs", True)
    assert kubelet.call("Probe", "Identity").ready.value
    assert kubelet.call("NodeGetInfo").node_id == "node-1"
    rpcs = [found.rpc.type for found in kubelet.call("NodeGetCapabilities").capabilities]
    assert rpcs == [2, 4, 5]  # statistics, condition, ReadWriteOncePod
    (service,) = kubelet.call("GetPluginCapabilities", "Identity").capabilities
    assert service.service.type == 1  # there is a controller


def test_a_volume_is_published_read_and_unpublished_twice_each(kubelet: Kubelet, target: Path):
    for _ in range(2):
        kubelet.publish(target, secrets={"token": TOKEN})
        daemon = kubelet.daemon()
    assert (target / "a.txt").read_bytes() == b"a"
    assert (target / "x.tar.d" / "007.txt").read_bytes() == b"content 7"
    assert os.statvfs(target).f_flag & os.ST_RDONLY
    seen = [Path(f"/proc/{daemon}/{name}").read_bytes() for name in ("cmdline", "environ")]
    assert TOKEN.encode() not in b"".join(seen)
    stats = kubelet.call("NodeGetVolumeStats", volume_id="v", volume_path=str(target))
    assert not stats.volume_condition.abnormal
    assert [usage.total > 0 for usage in stats.usage] == [True, True]
    for _ in range(2):
        kubelet.unpublish(target)
        assert not target.exists()
    assert eventually(lambda: not kubelet.daemons())


def test_another_volume_on_the_same_target_is_refused(kubelet: Kubelet, target: Path):
    kubelet.publish(target, writable="true", mode=MODES.SINGLE_NODE_WRITER)
    for source, fields in (("ais://b/x.tar", {"writable": "true"}), ("ais://b", {})):
        code, said = refusal(
            kubelet.publish, target, source, mode=MODES.SINGLE_NODE_WRITER, **fields
        )
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert said == f"{target}: ais://b is mounted there, writable"
    assert (target / "a.txt").read_bytes() == b"a"
    kubelet.unpublish(target)


def test_kernels_escape_some_characters_of_sources(kubelet: Kubelet, target: Path):
    for _ in range(2):
        kubelet.publish(target, "ais://b/#.tar ais://b/x.tar")
    kubelet.unpublish(target)


def test_a_hangup_ends_neither_mounter_nor_volume(kubelet: Kubelet, target: Path):
    kubelet.publish(target)
    for pid in (kubelet.daemon(), kubelet.processes["mounter"].pid):
        os.kill(pid, signal.SIGHUP)
    assert (target / "a.txt").read_bytes() == b"a"
    kubelet.publish(target)
    assert eventually(lambda: len(kubelet.daemons()) == 1)
    kubelet.unpublish(target)


def test_views_and_mount_options(kubelet: Kubelet, target: Path):
    kubelet.publish(target, "ais://b/x.tar", view="flat", flags=["file-mode=0400", "ro"])
    assert sorted(os.listdir(target))[:2] == ["000.txt", "001.txt"]
    assert stat.S_IMODE((target / "000.txt").stat().st_mode) == 0o400
    kubelet.unpublish(target)


def test_a_volume_that_can_be_written(kubelet: Kubelet, target: Path):
    kubelet.publish(target, writable="true", mode=MODES.SINGLE_NODE_WRITER)
    (target / "new.txt").write_text("new")
    assert (kubelet.place / "store" / "b" / "new.txt").read_text() == "new"
    kubelet.unpublish(target)
    kubelet.publish(target, writable="true", mode=MODES.SINGLE_NODE_WRITER, readonly=True)
    with pytest.raises(OSError, match="Read-only"):
        (target / "new.txt").unlink()
    kubelet.unpublish(target)


def test_a_dead_daemon_is_reported_replaced_and_cleaned_up(kubelet: Kubelet, target: Path):
    kubelet.publish(target)
    for _ in range(2):
        os.kill(kubelet.daemon(), signal.SIGKILL)
        assert eventually(lambda: not kubelet.daemons())
        assert b"not connected" in run("stat", target / "a.txt").stderr
        stats = kubelet.call("NodeGetVolumeStats", volume_id="v", volume_path=str(target))
        assert stats.volume_condition.abnormal
        assert "died" in stats.volume_condition.message
        kubelet.publish(target)  # as kubelet does now and then where republishing is on
        assert (target / "a.txt").read_bytes() == b"a"
    os.kill(kubelet.daemon(), signal.SIGKILL)
    kubelet.unpublish(target)
    assert not target.exists()


def test_volumes_survive_the_driver(kubelet: Kubelet, target: Path):
    kubelet.publish(target)
    with open(target / "a.txt", "rb") as file:
        daemon = kubelet.daemon()
        kubelet.end("driver", signal.SIGKILL)
        assert file.read() == b"a"
        kubelet.start("driver")
        kubelet.publish(target)
        assert kubelet.daemon() == daemon
        assert (target / "x.tar.d" / "007.txt").read_bytes() == b"content 7"
    kubelet.unpublish(target)
    assert eventually(lambda: not kubelet.daemons())


WRONG = {
    "no bucket": ("ais://missing", {}, "NOT_FOUND", "ais://missing"),
    "no source": ("", {}, "INVALID_ARGUMENT", "no attribute source"),
    "a directory": ("/etc", {}, "INVALID_ARGUMENT", "source /etc: it does not begin with a scheme"),
    "a list file": ("/proc/self/x.json", {}, "INVALID_ARGUMENT", "a volume shows buckets"),
    "a file as a URL": ("file:///etc/", {}, "INVALID_ARGUMENT", "file:// is not permitted"),
    "files of the mounter": ("local://etc/", {}, "INVALID_ARGUMENT", "local:// is not permitted"),
    "a path in braces": ("ais://b {ais://b,/etc}", {}, "INVALID_ARGUMENT", "source {ais://b,/etc}: it"),
    "a web server": ("https://127.0.0.1/x/", {}, "INVALID_ARGUMENT", "https:// is not permitted"),
    "a password": ("https://u:pass@h/x/", {}, "INVALID_ARGUMENT", "source https://…: https://"),
    "a cloud itself": ("s3+direct://b", {}, "INVALID_ARGUMENT", "s3+direct:// is not permitted"),
    "a source as a mount option": (
        "ais://b", {"flags": ["source=file://etc/"]}, "INVALID_ARGUMENT", "file:// is not permitted",
    ),
    "labels of the mounter": (
        "ais://b/x.tar", {"view": "class", "label": "csv:file://etc/passwd"},
        "INVALID_ARGUMENT", "file:// is not permitted",
    ),
    "labels of a web server": (
        "ais://b/x.tar", {"view": "class", "label": "csv:http://127.0.0.1/x.csv"},
        "INVALID_ARGUMENT", "http:// is not permitted",
    ),
    "a long wait": ("ais://b", {"io_timeout": 86400}, "INVALID_ARGUMENT", "at most 300 seconds"),
    "an endless wait": ("ais://b", {"io_timeout": "inf"}, "INVALID_ARGUMENT", "at most 300 seconds"),
    "no cluster": ("s3://b", {"endpoint": ""}, "INVALID_ARGUMENT", "endpoint: it is empty"),
    "metadata": (
        "ais://b", {"endpoint": "http://169.254.169.254"}, "INVALID_ARGUMENT",
        "the host 169.254.169.254 is not permitted",
    ),
    "a NUL": ("ais://b", {"include": "a\0b"}, "INVALID_ARGUMENT", "NUL"),
    "a file of labels": (
        "ais://b/x.tar", {"view": "class", "label": "csv:/proc/1/environ"},
        "INVALID_ARGUMENT", "label csv: /proc/1/environ: it does not begin with a scheme",
    ),
    "a cache": ("ais://b", {"cache_dir": "/x"}, "INVALID_ARGUMENT", "cache-dir: no option of volumes"),
    "a log": ("ais://b", {"log_file": "/x"}, "INVALID_ARGUMENT", "log-file: no option of volumes"),
    "a token file": ("ais://b", {"token_file": "/x"}, "INVALID_ARGUMENT", "token-file: no option"),
    "a configuration": ("ais://b", {"config": "/x"}, "INVALID_ARGUMENT", "config: no option"),
    "a mount option": ("ais://b", {"flags": ["dev"]}, "INVALID_ARGUMENT", "dev: no option of volumes"),
    "too many names": ("ais://b/{0..999999999}.tar", {}, "INVALID_ARGUMENT", "more than 1,000,000 names"),
    "no user": ("ais://b", {"uid": 1 << 32}, "INVALID_ARGUMENT", "--uid: "),
    "a name without an end": ("ais://b", {"x" * 99_999: 1}, "INVALID_ARGUMENT", "xxx…"),
    "a source without an end": ("ais://b/{" + '"' * 50_000, {}, "INVALID_ARGUMENT", "braces do not match"),
    "a line break": ("ais://b", {"secrets": {"a\nb": "c"}}, "INVALID_ARGUMENT", "secret a b: "),
    "a token that is none": (
        "ais://b", {"secrets": {"token": "a\r\nb: c"}}, "INVALID_ARGUMENT",
        "token file of the volume's secret: the token is empty or holds characters",
    ),
    "a certificate that is none": (
        "ais://b", {"secrets": {"client_ca": "x"}}, "INVALID_ARGUMENT", "--client-ca of the volume's secret: ",
    ),
    "a bad value": ("ais://b", {"attr_ttl": "soon"}, "INVALID_ARGUMENT", "--attr-ttl: "),
    "an unknown secret": ("ais://b", {"secrets": {"x": "y"}}, "INVALID_ARGUMENT", "secret x: "),
    "another cluster": (
        "ais://b", {"endpoint": "http://127.0.0.1:9"}, "INVALID_ARGUMENT", "127.0.0.1:9 is not permitted"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "fields", "code", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_mounted_leaves_nothing(
    kubelet: Kubelet, target: Path, source, fields, code, said
):
    got, reason = refusal(kubelet.publish, target, source, **fields)
    assert (got.name, said in reason) == (code, True), reason
    assert "\n" not in reason
    assert not target.exists()


def test_what_is_not_ours_is_left_alone(kubelet: Kubelet, target: Path):
    target.mkdir()
    run("mount", "-t", "tmpfs", "none", target)
    for call in (kubelet.publish, kubelet.unpublish):
        assert refusal(call, target)[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert is_mountpoint(target)
    fields = {"volume_id": "v", "volume_path": str(target)}
    assert refusal(kubelet.call, "NodeGetVolumeStats", **fields)[0] is grpc.StatusCode.NOT_FOUND


def test_calls_without_what_they_need(kubelet: Kubelet):
    wrong = grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(kubelet.call, "NodeUnpublishVolume", target_path="/x")[0] is wrong
    assert refusal(kubelet.call, "NodePublishVolume", volume_id="v", target_path="x")[0] is wrong
    assert refusal(kubelet.call, "NodePublishVolume", volume_id="v", target_path="/x")[0] is wrong
    for path in (str(kubelet.place), "some/path"):
        fields = {"volume_id": "v", "volume_path": path}
        assert refusal(kubelet.call, "NodeGetVolumeStats", **fields)[0] is grpc.StatusCode.NOT_FOUND
