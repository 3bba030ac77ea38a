"""What a type cannot say of a configuration. Imports no torch."""

from runner.config.rules.check import check
from runner.config.rules.keys import CHOICES, get

__all__ = ["CHOICES", "check", "get"]
