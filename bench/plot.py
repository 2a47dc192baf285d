"""The picture of a run: a bar for each row, on logarithmic axes, with the range of its rounds."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from bench.engine import Row, number_text

_COLOURS = {"cold": "#4477aa", "warm": "#ee6677", "remount": "#ccbb44"}
_OTHER = "#66ccee"


def draw(path: Path, titles: dict[str, str], rows: Sequence[Row]) -> None:
    """Draw all rows that have values; one panel for each group and unit."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    measured = [row for row in rows if row.values]
    panels = [
        (group, unit, list(members))
        for (group, unit), members in groupby(
            sorted(measured, key=lambda row: (list(titles).index(row.group), row.unit)),
            key=lambda row: (row.group, row.unit),
        )
    ]
    if not panels:
        return
    heights = [len(members) + 2.5 for *_, members in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        figsize=(11, 0.21 * sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, (group, unit, members) in zip(axes[:, 0], panels, strict=True):
        axis.set_title(titles[group], loc="left", fontsize=10, fontweight="bold")
        axis.set_xlabel(unit, fontsize=8)
        _panel(axis, members)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _panel(axis: "object", rows: Sequence[Row]) -> None:
    values = [row.median or 0.0 for row in rows]
    errors = [
        [value - min(row.values) for row, value in zip(rows, values, strict=True)],
        [max(row.values) - value for row, value in zip(rows, values, strict=True)],
    ]
    places = range(len(rows))
    axis.barh(  # type: ignore[attr-defined]
        places,
        values,
        xerr=errors,
        color=[_COLOURS.get(row.state, _OTHER) for row in rows],
        error_kw={"elinewidth": 0.8, "capsize": 2},
    )
    labels = [f"{row.case}: {row.name}, {row.state}" for row in rows]
    axis.set_yticks(places, labels, fontsize=7)  # type: ignore[attr-defined]
    axis.tick_params(axis="x", labelsize=7)  # type: ignore[attr-defined]
    axis.invert_yaxis()  # type: ignore[attr-defined]
    axis.margins(y=0.01)  # type: ignore[attr-defined]
    if min(values) > 0 and max(values) / min(values) > 20:
        axis.set_xscale("log")  # type: ignore[attr-defined]
    for place, row in zip(places, rows, strict=True):
        axis.annotate(  # type: ignore[attr-defined]
            f" {number_text(row.median)}", (max(row.values), place), va="center", fontsize=6
        )
