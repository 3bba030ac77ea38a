"""An experiment runner for recommender models: `python -m runner`. These names are public.

Public names are listed in `__init__.pyi` and imported at their first use.
"""

import logging
import os
import signal
import sys

# `python -m runner` is about to import much: until `main` can report it, an interruption must end
# that without a traceback. argv[0] is "-m" only while the package is located.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

import lazy_loader

# without log.txt, Python would print our warnings on stderr a second time
logging.getLogger(__name__).addHandler(logging.NullHandler())

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
