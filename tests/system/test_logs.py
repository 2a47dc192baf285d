"""What a line of the log looks like."""

import json
import logging
import sys
from pathlib import Path

import pytest

from aisfs import redaction
from aisfs.system import logs
from aisfs.system.logs import _Json

SECRET = "opaque-5fd1c27ab3"


def test_a_log_that_nobody_asked_for_stays_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logs, "OWN_BYTES", 1000)
    handler = logs._OwnFile(tmp_path / "below" / "own.log")
    for number in range(1000):
        handler.handle(logging.makeLogRecord({"msg": f"line {number}"}))
    handler.close()
    files = sorted((tmp_path / "below").iterdir())
    assert [file.name for file in files] == ["own.log", "own.log.1"]
    assert all(0 < file.stat().st_size <= 1000 for file in files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert "line 999" in files[0].read_text()


def test_json_has_no_secret_and_is_json_whatever_it_is_about():
    redaction.remember(SECRET)
    try:
        raise ValueError(f"refused {SECRET}\n")
    except ValueError:
        failure = sys.exc_info()
    record = logging.LogRecord(
        "aisfs.x", logging.ERROR, __file__, 1, "%s lost: Authorization: Bearer %s",
        ('a"b\udcff\n\x1b[1m', SECRET), failure,
    )  # fmt: skip
    record.subject = f"ais://b/{SECRET}\udcfe"
    record.seconds = 0.5
    line = _Json("aisfs[%(process)d]: ").format(record)
    before, _, text = line.partition(": ")
    assert before == f"aisfs[{record.process}]"
    assert SECRET not in line
    assert "\n" not in line
    assert "\x1b" not in line
    said = json.loads(text)
    assert list(said) == ["time", "level", "logger", "message", "subject", "seconds", "exception"]
    assert said["message"].startswith('a"b\\udcff')
    assert said["seconds"] == 0.5
    assert "ValueError" in said["exception"]
