"""A short torture in each test run; `make torture` runs it for as long as asked."""

from pathlib import Path

import pytest

from tests.contract.subjects import CLUSTER
from tests.torture.torture import torture

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]


@pytest.mark.real_cluster
@pytest.mark.skipif(not CLUSTER, reason="AIS_ENDPOINT is not set")
def test_no_acknowledged_byte_is_lost_on_a_real_cluster(tmp_path: Path) -> None:
    outcome = torture(tmp_path, changes=1000, workers=2, endpoint=CLUSTER)
    assert outcome.differences == []
    assert outcome.acknowledged >= 1000


@pytest.mark.parametrize("write_back", [0, 1])
def test_no_acknowledged_byte_is_lost(write_back: float, tmp_path: Path) -> None:
    outcome = torture(
        tmp_path,
        changes=300,
        seconds=30,
        phase=100,
        workers=2,
        largest=24 << 20,
        write_back=write_back,
    )
    assert outcome.differences == []
    assert outcome.acknowledged >= 20
