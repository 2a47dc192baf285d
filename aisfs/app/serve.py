"""`aisfs serve`: the embedded AIStore, which needs packages of its own."""

from aisfs.errors import ConfigError

try:
    from aisfs.server.run import serve
except ModuleNotFoundError as error:
    raise ConfigError(
        f"aisfs serve needs {error.name}; in a clone of aisfs: pip install '.[serve]'"
    ) from error

__all__ = ["serve"]
