from .callbacks.callback_set import EVENTS
from .callbacks.loss_guard import LossGuard
from .job import Cadence, Job, LearningRates, Result
from .loops.events import CallbackError, TrainingHandle
from .state import TrainState
from .update.context import Context
from .update.task import StepOutput, Supervised, Task

__all__ = [
    "EVENTS",
    "Cadence",
    "CallbackError",
    "Context",
    "Job",
    "LearningRates",
    "LossGuard",
    "Result",
    "StepOutput",
    "Supervised",
    "Task",
    "TrainState",
    "TrainingHandle",
]
