from .afn import AFN
from .autoint import AutoInt
from .dcn import DCN
from .deepfm import DeepFM
from .din import DIN
from .dlrm import DLRM
from .edcn import EDCN
from .fibinet import FiBiNET
from .finalmlp import FinalMLP
from .gdcn import GDCN
from .layers.attention import InteractingLayer
from .layers.embedding import TableLookup
from .layers.recommender import EmbeddingModel, Recommender
from .layers.retrieval import RetrievalModel
from .layers.sequences import SequenceLookup
from .losses import (
    BCE,
    BPR,
    JRC,
    MSE,
    ByKind,
    Focal,
    InBatchSoftmax,
    Loss,
    SampledBCE,
    SampledSoftmax,
    Uncertainty,
)
from .masknet import MaskNet
from .mlp import MLP
from .mmoe import MMoE
from .ple import PLE, Extraction
from .sasrec import SASRec
from .two_tower import TwoTower
from .wide_and_deep import WideAndDeep
from .xdeepfm import XDeepFM

__all__ = [
    "AFN",
    "BCE",
    "BPR",
    "DCN",
    "DIN",
    "DLRM",
    "EDCN",
    "GDCN",
    "JRC",
    "MLP",
    "MSE",
    "PLE",
    "AutoInt",
    "ByKind",
    "DeepFM",
    "EmbeddingModel",
    "Extraction",
    "FiBiNET",
    "FinalMLP",
    "Focal",
    "InBatchSoftmax",
    "InteractingLayer",
    "Loss",
    "MMoE",
    "MaskNet",
    "Recommender",
    "RetrievalModel",
    "SASRec",
    "SampledBCE",
    "SampledSoftmax",
    "SequenceLookup",
    "TableLookup",
    "TwoTower",
    "Uncertainty",
    "WideAndDeep",
    "XDeepFM",
]
