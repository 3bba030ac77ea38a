from .api import TrainedRun, compose, load, train
from .predict import PredictedFiles, predict
from .predict_outputs import Outputs

__all__ = ["Outputs", "PredictedFiles", "TrainedRun", "compose", "load", "predict", "train"]
