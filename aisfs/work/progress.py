"""Columns of progress bars that count bytes."""

from rich.progress import DownloadColumn, ProgressColumn, Task
from rich.text import Text

from aisfs.work.display import size_text


class RateColumn(ProgressColumn):
    """Bytes a second, in the units of all other sizes; rich's own column has decimal ones."""

    def render(self, task: Task) -> Text:
        """Return the rate of the last seconds, or of all when the task is done."""
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{size_text(rate)}/s", style="progress.data.speed")


def transfer_columns() -> list[ProgressColumn]:
    """Return bytes done of all, and their rate."""
    return [DownloadColumn(binary_units=True), RateColumn()]
