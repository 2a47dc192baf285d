"""What several tests of AIStore's client want of its clocks."""

import pytest

from aisfs.stores.ais import absence


@pytest.fixture
def map_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes."""
    monkeypatch.setattr(absence, "READ_AGE", 60.0)
    monkeypatch.setattr(absence, "WRITE_AGE", 60.0)
