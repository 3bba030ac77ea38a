"""What a type cannot say of a configuration. Imports no torch."""

from runner.rules.check import check
from runner.rules.keys import CHOICES, get

__all__ = ["CHOICES", "check", "get"]
