from .batch import (
    Batch,
    DataPosition,
    Embeddings,
    Prediction,
    Schema,
    SequenceFeature,
    SparseFeature,
    TaskSpec,
)
from .data.core.dataset import Dataset
from .errors import ConfigError, DataError, UserError
from .metrics.protocol import Metrics
from .models.layers.embedding import TableLookup
from .models.layers.recommender import Recommender
from .models.losses.protocol import Loss
from .parts import dataset_option, loop_option, schedule_option
from .reporting.trackers.tracker import RunInfo, Tracker
from .serving.api import TrainedRun, compose, load, train
from .serving.export_plan import ExportSettings
from .serving.predict_outputs import Outputs
from .training.job import Job, Result
from .training.loops.events import TrainingHandle
from .training.update.context import Context
from .training.update.task import StepOutput, Supervised, Task

__all__ = [
    "Batch",
    "ConfigError",
    "Context",
    "DataError",
    "DataPosition",
    "Dataset",
    "Embeddings",
    "ExportSettings",
    "Job",
    "Loss",
    "Metrics",
    "Outputs",
    "Prediction",
    "Recommender",
    "Result",
    "RunInfo",
    "Schema",
    "SequenceFeature",
    "SparseFeature",
    "StepOutput",
    "Supervised",
    "TableLookup",
    "Task",
    "TaskSpec",
    "Tracker",
    "TrainedRun",
    "TrainingHandle",
    "UserError",
    "compose",
    "dataset_option",
    "load",
    "loop_option",
    "schedule_option",
    "train",
]
