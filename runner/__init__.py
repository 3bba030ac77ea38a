"""An experiment runner for recommender models: `python -m runner`. These names are public.

What is public is listed in `__init__.pyi`, and imported when it is first asked for.
"""

import logging

import lazy_loader

# without log.txt, Python would print our warnings on stderr a second time
logging.getLogger(__name__).addHandler(logging.NullHandler())

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
