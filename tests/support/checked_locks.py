"""Imported before the package: the locks of this process check the order in which they are taken.

In pytest's own process by tests/conftest.py, in daemons and commands by the `Preloader` of tests/support/mounts.py.
"""

from aisfs.system.locks import check_order

check_order()
