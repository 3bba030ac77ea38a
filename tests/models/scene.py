"""Every model in a small size, from its YAML, on schemas with and without dense features."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch
import yaml

from runner.batch import Batch, Schema, TaskSpec
from runner.models.layers.recommender import Recommender
from tests.tiny import SCHEMA, random_batch

CONF = Path(__file__).resolve().parents[2] / "conf" / "model"
TWO_TASKS = replace(SCHEMA, tasks=(TaskSpec("click"), TaskSpec("like")))
NO_NUMBERS = replace(SCHEMA, dense=())
SCHEMAS = {"plain": SCHEMA, "two tasks": TWO_TASKS, "no numbers": NO_NUMBERS}

# name -> model and the settings that make it small; other settings keep the YAML's value
SMALL: dict[str, tuple[str, dict]] = {
    "dlrm": ("dlrm", {"bottom": [8], "top": [8]}),
    "dcn": ("dcn", {"deep": [8, 5]}),
    "dcn stacked": ("dcn", {"deep": [8, 5], "structure": "stacked"}),
    "dcn mixture": ("dcn", {"deep": [8], "rank": 3, "num_experts": 2}),
    "deepfm": ("deepfm", {"deep": [8, 5]}),
    "wide_and_deep": ("wide_and_deep", {"deep": [8, 5]}),
    "wide_and_deep pairs": ("wide_and_deep", {"deep": [8, 5], "pairs": True}),
    "wide_and_deep members": ("wide_and_deep", {"deep": [8, 5], "pairs": True, "members": 3}),
    "mlp": ("mlp", {"deep": [8, 5]}),
    "xdeepfm": ("xdeepfm", {"deep": [8], "cin": [6, 5]}),
    "autoint": ("autoint", {"attention_dim": 6, "num_heads": 2}),
    "autoint deep": ("autoint", {"attention_dim": 3, "num_heads": 1, "deep": [8]}),
    "autoint_plus": (
        "autoint_plus",
        {"num_layers": 2, "attention_dim": 3, "deep": [8, 5], "norm": None, "dropout": 0.0},
    ),
    "masknet": ("masknet", {"blocks": [6, 5], "top": [7]}),
    "masknet serial": ("masknet", {"blocks": [6, 5], "top": [], "structure": "serial"}),
    # the second layer has as many vectors as it gives, and needs no map of what it keeps
    "wukong": (
        "wukong",
        {"bottom": [7], "num_layers": 2, "num_interacted": 3, "num_linear": 2}
        | {"num_compressed": 3, "interaction": [6], "top": [8]},
    ),
    "wukong one layer": (
        "wukong",
        {"bottom": [7], "num_layers": 1, "num_interacted": 2, "num_linear": 1}
        | {"num_compressed": 2, "interaction": [], "top": [8, 5]},
    ),
    "finalmlp": ("finalmlp", {"streams": [[8, 6], [4]], "num_heads": 2}),
    "finalmlp contexts": (
        "finalmlp",
        {"streams": [[6], [4]], "num_heads": 2, "contexts": [["b"], ["m", "a"]], "gate": [5]},
    ),
    "finalnet": ("finalnet", {"first": [8, 6], "second": [4], "norm": None}),
    "finalnet one block": (
        "finalnet",
        {"first": [5, 3], "second": [], "residual": "sum", "field_gate": False, "norm": None},
    ),
    "eulernet": ("eulernet", {"orders": [3, 2]}),
    "eulernet without norm": ("eulernet", {"orders": [2], "layer_norm": False}),
    "fwfm": ("fwfm", {}),
    "fwfm by id": ("fwfm", {"first_order": "id"}),
    "esmm": ("esmm", {"deep": [8, 5]}),
    "mmoe": ("mmoe", {"num_experts": 3, "experts": [6, 5], "tower": [4]}),
    "ple": ("ple", {"experts": [6, 5], "tower": [4], "num_own": 2, "num_shared": 1}),
    "gdcn": ("gdcn", {"deep": [8, 5], "num_layers": 2}),
    "gdcn stacked": ("gdcn", {"deep": [8], "structure": "stacked"}),
    "fibinet": ("fibinet", {"deep": [8], "reduction": 2}),
    "fibinet each": ("fibinet", {"deep": [8], "bilinear": "each"}),
    "fibinet all": ("fibinet", {"deep": [8], "bilinear": "all"}),
    "edcn": ("edcn", {"temperature": 2.0, "bridge": "hadamard_product"}),
    "edcn addition": ("edcn", {"num_layers": 2, "bridge": "pointwise_addition"}),
    "edcn concatenation": ("edcn", {"num_layers": 2, "bridge": "concatenation"}),
    "edcn attention": ("edcn", {"num_layers": 2, "bridge": "attention_pooling"}),
    "afn": ("afn", {"num_neurons": 3, "top": [6], "deep": []}),
    "afn deep": ("afn", {"num_neurons": 3, "top": [6], "deep": [8, 5]}),
    "ple one level": ("ple", {"experts": [6], "tower": [4], "num_levels": 1}),
}
MODELS = sorted({model for model, _ in SMALL.values()})


def make_model(name: str, schema: Schema = SCHEMA, **more) -> Recommender:
    """Make a model of `SMALL`, without tables."""
    stem, settings = SMALL[name]
    return from_yaml(stem, schema, **{"embedding_dim": 4, **settings, **more})


def from_yaml(stem: str, schema: Schema = SCHEMA, **settings) -> Recommender:
    """Make the model of a YAML with some settings changed."""
    node = yaml.safe_load((CONF / f"{stem}.yaml").read_text())["net"]
    module, _, cls = node.pop("_target_").rpartition(".")
    torch.manual_seed(0)
    return getattr(import_module(module), cls)(schema, **{**node, **settings})


def batch_of(schema: Schema, size: int = 24, seed: int = 0) -> Batch:
    batch = random_batch(size, seed, num_tasks=len(schema.tasks))
    return batch if schema.dense else replace(batch, dense_BD=batch.dense_BD[:, :0])
