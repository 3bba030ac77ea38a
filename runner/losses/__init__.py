"""Losses, one class each. A model's YAML names one; `model/loss=NAME` chooses another."""

from runner.losses.jrc import JRC
from runner.losses.multitask import ByKind, Uncertainty
from runner.losses.pointwise import BCE, MSE, Focal
from runner.losses.protocol import Loss

__all__ = ["BCE", "JRC", "MSE", "ByKind", "Focal", "Loss", "Uncertainty"]
