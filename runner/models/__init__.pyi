from .afn import AFN
from .autoint import AutoInt
from .bert4rec import BERT4Rec
from .bst import BST
from .dcn import DCN
from .deepfm import DeepFM
from .dien import DIEN
from .din import DIN
from .dlrm import DLRM
from .edcn import EDCN
from .eulernet import EulerNet
from .fibinet import FiBiNET
from .finalmlp import FinalMLP
from .finalnet import FinalNet
from .fwfm import FwFM
from .gdcn import GDCN
from .gru4rec import GRU4Rec
from .hstu import HSTU
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
    AuxiliaryBCE,
    ByKind,
    Focal,
    InBatchSoftmax,
    Loss,
    SampledBCE,
    SampledSoftmax,
    SelfDistillation,
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
    "BST",
    "DCN",
    "DIEN",
    "DIN",
    "DLRM",
    "EDCN",
    "GDCN",
    "HSTU",
    "JRC",
    "MLP",
    "MSE",
    "PLE",
    "AutoInt",
    "AuxiliaryBCE",
    "BERT4Rec",
    "ByKind",
    "DeepFM",
    "EmbeddingModel",
    "EulerNet",
    "Extraction",
    "FiBiNET",
    "FinalMLP",
    "FinalNet",
    "Focal",
    "FwFM",
    "GRU4Rec",
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
    "SelfDistillation",
    "SequenceLookup",
    "TableLookup",
    "TwoTower",
    "Uncertainty",
    "WideAndDeep",
    "XDeepFM",
]
