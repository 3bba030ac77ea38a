"""Losses, one class each. The YAML of a model names one; `model/loss=NAME` chooses another."""

from runner.models.losses.auxiliary import AuxiliaryBCE as AuxiliaryBCE
from runner.models.losses.auxiliary import SelfDistillation as SelfDistillation
from runner.models.losses.jrc import JRC as JRC
from runner.models.losses.multitask import ByKind as ByKind
from runner.models.losses.multitask import Uncertainty as Uncertainty
from runner.models.losses.pointwise import BCE as BCE
from runner.models.losses.pointwise import MSE as MSE
from runner.models.losses.pointwise import Focal as Focal
from runner.models.losses.pointwise import Tweedie as Tweedie
from runner.models.losses.protocol import Loss as Loss
from runner.models.losses.retrieval import BPR as BPR
from runner.models.losses.retrieval import InBatchSoftmax as InBatchSoftmax
from runner.models.losses.retrieval import SampledBCE as SampledBCE
from runner.models.losses.retrieval import SampledSoftmax as SampledSoftmax
from runner.models.losses.retrieval import check_loss_inputs as check_loss_inputs
