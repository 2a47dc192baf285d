"""`aisfs mount` says in one line why it cannot, with a code for each reason."""

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.stores.ais.scripted_server import Seen, reply, scripted_server
from tests.support.for_each import for_each
from tests.support.mounts import (
    COMMAND,
    MountFailedError,
    aisfs,
    daemons,
    environment,
    is_mountpoint,
    mounted,
    run,
)
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

USAGE, NO_ENDPOINT, UNREACHABLE, MISSING, DENIED, MOUNTPOINT, NO_FUSE = 2, 3, 4, 5, 6, 7, 8
TOKEN = "let-me-in"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("errors") / "store"
    fill(root / "b", {"x.txt": b"x"})
    with running_server(root) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("guarded") / "store"
    fill(root / "b", {"x.txt": b"x"})
    with running_server(root, token=TOKEN) as server:
        yield server


def one_line(stderr: bytes) -> str:
    text = stderr.decode()
    assert text.startswith("aisfs: "), text
    assert text.endswith("\n"), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text


def refused(
    code: int, *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run `aisfs mount` with these arguments, the mountpoint last; returns what it said."""
    done = aisfs("mount", *arguments, env=env, cwd=cwd)
    assert (done.returncode, done.stdout) == (code, b""), (done.stdout, done.stderr)
    return one_line(done.stderr)


def check_nothing_is_left(mountpoint: Path) -> None:
    assert not is_mountpoint(mountpoint)
    assert daemons(mountpoint) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--shards", "sideways"],
        ["--attr-ttl", "soon"],
        ["--attr-ttl", "-1"],
        ["--list-ttl", "-1"],
        ["--negative-ttl", "x"],
        ["--io-timeout", "0"],
        ["--uid", "root"],
        ["--gid", "-5"],
        ["--file-mode", "0999"],
        ["--dir-mode", "rwx"],
        ["--log-level", "shout"],
        ["--endpoint", "ftp://example.com"],
        ["--endpoint", "http://a..b:8080"],
        ["--endpoint", "http://host:99999"],
        ["--no-such-option"],
        ["-o", "no_such_option=1"],
    ],
    ids=" ".join,
)
def test_wrong_option(options: list[str], server: RunningServer, mountpoint: Path):
    given = [] if "--endpoint" in options else ["--endpoint", server.endpoint]
    refused(USAGE, "ais://b", *given, *options, mountpoint)
    check_nothing_is_left(mountpoint)


@pytest.mark.parametrize(
    "size", ["1,5GiB", "1,000MiB", "50%", "100000000 %&!", "GiB", "-1", "1 2", "5X"]
)
@pytest.mark.parametrize("option", ["--cache-size", "--read-ahead-max", "-o cache_size="])
def test_a_size_is_read_to_its_end(option: str, size: str, server: RunningServer, mountpoint: Path):
    words = [f"{option[3:]}{size}" if option.startswith("-o") else size]
    words = ["-o" if option.startswith("-o") else option, *words]
    if words[0] == "-o":
        words[1] = words[1].replace(",", r"\,")
    said = refused(USAGE, "ais://b", "--endpoint", server.endpoint, *words, mountpoint)
    assert f"{'--cache-size' if words[0] == '-o' else option}: " in said
    assert "Value error" not in said


def test_an_option_is_named_in_the_message(server: RunningServer, mountpoint: Path):
    said = refused(
        USAGE, "ais://b", "--endpoint", server.endpoint, "--shards", "sideways", mountpoint
    )
    assert "shards" in said
    assert "sideways" in said


STRANGERS = {
    "a page": reply(200, {"Content-Type": "text/html"}, b"<html>welcome</html>"),
    "empty JSON": reply(200, {"Content-Type": "application/json"}, b"{}"),
    "nothing": reply(200),
    "not found": reply(404, {"Content-Type": "text/html"}, b"<html>no such page</html>"),
    "an S3 gateway": reply(403, {"Content-Type": "application/xml"}, b"<Error/>"),
    "a login page": reply(302, {"Location": "/login"}),
}


@pytest.mark.parametrize("answer", STRANGERS.values(), ids=STRANGERS)
def test_what_answers_is_no_aistore(answer: bytes, mountpoint: Path):
    def handler(seen: Seen, connection: socket.socket) -> bool:
        connection.sendall(
            answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if seen.method == "HEAD" else answer
        )
        return True

    with scripted_server(handler) as stranger:
        for source in (["ais://b"], ["ais://b/x-{0..3}.tar"], []):
            said = refused(USAGE, *source, "--endpoint", stranger.endpoint, mountpoint)
            assert f"{stranger.endpoint} answers, but is no AIStore" in said
    check_nothing_is_left(mountpoint)


def test_no_arguments():
    refused(USAGE)


@for_each("words", [[], ["cache"]])
def test_a_command_without_arguments_shows_its_help(words: list[str]):
    done = aisfs(*words)
    assert (done.returncode, done.stdout) == (USAGE, b"")
    assert done.stderr.startswith(b"Usage: aisfs")
    assert b"\n  status " in done.stderr


def test_the_mountpoint_was_forgotten(server: RunningServer):
    said = refused(USAGE, "ais://b", "--endpoint", server.endpoint)
    assert "which directory is ais://b to be mounted on?" in said


def test_what_would_wait_for_itself(tmp_path: Path, mountpoint: Path, server: RunningServer):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for words in ([source, source], [source, source / "sub"], [source / "sub", source]):
        said = refused(MOUNTPOINT, *words, "-o", "nonempty")
        assert "lies in what is mounted there" in said or "lies below the mountpoint" in said
    (source / "a.tar").write_bytes(bytes(1024))
    said = refused(MOUNTPOINT, source / "*.tar", source, "-o", "nonempty")
    assert "lies below the mountpoint" in said
    for option in (["--cache-dir"], ["--writable", "--staging-dir"]):
        words = ["ais://b", "--endpoint", server.endpoint, *option, mountpoint / "x", mountpoint]
        assert f"{option[-1]} lies below the mountpoint" in refused(MOUNTPOINT, *words)


def test_an_object_is_no_directory(server: RunningServer, mountpoint: Path):
    for name in ("x.txt", "x.txt/"):
        said = refused(MISSING, f"ais://b/{name}", "--endpoint", server.endpoint, mountpoint)
        assert "ais://b/x.txt is an object" in said


def test_a_directory_that_may_not_be_entered(tmp_path: Path, server: RunningServer):
    """Below somebody else's home directory, for example."""
    closed, unreadable, mountpoint = tmp_path / "closed", tmp_path / "unreadable", tmp_path / "mnt"
    for path in (closed / "d", unreadable, mountpoint):
        path.mkdir(parents=True)
    as_user: list[str] = []
    if not os.geteuid():  # root may enter everything, so do without that
        dropped = "-dac_override,-dac_read_search"
        as_user = ["setpriv", "--bounding-set", dropped, "--inh-caps", dropped]
        for path in (closed, unreadable):
            os.chown(path, 65534, 65534)
    closed.chmod(0)
    unreadable.chmod(0o111)
    cluster = ["ais://b", "--endpoint", server.endpoint]
    env = environment({"XDG_STATE_HOME": str(tmp_path / "state")})  # where these mounts log
    for code, *words in (
        (USAGE, "mount", *cluster, mountpoint, "--cache-dir", closed / "d"),
        (USAGE, "mount", *cluster, mountpoint, "-f", "--cache-dir", closed / "d"),
        (USAGE, "mount", *cluster, mountpoint, "--writable", "--staging-dir", closed / "d" / "e"),
        (MOUNTPOINT, "mount", *cluster, closed / "d"),
        (MOUNTPOINT, "mount", *cluster, unreadable),
        (DENIED, "mount", unreadable, mountpoint),
        (1, "recover", "--staging-dir", closed / "d"),
        (1, "serve", closed / "d", "--port", "0"),
    ):
        done = run(*as_user, *COMMAND, *map(str, words), env=env)
        said = one_line(done.stderr)
        assert (done.returncode, done.stdout) == (code, b""), said
        assert "permission denied" in said.lower()
    closed.chmod(0o700)
    unreadable.chmod(0o700)


def test_too_many_arguments(server: RunningServer, mountpoint: Path):
    refused(USAGE, "ais://b", mountpoint, "more", "--endpoint", server.endpoint)


@pytest.mark.parametrize("source", ["nonsense://b", "ais://", "ais:///x/"])
def test_a_source_of_no_known_form(source: str, server: RunningServer, mountpoint: Path):
    refused(USAGE, source, "--endpoint", server.endpoint, mountpoint)


@pytest.mark.parametrize("source", [["ais://b"], []])
def test_no_endpoint(source: list[str], mountpoint: Path):
    said = refused(NO_ENDPOINT, *source, mountpoint)
    assert "--endpoint" in said or "AIS_ENDPOINT" in said
    check_nothing_is_left(mountpoint)


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("source", [["ais://b"], []])
def test_nobody_answers(source: list[str], mountpoint: Path):
    endpoint = f"http://127.0.0.1:{closed_port()}"
    said = refused(UNREACHABLE, *source, "--endpoint", endpoint, "--io-timeout", "3", mountpoint)
    assert endpoint in said
    assert "Connection refused" in said
    assert "_HTTP" not in said, "a class of ours means nothing to a user"
    check_nothing_is_left(mountpoint)


def test_somebody_listens_and_never_answers(mountpoint: Path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        refused(UNREACHABLE, "ais://b", "--endpoint", endpoint, "--io-timeout", "3", mountpoint)
    check_nothing_is_left(mountpoint)


def test_a_missing_bucket(server: RunningServer, mountpoint: Path):
    said = refused(MISSING, "ais://missing", "--endpoint", server.endpoint, mountpoint)
    assert "missing" in said
    check_nothing_is_left(mountpoint)


def test_a_missing_local_directory(tmp_path: Path, mountpoint: Path):
    assert "nowhere" in refused(MISSING, "./nowhere", mountpoint, cwd=tmp_path)
    assert "nowhere" in refused(MISSING, tmp_path / "nowhere", mountpoint)
    check_nothing_is_left(mountpoint)


@pytest.mark.parametrize("env", [{}, {"AIS_AUTHN_TOKEN": "wrong"}], ids=["none", "wrong"])
@pytest.mark.parametrize("source", [["ais://b"], []])
def test_a_token_is_needed(
    source: list[str], env: dict[str, str], guarded: RunningServer, mountpoint: Path
):
    refused(DENIED, *source, "--endpoint", guarded.endpoint, mountpoint, env=env)
    check_nothing_is_left(mountpoint)


@pytest.mark.parametrize("source", ["ais://b", None])
def test_a_token_from_the_environment(source: str | None, guarded: RunningServer, mountpoint: Path):
    environment = {"AIS_AUTHN_TOKEN": TOKEN}
    with mounted(source, mountpoint, endpoint=guarded.endpoint, env=environment) as mount:
        folder = mount.path if source else mount.path / "ais" / "b"
        assert (folder / "x.txt").read_bytes() == b"x"
        assert TOKEN not in mount.log()


def test_a_token_from_a_file(guarded: RunningServer, mountpoint: Path, tmp_path: Path):
    (tmp_path / "token").write_text(f'{{"token": "{TOKEN}"}}')
    environment = {"AIS_AUTHN_TOKEN_FILE": str(tmp_path / "token")}
    with mounted("ais://b", mountpoint, endpoint=guarded.endpoint, env=environment) as mount:
        assert (mount.path / "x.txt").read_bytes() == b"x"


def test_a_token_from_the_file_of_the_ais_command(
    guarded: RunningServer, mountpoint: Path, tmp_path: Path
):
    fill(tmp_path, {".config/ais/cli/auth.token": f'{{"token": "{TOKEN}"}}'.encode()})
    environment = {"HOME": str(tmp_path)}
    with mounted("ais://b", mountpoint, endpoint=guarded.endpoint, env=environment) as mount:
        assert (mount.path / "x.txt").read_bytes() == b"x"


def test_a_missing_mountpoint(server: RunningServer, tmp_path: Path):
    said = refused(MOUNTPOINT, "ais://b", "--endpoint", server.endpoint, tmp_path / "nowhere")
    assert "nowhere" in said


def test_a_mountpoint_that_is_a_file(server: RunningServer, tmp_path: Path):
    (tmp_path / "file").write_text("keep me")
    refused(MOUNTPOINT, "ais://b", "--endpoint", server.endpoint, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "keep me"


def test_a_mountpoint_that_is_not_empty(server: RunningServer, mountpoint: Path):
    (mountpoint / "precious.txt").write_text("keep me")
    refused(MOUNTPOINT, "ais://b", "--endpoint", server.endpoint, mountpoint)
    check_nothing_is_left(mountpoint)
    assert (mountpoint / "precious.txt").read_text() == "keep me"


def test_a_busy_mountpoint(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        refused(MOUNTPOINT, "ais://b", "--endpoint", server.endpoint, mountpoint)
        assert mount.living() == mount.pids
        assert (mount.path / "x.txt").read_bytes() == b"x"


def test_no_fuse_device(server: RunningServer, mountpoint: Path):
    """In a mount namespace whose /dev has what a program needs and no fuse."""
    script = (
        "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/zero c 1 5 "
        '&& mknod -m 666 /dev/urandom c 1 9 && exec "$@"'
    )
    done = run(
        "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
        *COMMAND, "mount", "ais://b", str(mountpoint), "--endpoint", server.endpoint,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == NO_FUSE, done.stderr
    assert "/dev/fuse" in one_line(done.stderr)
    check_nothing_is_left(mountpoint)


def test_the_same_errors_in_the_foreground(server: RunningServer, mountpoint: Path):
    with pytest.raises(MountFailedError) as caught:  # noqa: SIM117
        with mounted("ais://missing", mountpoint, endpoint=server.endpoint, foreground=True):
            pass
    assert caught.value.returncode == MISSING
    assert "missing" in one_line(os.fsencode(caught.value.stderr))
    check_nothing_is_left(mountpoint)
