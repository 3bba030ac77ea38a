from .api import TrainedRun, compose, load, train
from .artifact import Artifact, open_artifact
from .export_plan import ExportSettings
from .predict_outputs import Outputs
from .predict_run import PredictedFiles, predict_files
from .scorer import Scorer

__all__ = [
    "Artifact",
    "ExportSettings",
    "Outputs",
    "PredictedFiles",
    "Scorer",
    "TrainedRun",
    "compose",
    "load",
    "open_artifact",
    "predict_files",
    "train",
]
