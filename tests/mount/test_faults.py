"""Passing failures of the cluster are invisible; lasting ones are the right error, in time."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.content import payload
from tests.mount.odd_server import BUCKET, CUT, FINE, RESET, Faults, serving_keys
from tests.support.mounts import Mount, eventually, mounted, run

pytestmark = pytest.mark.mount

OBJECTS = {"big.bin": payload(3 << 20), **{f"d/{number}": b"%d" % number for number in range(10)}}
NO_CACHE = ("--attr-ttl", "0", "--list-ttl", "0", "--negative-ttl", "0")
HANGS = 60


@contextmanager
def mounted_over(
    faults: Faults, mountpoint: Path, options: Sequence[str], expected_log: Sequence[str] = ()
) -> Iterator[Mount]:
    with (
        serving_keys(OBJECTS, faults) as endpoint,
        mounted(
            f"ais://{BUCKET}", mountpoint, endpoint=endpoint, options=[*NO_CACHE, *options],
            expected_log=expected_log,
        ) as mount,
    ):  # fmt: skip
        yield mount


def burst(status: int, count: int) -> Callable[[int, str], int]:
    return lambda number, path: status if number < count else FINE


def every(step: int, status: int) -> Callable[[int, str], int]:
    return lambda number, path: status if number % step == 0 else FINE


PASSING = {
    "503 burst": burst(503, 4),
    "429 burst": burst(429, 4),
    "reset burst": burst(RESET, 3),
    "503 now and then": every(4, 503),
    "resets now and then": every(4, RESET),
    "cut bodies now and then": every(4, CUT),
    "empty 500 now and then": every(4, 500),
}


@pytest.mark.parametrize("name", PASSING)
def test_passing_failures_are_invisible(name: str, mountpoint: Path):
    faults = Faults()
    with mounted_over(faults, mountpoint, ("--io-timeout", "60"), ["WARNING"]) as mount:
        faults.arm(PASSING[name])
        assert (mount.path / "big.bin").read_bytes() == OBJECTS["big.bin"]
        assert faults.failed > 0, "the fault was never met"
        faults.arm(PASSING[name])
        assert sorted(os.listdir(mount.path / "d")) == [str(number) for number in range(10)]
        assert faults.failed > 0, "the fault was never met"
        for number in range(10):
            assert (mount.path / "d" / str(number)).read_bytes() == b"%d" % number


def lasting(status: int) -> Callable[[int, str], int]:
    return lambda number, path: status


@pytest.mark.parametrize("status", [503, 429, RESET, CUT])
def test_lasting_failures_end_at_the_deadline(status: int, mountpoint: Path):
    faults = Faults()
    with mounted_over(faults, mountpoint, ("--io-timeout", "3"), ["WARNING|ERROR"]) as mount:
        faults.arm(lasting(status))
        for command in ("cat", "md5sum"):
            done = run(command, mount.path / "big.bin", timeout=HANGS)
            assert done.returncode == 1
            assert b"Input/output error" in done.stderr or b"timed out" in done.stderr
        done = run("ls", mount.path / "d", timeout=HANGS)
        assert done.returncode != 0
        assert done.stdout == b""
        faults.arm(lasting(FINE))
        assert eventually(lambda: run("ls", mount.path / "d").returncode == 0, 30)
        assert (mount.path / "big.bin").read_bytes() == OBJECTS["big.bin"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_permission_denied(status: int, mountpoint: Path):
    faults = Faults()
    with mounted_over(faults, mountpoint, ("--io-timeout", "10"), ["WARNING|ERROR"]) as mount:
        faults.arm(lasting(status))
        with pytest.raises(PermissionError):
            (mount.path / "big.bin").read_bytes()
        with pytest.raises(PermissionError):
            os.listdir(mount.path / "d")
        faults.arm(lasting(FINE))
        assert (mount.path / "big.bin").read_bytes() == OBJECTS["big.bin"]


def test_a_page_that_fails_makes_the_whole_listing_fail(mountpoint: Path):
    """Ten names are four pages here; the third one never comes."""
    faults = Faults()
    with mounted_over(faults, mountpoint, ("--io-timeout", "3"), ["WARNING|ERROR"]) as mount:
        os.stat(mount.path / "d")
        faults.arm(lambda number, path: 503 if number >= 2 else FINE)
        done = run("ls", mount.path / "d", timeout=HANGS)
        assert done.returncode != 0
        faults.arm(lasting(FINE))
        assert len(os.listdir(mount.path / "d")) == 10


def test_an_object_without_its_bytes_is_an_error_of_that_file_only(mountpoint: Path):
    faults = Faults()
    with mounted_over(faults, mountpoint, ("--io-timeout", "3"), ["WARNING|ERROR"]) as mount:
        faults.arm(lambda number, path: 503 if "/d/5" in path else FINE)
        assert run("cat", mount.path / "d" / "5", timeout=HANGS).returncode == 1
        for number in (4, 6):
            assert (mount.path / "d" / str(number)).read_bytes() == b"%d" % number
