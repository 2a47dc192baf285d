"""What `aisfs mount` shows of a dataset that takes long, and how such a start ends early."""

import json
import os
import pty
import select
import signal
import subprocess
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from tests.mount.content import put
from tests.mount.datasets import encode, sample, tree, write_shard
from tests.support.mounts import (
    COMMAND,
    aisfs,
    daemons,
    environment,
    eventually,
    is_mountpoint,
    mounted,
    run,
    start_aisfs,
)
from tests.support.preloaded import Started
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SOURCE = "ais://b/s-{0..2}.tar"
SHOWN = [f"{n}/{n}.jpg" for n in range(3)]
HELD = {
    "action": "stall",
    "match": {"method": "GET", "path_contains": "s-1.tar"},
    "seconds": 300,
    "times": -1,
    "until_cleared": True,
}
"""Keeps the second of three shards back for as long as the test wants."""
PATIENT = ["--io-timeout", "300", "--cache-size", "0"]
MINUTE = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("start").resolve() / "store"
    for number in range(3):
        write_shard(root / "b" / f"s-{number}.tar", [sample(str(number), number)])
    with running_server(root, faulty=True) as server:
        yield server


class Starting:
    """A mount that is being made."""

    def __init__(self, process: Started, mountpoint: Path, output: Path, tty: int | None):
        self.process = process
        self.mountpoint = mountpoint
        self._output = output
        self._tty = tty
        self._seen = b""

    def said(self) -> str:
        """All that it wrote to the terminal, or to its stderr, so far."""
        if self._tty is None:
            return self._output.read_text()
        with suppress(OSError):  # the other end was closed
            while select.select([self._tty], [], [], 0)[0]:
                self._seen += os.read(self._tty, 65536)
        return self._seen.decode(errors="replace")

    def press(self, key: bytes) -> None:
        assert self._tty is not None
        os.write(self._tty, key)

    def wait_for(self, words: str) -> str:
        assert eventually(lambda: words in self.said(), MINUTE), self.said()
        return self.said()

    @property
    def daemon(self) -> int:
        (pid,) = [pid for pid in daemons(self.mountpoint) if pid != self.process.pid]
        return pid

    def is_gone(self) -> bool:
        return not daemons(self.mountpoint) and not is_mountpoint(self.mountpoint)


@contextmanager
def starting(
    server: RunningServer, mountpoint: Path, *options: str, terminal: bool = False
) -> Iterator[Starting]:
    """Begin to mount, with a shard held back; leave nothing of it behind."""
    server.faults([HELD])
    words = ["mount", SOURCE, str(mountpoint), "--endpoint", server.endpoint, *PATIENT]
    words += ["--log-file", str(mountpoint.parent / "log"), *options]
    env = environment({"AIS_READ_TIMEOUT": "0", "TERM": "xterm"}, home=mountpoint.parent)
    output, tty, ends = mountpoint.parent / "output", None, []
    if terminal:
        tty, end = ends = pty.openpty()
        termios.tcsetwinsize(tty, (25, 120))
        command = ["setsid", "--ctty", *COMMAND, *words]
        process: Started = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=env)
    else:
        with open(output, "wb") as file:
            process = start_aisfs(*words, output=file, env=env)
    try:
        yield Starting(process, mountpoint, output, tty)
    finally:
        server.faults([])
        for pid in [process.pid, *daemons(mountpoint)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(MINUTE)
        run("fusermount3", "-uz", mountpoint)
        for end in ends:
            os.close(end)


def status(mountpoint: Path) -> dict:
    done = aisfs("status", mountpoint, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def dataset(mountpoint: Path) -> dict:
    return status(mountpoint).get("dataset", {})


@pytest.mark.parametrize("ways", [[], ["-f"], ["--no-fastpath"]], ids=["daemon", "-f", "pyfuse3"])
def test_a_bar_on_a_terminal_that_control_c_ends(
    server: RunningServer, mountpoint: Path, ways: Sequence[str]
):
    with starting(server, mountpoint, "--view", "class", *ways, terminal=True) as start:
        said = start.wait_for("2 of 3 shards, 2 samples")
        assert "B/s" in said
        assert is_mountpoint(mountpoint)
        assert dataset(mountpoint) == {"opened_shards": 2, "shards": 3, "files": 2}
        assert b"2 of 3 shards" in aisfs("status", mountpoint).stdout
        start.press(b"\x03")
        assert start.process.wait(MINUTE) == 130
        lines = start.wait_for("is not mounted").strip().splitlines()
        assert lines[-1].endswith(f"aisfs: interrupted: {mountpoint} is not mounted")
        assert "aisfs: open" not in start.said(), "lines are for where there is no bar"
        assert "Traceback" not in start.said()
        assert start.is_gone()


@pytest.mark.parametrize("ways", [[], ["-f"]], ids=["daemon", "-f"])
def test_a_bar_that_ends(server: RunningServer, mountpoint: Path, ways: Sequence[str]):
    with starting(server, mountpoint, "--view", "flat", *ways, terminal=True) as start:
        start.wait_for("2 of 3 shards, 4 files")
        server.faults([])
        assert ways or start.process.wait(MINUTE) == 0
        assert len(tree(mountpoint)) == 6
        assert dataset(mountpoint) == {"opened_shards": 3, "shards": 3, "files": 6}
        assert len(daemons(mountpoint)) == 1
        assert run("fusermount3", "-u", mountpoint).returncode == 0
        assert start.process.wait(MINUTE) == 0
        assert eventually(start.is_gone, MINUTE)
        assert "aisfs: open" not in start.said(), "lines are for where there is no bar"


def test_shuffled_shards_have_a_bar(server: RunningServer, mountpoint: Path):
    options = ["--view", "shards", "--shuffle", "1"]
    with starting(server, mountpoint, *options, terminal=True) as start:
        start.wait_for("2 of 3 shards, ")
        start.press(b"\x03")
        assert start.process.wait(MINUTE) == 130
        assert start.is_gone()


def test_lines_without_a_terminal(server: RunningServer, mountpoint: Path):
    with starting(server, mountpoint, "--view", "class") as start:
        start.wait_for(f"aisfs: opening 3 shards of {SOURCE}\n")
        assert start.process.poll() is None
        server.faults([])
        assert start.process.wait(MINUTE) == 0
        _, second = start.said().splitlines()
        assert second.startswith("aisfs: opened 3 shards in ")
        assert tree(mountpoint) == SHOWN


def test_a_daemon_that_is_killed(server: RunningServer, mountpoint: Path):
    with starting(server, mountpoint, "--view", "class") as start:
        start.wait_for("opening 3 shards")
        os.kill(start.daemon, signal.SIGKILL)
        assert start.process.wait(MINUTE) == Exit.FAILURE
        assert "killed by SIGKILL before the mount was ready" in start.said().splitlines()[-1]
        assert start.is_gone()


def test_a_daemon_outlives_its_parent(server: RunningServer, mountpoint: Path):
    with starting(server, mountpoint, "--view", "class") as start:
        start.wait_for("opening 3 shards")
        start.process.kill()
        start.process.wait(MINUTE)
        assert is_mountpoint(mountpoint)
        server.faults([])
        assert tree(mountpoint) == SHOWN
        assert dataset(mountpoint)["opened_shards"] == 3
        assert "ERROR" not in (mountpoint.parent / "log").read_text()


def test_a_place_that_is_unmounted_meanwhile(server: RunningServer, mountpoint: Path):
    with starting(server, mountpoint, "--view", "class") as start:
        start.wait_for("opening 3 shards")
        assert run("fusermount3", "-u", mountpoint).returncode == 0
        assert start.process.wait(MINUTE) == Exit.FAILURE
        assert "was unmounted before it was ready" in start.said().splitlines()[-1]
        assert start.is_gone()


def test_a_shard_that_cannot_be_read_fails_the_mount(server: RunningServer, mountpoint: Path):
    server.faults([{**HELD, "action": "status", "status": 403}])
    arguments = [SOURCE, str(mountpoint), "--endpoint", server.endpoint, "--cache-size", "0"]
    try:
        done = aisfs("mount", *arguments, "--view", "class")
        assert done.returncode == Exit.DENIED
        assert told(done.stderr.decode()).count("\n") == 1
        assert b"s-1.tar" in done.stderr
        assert not is_mountpoint(mountpoint)
        assert eventually(lambda: not daemons(mountpoint), MINUTE)
        lazy = ["--view", "class", "--lazy", "--cache-size", "0"]
        with mounted(
            SOURCE,
            mountpoint,
            endpoint=server.endpoint,
            options=lazy,
            expected_log=["readdir failed"],
        ) as mount:
            with pytest.raises(PermissionError):
                os.listdir(mount.path)
            server.faults([])
            assert tree(mount.path) == SHOWN
    finally:
        server.faults([])


def test_lazy_mounts_do_not_wait(server: RunningServer, mountpoint: Path):
    with starting(server, mountpoint, "--view", "class", "-o", "lazy") as start:
        assert start.process.wait(MINUTE) == 0
        assert start.said() == ""
        assert dataset(mountpoint) == {}
        server.faults([])
        assert tree(mountpoint) == SHOWN
        assert dataset(mountpoint) == {"opened_shards": 3, "shards": 3, "files": 3}


# Warnings ------------------------------------------------------------------------------------


def told(text: str) -> str:
    """What a mount says, without what it opens, which is said if that takes long."""
    lines = text.splitlines(keepends=True)
    return "".join(
        line for line in lines if not line.startswith(("aisfs: opening", "aisfs: opened"))
    )


def test_warnings_reach_who_mounts(server: RunningServer, mountpoint: Path):
    with mounted(
        "ais://b/s-{0..4}.tar", mountpoint, endpoint=server.endpoint,
        options=["--log-level", "error"], expected_log=[],
    ) as mount:  # fmt: skip
        text = "ais://b/s-{0..4}.tar: 2 missing: ais://b/s-3.tar, ais://b/s-4.tar"
        assert mount.log() == f"aisfs: warning: {text}\n"
        (warned,) = status(mountpoint)["warnings"]
        assert (warned["level"], warned["text"], warned["count"]) == ("warning", text, 1)
        assert text in aisfs("status", mountpoint).stdout.decode()


def test_many_warnings_are_cut_short(server: RunningServer, mountpoint: Path):
    damaged = bytearray(encode([sample("a", 0), sample("b", 1)]))
    damaged[2560:3072] = b"\x55" * 512
    for number in range(25):
        put(server.endpoint, "b", f"damaged/{number:02}.tar", bytes(damaged))
    with mounted(
        "ais://b/damaged/",
        mountpoint,
        endpoint=server.endpoint,
        options=["--view", "flat"],
        expected_log=["damaged"],
    ) as mount:
        said = told(mount.log_files[1].read_text()).splitlines()
        assert len(said) == 21, said
        assert all(line.startswith("aisfs: warning: ais://b/damaged/") for line in said[:20])
        assert said[20] == "aisfs: warning: … and 5 more in the log"
        assert len(status(mountpoint)["warnings"]) == 20


def test_a_view_that_shows_nothing_says_what_would_help(server: RunningServer, mountpoint: Path):
    samples = [
        {"__key__": str(n), "scan.webp": b"x", "mask.webp": b"x", "json": b'{"label": 1}'}
        for n in range(3)
    ]
    put(server.endpoint, "b", "odd.tar", encode(samples))
    nothing = "--view class shows nothing: 3 samples have no "
    cases = {
        nothing + "jpg, jpeg or png; parts are json, mask.webp, scan.webp;"
        " try --image mask.webp or --image scan.webp": [],
        nothing + "cls; parts are json, mask.webp, scan.webp; try --label json:PATH": [
            "--image", "scan.webp",
        ],
        "--view class shows nothing: 3 samples have not all parts of --require jpg,txt;"
        " parts are json, mask.webp, scan.webp": ["--require", "jpg,txt"],
    }  # fmt: skip
    for said, options in cases.items():
        view = ["--view", "class", *options]
        arguments = ["ais://b/odd.tar", str(mountpoint), "--endpoint", server.endpoint, *view]
        done = aisfs("mount", *arguments, "--strict")
        assert done.returncode == Exit.NO_SOURCE
        assert told(done.stderr.decode()) == f"aisfs: {said}\n"
        assert not is_mountpoint(mountpoint)
        for lazy in ([], ["--lazy"]):
            with mounted(
                "ais://b/odd.tar",
                mountpoint,
                endpoint=server.endpoint,
                options=[*view, *lazy],
                expected_log=["shows nothing"],
            ) as mount:
                assert os.listdir(mount.path) == []
                complaint = told(mount.log_files[1].read_text())
                assert complaint == ("" if lazy else f"aisfs: warning: {said}\n")
                assert [each["text"] for each in status(mountpoint)["warnings"]] == [said]
    with mounted(
        "ais://b/odd.tar",
        mountpoint,
        endpoint=server.endpoint,
        options=["--view", "class", "--image", "scan.webp", "--label", "json:label", "--strict"],
    ) as mount:
        assert tree(mount.path) == ["1/0.webp", "1/1.webp", "1/2.webp"]
        assert told(mount.log_files[1].read_text()) == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--strict"], "--strict needs --view class, --view flat"),
        (["--view", "samples", "--lazy"], "--lazy needs --view class, --view flat"),
        (["--view", "flat", "--lazy", "--strict"], "--strict: not with --lazy"),
    ],
)
def test_options_that_make_no_sense(mountpoint: Path, options: Sequence[str], said: str):
    done = aisfs("mount", mountpoint.parent, mountpoint, *options)
    assert done.returncode == Exit.USAGE
    assert said in done.stderr.decode()
