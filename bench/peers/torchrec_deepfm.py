"""DeepFM of TorchRec's tables, whose optimizer is fused into their backward, for two peers.

FBGEMM has no Adam for CPUs, so its rule is row-wise Adagrad, as in `with_runner_adagrad`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.modules.fused_embedding_modules import fuse_embedding_optimizer
from torchrec.optim import RowWiseAdagrad

from bench.peers.measured import HIDDEN, NAMES, TABLES_LR, WIDTH


class DeepFM(nn.Module):
    """Logits of rows of ids; the first-order tables have the least width that FBGEMM takes."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.wide, self.narrow = (self._tables(sizes, width) for width in (WIDTH, 4))
        layers: list[nn.Module] = []
        for size, width in zip([len(NAMES) * WIDTH, *HIDDEN], HIDDEN):
            layers += [nn.Linear(size, width), nn.ReLU()]
        self.deep = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    @staticmethod
    def _tables(sizes: list[int], width: int) -> nn.Module:
        configs = [
            EmbeddingBagConfig(
                name=f"{name}_{width}",
                num_embeddings=size,
                embedding_dim=width,
                feature_names=[name],
                init_fn=lambda weight: nn.init.uniform_(weight, -0.01, 0.01),
            )
            for name, size in zip(NAMES, sizes)
        ]
        tables = EmbeddingBagCollection(tables=configs)
        return fuse_embedding_optimizer(
            tables, RowWiseAdagrad, {"lr": TABLES_LR}, torch.device("cpu")
        )

    def dense_parameters(self) -> list[nn.Parameter]:
        return list(self.deep.parameters())

    def forward(self, ids_BF: Tensor) -> Tensor:
        keyed = KeyedJaggedTensor(
            NAMES, ids_BF.T.reshape(-1), lengths=torch.ones(ids_BF.numel(), dtype=torch.int64)
        )
        x_BFD = self.wide(keyed).values().view(len(ids_BF), len(NAMES), WIDTH)
        first_B = self.narrow(keyed).values()[:, ::4].sum(1)
        pairs_B = (x_BFD.sum(1).square() - x_BFD.square().sum(1)).sum(1) / 2
        return first_B + pairs_B + self.deep(x_BFD.flatten(1)).squeeze(1)
