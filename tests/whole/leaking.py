"""Parts of a user that let secrets out at every place where they can say something.

LEAK in the environment says where a run ends, if it does not end by itself: `raise` in task, model,
dataset or callback, or `stop` and `pause` in the callback.
"""

from __future__ import annotations

import base64
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from torch import Tensor

from runner import dataset_option
from runner.batch import Batch, Embeddings, Prediction
from runner.data.core.dataset import Dataset
from runner.data.sets.synthetic import synthetic
from runner.models.dlrm import DLRM
from runner.training.update.context import Context
from runner.training.update.task import StepOutput, Supervised

STEP = 3


def tell(note: str = "") -> str:
    """Return a text with the secret in all its spellings, and with what the configuration gave."""
    secret = os.environ["MY_API_TOKEN"]
    encoded = base64.b64encode(f"user:{secret}".encode()).decode()
    return (
        f"no access with {secret}, {secret!r} at https://host/?k={quote(secret)} {encoded} {note}"
    )


def leak_if_asked(place: str) -> None:
    if os.environ.get("LEAK") == place and os.environ.get("RANK", "0") == os.environ.get("AT", "0"):
        raise RuntimeError(tell())


@dataclass
class LeakingTask:
    inner: Supervised = field(default_factory=Supervised)
    count: int = 0
    looks_up_once = True

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        self.count += 1
        if self.count == 1:
            talk()
        if self.count == STEP:
            if os.environ.get("LEAK") == "SIGINT":
                os.kill(os.getpid(), signal.SIGINT)
            leak_if_asked("task")
        return self.inner.train_step(ctx, batches)

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        return self.inner.eval_step(ctx, batch)


def talk() -> None:
    """Print, warn and log as libraries do; the secret comes in two pieces, too."""
    secret = os.environ["MY_API_TOKEN"]
    print(tell())
    print(tell(), file=sys.stderr)
    sys.stdout.write(secret[:9])
    sys.stdout.flush()
    sys.stdout.write(secret[9:] + "\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(secret.encode() + b"\n")
    warnings.warn(tell(), stacklevel=1)
    logging.getLogger("a.library").warning("request: %s", tell())


class LeakingModel(DLRM):
    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        leak_if_asked("model")
        if not self.training:
            leak_if_asked("evaluation")
        return super().dense(embeddings, batch)


@dataset_option
def leaking(**settings: Any) -> Dataset:
    leak_if_asked("dataset")
    return synthetic(**settings)


class LeakingCallback:
    """Has the secrets in its notes, its rows, its state, its reason of a stop."""

    on_every_rank = True

    def __init__(self, *, note: str) -> None:
        self.note = note

    def on_update(self, training: Any, output: Any) -> None:
        text = tell(self.note)
        if training.step == 1:
            training.note(text)
            training.warn(text)
            training.log(f"of {text}", {f"{text}/loss": 1.0})
            training.log_speed({f"{text}/s": 1.0})
        leak = os.environ.get("LEAK")
        if training.step != STEP or str(training.ranks.rank) != os.environ.get("AT", "0"):
            return
        if leak == "callback":
            raise ValueError(text)
        if leak in ("stop", "pause"):
            getattr(training, leak)(text)

    def state(self) -> dict[str, str]:
        return {"note": tell()}

    def load_state(self, saved: dict[str, str]) -> None:
        """Keep nothing, since every text is told anew."""
