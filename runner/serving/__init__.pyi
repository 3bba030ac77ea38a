from .api import TrainedRun, compose, load, train
from .artifact import Artifact, open_artifact
from .delta import next_delta
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
    "next_delta",
    "open_artifact",
    "predict_files",
    "train",
]
