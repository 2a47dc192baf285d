"""Volumes that are only read go on when their daemon dies, and programs see no error."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisfs.csi.mounter import READY
from tests.csi.conftest import MODES, TOKEN, Kubelet, mounter_after, running_kubelet
from tests.csi.test_recovery import layers, memory_group, only, use_up
from tests.support.mounts import eventually, is_mountpoint
from tests.support.mounts import run as run_command

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

KEPT = {"AISFS_KEEPER": "yes"}


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    with running_kubelet() as running:
        running.end("mounter")
        running.start("mounter", **KEPT)
        yield running


def served_by(kubelet: Kubelet) -> int:
    """The process that answers; its parent is the keeper."""
    keeper = kubelet.daemon()
    children = Path(f"/proc/{keeper}/task/{keeper}/children")
    assert eventually(lambda: len(children.read_text().split()) == 1)
    return int(children.read_text())


def kill_daemon(kubelet: Kubelet) -> None:
    """Kill what answers, and wait for the next one."""
    before = served_by(kubelet)
    os.kill(before, signal.SIGKILL)
    assert eventually(lambda: f"process {before} was killed by SIGKILL" in kubelet.log())


def condition(kubelet: Kubelet, target: Path) -> object:
    stats = kubelet.call("NodeGetVolumeStats", volume_id="v", volume_path=str(target))
    return stats.volume_condition


READ_ON = """if 1:
    import os, sys
    mnt = sys.argv[1]
    opened = open(mnt + "/x.tar.d/003.txt", "rb", buffering=0)
    os.chdir(mnt + "/x.tar.d")
    names = sorted(os.listdir("."))
    for line in sys.stdin:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(opened.fileno(), 100, 0) == b"content 3"
        assert sorted(os.listdir(".")) == names
        for row, name in enumerate(names):
            assert open(name, "rb").read() == b"content %d" % row, name
        print("read", flush=True)
    """


@contextmanager
def reading(target: Path) -> Iterator[Callable[[], None]]:
    """A program with an open file and directory; yields what has it read everything, and more from these."""
    command = [sys.executable, "-c", READ_ON, str(target)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:

        def read() -> None:
            assert reader.stdin is not None
            assert reader.stdout is not None
            print("go", file=reader.stdin, flush=True)
            assert reader.stdout.readline() == "read\n"

        yield read
        assert reader.stdin is not None
        reader.stdin.close()
        assert reader.wait(60) == 0


def test_a_reader_sees_no_error_when_the_daemon_of_its_volume_is_killed(
    kubelet: Kubelet, target: Path
):
    kubelet.publish(target)
    keeper = kubelet.daemon()
    with reading(target) as read:
        read()
        for _ in range(3):
            kill_daemon(kubelet)
            read()
    assert kubelet.daemon() == keeper
    now = condition(kubelet, target)
    assert not now.abnormal
    assert "has died: it was killed by SIGKILL" in now.message
    kubelet.publish(target)  # as kubelet does every minute
    assert layers(target) == 1
    kubelet.unpublish(target)
    assert not target.exists()
    assert eventually(lambda: not kubelet.daemons())


def test_a_secret_that_was_renewed_reaches_the_next_daemon_too(kubelet: Kubelet, target: Path):
    tokens = [f"{TOKEN}-{number}" for number in range(3)]
    try:
        only(kubelet, tokens[0])
        kubelet.publish(target, secrets={"token": tokens[0]}, attr_ttl=0, list_ttl=0)
        only(kubelet, tokens[1])
        kubelet.publish(target, secrets={"token": tokens[1]})
        kill_daemon(kubelet)
        assert "a.txt" in os.listdir(target)
        only(kubelet, tokens[2])
        kubelet.publish(target, secrets={"token": tokens[2]})
        assert "a.txt" in os.listdir(target)
        said = run_command("ps", "-eo", "args").stdout + run_command("ps", "-e", "ewww").stdout
        assert TOKEN.encode() not in said
    finally:
        kubelet.server.faults([])
        kubelet.unpublish(target)


def test_the_end_of_a_keeper_is_the_end_of_its_volume_and_it_is_mounted_again(
    kubelet: Kubelet, target: Path
):
    kubelet.publish(target)
    daemon = served_by(kubelet)
    os.kill(kubelet.daemon(), signal.SIGKILL)
    assert eventually(lambda: not Path(f"/proc/{daemon}").exists())
    assert eventually(lambda: not kubelet.daemons())
    assert condition(kubelet, target).abnormal
    kubelet.publish(target)
    assert (target / "a.txt").read_bytes() == b"a"
    kubelet.unpublish(target)
    assert not is_mountpoint(target)


def test_a_volume_that_is_written_to_has_no_keeper(kubelet: Kubelet, target: Path):
    kubelet.publish(target, writable="true", mode=MODES.SINGLE_NODE_WRITER)
    os.kill(kubelet.daemon(), signal.SIGKILL)
    assert eventually(lambda: not kubelet.daemons())
    assert condition(kubelet, target).abnormal
    kubelet.unpublish(target)


def test_a_mounter_that_ends_ends_keepers_and_daemons(kubelet: Kubelet, target: Path):
    kubelet.publish(target)
    processes = [kubelet.daemon(), served_by(kubelet)]
    kubelet.end("mounter")
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    kubelet.start("mounter", **KEPT)
    kubelet.unpublish(target)


def test_a_volume_whose_daemon_was_killed_for_lack_of_memory_goes_on_and_says_why(tmp_path: Path):
    with memory_group(1 << 30) as group, running_kubelet() as kubelet:
        target = kubelet.place / "pods" / "v"
        change = "Path(sys.argv[2], 'cgroup.procs').write_text(str(os.getpid()))"
        with mounter_after(kubelet, tmp_path, change, str(group), AISFS_CACHE_SIZE="0", **KEPT):
            kubelet.publish(target)
            before = served_by(kubelet)
            use_up(group, before)
            assert eventually(lambda: served_by(kubelet) != before)
            assert (target / "a.txt").read_bytes() == b"a"
            assert eventually(lambda: "lack of memory" in condition(kubelet, target).message)
            assert not condition(kubelet, target).abnormal
            kubelet.unpublish(target)


@contextmanager
def replaced_mounter(kubelet: Kubelet, *arguments: str) -> Iterator[None]:
    """A rollout: the mounter of another pod begins, and is ready; after the block that of the old pod ends."""
    old = kubelet.processes["mounter"]
    kubelet.start("mounter", *arguments, **KEPT)
    new = kubelet.processes["mounter"].pid
    ready = Path(f"/proc/{new}/comm")
    assert eventually(lambda: ready.read_text() == f"{READY}\n"), kubelet.log()
    yield
    os.kill(old.pid, signal.SIGTERM)
    old.wait(60)


def test_a_reader_sees_no_error_when_the_mounter_is_replaced(kubelet: Kubelet, target: Path):
    tokens = [f"{TOKEN}-{number}" for number in range(3)]
    try:
        only(kubelet, tokens[0])
        kubelet.publish(target, secrets={"token": tokens[0]}, attr_ttl=0, list_ttl=0)
        only(kubelet, tokens[1])
        kubelet.publish(target, secrets={"token": tokens[1]})  # what is handed over is the new one
        with reading(target) as read:
            read()
            for count in range(2):
                before = served_by(kubelet)
                with replaced_mounter(kubelet):
                    assert not Path(f"/proc/{before}").exists()
                    read()
                read()
                kill_daemon(kubelet)
                read()
                assert count or "was killed by SIGKILL" in condition(kubelet, target).message
        only(kubelet, tokens[2])
        kubelet.publish(target, secrets={"token": tokens[2]})
        assert "a.txt" in os.listdir(target)
        assert layers(target) == 1
        assert not condition(kubelet, target).abnormal
    finally:
        kubelet.server.faults([])
        kubelet.unpublish(target)
    assert eventually(lambda: not kubelet.daemons())
    assert not list(kubelet.place.glob("*.volume"))


def test_a_volume_that_the_next_mounter_cannot_serve_goes_on_until_the_old_one_ends(
    kubelet: Kubelet, target: Path
):
    kubelet.publish(target)
    before = served_by(kubelet)
    kubelet.server.faults([{"path": "", "status": 503, "times": -1}])
    with replaced_mounter(kubelet):
        assert "stays with the mounter before" in kubelet.log()
        kubelet.server.faults([])
        assert Path(f"/proc/{before}").exists()
        assert (target / "a.txt").read_bytes() == b"a"
    assert condition(kubelet, target).abnormal
    kubelet.publish(target)
    assert (target / "a.txt").read_bytes() == b"a"
    kubelet.unpublish(target)
