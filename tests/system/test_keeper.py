"""The keeper starts a daemon again when it dies, and gives up, upgrades and ends as it should.

Its daemons are a script of a few lines here, and /dev/fuse is one end of a socket pair: the other end is the kernel.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aisfs.system import keeper, keeping
from tests.support.mounts import eventually

DAEMON = """if 1:
    import json, os, signal, socket, sys, time
    end = socket.socket(fileno=int(sys.argv[sys.argv.index("--takeover") + 1]))
    data, fds, _, _ = socket.recv_fds(end, 65536, 5)
    said = json.loads(data)["takeover"]
    directory = sys.argv[-1]
    behaviour = open(directory + "/behaviour").read()
    with open(directory + "/told", "a") as file:
        file.write(json.dumps({**said, "pid": os.getpid(), "behaviour": behaviour}) + "\\n")
    def ended(*_):
        end.send(b'{"ended": true}')
        os._exit(0)
    signal.signal(signal.SIGTERM, ended)
    if behaviour == "crash":
        os.abort()
    if behaviour == "fail":
        end.send(b'{"failed": "--view was class and is flat", "again": false}')
        os._exit(2)
    if behaviour == "later":
        end.send(b'{"failed": "the cluster is down", "again": true}')
        os._exit(4)
    if said["upgrade"]:
        end.send(b'{"loaded": true}')
        assert json.loads(end.recv(100)) == {"go": True}
        with open(directory + "/told", "a") as file:
            file.write('{"pid": %d, "went on": true}\\n' % os.getpid())
    end.send(b'{"ready": true}')
    while data := end.recv(1000):
        with open(directory + "/refused", "wb") as file:
            file.write(data)
"""


pytestmark = pytest.mark.timeout(90)
SECONDS = 30.0
"""Until something counts as never happening."""


QUICKLY = f"""if 1:
    import runpy
    its = runpy.run_path({str(keeping.PROGRAM)!r})["main"].__globals__
    its.update(PAUSES=[pause / 20 for pause in its["PAUSES"]], AGAIN_SECONDS=0.5)
    its["main"]()
    """
"""The keeper, with shorter pauses."""


class Kept:
    """A keeper with a first daemon, which is this process's child."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kernel, device = socket.socketpair()
        self.behave("well")
        (directory / "told").touch()
        script = directory / "aisfs.py"
        script.write_text(DAEMON)
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = [os.memfd_create(name) for name in ("options", "one", "other", "trace")]
        kept = {
            "pid": 0,
            "socket": its.fileno(),
            "command": [sys.executable, str(script)],
            "words": [str(directory)],
            "directory": str(directory),
            "options": files[0],
            "numbers": files[1:3],
            "trace": files[3],
        }
        # It is the parent of its first daemon, as in `aisfs.system.keeping.keep`.
        start = f"""if 1:
            import json, os, sys
            kept = json.loads(sys.argv[1])
            kept["pid"] = os.fork()
            if not kept["pid"]:
                import signal
                while True:
                    signal.pause()
            said = os.memfd_create("kept")
            os.write(said, json.dumps(kept).encode())
            os.lseek(said, 0, os.SEEK_SET)
            os.set_inheritable(said, True)
            command = [sys.executable, "-I", "-S", "-c", {QUICKLY!r}, "/mnt", str(said)]
            os.execv(sys.executable, command)
            """
        stderr = (directory / "stderr").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, json.dumps(kept)],
            pass_fds=[its.fileno(), *files],
            stderr=stderr,
        )
        stderr.close()
        its.close()
        for fd in files:
            os.close(fd)
        self._first = ours
        socket.send_fds(ours, [b'{"mounted": "SU5JVA=="}'], [device.fileno()])
        device.close()
        assert eventually(lambda: self.comm() == "aisfs-keeper", SECONDS)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self._pid = int(children.read_text())

    def behave(self, how: str) -> None:
        """Say what the next daemon does."""
        (self.directory / "behaviour").write_text(how)

    def first_says(self, message: bytes) -> None:
        self._first.send(message)

    def first_hears(self) -> dict:
        return json.loads(self._first.recv(1000))

    def kill_first(self) -> None:
        """Kill the first daemon, if it is there."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def end(self) -> None:
        self.kernel.close()
        self.process.kill()
        self.process.wait()
        self.kill_first()
        self._first.close()

    def told(self) -> list[dict]:
        """Return what each daemon was told."""
        return [json.loads(line) for line in (self.directory / "told").read_text().splitlines()]

    def comm(self) -> str:
        return Path(f"/proc/{self.process.pid}/comm").read_text().strip()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    yield kept
    kept.end()
    for said in kept.told():
        if "pid" in said:
            with suppress(ProcessLookupError):
                os.kill(said["pid"], signal.SIGKILL)


def test_a_daemon_that_is_killed_is_started_again(kept: Kept) -> None:
    kept.first_says(b'{"ready": true}')
    kept.kill_first()
    assert eventually(lambda: kept.told(), SECONDS)
    [said] = kept.told()
    assert "was killed by SIGKILL" in said["cause"]
    assert (said["init"], said["upgrade"], said["restarts"]) == ("SU5JVA==", False, 1)
    assert eventually(lambda: kept.comm() == "aisfs-keeper", SECONDS)
    os.kill(kept.process.pid, signal.SIGTERM)
    assert kept.process.wait(30) == 0


def test_a_daemon_that_never_served_is_not(kept: Kept) -> None:
    """What fails as it begins fails for the one who typed it, as if there were no keeper."""
    kept.kill_first()
    assert kept.process.wait(30) == -signal.SIGKILL
    assert kept.told() == []


def test_it_gives_up_when_daemons_die_at_once(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.behave("crash")
    kept.first_says(b'{"ready": true}')
    kept.kill_first()
    assert kept.process.wait(90) == 1
    assert len(kept.told()) == len(keeper.PAUSES)
    said = (kept.directory / "stderr").read_text()
    assert "/mnt: its daemons die again and again" in said
    assert "SIGABRT" in said


def test_a_cluster_that_is_down_is_waited_for(kept: Kept) -> None:
    """Longer than any crash: the pauses of those that die at once are not used up."""
    kept.behave("later")
    kept.first_says(b'{"ready": true}')
    kept.kill_first()
    assert eventually(lambda: len(kept.told()) == 1, SECONDS)
    assert eventually(lambda: kept.comm() == "aisfs-restarts", SECONDS)
    kept.behave("well")
    assert eventually(lambda: len(kept.told()) == 2, SECONDS)
    assert "the cluster is down" in kept.told()[1]["cause"]
    assert eventually(lambda: kept.comm() == "aisfs-keeper", SECONDS)


def test_an_upgrade_replaces_the_daemon_once_it_has_loaded(kept: Kept) -> None:
    kept.first_says(b'{"ready": true}')
    kept.first_says(b'{"upgrade": true}')
    assert eventually(lambda: kept.told() and "went on" in kept.told()[-1], SECONDS)
    assert kept.told()[0]["upgrade"]
    os.kill(kept.process.pid, signal.SIGTERM)
    assert kept.process.wait(30) == 0


@pytest.mark.parametrize(
    ("how", "reason"),
    [("fail", "--view was class and is flat"), ("crash", "was killed by SIGABRT")],
)
def test_an_upgrade_that_fails_leaves_the_daemon(kept: Kept, how: str, reason: str) -> None:
    kept.behave(how)
    kept.first_says(b'{"ready": true}')
    kept.first_says(b'{"upgrade": true}')
    assert reason in kept.first_hears()["refused"]
    kept.behave("well")
    kept.kill_first()
    assert eventually(lambda: len(kept.told()) == 2, SECONDS)
    assert not kept.told()[1]["upgrade"]


def test_a_daemon_that_dies_while_another_one_loads_is_replaced_by_it(kept: Kept) -> None:
    kept.first_says(b'{"ready": true}')
    kept.first_says(b'{"upgrade": true}')
    kept.kill_first()
    assert eventually(lambda: len(kept.told()) >= 2, SECONDS)
    assert eventually(lambda: kept.comm() == "aisfs-keeper", SECONDS)
    assert kept.process.poll() is None


def test_it_ends_with_the_mount(kept: Kept) -> None:
    kept.first_says(b'{"ready": true}')
    kept.kernel.close()
    kept.kill_first()
    kept.process.wait(30)
    assert kept.told() == []


def test_it_imports_nothing_of_the_package() -> None:
    code = f"import runpy, sys; runpy.run_path({str(keeping.PROGRAM)!r}); print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in modules if name.startswith(("aisfs", "trio", "asyncio"))]
