"""`aisfs doctor` names the cause and the cure of what is wrong, each set-up being broken in one way."""

import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from pathlib import Path

import pytest

from aisfs.engine.writing.on_disk import StagedRecord
from aisfs.model import Bucket
from tests.mount.content import fill
from tests.stores.ais.scripted_server import Seen, reply, scripted_server
from tests.support.mounts import COMMAND, aisfs, environment, eventually, mounted, run, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SECRET = "s3cr3t-t0ken-of-mine"
UPTIME = {"Ais-Cluster-Uptime": "1234", "Ais-Node-Uptime": "1234"}
CLOSED = "http://127.0.0.1:1"
"""A port on which nothing listens."""

Checks = dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("doctor") / "store"
    fill(root / "b", {"x.txt": b"x"})
    with running_server(root) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


def read(done: subprocess.CompletedProcess[bytes]) -> Checks:
    """Read the report, whose exit code says whether anything is wrong. Other tests mount, too."""
    assert done.stderr == b"", done.stderr
    report = json.loads(done.stdout)
    found: Checks = {}
    for check in report["checks"]:
        found.setdefault(check["name"], []).append(check)
        assert bool(check["fix"]) == (check["state"] != "ok"), check
        assert SECRET not in str(check)
    wrong = any(check["state"] == "wrong" for check in report["checks"])
    assert report["ok"] == (not wrong)
    assert done.returncode == int(wrong)
    return found


def examine(*words: str | Path, env: Mapping[str, str]) -> Checks:
    return read(aisfs("doctor", "--json", *words, env=env))


def check_wrong(found: Checks, name: str, cause: str, cure: str) -> None:
    """Check that one line says it, whatever else is wrong on this machine."""
    lines = found[name]
    assert any(
        line["state"] == "wrong" and cause in line["found"] and cure in line["fix"]
        for line in lines
    ), lines


def test_nothing_is_wrong(server: RunningServer, home: Path, mountpoint: Path):
    env = {"HOME": str(home), "AIS_ENDPOINT": server.endpoint}
    good = {"kernel", "fuse device", "fusermount3", "libfuse", "cache directory", "staged files"}
    good |= {"endpoint", "targets", "token", "TLS", "source"}
    found = examine("ais://b", env=env)
    assert {name: found[name][0]["state"] for name in good} == dict.fromkeys(good, "ok")
    assert f"{server.endpoint} is AIStore 5.0" in found["endpoint"][0]["found"]
    assert list(home.iterdir()) == [], "it has changed something"
    with mounted("ais://b", mountpoint, endpoint=server.endpoint):
        found = examine(mountpoint, env={"HOME": str(home)})
        assert found["mount"][0]["found"] == f"{mountpoint} shows ais://b"
        assert server.endpoint in found["endpoint"][0]["found"]
        assert not any(str(mountpoint) in line["found"] for line in found["mounts"])


def test_a_report_for_people(home: Path):
    env = {"HOME": str(home), "AIS_ENDPOINT": CLOSED}
    done = aisfs("doctor", "ais://b", env=env)
    assert (done.returncode, done.stderr) == (1, b"")
    *lines, last = done.stdout.decode().splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("wrong  endpoint "))
    assert f"{CLOSED} does not answer" in lines[at]
    assert lines[at + 1].strip().startswith("fix: ")
    assert " wrong, " in last


# The cluster --------------------------------------------------------------------------------------


def test_no_endpoint(home: Path, tmp_path: Path):
    found = examine("ais://b", env={"HOME": str(home)})
    check_wrong(found, "endpoint", "none, and ais://b", "AIS_ENDPOINT")
    found = examine(tmp_path, env={"HOME": str(home)})
    assert found["endpoint"][0]["state"] == "ok"
    assert found["source"][0]["state"] == "ok"


def test_an_endpoint_that_is_no_url(home: Path):
    found = examine(env={"HOME": str(home), "AIS_ENDPOINT": "ftp://x"})
    check_wrong(found, "settings", "AIS_ENDPOINT: an endpoint looks like", "mend this")


def test_a_configuration_file(home: Path, tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text(f'[profiles.pets]\nsource = "{tmp_path}/none/"\nendpoint = "{CLOSED}"\n')
    found = examine("@pets", "--config", file, env={"HOME": str(home)})
    check_wrong(found, "source", f"{tmp_path}/none: no such directory", "ais://BUCKET")
    check_wrong(found, "endpoint", f"{CLOSED} does not answer", "is AIStore running there")
    file.write_text('endpoint = "http://x:1"\ncash_size = "1GiB"\n')
    found = examine(env={"HOME": str(home), "AISFS_CONFIG": str(file)})
    check_wrong(found, "settings", "cash_size", "mend this")
    assert len(found["settings"]) == 1


def test_an_endpoint_where_nothing_listens(home: Path):
    found = examine("--endpoint", CLOSED, env={"HOME": str(home)})
    check_wrong(found, "endpoint", "Connection refused", "is AIStore running there")


def test_a_bucket_that_does_not_exist(server: RunningServer, home: Path):
    env = {"HOME": str(home), "AIS_ENDPOINT": server.endpoint}
    found = examine("ais://missing", env=env)
    check_wrong(found, "source", "ais://missing does not exist", "aisfs ls")


def scripted(answers: Mapping[str, bytes], home: Path, **env: str) -> Checks:
    """Examine a server that answers so, by path, and 404 to the rest."""

    def handler(seen: Seen, connection: socket.socket) -> bool:
        connection.sendall(answers.get(seen.target, answers.get(seen.path, reply(404))))
        return True

    with scripted_server(handler) as server:
        return examine(env={"HOME": str(home), "AIS_ENDPOINT": server.endpoint, **env})


def test_an_endpoint_that_is_no_aistore(home: Path):
    page = reply(200, {"Content-Type": "text/html", "Server": "nginx"}, b"<html>welcome</html>")
    found = scripted({"/v1/health": page, "/v1/daemon": page}, home)
    check_wrong(found, "endpoint", "is no AIStore (HTTP 200, text/html by nginx", "name a proxy")


def test_a_cluster_without_targets(home: Path):
    empty = reply(200, {}, b'{"pmap": {"p1": {}}, "tmap": {}, "uuid": "u", "version": "1"}')
    answers = {"/v1/health": reply(200, UPTIME), "/v1/daemon?what=smap": empty}
    found = scripted(answers, home)
    check_wrong(found, "targets", "no target", "start targets")


def test_an_etl_that_is_stopped(tmp_path: Path, home: Path):
    (tmp_path / "store/b").mkdir(parents=True)
    etls = {"upper-etl": "tr a-z A-Z", "other-etl": "cat"}
    with running_server(tmp_path / "store", etls=etls) as server:
        env = {"HOME": str(home), "AIS_ENDPOINT": server.endpoint}
        found = examine("ais://b", env=env)["ETLs"]
        assert [line["found"] for line in found] == ["other-etl, upper-etl can transform"]
        assert aisfs("etl", "stop", "other-etl", env=env).returncode == 0
        good, stopped = examine("ais://b", env=env)["ETLs"]
        assert (good["state"], stopped["state"]) == ("ok", "note")
        assert stopped["found"] == "other-etl is Aborted"
        assert stopped["fix"] == "aisfs etl start other-etl"


@pytest.mark.parametrize(("hours", "how"), [(2, "ahead of"), (-2, "behind")])
def test_a_clock_that_differs(home: Path, hours: int, how: str):
    headers = {**UPTIME, "Date": formatdate(time.time() + hours * 3600, usegmt=True)}
    found = scripted({"/v1/health": reply(200, headers)}, home)
    check_wrong(found, "clock", f"seconds {how} ours", "set the clocks")


def test_a_cluster_that_is_starting(home: Path):
    found = scripted({"/v1/health": reply(503)}, home)
    check_wrong(found, "endpoint", "HTTP 503", "wait")


# Token and TLS ------------------------------------------------------------------------------------


def test_a_token_that_is_refused(home: Path, tmp_path: Path):
    fill(tmp_path / "store" / "b", {"x.txt": b"x"})
    with running_server(tmp_path / "store", token="another") as guarded:
        env = {"HOME": str(home), "AIS_ENDPOINT": guarded.endpoint, "AIS_AUTHN_TOKEN": SECRET}
        found = examine("ais://b", env=env)
    assert found["token"][0]["found"] == "AIS_AUTHN_TOKEN"
    check_wrong(found, "access", "does not accept the token", "ais auth login")


def test_a_token_file_that_is_none(home: Path, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(SECRET)
    env = {"HOME": str(home), "AIS_ENDPOINT": CLOSED, "AIS_AUTHN_TOKEN_FILE": str(file)}
    check_wrong(examine(env=env), "token", f"token file {file}: not JSON", "ais auth login")


def test_a_token_that_has_expired(home: Path):
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() - 7300}).encode())
    token = f"eyJhbGciOiJIUzI1NiJ9.{claims.decode().rstrip('=')}.{SECRET}"
    env = {"HOME": str(home), "AIS_ENDPOINT": CLOSED, "AIS_AUTHN_TOKEN": token}
    check_wrong(examine(env=env), "token", "AIS_AUTHN_TOKEN: expired 2 hours ago", "ais auth login")


def test_a_token_that_others_can_read(home: Path):
    file = home / ".config" / "ais" / "cli" / "auth.token"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"token": SECRET}))
    file.chmod(0o644)
    (line,) = examine(env={"HOME": str(home), "AIS_ENDPOINT": CLOSED})["token"]
    assert (line["state"], line["fix"]) == ("note", f"chmod 600 {file}")


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_a_certificate_that_is_not_trusted(home: Path, tmp_path: Path):
    key, crt = tmp_path / "key.pem", tmp_path / "crt.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", crt], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)

    def handler(seen: Seen, connection: socket.socket) -> bool:
        connection.sendall(reply(200 if seen.path == "/v1/health" else 404, UPTIME))
        return True

    with scripted_server(handler, context) as server:
        env = {"HOME": str(home), "AIS_ENDPOINT": server.endpoint}
        check_wrong(examine(env=env), "TLS", "is not trusted", "AIS_CLIENT_CA")
        trusting = examine(env={**env, "AIS_CLIENT_CA": str(crt)})
        assert trusting["TLS"][0]["state"] == "ok"
        plain = {**env, "AIS_ENDPOINT": server.endpoint.replace("https", "http")}
        check_wrong(examine(env=plain), "TLS", "the server speaks TLS", "use https://")
    missing = examine(env={**env, "AIS_CLIENT_CA": str(tmp_path / "none.pem")})
    check_wrong(missing, "TLS", "none.pem: no such file", "AIS_CLIENT_CA")


# Disks --------------------------------------------------------------------------------------------


def test_a_cache_directory_below_a_file(home: Path, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    found = examine("--cache-dir", tmp_path / "file", env={"HOME": str(home)})
    check_wrong(found, "cache directory", "is no directory", "--cache-dir")


@pytest.mark.parametrize(
    ("options", "cause", "cure"),
    [("size=1m", "full", "make room"), ("ro", "Read-only file system", "--cache-dir")],
)
def test_a_disk_that_cannot_be_used(
    home: Path, mountpoint: Path, options: str, cause: str, cure: str
):
    succeed("mount", "-t", "tmpfs", "-o", options, "none", mountpoint)
    try:
        found = examine("--cache-dir", mountpoint / "cache", env={"HOME": str(home)})
    finally:
        succeed("umount", mountpoint)
    check_wrong(found, "cache directory", cause, cure)


def test_files_that_were_never_uploaded(home: Path, tmp_path: Path):
    session = tmp_path / "staging" / "session"
    fill(session, {"1.data": b"precious", "lock": b"", "2.data": b"clean", "2.json": b""})
    (session / "1.json").write_bytes(StagedRecord("http://x", Bucket("b"), "key").encode())
    before = sorted(tmp_path.rglob("*"))
    found = examine("--staging-dir", tmp_path / "staging", env={"HOME": str(home)})
    check_wrong(found, "staged files", "1 file (8 bytes)", "aisfs recover")
    assert sorted(tmp_path.rglob("*")) == before


# Mounts -------------------------------------------------------------------------------------------


def test_a_daemon_that_was_stopped_or_killed(home: Path, tmp_path: Path, mountpoint: Path):
    source = tmp_path / "source"
    source.mkdir()
    env = {"HOME": str(home)}
    daemon = subprocess.Popen(
        [*COMMAND, "mount", "--foreground", source, mountpoint], env=environment(env)
    )
    try:
        assert eventually(mountpoint.is_mount, 60)
        os.kill(daemon.pid, signal.SIGSTOP)
        assert eventually(lambda: state_of(daemon.pid) == "T", 60)
        found = examine(env=env)
        check_wrong(found, "mounts", f"{mountpoint}: its daemon {daemon.pid} is", "kill -CONT")
        daemon.kill()
        daemon.wait(60)
        found = examine(mountpoint, env=env)
        check_wrong(found, "mounts", f"{mountpoint}: its daemon has died", "aisfs umount")
    finally:
        daemon.kill()
        daemon.wait(60)
        done = aisfs("umount", mountpoint)
    assert (done.returncode, done.stderr) == (0, b"")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# The machine --------------------------------------------------------------------------------------

PRIVATE_DEV = (
    "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/zero c 1 5 "
    "&& mknod -m 666 /dev/urandom c 1 9 && "
)
"""In a mount namespace of its own, a /dev with what a program needs and no fuse."""
AS_NOBODY = (
    # The interpreter may lie below /root: to read what is closed is all this user may do besides.
    'caps=-all,+dac_read_search && exec "$0" --reuid nobody --regid "$(id -g nobody)" '
    '--clear-groups --inh-caps "$caps" --ambient-caps "$caps" "$@"'
)


def elsewhere(script: str, home: Path, *words: str, path: str = "") -> Checks:
    """Examine a machine that a shell script has changed for us alone; it runs its arguments."""
    env = environment({"HOME": str(home)})
    done = run(
        "unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script,
        shutil.which("setpriv") or "", *words, *COMMAND, "doctor", "--json",
        env={**env, "PATH": f"{path}{env['PATH']}"},
    )  # fmt: skip
    return read(done)


def test_no_fuse_device(home: Path):
    found = elsewhere(f'{PRIVATE_DEV} exec "$@"', home)
    check_wrong(found, "fuse device", "No such file", "modprobe fuse")
    (log,) = found["system's log"]
    assert (log["state"], "--log-file" in log["fix"]) == ("note", True)


def test_a_fuse_device_that_is_closed(home: Path):
    script = f"{PRIVATE_DEV} mknod -m 600 /dev/fuse c 10 229 && {AS_NOBODY}"
    check_wrong(elsewhere(script, home), "fuse device", "Permission denied", "chmod 666 /dev/fuse")


def test_a_fusermount3_that_cannot_mount(home: Path, open_mountpoint: Path):
    shutil.copy("/bin/true", open_mountpoint / "fusermount3")
    found = elsewhere(AS_NOBODY, home, path=f"{open_mountpoint}:")
    check_wrong(found, "fusermount3", "is not setuid root", "chmod 4755")
    found = elsewhere(AS_NOBODY, home, "--no-new-privs")
    check_wrong(found, "fusermount3", "no_new_privs", "mount as root")


def test_programs_that_are_not_installed(home: Path, open_mountpoint: Path):
    programs = ("id", "stat")
    for name in programs:
        (open_mountpoint / name).symlink_to(shutil.which(name))
    script = f'PATH="{open_mountpoint}" && {AS_NOBODY}'
    found = elsewhere(script, home)
    check_wrong(found, "fusermount3", "not installed", "apt install fuse3")
    (setpriv,) = found["setpriv"]
    assert (setpriv["state"], "util-linux" in setpriv["fix"]) == ("note", True)


def test_too_few_open_files(home: Path):
    limited = [sys.executable, "-m", "aisfs", "doctor", "--json"]
    found = read(run("prlimit", "--nofile=512:512", *limited, env=environment({"HOME": str(home)})))
    check_wrong(found, "open files", "hard limit of only 512", "LimitNOFILE")
