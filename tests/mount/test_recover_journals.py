"""Journals of mounts that were killed: what is damaged in them, and which of two is the newer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.test_write_back import LEFT, WAITING, kill, recover, stored
from tests.mount.writable import Writable, writable
from tests.support.servers import running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]


# a damaged journal --------------------------------------------------------------------------------

FILES = {f"f{number:02}": b"content of %02d" % number for number in range(20)}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[tuple[Writable, Path]]:
    """Files that wait in the journal of a mount that was killed."""
    with writable(tmp_path, backend="directory", options=WAITING) as place:
        for name, content in FILES.items():
            (place.path / name).write_bytes(content)
        (place.path / "gone").write_bytes(b"removed")
        (place.path / "gone").unlink()
        kill(place)
        (path,) = place.staging.glob("*/*.journal")
        yield place, path


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("at", [2, 9, 28, 60])
@pytest.mark.parametrize("last", [False, True])
def test_one_damaged_byte_beside_the_contents_costs_nothing(
    journal: tuple[Writable, Path], at: int, last: bool
):
    place, path = journal
    data = path.read_bytes()
    flip(path, data.rindex(b"aisJ", 0, data.index(b"content of 19")) + at if last else at)
    code, said, complaint = recover(place)
    assert (code, said.count(": uploaded\n")) == (0, len(FILES))
    assert "1 damaged places were made good" in complaint
    assert stored(place) == FILES, "and what was removed does not come back"


def test_a_damaged_content_is_reported_until_somebody_decides(journal: tuple[Writable, Path]):
    place, path = journal
    flip(path, path.read_bytes().index(b"content of 07"))
    for uploads in (len(FILES) - 1, 0):
        code, said, complaint = recover(place)
        assert (code, said.count(": uploaded\n")) == (1, uploads)
        assert "/f07: its 13 bytes are damaged" in complaint
    assert stored(place) == {name: content for name, content in FILES.items() if name != "f07"}
    assert len(list(place.staging.glob("*/*.journal"))) == 1
    code, said, _ = recover(place, "--drop", str(place.files / "f07"))
    assert (code, said) == (0, f"{place.files / 'f07'}: dropped\n")
    assert recover(place) == (0, "", "")
    assert list(place.staging.glob("*/*.journal")) == []


@pytest.mark.parametrize("damage", ["zeros", "cut", "empty"])
def test_what_is_lost_is_reported_and_the_rest_is_uploaded(
    journal: tuple[Writable, Path], damage: str, tmp_path: Path
):
    place, path = journal
    middle = path.read_bytes().index(b"content of 10")
    with path.open("r+b") as file:
        if damage == "zeros":
            file.seek(middle - 1000)
            file.write(bytes(2000))
        else:
            file.truncate(middle if damage == "cut" else 0)
    expected = [*LEFT, "are damaged or missing|it is empty|bytes are damaged"]
    with writable(tmp_path, backend="directory", expected_log=expected) as again:
        assert "aisfs recover --drop" in again.mount.log()
        left = stored(again)
        assert left.items() <= {**FILES, "gone": b"removed"}.items()
        least = {"zeros": 14, "cut": 9, "empty": 0}[damage]
        assert len(left) >= least
    code, _, complaint = recover(place)
    assert code == 1
    assert "aisfs recover --drop" in complaint
    assert len(list(place.staging.glob("*/*.journal"))) == 1
    assert recover(place, "--drop", "--all")[0] == 0
    assert recover(place) == (0, "", "")
    assert list(place.staging.glob("*/*.journal")) == []


# two mounts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["ab", "ba", "aba", "bab", "abb"])
def test_of_two_mounts_the_later_close_wins(order: str, tmp_path: Path):
    (tmp_path / "store" / "b").mkdir(parents=True)
    options = [*WAITING, "--staging-dir", str(tmp_path / "staging")]
    with (
        running_server(tmp_path / "store") as server,
        writable(tmp_path, name="a", server=server, options=options) as a,
        writable(tmp_path, name="b", server=server, options=options) as b,
    ):
        for number, name in enumerate(order):
            ({"a": a, "b": b}[name].path / "x").write_bytes(b"%d of %s" % (number, name.encode()))
        for place in (a, b):  # neither journal is the newer one because of `x`
            (place.path / f"later-{place.path.name}").write_bytes(b"later")
        first = {"a": b, "b": a}[order[-1]]
        (first.path / "last").write_bytes(b"last")
        for place in (a, b):
            kill(place)
        code, _, _ = recover(a, "--staging-dir", str(tmp_path / "staging"))
        assert code == 0
        assert a.stored("x") == b"%d of %s" % (len(order) - 1, order[-1].encode())
        assert {"x", "later-a", "later-b", "last"} == a.names()
