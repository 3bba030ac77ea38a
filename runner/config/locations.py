"""The folders of the project's YAMLs and experiments. No torch here.

In a checkout they are next to the package, in a wheel inside it (`setup.py` puts them there).
"""

from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[2]  # the folder that contains `runner/`
_BUNDLED = SOURCE_ROOT / "runner" / "bundled"
PROJECT = _BUNDLED if _BUNDLED.is_dir() else SOURCE_ROOT
CONF = PROJECT / "conf"
EXPERIMENTS = PROJECT / "experiments"  # complete experiments, and code next to their YAMLs
