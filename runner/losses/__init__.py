"""Losses, one class each. A model's YAML names one; `model/loss=NAME` chooses another."""

from runner.losses.jrc import JRC
from runner.losses.multitask import ByKind, Uncertainty
from runner.losses.pointwise import BCE, MSE, Focal
from runner.losses.protocol import Loss
from runner.losses.retrieval import BPR, InBatchSoftmax, SampledBCE, SampledSoftmax, check_offered

__all__ = [
    "BCE",
    "BPR",
    "JRC",
    "MSE",
    "ByKind",
    "Focal",
    "InBatchSoftmax",
    "Loss",
    "SampledBCE",
    "SampledSoftmax",
    "Uncertainty",
    "check_offered",
]
