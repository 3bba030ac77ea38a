from .ranks import SINGLE_PROCESS as SINGLE_PROCESS
from .ranks import Ranks as Ranks
from .ranks import current_ranks as current_ranks
