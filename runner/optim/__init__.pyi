from .dense import build_dense_optimizer as build_dense_optimizer
from .lr_schedule import LRFactor as LRFactor
from .param_groups import ParameterGroup as ParameterGroup
from .settings import ClipSettings as ClipSettings
from .settings import parse_sparse as parse_sparse
