from .ranks import SINGLE_PROCESS, Ranks, current_ranks

__all__ = [
    "SINGLE_PROCESS",
    "Ranks",
    "current_ranks",
]
