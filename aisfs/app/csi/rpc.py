"""The former place of CSI's messages, for programs that import them from here: they are in `aisfs.csi`."""

from aisfs.csi import csi_pb2

__all__ = ["csi_pb2"]
