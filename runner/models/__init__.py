"""Networks, layers and losses, which compute predictions and losses for a batch.

`__init__.pyi` lists the public names, which are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
