"""`aisfs upgrade`: another daemon goes on with a mount, with what is configured now; or the one before, which says why."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs import __version__
from aisfs.system.keeping import NOTES_FORMAT
from aisfs.work.mounts import own_mounts
from tests.support.mounts import Mount, aisfs, environment, eventually, mounted

pytestmark = pytest.mark.timeout(300)

RESTARTED = r"this daemon goes on with the mount \(restart 1\): process \d+ was killed by SIGKILL"
REFUSED = "the upgrade of this mount failed, so it goes on as it was"

READ = """if 1:
    import os, sys
    mnt, stop = sys.argv[1:]
    opened = os.open(f"{mnt}/in", os.O_RDONLY)
    print(flush=True)
    while not os.path.exists(stop):
        assert os.pread(opened, 1 << 20, 0) == b"in" * 50000
        assert open(f"{mnt}/in", "rb").read() == b"in" * 50000
        assert sorted(os.listdir(mnt)) == ["in", "x.txt"]
    """


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    (root / "in").write_bytes(b"in" * 50000)
    (root / "x.txt").write_bytes(b"x")
    return root


def without_note(said: bytes) -> str:
    """Return what was said but for the note of a machine that is busy."""
    return re.sub(r"^aisfs: note: .*: waiting for the new daemon to load\n", "", said.decode())


class Profile:
    """A mount of a profile whose configuration changes."""

    def __init__(self, mount: Mount, file: Path) -> None:
        self.mount = mount
        self.file = file

    def say(self, *lines: str) -> None:
        self.file.write_text("\n".join(["[profiles.p]", *lines]) + "\n")

    def status(self) -> dict[str, dict[str, object]]:
        done = aisfs("status", "--json", self.mount.path)
        assert (done.returncode, done.stderr) == (0, b"")
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def upgrade(self) -> None:
        before = self.mount.daemon_now()
        done = aisfs("upgrade", self.mount.path)
        assert (done.returncode, without_note(done.stderr)) == (0, "")
        now = self.mount.daemon_now()
        assert now != before
        said = f"process {before} ({__version__}) goes on as {now} ({__version__})"
        assert done.stdout.decode() == f"{self.mount.path}: {said}\n"

    def is_refused(self, reason: str) -> None:
        before = self.mount.daemon_now()
        done = aisfs("upgrade", self.mount.path)
        assert (done.returncode, done.stdout) == (1, b"")
        said = without_note(done.stderr)
        assert re.fullmatch(f"aisfs: {self.mount.path} goes on as it was: .*{reason}.*\n", said)
        assert self.mount.daemon_now() == before
        assert (self.mount.path / "x.txt").read_bytes() == b"x"


@pytest.fixture
def profile(data: Path, mountpoint: Path, tmp_path: Path) -> Iterator[Profile]:
    file = tmp_path / "config.toml"
    made = Profile(Mount(mountpoint, [], [], {}), file)
    made.say(f'source = "{data}"', 'cache-size = "0"')
    options = ["--config", str(file)]
    expected = [RESTARTED, REFUSED, "ERROR aisfs.commands.mount_start: "]
    with mounted(
        "@p", mountpoint, options=options, keeper=True, expected_log=expected
    ) as made.mount:
        yield made


def test_programs_read_on(profile: Profile, mountpoint: Path, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    words = [sys.executable, "-c", READ, str(mountpoint), str(stop)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment()) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"\n"
        for _ in range(3):
            profile.upgrade()
        stop.touch()
        assert reader.wait(60) == 0
    told = profile.status()["mount"]
    assert told["restarts"] == 0
    assert "upgrade_refused" not in told
    assert mountpoint in own_mounts()


def test_what_the_profile_says_now_counts_also_after_a_restart(
    profile: Profile, data: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    common = [f'source = "{data}"', f'cache-dir = "{cache}"']
    profile.say(*common, 'cache-size = "20MiB"', "attr-ttl = 0", 'log-level = "debug"')
    profile.upgrade()

    def is_new() -> bool:
        limit = profile.status()["cache"]["limit_bytes"]
        return isinstance(limit, int) and 15 << 20 < limit <= 20 << 20

    assert is_new()
    before = profile.mount.log()
    assert (profile.mount.path / "x.txt").read_bytes() == b"x"
    assert eventually(lambda: "DEBUG" in profile.mount.log().removeprefix(before))
    profile.say(*common, 'cache-size = "0"')
    os.kill(profile.mount.daemon_now(), signal.SIGKILL)
    assert eventually(lambda: profile.status()["mount"]["restarts"] == 1)
    profile.mount.daemon_now()
    assert is_new()


def test_what_cannot_change_is_refused(profile: Profile, data: Path, tmp_path: Path) -> None:
    profile.say(f'source = "{tmp_path}"')
    profile.is_refused(re.escape(f"SOURCE was {data} and is {tmp_path}: this cannot change"))
    profile.say(f'source = "{data}"', "fastpath = false")
    profile.is_refused("--fastpath was True and is False")
    profile.say(f'source = "{data}"', "recursive = true")
    profile.is_refused("--recursive was False and is True")
    profile.say(f'source = "{data}"', 'exclude = ["in"]')
    profile.is_refused("--exclude was not given and is ")
    told = profile.status()["mount"]
    assert "--exclude" in str(told["upgrade_refused"])
    profile.say(f'source = "{data}"')
    profile.upgrade()


def test_notes_of_another_format_are_left_to_who_understands_them(profile: Profile) -> None:
    held = Path(f"/proc/{profile.mount.keeper}/fd")
    [options] = (fd for fd in held.iterdir() if fd.readlink().name.startswith("memfd:options"))
    own = f'"the format of notes": "{NOTES_FORMAT}"'.encode()
    said = options.read_bytes()
    assert own in said
    options.write_bytes(said.replace(own, b'"the format of notes": "0"'))
    profile.is_refused(f"the format of notes was 0 and is {NOTES_FORMAT}: this cannot change")
    options.write_bytes(said)
    profile.upgrade()


def test_a_daemon_that_cannot_start_leaves_the_mount_to_the_one_before(
    profile: Profile, data: Path
) -> None:
    profile.say(f'source = "{data}"', "list-tl = 5")
    profile.is_refused(f"{profile.file}, line 3: unknown option 'list-tl'; did you mean list-ttl.*")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        profile.say(f'source = "{data}"', f'metrics-addr = "{address}"')
        profile.is_refused(f"--metrics-addr {address}: another program listens there.*")
    profile.file.unlink()
    profile.is_refused(re.escape(str(profile.file)))


def test_a_mount_without_a_keeper(data: Path, mountpoint: Path) -> None:
    with mounted(str(data), mountpoint):
        done = aisfs("upgrade", mountpoint)
        assert done.returncode == 1
        said = "this mount has no keeper and ends with its daemon; unmount it, and mount it again"
        assert done.stderr.decode() == f"aisfs: {mountpoint}: {said}\n"
