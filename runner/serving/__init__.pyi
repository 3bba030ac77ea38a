from .api import TrainedRun, compose, load, train
from .predict_outputs import Outputs
from .predict_run import PredictedFiles, predict_files

__all__ = ["Outputs", "PredictedFiles", "TrainedRun", "compose", "load", "predict_files", "train"]
