"""Count and decode the samples of shards with webdataset. It knows paths, and nothing of aisfs.

python -m demo.count_samples 'mnt/samples-{00..01}.tar'
"""

import sys
from collections import Counter

import webdataset


def count(shards: str) -> Counter[int]:
    """Decode every sample; give how many there are of each class."""
    samples = webdataset.WebDataset(shards, shardshuffle=False).decode("pil")
    classes: Counter[int] = Counter()
    for image, label, trimap in samples.to_tuple("image.jpg", "cls", "trimap.png"):
        if image.size != trimap.size:
            raise ValueError("a picture and its trimap differ in size")
        classes[label] += 1
    return classes


if __name__ == "__main__":
    found = count(sys.argv[1])
    parts = ", ".join(f"{number} of class {label}" for label, number in sorted(found.items()))
    print(f"webdataset: {found.total()} samples decoded ({parts})")
