"""A thread that serves a mount does not die unnoticed."""

import threading

import pytest

from aisfs.system.threads import start_service_thread


class Bug(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError, SystemExit, Bug])
def test_death_is_logged_and_told(error: type[BaseException], caplog: pytest.LogCaptureFixture):
    deaths: list[str] = []

    def die() -> None:
        raise error("of this")

    thread = start_service_thread(
        "aisfs test", die, lambda: deaths.append(threading.current_thread().name)
    )
    thread.join()
    assert deaths == ["aisfs test"]
    (record,) = caplog.records
    assert record.levelname == "CRITICAL"
    assert "aisfs test died" in record.getMessage()
    assert "of this" in caplog.text


def test_an_end_is_no_death(caplog: pytest.LogCaptureFixture):
    deaths: list[bool] = []
    start_service_thread("aisfs test", lambda: None, lambda: deaths.append(True)).join()
    assert not deaths
    assert not caplog.records
