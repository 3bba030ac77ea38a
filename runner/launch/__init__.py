"""One job, from a composed configuration to an exit code.

What is public is listed in `__init__.pyi`, and imported when it is first asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
