"""ADR 0009 shows what the simulation gives; the smaller half of it, so that this stays quick."""

from bench.admission import POLICIES, Scenario, dataset
from tests.docs.documents import ROOT, rows
from tests.support.for_each import for_each

TABLE = ROOT / "docs" / "adr" / "0009-disk-cache.md"


@for_each("order", ["cyclic", "shuffled"])
def test_hit_ratios(order: str):
    (told,) = [row for row in rows(TABLE.read_text()) if row[0] == f"147 shards, {order}"]
    data = dataset("a", 147)
    limit = sum(size for _, size in data) // 2
    found = [Scenario(1).steady(make(limit, 1), data, order) for make in POLICIES.values()]
    assert told[1:] == ["50 %", *(f"{ratio:.3f}" for ratio in found)]
