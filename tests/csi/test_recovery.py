"""Volumes whose daemon, mounter or cluster goes away, in the order in which kubelet makes its calls.

A container of Kubernetes is played by a mount namespace that takes what is mounted later, as `HostToContainer` does.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest

from aisfs.csi import targets
from aisfs.csi.mounter import connect
from aisfs.fuse import mountpoint
from tests.csi.conftest import MODES, TOKEN, Kubelet, mounter_after, running_kubelet
from tests.csi.test_driver import refusal
from tests.support import web_servers
from tests.support.mounts import eventually, is_mountpoint, run

pytestmark = pytest.mark.mount
WRITER = MODES.SINGLE_NODE_WRITER


@contextmanager
def container(kubelet: Kubelet, target: Path) -> Iterator[Path]:
    """A process that has bound a volume when it began; yields a path that leads to what it sees."""
    inside = kubelet.place / "inside"
    inside.mkdir(exist_ok=True)
    words = ["unshare", "-m", "--propagation", "slave", "sh", "-c"]
    script = f'mount --rbind "{target}" "{inside}" && echo bound && exec sleep 600'
    with subprocess.Popen([*words, script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"bound\n"
            yield Path(f"/proc/{process.pid}/root{inside}")
        finally:
            process.kill()


@pytest.fixture(scope="module", autouse=True)
def shared_mounts(kubelet: Kubelet) -> Iterator[None]:
    """Have mounts below `pods` reach other namespaces, as those of kubelet's directory do."""
    pods = kubelet.place / "pods"
    run("mount", "--bind", pods, pods)
    run("mount", "--make-shared", pods)
    yield
    run("umount", "-l", pods)


def kill_daemon(kubelet: Kubelet) -> None:
    os.kill(kubelet.daemon(), signal.SIGKILL)
    assert eventually(lambda: not kubelet.daemons())


def layers(target: Path) -> int:
    return len(mountpoint.device_minors(target))


def unwritable(target: Path) -> bool:
    """Whether not even root can write to a directory."""
    try:
        (target / "on-the-node.txt").write_text("lost")
    except OSError:
        return True
    return False


def is_dead(target: Path) -> bool:
    return b"not connected" in run("stat", "-f", target).stderr


def test_a_running_container_gets_the_new_mount(kubelet: Kubelet, target: Path):
    kubelet.publish(target)
    with container(kubelet, target) as seen:
        assert (seen / "a.txt").read_bytes() == b"a"
        for _ in range(2):
            kill_daemon(kubelet)
            assert is_dead(seen)
            kubelet.publish(target)
            assert (seen / "a.txt").read_bytes() == b"a"
    kubelet.unpublish(target)
    assert not target.exists()
    assert eventually(lambda: not kubelet.daemons())


def test_a_republish_that_fails_leaves_the_dead_mount(kubelet: Kubelet, target: Path):
    kubelet.publish(target, writable="true", mode=WRITER)
    kill_daemon(kubelet)
    kubelet.end("mounter")
    again = {"writable": "true", "mode": WRITER}
    code, said = refusal(kubelet.publish, target, **again)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "the mounter of this node does not run" in said
    assert unwritable(target)
    kubelet.start("mounter")
    only(kubelet, "another")
    assert refusal(kubelet.publish, target, **again)[0] is grpc.StatusCode.PERMISSION_DENIED
    kubelet.server.faults([])
    assert layers(target) == 1
    assert is_dead(target)
    assert unwritable(target)  # as the restarted container would try
    kubelet.publish(target, **again)
    (target / "new.txt").write_text("new")
    assert (kubelet.place / "store" / "b" / "new.txt").read_text() == "new"
    assert layers(target) == 2
    kubelet.unpublish(target)
    assert layers(target) == 0
    assert not target.exists()


def test_a_first_publish_that_fails_removes_only_what_it_made(kubelet: Kubelet, target: Path):
    assert refusal(kubelet.publish, target, "ais://missing")[0] is grpc.StatusCode.NOT_FOUND
    assert not target.exists()
    target.mkdir()
    assert refusal(kubelet.publish, target, "ais://missing")[0] is grpc.StatusCode.NOT_FOUND
    assert target.is_dir()
    assert unwritable(target)
    kubelet.publish(target)
    kubelet.unpublish(target)
    assert not target.exists()


def test_nobody_writes_to_a_target_without_its_mount(kubelet: Kubelet, target: Path):
    kubelet.publish(target)
    run("umount", "-l", target)  # as after a restart of the node
    assert unwritable(target)
    kubelet.end("driver")
    kubelet.start("driver")
    kubelet.unpublish(target)
    assert not target.exists()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_files_that_were_left_are_kept_and_the_pod_ends(
    kubelet: Kubelet, target: Path, elsewhere: bool
):
    (target / "d").mkdir(parents=True)
    (target / "d" / "file").write_text("written nowhere else")
    os.mkfifo(target / "fifo")
    (target / "link").symlink_to("/etc")
    left = kubelet.place / "left"
    left.mkdir(exist_ok=True)
    if elsewhere:
        run("mount", "-t", "tmpfs", "none", left)
    try:
        before = set(left.iterdir())
        kubelet.unpublish(target)
        assert not target.exists()
        (place,) = set(left.iterdir()) - before
        assert (place / "d" / "file").read_text() == "written nowhere else"
        assert (place / "fifo").is_fifo()
        assert (place / "link").is_symlink()
        assert f"they are now in {place}" in kubelet.log()
    finally:
        if elsewhere:
            run("umount", left)


def test_what_cannot_be_moved_stays(kubelet: Kubelet, target: Path):
    target.mkdir()
    (target / "file").write_bytes(bytes(1 << 20))
    left = kubelet.place / "left"
    left.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "size=64k", "none", left)
    try:
        code, said = refusal(kubelet.unpublish, target)
        assert code is grpc.StatusCode.INTERNAL
        assert "No space left on device" in said
        assert (target / "file").stat().st_size == 1 << 20
        assert not list(left.iterdir())
    finally:
        run("umount", left)
    kubelet.unpublish(target)
    assert not target.exists()


def test_a_slow_daemon_is_not_ended(kubelet: Kubelet, target: Path):
    """It stands still for longer than the driver used to wait."""
    kubelet.publish(target, writable="true", mode=WRITER)
    daemon = kubelet.daemon()
    with open(target / "slow.txt", "w") as file:
        file.write("first ")
        file.flush()
        os.kill(daemon, signal.SIGSTOP)
        try:
            stats = kubelet.call("NodeGetVolumeStats", volume_id="v", volume_path=str(target))
            assert stats.volume_condition.abnormal
            assert "does not answer" in stats.volume_condition.message
            with suppress(grpc.RpcError):
                kubelet.publish(target, writable="true", mode=WRITER, timeout=8)
        finally:
            os.kill(daemon, signal.SIGCONT)
        file.write("second")
    assert (kubelet.place / "store" / "b" / "slow.txt").read_text() == "first second"
    assert kubelet.daemon() == daemon
    assert eventually(lambda: not refused(kubelet, target))
    assert not is_mountpoint(target)


def refused(kubelet: Kubelet, target: Path) -> bool:
    try:
        kubelet.unpublish(target)
    except grpc.RpcError:
        return True
    return False


def test_a_daemon_that_hangs_is_ended(
    kubelet: Kubelet, target: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(targets, "SILENCE_SECONDS", 1.0)
    kubelet.publish(target)
    daemon = kubelet.daemon()
    os.kill(daemon, signal.SIGSTOP)
    try:
        targets.Targets(kubelet.place / "mounter.sock", kubelet.place / "left").unpublish(target)
        assert not target.exists()
    finally:
        os.kill(daemon, signal.SIGCONT)  # it finds its connection aborted
    assert eventually(lambda: not kubelet.daemons())


def test_without_a_mounter_the_driver_is_live(kubelet: Kubelet, target: Path):
    kubelet.publish(target)
    kubelet.end("mounter")  # its daemons end with it
    assert kubelet.call("Probe", "Identity").ready.value
    kubelet.start("mounter")
    kubelet.publish(target)
    assert (target / "a.txt").read_bytes() == b"a"
    kubelet.unpublish(target)


def only(kubelet: Kubelet, token: str) -> None:
    """Have the cluster refuse all tokens but one."""
    match = {"other_token": token, "marked": False}
    kubelet.server.faults([{"match": match, "action": "expire", "times": -1}])


@pytest.mark.parametrize("restarted", [False, True])
def test_rotated_secrets_reach_the_daemon(kubelet: Kubelet, target: Path, restarted: bool):
    tokens = [f"{TOKEN}-{word}" for word in ("first", "second-and-longer", "3")]
    try:
        only(kubelet, tokens[0])
        kubelet.publish(target, secrets={"token": tokens[0]}, attr_ttl=0, list_ttl=0)
        assert (target / "a.txt").read_bytes() == b"a"
        daemon = kubelet.daemon()
        if restarted:
            kubelet.end("driver")
            kubelet.start("driver")
        only(kubelet, tokens[1])
        with pytest.raises(PermissionError):
            os.listdir(target)
        kubelet.publish(target, secrets={"token": tokens[1], "client_ca": "new"})
        assert (target / "x.tar.d" / "007.txt").read_bytes() == b"content 7"
        assert "client_ca: new in the secret" in kubelet.log()
        only(kubelet, tokens[2])
        kubelet.publish(target, secrets={"token": tokens[2]})
        assert "a.txt" in os.listdir(target)
        assert kubelet.daemon() == daemon
    finally:
        kubelet.server.faults([])
        kubelet.unpublish(target)


def test_a_rotated_authority_reaches_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with running_kubelet() as kubelet:
        port = web_servers._free_port()
        monkeypatch.setattr(web_servers, "_free_port", lambda: port)
        for name in ("driver", "mounter"):
            kubelet.end(name)
        kubelet.start("mounter", AIS_ENDPOINT=f"https://127.0.0.1:{port}")
        kubelet.start("driver")
        target = kubelet.place / "pods" / "v"
        proxy = f"proxy_pass {kubelet.server.endpoint};"
        daemons = set()
        for number in (1, 2):
            place = tmp_path / str(number)
            place.mkdir()
            pair = web_servers.make_certificate(place)
            with web_servers.nginx(place, autoindex=False, certificate=pair, more=proxy):
                if number == 2:
                    with pytest.raises(OSError, match="Input/output"):
                        os.listdir(target)
                secrets = {"client_ca": pair[0].read_text()}
                kubelet.publish(target, secrets=secrets, attr_ttl=0, list_ttl=0, io_timeout=3)
                assert "a.txt" in os.listdir(target)
                daemons.add(kubelet.daemon())
        assert len(daemons) == 1
        kubelet.unpublish(target)


@pytest.mark.parametrize("secrets", [{}, {"token": TOKEN}])
def test_a_refused_token_names_the_secret(kubelet: Kubelet, target: Path, secrets: dict[str, str]):
    try:
        only(kubelet, "another")
        code, said = refusal(kubelet.publish, target, secrets=secrets)
    finally:
        kubelet.server.faults([])
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "nodePublishSecretRef" in said
    assert ("names no secret" in said) == (not secrets)


def test_counters_say_what_happens_on_the_node(kubelet: Kubelet, target: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kubelet.end("driver")
    kubelet.start("driver", "--metrics-addr", f"127.0.0.1:{port}", "--max-volumes", "7")

    def counters() -> dict[str, float]:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    assert kubelet.call("NodeGetInfo").max_volumes_per_node == 7
    kubelet.publish(target)
    before = counters()
    assert before["aisfs_csi_mounter_up"] == 1
    assert before["aisfs_csi_daemons"] == 1
    assert before['aisfs_csi_calls_total{call="NodePublishVolume",code="OK"}'] == 1
    deaths = 'aisfs_csi_daemon_deaths_total{by="SIGKILL"}'
    kill_daemon(kubelet)
    assert eventually(lambda: counters().get(deaths, 0) == before.get(deaths, 0) + 1)
    kubelet.unpublish(target)
    kubelet.end("mounter")
    assert counters()["aisfs_csi_mounter_up"] == 0
    kubelet.start("mounter")


@contextmanager
def memory_group(size: int) -> Iterator[Path]:
    """A control group with so many bytes of memory."""
    group = Path("/sys/fs/cgroup/memory", f"aisfs-test-{os.getpid()}")
    if not (group.parent / "memory.limit_in_bytes").exists():
        pytest.skip("no control groups of memory can be made here")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(size))
        yield group
    finally:
        assert eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def use_up(group: Path, victim: int) -> None:
    """Take all memory that is left in a group, so that the kernel kills its victim."""
    Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
    used = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(used + (32 << 20)))
    script = (
        f"echo 900 > /proc/self/oom_score_adj; echo $$ > {group}/cgroup.procs;"
        "head -c 64M /dev/zero | tail -c 64M > /dev/null"
    )
    subprocess.run(["sh", "-c", script], check=False)
    (group / "memory.limit_in_bytes").write_text(str(1 << 30))


def test_a_daemon_that_is_killed_for_lack_of_memory_is_an_event_of_its_pod(tmp_path: Path):
    with memory_group(1 << 30) as group, running_kubelet() as kubelet:
        target = kubelet.place / "pods" / "v"
        # In its group from the start, as that of a container is.
        change = "Path(sys.argv[2], 'cgroup.procs').write_text(str(os.getpid()))"
        with mounter_after(kubelet, tmp_path, change, str(group), AISFS_CACHE_SIZE="0"):
            kubelet.publish(target)
            use_up(group, kubelet.daemon())
            assert eventually(lambda: not kubelet.daemons())
            stats = kubelet.call("NodeGetVolumeStats", volume_id="v", volume_path=str(target))
            assert stats.volume_condition.abnormal
            assert "for lack of memory" in stats.volume_condition.message
            code, said = refusal(kubelet.publish, target)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "for lack of memory" in said
            assert "is mounted again" in said
            assert (target / "a.txt").read_bytes() == b"a"
            kubelet.publish(target)  # as kubelet does at once
            stats = kubelet.call("NodeGetVolumeStats", volume_id="v", volume_path=str(target))
            assert not stats.volume_condition.abnormal
            assert "for lack of memory" in stats.volume_condition.message
            kubelet.unpublish(target)


def test_daemons_that_end_at_the_same_time_are_all_counted_and_do_not_end_the_mounter():
    code = """
import os, signal, time
from pathlib import Path
from aisfs.csi.mounter import _Ends
ends = _Ends()
signal.signal(signal.SIGCHLD, lambda *_: ends.reap())
for number in range(300):
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        Path("/proc/self/comm").write_text(f"aisfs vol {number}")
        os.kill(os.getpid(), signal.SIGKILL)
children, end = Path("/proc/thread-self/children"), time.monotonic() + 60
while children.read_text() and time.monotonic() < end:
    time.sleep(0.05)
print(ends.deaths)
"""
    done = run(sys.executable, "-c", code)
    assert done.stdout == b"{'SIGKILL': 300}\n", done.stderr[-2000:]


@pytest.mark.parametrize("who", ["mounter", "child"])
def test_a_mounter_that_can_start_no_process_keeps_its_volumes(tmp_path: Path, who: str):
    change = """
fork, main, full = os.fork, os.getpid(), Path(sys.argv[2])
def some():
    if full.exists() and full.read_text() == ("mounter" if os.getpid() == main else "child"):
        raise BlockingIOError(11, os.strerror(11))
    return fork()
os.fork = some
"""
    full = tmp_path / "full"
    with running_kubelet() as kubelet, mounter_after(kubelet, tmp_path, change, str(full)):
        first, second = (kubelet.place / "pods" / name for name in ("first", "second"))
        kubelet.publish(first)
        full.write_text(who)
        code, said = refusal(kubelet.publish, second)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the mounter can start no process: Resource temporarily unavailable" in said
        assert (first / "a.txt").read_bytes() == b"a"
        full.unlink()
        kubelet.publish(second)
        assert (second / "a.txt").read_bytes() == b"a"
        for target in (first, second):
            kubelet.unpublish(target)


def test_a_driver_of_another_version_hears_so_and_volumes_go_on(kubelet: Kubelet, target: Path):
    kubelet.publish(target)
    daemon = kubelet.daemon()
    with connect(kubelet.place / "mounter.sock") as connection:
        connection.send(b'{"sources": ["ais://b"], "settings": {}}')  # as an older one asked
        answer = connection.recv(1 << 16).decode()
    assert "driver and mounter are of different versions, update both" in answer
    kubelet.end("driver")  # what `helm upgrade` replaces
    kubelet.start("driver")
    kubelet.publish(target)
    assert kubelet.daemon() == daemon
    assert (target / "x.tar.d" / "007.txt").read_bytes() == b"content 7"
    kubelet.unpublish(target)
