"""Directories that are removed or replaced while programs have them, and made again: as on a local disk.

The kernel lets nothing be made in a directory that it saw removed, and knows it by its inode number.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.contract.subjects import CLUSTER
from tests.mount.writable import Writable, writable
from tests.support.mounts import eventually

KEPT = "AIStore may refuse an object the name of a directory that it keeps (T3)"
TTL = 100.0
"""Seconds, more than names are believed."""

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

SCRIPTS = {
    "open": "mkdir d; exec 3<d; rmdir d; mkdir d; echo 1 > d/x; cat d/x; exec 3<&-; echo 2 > d/y; ls d",
    "open below": "mkdir d; echo 1 > d/a; exec 3<d/a; rm d/a; rmdir d; mkdir d; echo 2 > d/a; cat d/a <&3; cat <&3",
    "working directory": "mkdir d; cd d; rmdir ../d; mkdir ../d; echo 1 > ../d/x; cat ../d/x; cd ../d; ls",
    "path only": 'mkdir d; python3 -c \'import os; os.open("d", os.O_PATH); os.rmdir("d"); os.mkdir("d"); open("d/x", "w")\'; ls d',
    "deep": "mkdir -p t/u/v/w; cd t/u/v/w; rm -r ../../../../t; (cd $HERE && mkdir -p t/u/v/w); cd $HERE;"
    " for d in t t/u t/u/v t/u/v/w; do echo 1 > $d/x; done; find . | sort",
    "deep and open": "mkdir -p t/u/v; echo 1 > t/u/v/f; exec 3<t/u/v/f 4<t/u 5<t; rm -r t; mkdir -p t/u/v;"
    " for d in t t/u t/u/v; do echo 1 > $d/f; done; find . | sort; cat <&3",
    "again and again": 'for n in 1 2 3 4 5 6 7 8 9; do mkdir d; eval "exec $n<d"; echo $n > d/x; cat d/x; rm -r d; done;'
    " mkdir d; mkdir d/e; echo 1 > d/e/x; find . | sort",
    "again and again deep": 'for n in 3 4 5 6 7 8; do mkdir -p t/u; eval "exec $n<t/u"; echo $n > t/u/x; cat t/*/x; rm -r t; done;'
    " mkdir -p t/u; echo 1 > t/u/x; cat t/u/x; ls t/u",
    "replaced": "mkdir a b; echo 1 > a/x; exec 3<b; mv -T a b; cat b/x; echo 2 > b/y; ls b; mkdir a; echo 3 > a/x; cat a/x b/*",
    "replaced empty": "mkdir a b; exec 3<b 4<a; mv -T a b; echo 2 > b/y; mkdir b/z a; echo 3 > b/z/x; echo 4 > a/x; find . | sort",
    "replaced working directory": "mkdir a b; mkdir a/s; cd b; mv -T ../a ../b; echo 1 > ../b/s/x; mkdir ../b/t; ls ../b; ls ../b/s",
    "replaced and removed": "mkdir a b; exec 3<b; mv -T a b; exec 4<b; rmdir b; mkdir b a; echo 1 > b/x; echo 2 > a/x; find . | sort",
    "replaced in turn": "mkdir d; exec 3<d; for n in 1 2 3 4; do mkdir n; echo $n > n/x; rm -f d/x; mv -T n d; cat d/x; done; echo 5 > d/y; ls d",
    "replaced deep": "mkdir -p a/s/t b; echo 1 > a/s/t/x; exec 3<b 4<a/s; mv -T a b; echo 2 > b/s/y; echo 3 > b/s/t/z;"
    " rm -r b; mkdir -p a/s/t b/s/t; for d in a b; do echo 4 > $d/s/t/x; echo 5 > $d/s/x; done; find . | sort",
    "moved away": "mkdir d; exec 3<d; mv d e; mkdir d; echo 1 > d/x; echo 2 > e/y; find . | sort; rm -r e; echo 3 > d/z; ls d",
    "moved and removed": "mkdir d; mv d e; mkdir d; cd d; rmdir ../e; sleep 0.2; echo 1 > x; cat ../d/x; [ . -ef ../d ] && echo one",
    "moved, removed, moved": "mkdir d; mv d e; mkdir d; (cd d; rmdir ../e; sleep 0.2; mv ../d ../e; echo 1 > x; cat ../e/x); mkdir d; echo 2 > d/x; find . | sort",
    "a file between": "mkdir d; exec 3<d; rmdir d; echo 1 > d; cat d; exec 4<d; rm d; mkdir d; echo 2 > d/x; cat d/x; cat <&4",
    "a directory between": "echo 1 > f; exec 3<f; rm f; mkdir f; exec 4<f; echo 2 > f/x; rm -r f; echo 3 > f; cat f; cat <&3;"
    " rm f; mkdir f; echo 4 > f/x; cat f/x",
    "a file moved there": "mkdir d; exec 3<d; rmdir d; echo 1 > f; mv -T f d; cat d; rm d; mkdir d; echo 2 > d/x; cat d/x",
    "what is left": "mkdir d; chmod 750 d; cd d; rmdir ../d; mkdir ../d; chmod 700 ../d; stat -c '%F %a %h' .; ls; touch x; mkdir y; cat z;"
    " echo 1 > ../x; ls ..; cd ..; stat -c '%F %a' d",
}
"""Each begins in an empty directory, HERE."""


@pytest.fixture(scope="module", params=["ais", "ais, listed anew", "directory"])
def place(
    request: pytest.FixtureRequest, fastpath: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Writable]:
    backend, _, anew = request.param.partition(", ")
    seconds = "0" if anew else "3"
    options = ["--list-ttl", seconds, "--attr-ttl", seconds]
    with writable(
        tmp_path_factory.mktemp("place"), backend=backend, options=options, deadline=400
    ) as place:
        yield place


def outcome(script: str, folder: Path) -> tuple[int, str, list[str]]:
    """What a script prints, its exit code, and what goes wrong in it."""
    folder.mkdir()
    environment = {"PATH": os.environ["PATH"], "HERE": str(folder), "LC_ALL": "C"}
    command = ["bash", "-c", script]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    return done.returncode, done.stdout, [line[-40:] for line in done.stderr.splitlines()]


@pytest.mark.parametrize("name", SCRIPTS)
def test_as_on_a_local_disk(name: str, place: Writable, tmp_path: Path):
    if name == "a directory between" and CLUSTER:
        pytest.skip(KEPT)
    expected = outcome(SCRIPTS[name], tmp_path / "local")
    assert outcome(SCRIPTS[name], place.path / name.replace(" ", "-")) == expected


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_emptied_by_another_client_under_a_program(place: Writable):
    top = place.path / "emptied"
    place.put("emptied/d/sub/x", b"1")
    assert eventually(lambda: (top / "d/sub/x").exists())
    with opened(top / "d/sub"), opened(top / "d"):
        (top / "d/mine").touch()
        place.delete("emptied/d/sub/x")
        assert eventually(lambda: not (top / "d/sub/x").exists(), TTL)
        subprocess.run(["rm", "-r", str(top / "d")], check=True)
        (top / "d/sub").mkdir(parents=True)
        (top / "d/sub/y").write_bytes(b"2")
        (top / "d/z").write_bytes(b"3")
        found = sorted(str(found.relative_to(top)) for found in top.rglob("*"))
        assert found == ["d", "d/sub", "d/sub/y", "d/z"]


def test_another_client_turns_a_directory_into_a_file_and_back(place: Writable):
    if CLUSTER:
        pytest.skip(KEPT)
    top = place.path / "turned"
    place.put("turned/stays", b"")
    place.put("turned/d/x", b"1")
    assert eventually(lambda: (top / "d/x").exists())
    with opened(top / "d"), ExitStack() as stack:
        place.delete("turned/d/x")
        place.put("turned/d", b"a file")
        assert eventually(lambda: (top / "d").is_file(), TTL)
        assert (top / "d").read_bytes() == b"a file"
        stack.enter_context(opened(top / "d"))
        place.delete("turned/d")
        place.put("turned/d/y", b"2")
        assert eventually(lambda: (top / "d/y").exists(), TTL)
        (top / "d/mine").write_bytes(b"3")
        found = {each.name: each.read_bytes() for each in (top / "d").iterdir()}
        assert found == {"y": b"2", "mine": b"3"}
        stack.enter_context(opened(top / "d"))
        subprocess.run(["rm", "-r", str(top / "d")], check=True)
        (top / "d").mkdir()
        (top / "d/again").write_bytes(b"4")
        assert os.listdir(top / "d") == ["again"]
