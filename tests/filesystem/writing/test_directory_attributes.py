"""Modes and times of directories: as many as there is room for."""

import pytest

from aisfs.filesystem import written
from aisfs.filesystem.written import DirectoryAttributes
from aisfs.model import Bucket

PETS, CARS = Bucket("pets"), Bucket("cars")


def test_they_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(written, "DIRECTORIES_MAX", 3)
    kept = DirectoryAttributes()
    for number in range(3):
        kept.keep(PETS, f"{number}/", 0o700, number)
    kept.keep(PETS, "0/", 0o750, 5)
    kept.keep(PETS, "new/", None, 7)
    assert kept.of(PETS, "1/") == (None, None), "it was set before all others"
    assert kept.of(PETS, "0/") == (0o750, 5)
    assert kept.of(PETS, "2/") == (0o700, 2)
    assert kept.of(PETS, "new/") == (None, 7)
    kept.drop(PETS, "0/")
    kept.drop(PETS, "0/")
    assert kept.of(PETS, "0/") == (None, None)


def test_they_follow_a_rename(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(written, "DIRECTORIES_MAX", 4)
    kept = DirectoryAttributes()
    kept.keep(PETS, "a/", 0o700, 1)
    kept.keep(PETS, "a/b/", 0o710, 2)
    kept.keep(PETS, "ab/", 0o720, 3)
    kept.keep(CARS, "a/", 0o730, 4)
    kept.rename(PETS, "a/", "z/y/")
    assert kept.of(PETS, "z/y/") == (0o700, 1)
    assert kept.of(PETS, "z/y/b/") == (0o710, 2)
    assert kept.of(PETS, "a/") == kept.of(PETS, "a/b/") == (None, None)
    assert kept.of(PETS, "ab/") == (0o720, 3)
    assert kept.of(CARS, "a/") == (0o730, 4)
