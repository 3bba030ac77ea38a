"""The ranks of a run: how they start, exchange values and end.

`__init__.pyi` lists the public names; each is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
