"""What of torchvision the demo uses."""

from demo.operators import define_missing_operators

define_missing_operators()

from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.transforms import Compose, Resize, ToTensor  # noqa: E402

__all__ = ["Compose", "ImageFolder", "Resize", "ToTensor"]
