"""Where the YAMLs of the project and its experiments lie. No torch here.

In a checkout they lie beside the package, in a wheel below it (`setup.py` puts them there).
"""

from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[2]  # the folder that holds `runner/`
_BUNDLED = SOURCE_ROOT / "runner" / "bundled"
PROJECT = _BUNDLED if _BUNDLED.is_dir() else SOURCE_ROOT
CONF = PROJECT / "conf"
EXPERIMENTS = PROJECT / "experiments"  # complete experiments, and code beside their YAMLs
