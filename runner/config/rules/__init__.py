"""What a type cannot say of a configuration. Imports no torch."""

from runner.config.rules.check import check_config
from runner.config.rules.keys import ALLOWED_VALUES, get_key

__all__ = ["ALLOWED_VALUES", "check_config", "get_key"]
