"""Makes torchvision importable, also where its compiled operators do not fit the torch at hand.

The wheel of torchvision 0.28.0 is linked against a CUDA build of torch (`libc10_cuda.so`), and the
demo installs torch for CPU: `_C.so` does not load, so no C++ code registers any operator. The
import then fails, because torchvision describes two of them (`nms` and `qnms`) to torch without
asking whether they exist. We give both a name and a signature without a body: the import works,
and nothing here calls them.
"""

from importlib.util import find_spec
from pathlib import Path

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_defined = torch.library.Library("torchvision", "FRAGMENT")
"""Kept, since the operators live as long as this does."""


def define_missing_operators() -> None:
    """Do so; before torchvision is imported."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torchvision is not installed; `make demo` installs it")
    try:
        torch.ops.load_library(str(Path(spec.origin).with_name("_C.so")))
    except OSError:
        for name in ("nms", "qnms"):
            _defined.define(name + _SIGNATURE)
