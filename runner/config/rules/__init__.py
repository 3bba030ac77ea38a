"""The rules that a key's own declaration cannot express. Imports no torch."""

from runner.config.rules.check import check_config
from runner.config.rules.keys import get_key

__all__ = ["check_config", "get_key"]
