"""The rules that a key's own declaration cannot express. Imports no torch."""

from runner.config.rules.check import check_config as check_config
from runner.config.rules.keys import get_key as get_key
