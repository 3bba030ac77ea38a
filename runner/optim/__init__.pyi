from .dense import build_dense_optimizer
from .lr_schedule import LRFactor
from .param_groups import ParameterGroup
from .settings import ClipSettings, parse_sparse

__all__ = [
    "ClipSettings",
    "LRFactor",
    "ParameterGroup",
    "build_dense_optimizer",
    "parse_sparse",
]
