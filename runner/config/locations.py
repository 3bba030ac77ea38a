"""Where the YAMLs of the project and its experiments lie. No torch here."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]  # the folder that holds `runner/`
CONF = PROJECT / "conf"
EXPERIMENTS = PROJECT / "experiments"  # complete experiments, and code beside their YAMLs
