"""How a mount is written."""

import shutil
from pathlib import Path

from platformdirs import user_state_dir
from pydantic import Field

from aisfs.config.values import AbsolutePath, Settings, Size, existing_directory

WRITABLE_FILE_MODE = "0644"
WRITABLE_DIR_MODE = "0755"
"""Default permissions of a writable mount."""


class WriteSettings(Settings):
    """How a mount is written, if it is writable."""

    writable: bool = False
    create_bucket: bool = False
    """Make the bucket if it is missing. Off, since a name that is mistyped should fail."""
    allow_bucket_changes: bool = False
    """Let `mkdir` make buckets, where all of them are mounted. Off, since a cluster is shared."""
    staging_dir: AbsolutePath = Field(
        default_factory=lambda: Path(user_state_dir("aisfs")) / "staging"
    )
    """Not below the cache directory: what is here may exist nowhere else."""
    staging_size: Size | None = None
    """Most bytes of files being written and of those kept for `aisfs recover`; None is half of the
    free disk."""
    write_back: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds for which a small file that was closed waits on the local disk before it is uploaded. 0
    makes every close wait for the store: what was closed is then where others see it."""
    rename_dir_limit: int = Field(default=1000, ge=0)
    """Most objects of a directory that is renamed: some seconds of work. Beyond it `mv` copies."""
    ignore_attr_changes: bool = False
    """Accept owners, modes and times that cannot be kept, and forget them."""

    def staging_limit(self) -> int:
        """Return the bytes the staging directory may take."""
        if self.staging_size is not None:
            return int(self.staging_size)
        return shutil.disk_usage(existing_directory(self.staging_dir, "staging-dir")).free // 2
