"""Build the image of the Dockerfile in chroots, without docker, and try it: packaging/image.py, as root.

It knows the instructions that this repository's Dockerfile has; `--check` only looks whether it does. Files that git
does not know are not copied, as .dockerignore leaves them out too.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
BASE = "debian:bookworm-slim"
"""The only image that `packaging/unpack` makes."""


@dataclass
class Stage:
    """An image that is being built."""

    root: Path
    name: str
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0:0"
    entry: list[str] = field(default_factory=list)

    def run(self, *words: str) -> str:
        """Run a command as the image would, and return what it prints."""
        uid, gid = self.user.split(":")
        home = "/root" if uid == "0" else self.directory
        variables = [
            f"{name}={value}" for name, value in {"HOME": home, **self.environment}.items()
        ]
        return subprocess.run(
            [
                CLONE / "packaging" / "enter", self.root, "setpriv",
                f"--reuid={uid}", f"--regid={gid}", "--clear-groups",
                "env", f"--chdir={self.directory}", *variables, *words,
            ],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout  # fmt: skip

    def inside(self, path: str) -> Path:
        """Return where a path of the image is; a relative one begins at its working directory."""
        return self.root / os.path.join(self.directory, path).lstrip("/")


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile with their arguments; end if one is unknown."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found = [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line]
    for name, rest in found:
        if not re.fullmatch(KNOWN.get(name, "(?!)"), rest):
            raise SystemExit(f"Dockerfile: packaging/image.py does not know: {name} {rest}")
    return found


KNOWN = {
    "FROM": rf"{BASE}( AS \w+)?",
    "RUN": r"[^\[].*",
    "COPY": r"(--from=\w+ )?[\w./]+( [\w./]+)+",
    "ENV": r"\w+=[\w/:.]+",
    "WORKDIR": r"/[\w/]*",
    "USER": r"\d+:\d+",
    "ENTRYPOINT": r"\[.*\]",
}
"""Instructions, and the form of their arguments."""


def build(place: Path) -> Stage:
    """Build all stages below a directory and return the last one."""
    stages: list[Stage] = []
    for name, rest in instructions((CLONE / "Dockerfile").read_text()):
        print(name, rest, flush=True)
        if name == "FROM":
            stages.append(Stage(place / str(len(stages)), rest.partition(" AS ")[2]))
            stages[-1].root.mkdir()
            subprocess.run([CLONE / "packaging" / "unpack", stages[-1].root], check=True)
            continue
        stage = stages[-1]
        match name:
            case "RUN":
                stage.run("sh", "-c", rest)
            case "COPY":
                _copy(stages, rest.split())
            case "ENV":
                stage.environment.update([rest.split("=", 1)])
            case "WORKDIR":
                stage.directory = rest
                stage.inside(rest).mkdir(parents=True, exist_ok=True)
            case "USER":
                stage.user = rest
            case "ENTRYPOINT":
                stage.entry = json.loads(rest)
    return stages[-1]


def _copy(stages: list[Stage], words: list[str]) -> None:
    stage = stages[-1]
    if words[0].startswith("--from="):
        source = next(s for s in stages if s.name == words[0].removeprefix("--from="))
        for path in words[1:-1]:
            shutil.copytree(
                source.inside(path), stage.inside(words[-1]), symlinks=True, dirs_exist_ok=True
            )
        return
    listed = ["git", "-C", CLONE, "ls-files", "-z", "--", *words[:-1]]
    files = subprocess.run(listed, check=True, stdout=subprocess.PIPE, text=True).stdout
    for file in files.split("\0")[:-1]:
        within = next((d for d in words[:-1] if file.startswith(f"{d}/")), None)
        target = stage.inside(words[-1]) / (file.removeprefix(f"{within}/") if within else file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CLONE / file, target)


_SERVE_DESCRIPTOR = """
import subprocess, sys
from pathlib import Path
from aisfs.fuse.mountpoint import mount_as_root
uid, gid = sys.argv[1].split(":")
fd = mount_as_root(Path("/mnt"), {"allow_other", "default_permissions", "subtype=aisfs", "fsname=pets", "ro"})
user = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "env", "HOME=/home/aisfs"]
mount = ["aisfs", "mount", "--endpoint", sys.argv[2], "ais://pets", f"/dev/fd/{fd}"]
subprocess.run([*user, *mount], pass_fds=[fd], check=True, stdout=sys.stderr)
subprocess.run(["cat", "/mnt/readme.txt", "/mnt/samples.tar.d/0001.cls"], check=True)
subprocess.run(["umount", "/mnt"], check=True)
"""
"""Mount as root and have an ordinary user serve it, as the driver of Kubernetes does."""


def check(image: Stage, place: Path) -> None:
    """Run the image as its user: its commands, and a mount of a bucket."""
    version = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]["version"]
    said = image.run(*image.entry, "--version")
    assert version in said, said
    assert "mounter" in image.run(*image.entry, "csi", "--help")
    modules = "aisfs.csi.services, boto3, huggingface_hub, fsspec, lz4, backports.zstd"
    image.run("/opt/aisfs/bin/python", "-c", f"import {modules}")
    with ExitStack() as stack:
        serving = (
            f". packaging/checks/lib; serve_pets .venv/bin/aisfs {place}/pets; echo $endpoint; wait"
        )
        server = stack.enter_context(
            subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", "bash", "-euc", serving],
                cwd=CLONE, stdout=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        stack.callback(server.kill)
        endpoint = server.stdout.readline().strip() if server.stdout else ""
        keys = ("AWS_ACCESS_KEY_ID=any", "AWS_SECRET_ACCESS_KEY=any")
        direct = ("env", f"AWS_ENDPOINT_URL={endpoint}/s3", *keys, *image.entry)
        said = image.run(*direct, "ls", "s3+direct://pets")
        assert said == "readme.txt\nsamples.tar\n", said
        root = replace(image, user="0:0")
        read = root.run("/opt/aisfs/bin/python", "-c", _SERVE_DESCRIPTOR, image.user, endpoint)
        assert read == "meow\n7\n", read


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        instructions((CLONE / "Dockerfile").read_text())
        raise SystemExit
    with tempfile.TemporaryDirectory(prefix="aisfs-image.", dir="/var/tmp") as directory:
        made = build(Path(directory))
        size = subprocess.run(
            ["du", "-sm", made.root], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.split()[0]
        check(made, Path(directory))
    print(f"image: passed, {size} MiB")
