"""Lets programs that know nothing of us import torchvision here; see demo.operators.

Python imports this at its start when the directory is in PYTHONPATH.
"""

import sys


class _BeforeTorchvision:
    """Finds nothing; is asked first."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            from demo.operators import define_missing_operators

            define_missing_operators()


sys.meta_path.insert(0, _BeforeTorchvision())
