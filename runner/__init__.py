"""An experiment runner for recommender models: `python -m runner`. These names are public.

What is public is listed in `__init__.pyi`, and imported when it is first asked for.
"""

import logging
import os
import signal
import sys

# `python -m runner` is about to import much: an interruption ends it then without a traceback,
# until `main` can tell of it. argv[0] is "-m" only while the package is located.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

import lazy_loader

# without log.txt, Python would print our warnings on stderr a second time
logging.getLogger(__name__).addHandler(logging.NullHandler())

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
