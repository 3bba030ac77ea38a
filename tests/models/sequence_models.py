"""Sequence and retrieval models in a small size, and what an update makes of them."""

from __future__ import annotations

import torch

from runner.models.losses import BCE, AuxiliaryBCE, InBatchSoftmax, SampledSoftmax
from runner.training.update.task import Supervised
from tests.models.scene import from_yaml
from tests.models.sequence_scene import SCHEMA
from tests.models.sequence_twins import STATES
from tests.tiny import make_context

SMALL = {
    "bert4rec": {"embedding_dim": 4, "num_blocks": 2, "dropout": 0.0, "uniform": 7},
    "bst": {"embedding_dim": 4, "num_blocks": 2, "num_heads": 2, "top": [6]},
    "dien": {"embedding_dim": 4, "top": [6]},
    "din": {"embedding_dim": 4, "attention": [5], "top": [6]},
    "mlp": {"embedding_dim": 4, "deep": [6]},
    "two_tower": {"embedding_dim": 4, "user_tower": [6], "out": 5},
    "sasrec": {"embedding_dim": 4, "num_blocks": 2, "dropout": 0.0, "uniform": 7},
    "gru4rec": {"embedding_dim": 4, "hidden_dim": 6, "num_layers": 2, "dropout": 0.0, "uniform": 7},
    "hstu": {"embedding_dim": 4, "num_blocks": 2, "dropout": 0.0, "uniform": 7},
}
CAUSAL = sorted(STATES)
READ_BY_ITEM = ["bst", "dien", "din", *CAUSAL]
LOSSES = {
    "bst": BCE,
    "dien": AuxiliaryBCE,
    "din": BCE,
    "mlp": BCE,
    "two_tower": InBatchSoftmax,
    **dict.fromkeys(("bert4rec", *CAUSAL), SampledSoftmax),
}


def make(name, kind="sgd", *, loss=None, micro=1 << 20, lr=0.1, schema=SCHEMA, amp=False, **more):
    model = from_yaml(name, schema, **{**SMALL[name], **more})
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():  # no weight at a value that hides a mistake, such as 0
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    context = make_context(
        kind, lr=lr, micro_batch_size=micro, model=model, loss=loss or LOSSES[name](schema), amp=amp
    )
    for tensor_name, tensor in context.tables.state().items():
        if tensor_name.endswith("/weight"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.5)
    return context


def leaves(context):
    p = {n: w.detach().double().requires_grad_() for n, w in context.model.named_parameters()}
    tables = {
        n.removesuffix("/weight"): t.detach().double().clone().requires_grad_()
        for n, t in context.tables.state().items()
        if n.endswith("/weight")
    }
    return p, tables


def assert_step_equals(context, before, p, tables, lr):
    """SGD took the twin's gradients, of dense weights and of tables."""
    for name, weight in context.model.named_parameters():
        grad = p[name].grad if p[name].grad is not None else torch.zeros_like(p[name])
        torch.testing.assert_close(
            weight.double(), p[name].detach() - lr * grad, rtol=1e-4, atol=1e-5, msg=name
        )
    for name, table in tables.items():
        if f"{name}/weight" not in context.tables.state():
            continue
        found = context.tables.state()[f"{name}/weight"].double()
        torch.testing.assert_close(
            found, table.detach() - lr * table.grad, rtol=1e-4, atol=1e-5, msg=name
        )


def step(context, batch):
    context.tables.set_lr_and_step(0.1, 1)
    return Supervised().train_step(context, iter([batch]))
