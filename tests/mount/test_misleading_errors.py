"""What people type wrongly, and the hint that each of these gets."""

import os
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from tests.mount.content import fill
from tests.mount.datasets import encode, sample
from tests.support.for_each import for_each
from tests.support.mounts import COMMAND, aisfs, environment, is_mountpoint, mounted, run
from tests.support.servers import RunningServer, running_server
from tests.support.web_servers import make_certificate, nginx, python_server

pytestmark = pytest.mark.mount

NAMES = [f"{letter}.txt" for letter in "bcdefgh"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("cluster")
    shard = encode([sample("s", 0, b"\xff\xd8\xff")])
    fill(root / "pets", {"train/a.tar": shard, **{f"text/{name}": b"x" for name in NAMES}})
    (root / "fresh").mkdir()
    with running_server(root) as server:
        yield server


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        (folder / label / "1.jpg").write_bytes(b"\xff\xd8\xff")
    return folder


def refused(code: Exit, *words: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command that must fail with one line, and return that."""
    done = aisfs(*words, env=env)
    said = done.stderr.decode()
    assert (done.returncode, said.count("\n")) == (code, 1), (done.returncode, said)
    return said


# Certificates and schemes -------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["ais://pets", "https://127.0.0.1:9/", "s3+direct://pets"])
def test_a_key_in_place_of_an_authority(source: str, mountpoint: Path, tmp_path: Path):
    _, key = make_certificate(tmp_path)
    words = ["mount", source, mountpoint, "--client-ca", key, "--anonymous", "--io-timeout", "3"]
    said = refused(Exit.USAGE, *words, env={"AIS_ENDPOINT": "https://127.0.0.1:9"})
    assert f"--client-ca {key}: that file holds no certificate, but a private key" in said


def test_https_to_a_server_without_tls(cluster: RunningServer, mountpoint: Path, tmp_path: Path):
    (tmp_path / "a").write_bytes(b"a")
    with python_server(tmp_path) as plain:
        for source, url in (("ais://pets", cluster.endpoint), (f"{plain.url}/", plain.url)):
            url = url.replace("http:", "https:")
            words = ["mount", source.replace("http:", "https:"), mountpoint, "--io-timeout", "5"]
            said = refused(Exit.USAGE, *words, env={"AIS_ENDPOINT": url})
            assert url in said
            assert "the server does not speak TLS: use http://" in said
    doctor = aisfs("doctor", env={"AIS_ENDPOINT": cluster.endpoint.replace("http:", "https:")})
    assert b"the server does not speak TLS" in doctor.stdout
    assert b"fix: use http://" in doctor.stdout


def test_http_to_a_server_with_tls(mountpoint: Path, tmp_path: Path):
    with nginx(tmp_path, certificate=make_certificate(tmp_path)) as secure:
        url = secure.url.replace("https:", "http:")
        for source in ("ais://pets", f"{url}/"):
            words = ["mount", source, mountpoint, "--io-timeout", "5"]
            said = refused(Exit.USAGE, *words, env={"AIS_ENDPOINT": url})
            assert "the server speaks TLS: use https://" in said


def test_a_server_that_hangs_is_not_said_to_lack_tls(mountpoint: Path):
    with silent_server() as port:
        words = ["mount", "ais://pets", mountpoint, "--io-timeout", "3"]
        for scheme in ("http", "https"):
            env = {"AIS_ENDPOINT": f"{scheme}://127.0.0.1:{port}", "AIS_CONNECT_TIMEOUT": "1"}
            env["AIS_READ_TIMEOUT"] = "1"
            assert "does not answer" in refused(Exit.UNREACHABLE, *words, env=env)


@contextmanager
def silent_server() -> Iterator[int]:
    """Take connections, and say nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def take() -> None:
            with suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in taken:
            each.close()


# Sources ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", ["", "/", "/pets", "/pets/", "/pets/train/a.tar"])
def test_an_endpoint_in_place_of_a_source(rest: str, cluster: RunningServer, mountpoint: Path):
    said = refused(Exit.USAGE, "mount", f"{cluster.endpoint}{rest}", mountpoint)
    assert f"{cluster.endpoint} is an AIStore: give it with --endpoint {cluster.endpoint}" in said
    assert "such as ais://BUCKET" in said


def test_a_glob_that_matches_nothing(cluster: RunningServer, pictures: Path, mountpoint: Path):
    endpoint = {"AIS_ENDPOINT": cluster.endpoint}
    for command in (["mount", "--view", "class"], ["inspect"], ["ls"]):
        for source, there in (
            ("ais://pets/train/b-*.tar", "ais://pets/train/ has a.tar"),
            ("ais://pets/test/*.tar", "ais://pets/ has text/, train/"),
            ("ais://pets/text/*.tar", "ais://pets/text/ has b.txt, c.txt, d.txt, e.txt, f.txt, …"),
            (f"{pictures}/x-*.tar", f"{pictures}/ has cat/, dog/"),
        ):
            words = [*command, source, *([mountpoint] if command[0] == "mount" else [])]
            said = refused(Exit.NO_SOURCE, *words, env=endpoint)
            assert ("nothing there has" if command == ["ls"] else "nothing matches") in said, said
            assert there in said, said
    said = refused(
        Exit.NO_SOURCE,
        "mount",
        "ais://pets/train/b.tar",
        mountpoint,
        "--view",
        "class",
        env=endpoint,
    )
    assert "1 missing shard; ais://pets/train/ has a.tar" in said


@pytest.mark.parametrize("options", [[], ["--writable"]])
def test_an_object_in_place_of_a_directory(
    options: list[str], cluster: RunningServer, mountpoint: Path
):
    endpoint = ["--endpoint", cluster.endpoint]
    words = ["mount", "ais://pets/text/b.txt", mountpoint, *options, *endpoint]
    said = (
        "ais://pets/text/b.txt is an object, not a directory of objects: mount ais://pets/text/ to"
    )
    assert said in refused(Exit.NO_SOURCE, *words)


def test_a_prefix_with_nothing_below(cluster: RunningServer, mountpoint: Path):
    endpoint = cluster.endpoint
    said = "ais://pets/trian/: nothing is below it; ais://pets/ has text/, train/"
    with mounted("ais://pets/trian/", mountpoint, endpoint=endpoint, expected_log=[said]) as mount:
        assert os.listdir(mount.path) == []
    done = aisfs("mount", "ais://pets/trian/", mountpoint, "--endpoint", endpoint)
    aisfs("umount", mountpoint)
    assert f"aisfs: warning: {said}\n" in done.stderr.decode()
    # To be written to, it is as good as any.
    with mounted("ais://fresh/a/", mountpoint, endpoint=endpoint, options=["--writable"]) as mount:
        (mount.path / "a.txt").write_bytes(b"a")
    words = ["mount", "--view", "class", "ais://pets/trian/", mountpoint, "--endpoint", endpoint]
    assert "nothing is below it; ais://pets/ has " in refused(Exit.NO_SOURCE, *words)


@pytest.mark.parametrize("view", ["class", "flat", "samples"])
def test_a_view_of_loose_pictures(
    view: str, cluster: RunningServer, pictures: Path, mountpoint: Path
):
    for source in (str(pictures), "ais://pets/text/"):
        words = ["mount", "--view", view, source, mountpoint, "--endpoint", cluster.endpoint]
        said = refused(Exit.NO_SOURCE, *words)
        assert "no shard (X.tar) there" in said
        assert "make shards of its files (aisfs pack), or mount it without --view" in said


def test_a_mountpoint_in_place_of_a_source(cluster: RunningServer, mountpoint: Path):
    endpoint = {"AIS_ENDPOINT": cluster.endpoint}
    said = refused(Exit.USAGE, "mount", mountpoint, "ais://pets", env=endpoint)
    assert f"SOURCE comes first: aisfs mount ais://pets {mountpoint}" in said
    words = ["mount", "ais://pets", mountpoint, "ais://fresh"]
    assert "and ais://fresh is a SOURCE" in refused(Exit.USAGE, *words, env=endpoint)
    for command in ("umount", "status", "flush", "refresh"):
        said = refused(Exit.USAGE, command, "ais://pets", env=endpoint)
        assert "ais://pets is a SOURCE, and this takes the directory of a mount" in said
    with mounted("ais://pets/train/", mountpoint, endpoint=cluster.endpoint):
        said = refused(Exit.USAGE, "umount", "ais://pets", env=endpoint)
        assert "it is mounted on " in said
        assert str(mountpoint) in said


def test_a_bucket_that_is_missing(pictures: Path, cluster: RunningServer, mountpoint: Path):
    endpoint = ["--endpoint", cluster.endpoint]
    for words in (["pack", pictures, "ais://no/{0..}.tar"], ["mount", "ais://no", mountpoint]):
        said = refused(Exit.NO_SOURCE, *words, *endpoint)
        assert "`aisfs ls` shows what does, and `aisfs mb ais://no` makes it" in said


def test_a_bucket_without_its_scheme(cluster: RunningServer, mountpoint: Path, tmp_path: Path):
    hint = "; a bucket is written ais://BUCKET"
    for words in (
        ["ls", "pets"],
        ["rm", "pets"],
        ["inspect", "pets/*.tar"],
        ["index", "--check", "pets"],
        ["warm", "pets"],
        ["unpack", "pets", tmp_path / "out"],
        ["pack", "pets", tmp_path / "a.tar"],
        ["mount", "pets", mountpoint],
        ["mount", "pets/{0..1}.tar", mountpoint],
    ):
        assert hint in refused(Exit.NO_SOURCE, *words, env={"AIS_ENDPOINT": cluster.endpoint})


def test_a_file_in_place_of_a_directory(pictures: Path, tmp_path: Path):
    words = ["pack", pictures / "cat" / "1.jpg", tmp_path / "a.tar"]
    assert "cat/1.jpg is a file: name a directory" in refused(Exit.NO_SOURCE, *words)


@pytest.mark.parametrize("end", ["/", ".d", ".d/"])
def test_what_is_in_a_shard(end: str, cluster: RunningServer):
    shard = "ais://pets/train/a.tar"
    said = refused(Exit.NO_SOURCE, "ls", shard + end, "--endpoint", cluster.endpoint)
    assert f"`aisfs inspect {shard}` shows what it contains" in said
    said = refused(Exit.NO_SOURCE, "ls", "ais://pets/no.tar" + end, "--endpoint", cluster.endpoint)
    assert "inspect" not in said


def test_a_cloud_that_the_cluster_does_not_reach(cluster: RunningServer, mountpoint: Path):
    endpoint = ["--endpoint", cluster.endpoint]
    for words in (["ls", "s3://pets"], ["mount", "s3://pets", mountpoint]):
        said = refused(Exit.FAILURE, *words, *endpoint)
        assert "--direct, or a source such as s3+direct://BUCKET, reads the cloud itself" in said


# The machine --------------------------------------------------------------------------------------


@for_each(
    "words, said",
    [
        (["mont", "ais://b", "/mnt"], "No such command 'mont'. Did you mean 'mount'?"),
        (["unmount", "/mnt"], "No such command 'unmount'. Did you mean 'umount'?"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (["rb", "ais://b"], "ais bucket rm, of AIStore's CLI, removes it"),
        (["mount", "-o", "writeable", "ais://b", "/mnt"], "did you mean writable?"),
        (["pack", ".", "ais://b/pics/"], "write one, or a range as in train-{000000..}.tar"),
    ],
)
def test_what_was_meant(words: list[str], said: str):
    assert said in refused(Exit.USAGE, *words)


def test_help_is_a_command():
    for words in ([], ["mount"], ["cache", "status"]):
        asked, option = aisfs("help", *words), aisfs(*words, "--help")
        assert (asked.returncode, asked.stdout) == (0, option.stdout)
        assert asked.stdout.startswith(b"Usage: ")


def test_a_cluster_without_buckets(tmp_path: Path):
    with running_server(tmp_path) as server:
        done = aisfs("ls", "--endpoint", server.endpoint)
        assert done.returncode == 0
        assert done.stdout == b""
        assert b"no buckets: `aisfs mb ais://NAME` makes one" in done.stderr


def test_a_mountpoint_that_is_missing(pictures: Path, tmp_path: Path):
    missing = tmp_path / "a place" / "mnt"
    said = refused(Exit.MOUNTPOINT, "mount", pictures, missing)
    assert f"no such directory; make it: mkdir -p '{missing}'" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide the device from another user")
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_device_that_is_not_permitted(mode: int, pictures: Path, tmp_path: Path):
    """In a mount namespace of its own, /dev/fuse is a node that only root, or a group, may open."""
    for folder in (tmp_path, *tmp_path.parents):
        if (
            folder.owner() == "root"
            and folder.stat().st_mode & 0o055 != 0o055
            and folder != Path("/")
        ):
            folder.chmod(0o755)
    (tmp_path / "mnt").mkdir()
    node = tmp_path / "fuse"
    os.mknod(node, stat.S_IFCHR | mode, os.stat("/dev/fuse").st_rdev)
    node.chmod(mode)
    words = [*COMMAND, "mount", str(pictures), str(tmp_path / "mnt")]
    script = f'mount --bind {node} /dev/fuse && exec setpriv --reuid 65534 --regid 65534 --clear-groups -- "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script, "bash", *words],
        env=environment(home=tmp_path), capture_output=True, check=False,
    )  # fmt: skip
    said = done.stderr.decode()
    assert (done.returncode, said.count("\n")) == (Exit.NO_FUSE, 1), said
    assert "/dev/fuse: Permission denied" in said
    assert "as root: chmod 666 /dev/fuse" in said
    assert "modprobe" not in said
    assert ("put yourself into its group root" in said) == (mode == 0o660)


# Options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("AISFS_VEIW", "AISFS_VIEW"),
        ("AISFS_CACHESIZE", "AISFS_CACHE_SIZE"),
        ("AISFS_NO_FASTPATH", "AISFS_FASTPATH"),
        ("AISFS_CONFG", "AISFS_CONFIG"),
    ],
)
def test_a_variable_that_is_misspelled(variable: str, meant: str, pictures: Path, mountpoint: Path):
    for words in (["mount", pictures, mountpoint], ["ls", pictures], ["config", "check"]):
        said = refused(Exit.USAGE, *words, env={variable: "class"})
        assert f"{variable}: unknown variable; did you mean {meant}?" in said
    assert not is_mountpoint(mountpoint)


def test_variables_of_others_are_left_alone(pictures: Path):
    done = aisfs("ls", pictures, env={"AISFS_QQQ": "1", "AISFS": "1", "AIS_FOO": "1"})
    assert (done.returncode, done.stderr) == (Exit.OK, b"")


@pytest.mark.parametrize("size", ["0.5", "1.5", "10000000.25"])
def test_a_part_of_a_byte(size: str, pictures: Path, mountpoint: Path, tmp_path: Path):
    said = refused(Exit.USAGE, "mount", "--cache-size", size, pictures, mountpoint)
    assert f"--cache-size: bytes are whole: write a unit, such as {size}GiB" in said
    file = tmp_path / "config.toml"
    for value in (size, f'"{size}"'):
        file.write_text(f"cache-size = {value}\n")
        said = refused(Exit.USAGE, "config", "check", "--config", file)
        assert f"{file}, line 1: cache-size: bytes are whole" in said
    for good in ("0", "20000000", "20.5MiB", "20000000.0"):
        file.write_text(f'cache-size = "{good}"\n')
        assert aisfs("config", "check", "--config", file).returncode == Exit.OK


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('[profiles.pets]\nsource="ais://pets"\nview="class"\nwritable=true', "@pets: --writable: a dataset cannot"),
        ('[profiles.pets]\nsource="ais://pets/*.tar"\nwritable=true', "@pets: --writable: a dataset cannot"),
        ('writable=true\n[profiles.pets]\nsource="ais://pets"\nview="class"', "@pets: --writable: a dataset cannot"),
        ('[profiles.pets]\nsource="ais://pets"\nwrite-back=5', "@pets: --write-back needs --writable"),
        ('view="class"\nwritable=true', "line 1: view: not with writable = true"),
    ],
)  # fmt: skip
def test_a_profile_that_contradicts_itself(lines: str, said: str, tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text(f"{lines}\n")
    assert said in refused(Exit.USAGE, "config", "check", "--config", file)


def test_a_profile_that_fits_together(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text(
        '[profiles.a]\nsource="ais://pets"\nwritable=true\n[profiles.b]\nview="class"\nsource="ais://pets"\n'
    )
    done = aisfs("config", "check", "--config", file)
    assert (done.returncode, done.stderr) == (Exit.OK, b"")


def test_commands_of_a_mount_take_its_profile(cluster: RunningServer, tmp_path: Path):
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    file = tmp_path / "config.toml"
    file.write_text(
        f'[profiles.pets]\nsource="ais://pets"\nmountpoint="{mountpoint}"\n[profiles.bare]\nsource="ais://pets"\n'
    )
    env = {"AISFS_CONFIG": str(file), "AIS_ENDPOINT": cluster.endpoint}
    assert aisfs("mount", "@pets", env=env).returncode == Exit.OK
    try:
        assert b"ais://pets" in aisfs("status", "@pets", env=env).stdout
        for command in ("flush", "refresh"):
            done = aisfs(command, "@pets", env=env)
            assert done.returncode == Exit.OK, done.stderr
    finally:
        done = aisfs("umount", "@pets", env=env)
    assert (done.returncode, done.stderr) == (Exit.OK, b"")
    assert not is_mountpoint(mountpoint)
    for command in ("umount", "status", "flush", "refresh", "top"):
        said = refused(Exit.USAGE, command, "@none", env=env)
        assert "@none: no such profile" in said
        assert "@pets" in said
        said = refused(Exit.USAGE, command, "@bare", env=env)
        assert "@bare: no mountpoint in the profile; give the directory itself" in said
    assert f"{mountpoint} is not a mountpoint" in refused(
        Exit.MOUNTPOINT, "umount", "@pets", env=env
    )
    assert run("ls", mountpoint).stdout == b""
