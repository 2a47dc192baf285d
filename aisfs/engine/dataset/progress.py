"""How far a dataset is that has to be opened as a whole before it can be shown."""

from dataclasses import dataclass


@dataclass(slots=True)
class OpenProgress:
    """Shards opened, and what was found in them."""

    shards: int | None = None
    """Of the dataset; None until they are known."""
    opened: int = 0
    """Those whose members and labels are known."""
    files: int = 0
    """Files that they show: in the view `class` one for each sample. Of shuffled shards, samples."""

    def begin(self, shards: int, opened: int = 0, files: int = 0) -> None:
        """Start to open shards, some of which may be open already."""
        self.shards, self.opened, self.files = shards, opened, files

    def add(self, files: int) -> None:
        """Count one more that is open."""
        self.opened += 1
        self.files += files
