"""A driver and a mounter as Kubernetes runs them, and calls as kubelet makes them."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from aisfs.csi import csi_pb2
from tests.docs.documents import ROOT
from tests.mount.content import fill
from tests.support.mounts import environment, eventually, is_mountpoint, start_aisfs
from tests.support.preloaded import Started
from tests.support.servers import RunningServer, running_server
from tests.support.tars import END, entry

TOKEN = "a-secret-token"
MODES = csi_pb2.VolumeCapability.AccessMode


@dataclass
class Kubelet:
    """Calls of kubelet, and the processes behind them."""

    place: Path
    server: RunningServer
    processes: dict[str, Started] = field(default_factory=dict)
    channels: dict[str, grpc.Channel] = field(default_factory=dict)

    def start(self, name: str, *arguments: str, alone: bool = False, **variables: str) -> None:
        """Start the driver, the mounter or the controller, with its output in a file; `alone` the arguments are all there are."""
        words = {
            "mounter": ("csi", "mounter", str(self.place / "mounter.sock")),
            "driver": (
                "csi", "driver", "--node-id", "node-1", "--socket", str(self.place / "csi.sock"),
                "--mounter", str(self.place / "mounter.sock"),
            ),
            "controller": ("csi", "controller", "--socket", str(self.place / "controller.sock")),
        }[name][: 2 if alone else None]  # fmt: skip
        env = {"AIS_ENDPOINT": self.server.endpoint, "AISFS_CACHE_DIR": str(self.place / "cache")}
        env |= variables
        said = {"driver": "serves node", "mounter": "waiting for", "controller": "makes volumes"}[
            name
        ]
        before = self.log().count(said)
        with open(self.place / f"{name}.log", "ab") as output:
            started = start_aisfs(
                *words, *arguments, output=output, env=environment(env, home=self.place)
            )
        self.processes[name] = started
        began = eventually(
            lambda: self.log().count(said) > before or started.poll() is not None, 60
        )
        assert began, self.log()
        assert started.poll() is None, self.log()

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End the driver or the mounter."""
        process = self.processes.pop(name)
        os.kill(process.pid, number)
        process.wait(60)
        socket = {"driver": "csi", "controller": "controller"}.get(name, "")
        if (channel := self.channels.pop(socket, None)) is not None:
            channel.close()

    def call(self, name: str, service: str = "Node", /, **fields: object) -> object:
        """Make a call, with the fields of its request; raise what the driver answers."""
        socket = "controller" if service == "Controller" else "csi"
        if socket not in self.channels:
            self.channels[socket] = grpc.insecure_channel(f"unix://{self.place}/{socket}.sock")
        method = csi_pb2.DESCRIPTOR.services_by_name[service].methods_by_name[name]
        make = GetMessageClass(method.input_type)
        call = self.channels[socket].unary_unary(
            f"/csi.v1.{service}/{name}",
            request_serializer=make.SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        timeout = fields.pop("timeout", 90)
        return call(make(**fields), timeout=timeout, wait_for_ready=True)

    def publish(self, target: Path, source: str = "ais://b", **fields: object) -> None:
        """Publish a volume; `fields` are more attributes, and `secrets`, `readonly`, `flags`, `mode`."""
        mode = fields.pop("mode", MODES.SINGLE_NODE_READER_ONLY)
        mount = csi_pb2.VolumeCapability.MountVolume(mount_flags=fields.pop("flags", ()))
        self.call(
            "NodePublishVolume",
            volume_id=target.name,
            target_path=str(target),
            volume_capability=csi_pb2.VolumeCapability(
                mount=mount, access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode)
            ),
            timeout=fields.pop("timeout", 90),
            readonly=fields.pop("readonly", False),
            secrets=fields.pop("secrets", {}),
            volume_context={
                "source": source,
                "csi.storage.k8s.io/ephemeral": "true",
                "csi.storage.k8s.io/pod.namespace": fields.pop("namespace", "default"),
                "csi.storage.k8s.io/serviceAccount.tokens": json.dumps(
                    {
                        audience: {"token": token, "expirationTimestamp": "2126-01-01T00:00:00Z"}
                        for audience, token in fields.pop("tokens", {}).items()
                    }
                ),
                **{name.replace("_", "-"): str(value) for name, value in fields.items()},
            },
        )

    def unpublish(self, target: Path) -> None:
        self.call("NodeUnpublishVolume", volume_id=target.name, target_path=str(target))

    def log(self) -> str:
        return "".join(
            (self.place / f"{name}.log").read_text(errors="replace")
            for name in ("mounter", "driver", "controller")
            if (self.place / f"{name}.log").exists()
        )

    def daemons(self) -> list[int]:
        """The processes that serve volumes: children of the mounter that have a session of their own."""
        pid = self.processes["mounter"].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if _serves(int(child))]

    def daemon(self) -> int:
        """The one process that serves a volume; its parent may still be about to answer and end."""
        assert eventually(lambda: len(self.daemons()) == 1), self.daemons()
        return self.daemons()[0]


def _serves(pid: int) -> bool:
    with suppress(OSError):  # it has ended
        return os.getsid(pid) == pid and Path(f"/proc/{pid}/comm").read_text() != "sh\n"
    return False


@contextmanager
def mounter_after(
    kubelet: Kubelet, home: Path, change: str, *arguments: str, **env: str
) -> Iterator[None]:
    """Run the mounter again, after some code that changes its module `m`, with `arguments` as `sys.argv[2:]`."""
    kubelet.end("mounter")
    place = kubelet.place / "mounter.sock"
    place.unlink()
    code = f"import os, sys; from pathlib import Path; import aisfs.csi.mounter as m\n{change}\nm.run(Path(sys.argv[1]))"
    env = {"AIS_ENDPOINT": kubelet.server.endpoint, "AISFS_CACHE_DIR": str(home / "cache"), **env}
    mounter = subprocess.Popen(
        [sys.executable, "-c", code, place, *arguments], env=environment(env, home=home), cwd=ROOT
    )
    kubelet.processes["mounter"] = mounter
    try:
        assert eventually(place.exists)
        yield
    finally:
        del kubelet.processes["mounter"]
        mounter.terminate()
        mounter.wait(60)


def clear(target: Path) -> None:
    """Let a target be removed, whatever a test has left there."""
    while is_mountpoint(target):
        subprocess.run(["umount", "-l", target], check=True)
    if target.exists():
        subprocess.run(["chattr", "-i", target], check=False, capture_output=True)


@contextmanager
def running_kubelet(**options: object) -> Iterator[Kubelet]:
    """Run all of them; `options` are those of the server."""
    shard = b"".join(entry(b"%03d.txt" % row, b"content %d" % row) for row in range(20)) + END
    with ExitStack() as stack:
        place = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="aisfs-csi-"))
        ).resolve()
        fill(
            place / "store" / "b",
            {"a.txt": b"a", "#.tar": shard, "x.tar": shard, "slow.tar": shard},
        )
        (place / "pods").mkdir()
        server = stack.enter_context(running_server(place / "store", faulty=True, **options))
        kubelet = Kubelet(place, server)
        try:
            kubelet.start("mounter")
            kubelet.start("driver")
            yield kubelet
        finally:
            for target in (place / "pods").iterdir():
                clear(target)
            for name in list(kubelet.processes):
                kubelet.end(name)
        assert "Traceback" not in kubelet.log(), kubelet.log()
        assert TOKEN not in kubelet.log()


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    with running_kubelet() as running:
        yield running


@pytest.fixture
def target(kubelet: Kubelet, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A path that kubelet wants a volume on; its parent exists."""
    path = kubelet.place / "pods" / request.node.name.split("[")[0]
    yield path
    clear(path)
