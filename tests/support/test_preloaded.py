"""A command of a Preloader is as a new process of Python: the same program compares the two."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.for_each import for_each
from tests.support.mounts import environment, eventually
from tests.support.preloaded import Preloader, Started

REPOSITORY = Path(__file__).resolve().parents[2]
WAITS = 30.0
PROGRAM = """
import atexit, json, os, signal, sys, warnings
from pathlib import Path

def streams():
    for name in ("stdin", "stdout", "stderr"):
        s = getattr(sys, name)
        yield name, s.fileno(), s.encoding, s.errors, s.newlines, s.mode, s.isatty()
        yield s.line_buffering, s.write_through, type(s.buffer).__name__, s.buffer.mode

def disposition(number):
    handler = signal.getsignal(number)
    return getattr(handler, "__name__", str(handler))

atexit.register(print, "at exit")
status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "words": sys.argv[1:],
    "program": [Path(sys.argv[0]).name, __name__, __package__, sys.modules["__main__"].__name__],
    "all words": sys.orig_argv,
    "words in proc": Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode().split("\\0"),
    "variables": dict(os.environ),
    "directories": [os.getcwd(), sys.path[0]],
    "descriptors": sorted(name for name in os.listdir("/proc/self/fd") if int(name) < 1000),
    "flags": [*map(str, sys.flags), *sys.warnoptions, *sys._xoptions],
    "streams": [*streams()],
    "stdin": sys.stdin.read(),
    "signals": [disposition(number) for number in signal.valid_signals()],
    "signals in proc": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
    "leads": os.getsid(0) == os.getpid() == os.getpgid(0),
    "umask": status["Umask"],
    "loaded": "wave" in sys.modules,
}))
print("and", "more", file=sys.stderr)
match sys.argv[1:]:
    case ["exit", code]:
        sys.exit(int(code))
    case ["fail", reason]:
        raise RuntimeError(reason)
    case ["wait"]:
        sys.stdout.flush()
        signal.pause()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    return tmp_path


@pytest.fixture
def env() -> dict[str, str]:
    return environment()


@pytest.fixture
def preloader(env: dict[str, str]) -> Iterator[Preloader]:
    preloader = Preloader("program", ["wave"], flags=["-W", "error::BytesWarning"], env=env)
    # A test run in the background ignores SIGINT, and what it starts would do so too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield preloader
    preloader.end()
    signal.signal(signal.SIGINT, before)


Start = Callable[..., Started]


def anew(*words: str, **how) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error::BytesWarning", "-m", "program", *words]
    return subprocess.Popen(command, **{"stdin": subprocess.DEVNULL, **how})


def outcome(start: Start, place: Path, *words: str, said: bytes = b"", **how) -> list[object]:
    """Run the program to its end: what it found, what else it said, its code."""
    with open(place / "out", "w+b") as out, open(place / "err", "w+b") as err:
        process = start(*words, stdout=out, stderr=err, cwd=place, **how)
        if process.stdin is not None:
            with process.stdin:
                process.stdin.write(said)
        code = process.wait(WAITS)
        assert process.poll() == process.wait() == process.returncode == code
        out.seek(0)
        found, *more = out.read().decode().splitlines()
        err.seek(0)
        said_of_it = err.read().decode().splitlines()
        # Between them are, of an exception, the frames of whoever runs the module.
        return [json.loads(found), more, said_of_it[:2], said_of_it[-1], code]


@pytest.mark.parametrize(
    "env",
    [environment(), environment({"PYTHONUNBUFFERED": "1"})],
    ids=["buffered", "unbuffered"],
)
@for_each(
    "words, how",
    [
        ((), {}),
        (("a b", "", "ü"), {"stdin": subprocess.PIPE, "said": "line\nü".encode()}),
        ((), {"start_new_session": True}),
        (("exit", "3"), {}),
        (("fail", "reason"), {}),
    ],
)
def test_is_as_a_new_process(words, how, env, place: Path, preloader: Preloader):
    warm = outcome(preloader.start, place, *words, env=env, **how)
    cold = outcome(anew, place, *words, env=env, **how)
    assert (warm[0].pop("loaded"), cold[0].pop("loaded")) == (True, False)
    assert warm == cold


def test_variables_and_mask_are_those_of_the_command(env, place: Path, preloader: Preloader):
    outcome(preloader.start, place, env=env)  # the mask is not that of the first start
    env = {"AIS_ENDPOINT": "http://nowhere", **env, "HOME": str(place)}
    before = os.umask(0o027)
    try:
        warm = outcome(preloader.start, place, env=env)
        cold = outcome(anew, place, env=env)
    finally:
        os.umask(before)
    assert warm[0]["loaded"]
    assert warm[0]["variables"] == cold[0]["variables"]
    assert warm[0]["umask"] == cold[0]["umask"] == "0027"


@for_each("name", ["LANG", "PYTHONHASHSEED", "TZ", "SSL_CERT_FILE"])
def test_what_may_be_read_while_loading_makes_a_new_process(
    name, env, place: Path, preloader: Preloader
):
    found, *_ = outcome(preloader.start, place, env={**env, name: "1"})
    assert not found["loaded"]
    assert found["variables"][name] == "1"


def test_more_words_than_there_is_room_for_make_a_new_process(
    env, place: Path, preloader: Preloader
):
    found, *_ = outcome(preloader.start, place, "x" * 9000, env=env)
    assert not found["loaded"]
    assert found["words"] == ["x" * 9000]


@for_each("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_it(number, env, place: Path, preloader: Preloader):
    codes = []
    for start in (preloader.start, anew):
        with open(place / "out", "wb") as out:
            process = start("wait", stdout=out, stderr=out, cwd=place, env=env)
        try:
            assert eventually(lambda: (place / "out").stat().st_size > 0, WAITS)
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            process.send_signal(number)
            codes.append(process.wait(WAITS))
        finally:
            process.kill()  # of one that has ended does nothing
            process.wait(WAITS)
    assert codes[0] == codes[1]


@for_each("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_it_ignores_what_its_starter_ignores(number, env, place: Path, preloader: Preloader):
    codes = []
    for start in (preloader.start, anew):
        before = signal.signal(number, signal.SIG_IGN)
        try:
            with open(place / "out", "wb") as out:
                process = start("wait", stdout=out, stderr=out, cwd=place, env=env)
        finally:
            signal.signal(number, before)
        assert eventually(lambda: (place / "out").stat().st_size > 0, WAITS)
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.kill()
        codes.append(process.wait(WAITS))
    assert codes == [-signal.SIGKILL, -signal.SIGKILL]


def test_nobody_else_holds_what_it_was_given(env, place: Path, preloader: Preloader):
    """One that runs meanwhile and the process that starts them would keep a reader waiting."""
    with open(os.devnull, "wb") as nothing:
        other = preloader.start("wait", stdout=nothing, stderr=nothing, cwd=place, env=env)
        reader, writer = os.pipe()
        with open(reader, "rb") as stdout:
            process = preloader.start(
                "exit", "0", stdout=writer, stderr=nothing, cwd=place, env=env
            )
            later = preloader.start("wait", stdout=nothing, stderr=nothing, cwd=place, env=env)
            os.close(writer)
            assert stdout.read().endswith(b"at exit\n")
        assert process.wait(WAITS) == 0
        for waiting in (other, later):
            waiting.kill()
            assert waiting.wait(WAITS) == -signal.SIGKILL


def test_those_that_run_go_on_when_it_ends(env, place: Path, preloader: Preloader):
    with open(place / "out", "wb") as out:
        process = preloader.start("wait", stdout=out, stderr=out, cwd=place, env=env)
    assert eventually(lambda: (place / "out").stat().st_size > 0, WAITS)
    preloader.end()
    os.kill(process.pid, 0)
    with pytest.raises(ChildProcessError):
        process.wait(WAITS)
    os.kill(process.pid, signal.SIGKILL)


USER = """
import subprocess, sys, time
from tests.support.preloaded import Preloader
preloader = Preloader("program", ["wave"])
with open(sys.argv[1] + "/out", "wb") as out:
    process = preloader.start("wait", stdout=out, stderr=out, cwd=sys.argv[1])
print(preloader._process.pid, process.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_its_user_even_when_that_is_killed(place: Path):
    command = [sys.executable, "-c", USER, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as user:
        preloading, running = map(int, user.stdout.readline().split())
        user.kill()
    try:
        assert eventually(lambda: not Path(f"/proc/{preloading}").exists(), WAITS)
        os.kill(running, 0)
    finally:
        os.kill(running, signal.SIGKILL)


def test_a_directory_that_is_not_there_is_an_error(env, place: Path, preloader: Preloader):
    with open(place / "err", "wb") as err, pytest.raises(ChildProcessError, match="not started"):
        preloader.start(stdout=err, stderr=err, cwd=place / "missing", env=env)
