"""Builds a job and runs its loop: tasks, updates, callbacks, evaluation, resume.

What is public is listed in `__init__.pyi`, and imported when it is first asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
