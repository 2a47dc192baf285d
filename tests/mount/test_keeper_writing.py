"""A mount that can be written goes on when its daemon dies: nothing acknowledged is lost, half or done twice."""

import ast
import os
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.test_keeper import RESTARTED, kill
from tests.mount.writable import Writable, writable
from tests.support.dying_daemon import DIES_AT
from tests.support.mounts import aisfs, daemons, eventually, python

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

WAITING = ["--write-back", "3600"]
WAYS = {"through": [], "back": WAITING}


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Writable]:
    (tmp_path / "store" / "b" / "dir").mkdir(parents=True)
    for name in ("old", "other", "dir/in"):
        (tmp_path / "store" / "b" / name).write_bytes(b"old content of " + name.encode())
    options = WAYS[request.param]
    with writable(tmp_path, options=options, keeper=True, expected_log=[RESTARTED]) as place:
        yield place


def flush(place: Writable) -> None:
    done = aisfs("flush", place.path)
    assert done.returncode == 0, done.stderr


def do(place: Writable, script: str, *arguments: object) -> bytes:
    """Run a program in the mount; `die()` in it kills the daemon."""
    before = """if 1:
    import json, os, signal, sys, time
    os.chdir(sys.argv[1])
    def die():
        mine = [int(p) for p in os.listdir("/proc") if p.isdigit() and daemon(p)]
        for pid in mine:
            os.kill(pid, signal.SIGKILL)
    def daemon(pid):
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
            parent = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]
        except OSError:
            return False
        return parent == sys.argv[2]
    """
    return python(before + script, place.path, place.mount.keeper, *arguments)


def test_files_are_written_on_under_their_handles(place: Writable) -> None:
    do(
        place,
        """
    new = open("new", "wb", buffering=0)
    new.write(b"one ")
    old = open("old", "r+b", buffering=0)
    old.write(b"OLD")
    both = open("both", "w+b", buffering=0)
    both.write(b"written and read")
    gone = open("gone", "w+b", buffering=0)
    gone.write(b"unlinked, and still open")
    os.unlink("gone")
    reader = open("other", "rb", buffering=0)
    added = open("dir/in", "ab", buffering=0)
    added.write(b", more")
    os.fsync(added.fileno())
    die()
    new.write(b"two")
    new.close()
    old.seek(0, 2)
    old.write(b", and more")
    old.close()
    assert both.seek(0) == 0 and both.read() == b"written and read"
    both.write(b" on")
    both.close()
    assert gone.seek(0) == 0 and gone.read() == b"unlinked, and still open"
    gone.write(b" and written")
    gone.seek(0)
    assert gone.read() == b"unlinked, and still open and written"
    gone.close()
    assert reader.read() == b"old content of other"
    added.write(b" and more")
    added.close()
    assert sorted(os.listdir(".")) == ["both", "dir", "new", "old", "other"]
    assert open("new").read() == "one two"
    """,
    )
    flush(place)
    assert place.stored("new") == b"one two"
    assert place.stored("old") == b"OLD content of old, and more"
    assert place.stored("both") == b"written and read on"
    assert place.stored("dir/in") == b"old content of dir/in, more and more"
    assert place.names() == {"new", "old", "other", "both", "dir/in"}
    assert not place.unsent()


def test_what_was_closed_renamed_or_made_is_there(place: Writable) -> None:
    do(
        place,
        """
    def write(name, text, flags="x"):
        with open(name, flags) as file:
            file.write(text)
    write("closed", "closed")
    write("renamed", "renamed")
    os.rename("renamed", "renamed again")
    write("over", "over")
    os.rename("over", "other")
    write("removed", "removed")
    os.unlink("removed")
    os.unlink("old")
    os.makedirs("made/empty", 0o700)
    write("made/full", "full")
    os.makedirs("gone/deep")
    os.rmdir("gone/deep")
    os.rmdir("gone")
    os.mkdir("turned")
    os.rmdir("turned")
    write("turned", "turned")
    os.rename("dir", "dir2")
    kept = os.open("dir2/in", os.O_RDONLY)
    os.chdir("made")
    os.chmod("../dir2", 0o750)
    os.utime("../dir2", (7, 7))
    def said(name):
        found = os.stat(name)
        return found.st_ino, found.st_mode, found.st_mtime_ns
    shown = {name: said(name) for name in (".", "..", "../dir2", "full", "../closed", "../renamed again")}
    die()
    assert {name: said(name) for name in shown} == shown
    os.chdir("..")
    assert os.stat("made/empty").st_mode & 0o777 == 0o700
    names = ["closed", "dir2", "made", "other", "renamed again", "turned"]
    assert sorted(os.listdir(".")) == names, os.listdir(".")
    assert sorted(os.listdir("made")) == ["empty", "full"]
    for name in ("closed", "renamed again", "made/full", "turned"):
        assert open(name).read() == name.split("/")[-1].split(" ")[0], name
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            pass
        else:
            raise AssertionError(name)
    assert open("other").read() == "over"
    assert os.pread(kept, 100, 0) == b"old content of dir/in"
    os.rename("renamed again", "closed")
    os.rename("made/full", "made/empty/moved")
    write("made/empty/moved", " on", "a")
    os.rename("dir2", "dir3")
    assert os.pread(kept, 100, 0) == b"old content of dir/in"
    """,
    )
    flush(place)
    assert place.names() == {"closed", "other", "made/empty/moved", "dir3/in", "turned"}
    assert place.stored("closed") == b"renamed"
    assert place.stored("other") == b"over"
    assert place.stored("made/empty/moved") == b"full on"
    assert not place.unsent()


# requests that the daemon that died had begun: at each the store is held, or what it says is lost

BEGUN = {
    "create": ("PUT", "file", 'open("file", "x").write("text")'),
    "fsync": (
        "PUT",
        "file",
        'f = open("file", "x"); f.write("text"); f.flush(); os.fsync(f.fileno())',
    ),
    "overwrite": ("PUT", "old", 'open("old", "w").write("text")'),
    "append": ("PUT", "old", 'open("old", "a").write("text")'),
    "truncate": ("PUT", "old", 'os.truncate("old", 3)'),
    "unlink": ("DELETE", "old", 'os.unlink("old")'),
    "symlink": ("PUT", "link", 'os.symlink("old", "link")'),
    "mknod": ("PUT", "made", 'os.mknod("made")'),
    "rename": ("PUT", "old", 'os.rename("old", "new")'),
    "rename over": ("PUT", "old", 'os.rename("old", "other")'),
    "rename a directory": ("PUT", "dir", 'os.rename("dir", "dir2")'),
    "rename what waits": (
        "DELETE",
        "old",
        'open("old", "a").write("text"); os.rename("old", "new")',
    ),
}
OLD = "old content of "
AFTERWARDS = {
    "create": {"file": "text"},
    "fsync": {"file": "text"},
    "overwrite": {"old": "text"},
    "append": {"old": OLD + "oldtext"},
    "truncate": {"old": "old"},
    "unlink": {"old": None},
    "symlink": {"link": "old"},
    "mknod": {"made": ""},
    "rename": {"old": None, "new": OLD + "old"},
    "rename over": {"old": None, "other": OLD + "old"},
    "rename a directory": {"dir/in": None, "dir2/in": OLD + "dir/in"},
    "rename what waits": {"old": None, "new": OLD + "oldtext"},
}
AT_TARGET = {"marked": True}
MOMENTS = {
    "before it arrives": {"action": "status", "status": 503, "times": -1},
    "carried out": {"action": "stall", "seconds": 600, "until_cleared": True, "times": -1},
}


def dies_while_held(place: Writable, script: str, *, held: bool = True) -> None:
    """Run a program in the mount; kill the daemon once the server holds, or refuses, what it asks for, and let that go."""
    assert place.server is not None
    code = f"import os; os.chdir({str(place.path)!r})\n{script}"
    program = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    try:
        assert eventually(lambda: any(place.server.struck()))
        if held:
            assert eventually(place.server.held)
        kill(place.mount)
        place.server.faults([])
        _, said = program.communicate(timeout=60)
    finally:
        program.kill()
        program.communicate()
    assert program.returncode == 0, said.decode()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("what", BEGUN)
def test_a_request_that_was_begun_is_carried_out_once(
    what: str, moment: str, tmp_path: Path
) -> None:
    (tmp_path / "store" / "b" / "dir").mkdir(parents=True)
    for name in ("old", "other", "dir/in"):
        (tmp_path / "store" / "b" / name).write_bytes(b"old content of " + name.encode())
    method, path, script = BEGUN[what]
    log = [RESTARTED, "503", "faulty"]
    options = WAITING if what == "rename what waits" else []
    with writable(tmp_path, options=options, keeper=True, faulty=True, expected_log=log) as place:
        assert place.server is not None
        place.server.faults(
            [{"match": {"method": method, "path_contains": path, **AT_TARGET}, **MOMENTS[moment]}]
        )
        dies_while_held(place, script, held=moment == "carried out")
        for name, text in AFTERWARDS[what].items():
            stored = place.stored(name)
            assert stored == (None if text is None else text.encode()), (name, stored)
        shown = python(
            "import os, sys; print([sorted(names + files) for _, names, files in os.walk(sys.argv[1])])",
            place.path,
        )
        listed = [sorted(names + files) for _, names, files in os.walk(place.files)]
        assert shown.decode().strip() == str(listed)
        assert not place.unsent()


TWICE = {
    "rmdir": ("os.mkdir('x')", "os.rmdir('x')"),
    "rename": ("open('x', 'w').close()", "os.rename('x', 'y')"),
    "rename of a directory": ("os.mkdir('x')", "os.rename('x', 'y')"),
}


@pytest.mark.parametrize("what", TWICE)
def test_a_change_is_not_taken_for_the_one_before(what: str, tmp_path: Path) -> None:
    make, change = TWICE[what]
    with writable(tmp_path, keeper=True, faulty=True, expected_log=[RESTARTED]) as place:
        assert place.server is not None
        do(place, f"\n    {make}; {change}; {make}")
        # The store is asked what has the name, before the change is noted.
        stall = {"action": "stall", "seconds": 600, "until_cleared": True, "times": -1}
        place.server.faults([{"match": {"method": "HEAD", "path_contains": "x"}, **stall}])
        dies_while_held(place, change)
        shown = python("import os, sys; print(os.listdir(sys.argv[1]))", place.path).decode()
        assert "'x'" not in shown


@pytest.mark.parametrize("name", ["new", "old"])
def test_a_file_that_was_being_uploaded_is_changed(name: str, tmp_path: Path) -> None:
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "store" / "b" / "old").write_bytes(b"old content")
    options = ["--write-back", "1"]
    with writable(
        tmp_path, options=options, keeper=True, faulty=True, expected_log=[RESTARTED]
    ) as place:
        assert place.server is not None
        match = {"method": "PUT", "path_contains": name, **AT_TARGET}
        place.server.faults([{"match": match, **MOMENTS["carried out"]}])
        write = "import sys; file = open(sys.argv[1], sys.argv[2]); file.write(sys.argv[3]); file.close()"
        python(write, place.path / name, "w", "one")
        assert eventually(place.server.held)
        kill(place.mount)
        place.server.faults([])
        python(write, place.path / name, "a", " and two")
        flush(place)
        assert place.stored(name) == b"one and two"
        assert not place.unsent()


def test_a_directory_is_read_on(place: Writable) -> None:
    do(
        place,
        """
    import ctypes
    def read(directory):
        buffer, at, names = ctypes.create_string_buffer(120), 0, []
        length = ctypes.CDLL(None).syscall(217, directory, buffer, len(buffer))
        while at < length:
            record = buffer.raw[at : at + int.from_bytes(buffer.raw[at + 16 : at + 18], "little")]
            names.append(record[19:].partition(b"\\0")[0].decode())
            at += len(record)
        return names
    made = [f"{number % 5}-{number}" for number in range(20)]
    for name in made:
        open(name, "x").close()
    for name in made[::3]:
        os.unlink(name)
        made.remove(name)
    os.listdir(".")
    for name in ("a", "0", "z"):
        open(name, "x").close()
        made.append(name)
    directory = os.open(".", os.O_RDONLY)
    shown, dead = [], False
    while (some := read(directory)):
        shown += some
        if len(shown) > 9 and not dead:
            die()
            dead = True
    assert sorted(shown) == sorted(os.listdir("."))
    assert set(made) < set(shown)
    """,
    )


def test_a_large_file_is_written_on_and_closed_when_the_store_has_it(tmp_path: Path) -> None:
    options = ["--part-size", "8MiB"]
    with writable(tmp_path, options=options, keeper=True, expected_log=[RESTARTED]) as place:
        do(
            place,
            """
    import hashlib
    piece = os.urandom(1 << 20)
    with open("large", "wb", buffering=0) as file:
        for number in range(100):
            if number in (30, 60):
                die()
            assert file.write(piece[number:] + piece[:number]) == len(piece)
    """,
        )
        large = place.stored("large")
        assert large is not None
        assert len(large) == 100 << 20
        first = large[: 1 << 20]
        for number in range(100):
            start = number << 20
            assert large[start : start + (1 << 20)] == first[number:] + first[:number]
        assert not place.unsent()
        assert eventually(lambda: not place.uploads()), "what was sent ahead is thrown away"


def test_a_new_member_of_a_shard_is_written_on(tmp_path: Path) -> None:
    with writable(tmp_path, keeper=True, expected_log=[RESTARTED]) as place:
        do(
            place,
            """
    os.mkdir("s.tar.d")
    first = open("s.tar.d/first", "wb", buffering=0)
    first.write(b"one ")
    die()
    first.write(b"two")
    first.close()
    assert open("s.tar.d/first").read() == "one two"
    """,
        )
        stored = place.stored("s.tar")
        assert stored is not None
        assert stored.count(b"one two") == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_member_that_was_being_added_is_there_once(moment: str, tmp_path: Path) -> None:
    log = [RESTARTED, "503", "faulty"]
    with writable(tmp_path, keeper=True, faulty=True, expected_log=log) as place:
        assert place.server is not None
        do(place, "\n    os.mkdir('s.tar.d'); open('s.tar.d/first', 'x').close()")
        match = {"method": "PUT", "path_contains": "s.tar", **AT_TARGET}
        place.server.faults([{"match": match, **MOMENTS[moment]}])
        script = "file = open('s.tar.d/new', 'x'); file.write('text'); file.flush()\n"
        script += "os.fsync(file.fileno()); file.write(', more'); file.close()"
        dies_while_held(place, script, held=moment == "carried out")
        with tarfile.open(place.files / "s.tar") as shard:
            assert shard.getnames() == ["first", "new"]
            content = shard.extractfile("new")
            assert content is not None
            assert content.read() == b"text, more"
        assert (place.path / "s.tar.d/new").read_text() == "text, more"
        assert not place.unsent()


WORKER = """if 1:
    import os, random, shutil, sqlite3, subprocess, sys
    root, seed, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.chdir(root)
    rng, mine = random.Random(seed), f"w{seed}"
    os.mkdir(mine)
    os.chdir(mine)
    known = {}
    def change():
        name = f"f{rng.randrange(12)}"
        text = rng.randbytes(rng.choice([0, 10, 3000, 200000]))
        way = rng.randrange(9)
        if way == 0:
            with open(name, "wb") as file:
                file.write(text)
            known[name] = text
        elif way == 1 and name in known:
            with open(name, "ab", buffering=0) as file:
                file.write(text)
            known[name] += text
        elif way == 2 and name in known:
            os.unlink(name)
            del known[name]
        elif way == 3 and name in known:
            os.rename(name, name + "r")
            known[name + "r"] = known.pop(name)
        elif way == 4:
            try:
                with open(name, "xb") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
            except FileExistsError:
                assert name in known, name
            else:
                assert name not in known, name
                known[name] = text
        elif way == 5 and name in known and known[name]:
            with open(name, "r+b", buffering=0) as file:
                at = rng.randrange(len(known[name]))
                file.seek(at)
                file.write(text)
            known[name] = known[name][:at] + text + known[name][at + len(text):]
        elif way == 6:
            os.makedirs(f"d/{name}", exist_ok=True)
            with open(f"d/{name}/in", "wb") as file:
                file.write(text)
            os.rename(f"d/{name}/in", f"d/{name}/out")
            with open(f"d/{name}/out", "rb") as file:
                assert file.read() == text
            shutil.rmtree("d")
            assert not os.path.exists("d")
        elif way == 7 and name in known:
            with open(name, "rb") as file:
                assert file.read() == known[name], name
        elif way == 8 and name in known:
            size = rng.randrange(len(known[name]) + 1)
            os.truncate(name, size)
            known[name] = known[name][:size]
    for _ in range(steps):
        change()
        assert sorted(os.listdir(".")) == sorted(known), (os.listdir("."), sorted(known))
    base = sqlite3.connect("base")
    base.execute("create table t (n integer)")
    for number in range(10):
        base.execute("insert into t values (?)", (number,))
        base.commit()
    assert base.execute("select sum(n) from t").fetchone() == (45,)
    base.close()
    sys.stdout.buffer.write(repr({f"{mine}/{n}": c for n, c in known.items()}).encode())
"""


@pytest.mark.parametrize("way", WAYS)
def test_programs_see_no_error_while_the_daemon_is_killed(
    way: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Some four times each way; with `--all` twice as often."""
    steps, kills_max = (120, 12) if pytestconfig.getoption("all") else (60, 6)
    log = [RESTARTED, "was changed by somebody else", "closed files wait"]
    options = ["--write-back", "1"] if way == "back" else []
    with writable(tmp_path, options=options, keeper=True, expected_log=log) as place:
        programs = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(place.path), str(seed), str(steps)],
                stdout=subprocess.PIPE,
            )
            for seed in range(3)
        ]
        rng = random.Random(1)
        known: dict[str, bytes] = {}
        try:
            kills = 0
            while any(program.poll() is None for program in programs) and kills < kills_max:
                time.sleep(rng.uniform(1.1, 3))
                kill(place.mount)
                kills += 1
            for program in programs:
                out, _ = program.communicate(timeout=120)
                assert program.returncode == 0
                known |= ast.literal_eval(out.decode())
        finally:
            for program in programs:
                program.kill()
                program.communicate()
        flush(place)
        for name, content in known.items():
            assert place.stored(name) == content, name
        assert place.names() == {*known, *(f"w{seed}/base" for seed in range(3))}
        assert not place.unsent()


def test_an_upgrade_goes_on_with_files_that_are_written(place: Writable) -> None:
    do(
        place,
        """
    new = open("new", "wb", buffering=0)
    new.write(b"one ")
    with open("closed", "x") as file:
        file.write("closed")
    before = json.loads(os.getxattr(".", "user.aisfs.about"))["pid"]
    os.getxattr(".", "user.aisfs.upgrade")
    until = time.monotonic() + 60
    while json.loads(os.getxattr(".", "user.aisfs.about"))["pid"] == before:
        assert time.monotonic() < until
        new.write(b"and ")
    new.write(b"two")
    new.close()
    assert open("closed").read() == "closed"
    """,
    )
    flush(place)
    new = place.stored("new")
    assert new is not None
    assert new.startswith(b"one and ")
    assert new.endswith(b"and two")
    assert set(new.split()[1:-1]) == {b"and"}
    assert place.stored("closed") == b"closed"
    assert not place.unsent()


EVERYTHING = """if 1:
    import os, sys
    os.chdir(sys.argv[1])
    def write(name, text, flags="x"):
        with open(name, flags) as file:
            file.write(text)
    write("file", "text")
    write("file", " more", "a")
    write("old", "new", "w")
    os.rename("file", "renamed")
    write("over", "over")
    os.rename("over", "other")
    os.mkdir("made")
    write("made/in", "in")
    os.rename("made", "moved")
    write("gone", "gone")
    os.unlink("gone")
    os.mkdir("empty")
    os.rmdir("empty")
    os.mkdir("left")
    os.symlink("old", "link")
    os.mknod("node")
    os.unlink("dir/in")
    os.truncate("renamed", 6)
    os.chmod("other", 0o600)
    os.utime("old", (5, 5))
    with open("held", "w+") as file:
        file.write("held")
        file.flush()
        os.unlink("held")
        file.seek(0)
        assert file.read() == "held"
    assert sorted(os.listdir(".")) == "dir left link moved node old other renamed".split()
    assert os.listdir("left") == os.listdir("dir") == []
    assert os.listdir("moved") == ["in"]
    assert os.stat("old").st_mtime == 5 and os.stat("other").st_mode & 0o777 == 0o600
    assert os.readlink("link") == "old"
    assert open("renamed").read() == "text m"
"""
FINALLY = {
    "link": b"old", "moved/in": b"in", "node": b"", "old": b"new", "other": b"over", "renamed": b"text m",
}  # fmt: skip


def test_a_file_that_waits_is_changed_as_the_daemon_dies(tmp_path: Path) -> None:
    script = """if 1:
    import os, sys
    os.chdir(sys.argv[1])
    with open("waits", "x") as file:
        file.write("waits")
    os.utime("waits", (5, 5))
    os.chmod("waits", 0o600)
    assert open("waits").read() == "waits"
    """
    for point in range(2, 100, 2):
        env = {DIES_AT: f"{point}:waits"}
        base = tmp_path / str(point)
        with writable(
            base, options=WAITING, keeper=True, env=env, expected_log=[RESTARTED]
        ) as place:
            python(script, place.path)
            flush(place)
            assert place.stored("waits") == b"waits", point
            if place.mount.pid in daemons(place.path):
                return
    raise AssertionError("it always dies")


@pytest.mark.parametrize("way", WAYS)
def test_a_daemon_may_die_at_any_note(
    way: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Each run dies at another one, until there is none left; without `--all` each way has half of them.

    A step is odd, so that they die before and after a note by turns.
    """
    usual = (6, 37) if pytestconfig.getoption("all") else (6 if way == "through" else 43, 75)
    first, step = (int(os.environ.get(f"POINTS_{n}", usual[n == "STEP"])) for n in ("FROM", "STEP"))
    for point in range(first, 400, step):
        base = tmp_path / str(point)
        (base / "store" / "b" / "dir").mkdir(parents=True)
        for name in ("old", "other", "dir/in"):
            (base / "store" / "b" / name).write_bytes(b"old content of " + name.encode())
        with writable(
            base,
            options=WAYS[way],
            keeper=True,
            env={DIES_AT: str(point)},
            expected_log=[RESTARTED],
        ) as place:
            python(EVERYTHING, place.path)
            flush(place)
            assert {name: place.stored(name) for name in place.names()} == FINALLY, point
            assert not place.unsent(), point
            if place.mount.pid in daemons(place.path):
                break
    else:
        raise AssertionError("it always dies")
