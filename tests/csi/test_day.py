"""A day of a node, replayed: what kubelet, its containers and AIStore go through, with pods that write all the time.

What a writer was told to be written is in the bucket, and nothing is on the node's disk.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import grpc
import pytest

from tests.csi.conftest import MODES, TOKEN, Kubelet, running_kubelet
from tests.csi.test_recovery import layers, only
from tests.support.mounts import eventually, is_mountpoint, run

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

WRITER = """
import os, sys, time

where, name = sys.argv[1:]
number = lines = 0
log = None
while True:
    try:
        with open(f"{where}/{name}-{number}.txt", "w") as file:
            file.write(f"{name} {number} " * 999)
        print(f"closed {name}-{number}.txt", flush=True)
        if log is None:
            log, lines, path = open(f"{where}/{name}-log-{number}.txt", "w"), 0, f"{name}-log-{number}.txt"
        log.write(f"line {lines}\\n")
        log.flush()
        os.fsync(log.fileno())
        lines += 1
        print(f"synced {path} {lines}", flush=True)
    except OSError as error:
        log = None
        print(f"refused {error.strerror}", flush=True)
        time.sleep(0.05)
    number += 1
    time.sleep(0.02)
"""


class Container:
    """A container that writes, as it was told when it began: its volume is bound into a mount namespace."""

    def __init__(self, node: "Node", name: str) -> None:
        self.said_in = node.kubelet.place / f"{name}.said"
        self.name = name
        inside = node.kubelet.place / "inside"
        inside.mkdir(exist_ok=True)
        script = f'mount --rbind "{node.target}" "{inside}" && exec "$@"'
        command = ["unshare", "-m", "--propagation", "slave", "sh", "-c", script, "sh"]
        command += [sys.executable, "-c", WRITER, str(inside), name]
        with self.said_in.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    def said(self) -> list[str]:
        return self.said_in.read_text().splitlines()

    def goes_on(self) -> None:
        """Wait until it has written more, both ways."""
        before = len(self.said())
        assert eventually(
            lambda: all(
                any(line.startswith(word) for line in self.said()[before + 1 :])
                for word in ("closed", "synced")
            ),
            60,
        ), self.said()[-3:]

    def is_refused(self) -> None:
        """Wait until it was refused to write again."""
        before = len(self.said())
        assert eventually(lambda: any("refused" in line for line in self.said()[before:]), 60)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(60)


class Node:
    """Kubelet's own view: one pod after the other on one node."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.target = kubelet.place / "pods" / "pod-1"
        self.token = f"{TOKEN}-1"
        self.containers: list[Container] = []
        only(kubelet, self.token)

    def publish(self) -> None:
        self.kubelet.publish(
            self.target, writable="true", mode=MODES.MULTI_NODE_MULTI_WRITER,
            secrets={"token": self.token}, io_timeout=5,
        )  # fmt: skip

    def fails_to_publish(self, code: grpc.StatusCode) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            self.publish()
        assert caught.value.code() is code

    def begin(self) -> Container:
        self.containers.append(Container(self, f"writer-{len(self.containers)}"))
        return self.containers[-1]

    def kill_daemon(self) -> None:
        os.kill(self.kubelet.daemon(), signal.SIGKILL)
        assert eventually(lambda: not self.kubelet.daemons())

    def restart(self) -> None:
        """Lose all processes and mounts at once, as by a power cut; kubelet's directory stays."""
        for daemon in self.kubelet.daemons():
            with suppress(ProcessLookupError):
                os.kill(daemon, signal.SIGKILL)
        for name in ("mounter", "driver"):
            self.kubelet.end(name, signal.SIGKILL)
        while is_mountpoint(self.target):
            run("umount", "-l", self.target)
        for name in ("mounter", "driver"):
            self.kubelet.start(name)

    def check_acknowledged(self) -> int:
        """Check that all that writers were told to be written is in the bucket; return how much that is."""
        store = self.kubelet.place / "store" / "b"
        count = 0
        for container in self.containers:
            for line in container.said():
                word, *rest = line.split()
                if word == "closed":
                    number = re.search(r"(\d+)\.txt", rest[0])
                    assert number
                    text = f"{container.name} {number[1]} " * 999
                    assert (store / rest[0]).read_text() == text
                elif word == "synced":
                    kept = (store / rest[0]).read_text()
                    assert kept.startswith("".join(f"line {n}\n" for n in range(int(rest[1]))))
                else:
                    assert word == "refused", line
                    continue
                count += 1
        return count


@contextmanager
def running_node() -> Iterator[Node]:
    with running_kubelet() as kubelet:
        pods = kubelet.place / "pods"
        run("mount", "--bind", pods, pods)
        run("mount", "--make-shared", pods)
        node = Node(kubelet)
        try:
            yield node
        finally:
            for container in node.containers:
                container.end()
            run("umount", "-l", pods)
            for target in pods.iterdir():
                with suppress(OSError):
                    subprocess.run(["chattr", "-i", target], check=False, capture_output=True)


def test_a_day_of_a_node():
    with running_node() as node:
        node.publish()
        writer = _morning(node)
        writer = _aistore_and_mounter_away(node, writer)
        _pods_and_nodes_restart(node, writer)
        for name in ("mounter", "driver"):
            node.kubelet.end(name)
        assert node.check_acknowledged() > 20
        assert list((node.kubelet.place / "pods").iterdir()) == []
        assert not (node.kubelet.place / "left").exists()
        assert list((node.kubelet.place / "inside").iterdir()) == []


def _morning(node: Node) -> Container:
    """A pod begins; its secret is rotated, its daemon is killed, the driver is replaced."""
    writer = node.begin()
    writer.goes_on()
    node.token = f"{TOKEN}-2-and-longer"  # both count for a while
    node.publish()
    only(node.kubelet, node.token)
    writer.goes_on()
    node.kill_daemon()
    writer.is_refused()
    node.publish()
    writer.goes_on()  # in the same container
    node.kubelet.end("driver")
    writer.goes_on()
    node.kubelet.start("driver")
    node.publish()
    writer.goes_on()
    return writer


def _aistore_and_mounter_away(node: Node, writer: Container) -> Container:
    """The mounter is killed with its daemons, then AIStore is away; a container restarts meanwhile."""
    kubelet = node.kubelet
    for daemon in kubelet.daemons():
        os.kill(daemon, signal.SIGKILL)
    kubelet.end("mounter", signal.SIGKILL)
    writer.is_refused()
    node.fails_to_publish(grpc.StatusCode.UNAVAILABLE)
    writer.end()
    writer = node.begin()  # it finds the dead mount
    writer.is_refused()
    assert not any(line.startswith("closed") for line in writer.said())
    kubelet.start("mounter")
    node.publish()
    writer.goes_on()
    kubelet.server.faults([{"action": "reset", "times": -1}])
    writer.is_refused()
    node.publish()  # what is mounted stays
    node.kill_daemon()
    node.fails_to_publish(grpc.StatusCode.UNAVAILABLE)
    writer.is_refused()
    only(kubelet, node.token)
    node.publish()
    writer.goes_on()
    assert layers(node.target) > 2
    return writer


def _pods_and_nodes_restart(node: Node, writer: Container) -> None:
    """A container restarts, its pod is deleted, the node loses power, and is drained."""
    writer.end()
    writer = node.begin()
    writer.goes_on()
    writer.end()  # kubelet ends containers before it takes their volumes
    node.kubelet.unpublish(node.target)
    assert not node.target.exists()
    node.target = node.target.with_name("pod-2")
    node.publish()
    writer = node.begin()
    writer.goes_on()
    writer.end()
    node.restart()
    with pytest.raises(OSError, match=r"not permitted|denied"):  # before it is published again
        (node.target / "on-the-node.txt").write_text("lost")
    node.publish()
    writer = node.begin()
    writer.goes_on()
    writer.end()
    node.kubelet.unpublish(node.target)
    assert eventually(lambda: not node.kubelet.daemons())
