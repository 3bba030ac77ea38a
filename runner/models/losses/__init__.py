"""Losses, one class each. The YAML of a model names one; `model/loss=NAME` chooses another."""

from runner.models.losses.auxiliary import AuxiliaryBCE
from runner.models.losses.distillation import SelfDistillation
from runner.models.losses.jrc import JRC
from runner.models.losses.multitask import ByKind, Uncertainty
from runner.models.losses.pointwise import BCE, MSE, Focal
from runner.models.losses.protocol import Loss
from runner.models.losses.retrieval import (
    BPR,
    InBatchSoftmax,
    SampledBCE,
    SampledSoftmax,
    check_loss_inputs,
)

__all__ = [
    "BCE",
    "BPR",
    "JRC",
    "MSE",
    "AuxiliaryBCE",
    "ByKind",
    "Focal",
    "InBatchSoftmax",
    "Loss",
    "SampledBCE",
    "SampledSoftmax",
    "SelfDistillation",
    "Uncertainty",
    "check_loss_inputs",
]
