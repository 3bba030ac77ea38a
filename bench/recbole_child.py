"""Trains RecBole's SASRec for as many updates as each line of stdin says, in RecBole's environment.

`bench.recbole` starts it with that interpreter; it imports nothing of ours. A line of JSON is the
answer: `rows`, and the processor time `cpu_s` of the updates; the first line says what was built.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.trainer import Trainer
from recbole.utils import get_model, init_seed


class Chunks:
    """The training batches of epoch after epoch, of which each pass takes the next `count`."""

    def __init__(self, loader: Any) -> None:
        self.shuffle = False  # what the trainer asks of a loader; the real one shuffles by itself
        self.count = self.rows = 0
        self._batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def __iter__(self) -> Iterator[Any]:
        for batch in itertools.islice(self._batches, self.count):
            self.rows += len(batch)
            yield batch


def main(folder: str, settings: dict[str, Any]) -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(settings.pop("threads"))
    config = Config(
        model="SASRec",
        dataset="events",
        config_dict={
            "data_path": folder,
            "USER_ID_FIELD": "user",
            "ITEM_ID_FIELD": "item",
            "TIME_FIELD": "time",
            "load_col": {"inter": ["user", "item", "time"]},
            "train_neg_sample_args": None,
            "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
            "use_gpu": False,
            "show_progress": False,
            "loss_type": "CE",
            **settings,
        },
    )
    init_seed(config["seed"], config["reproducibility"])
    dataset = create_dataset(config)
    loader, _, _ = data_preparation(config, dataset)
    model = get_model("SASRec")(config, loader.dataset).to(config["device"])
    trainer, chunks = Trainer(config, model), Chunks(loader)
    built = {"rows": len(loader.dataset), "items": dataset.item_num - 1}
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({**built, "parameters": parameters}), file=answers, flush=True)
    for number, line in enumerate(sys.stdin):
        chunks.count, chunks.rows = int(line), 0
        began = time.process_time()
        trainer._train_epoch(chunks, number)
        spent = {"rows": chunks.rows, "cpu_s": time.process_time() - began}
        print(json.dumps(spent), file=answers, flush=True)


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # RecBole prints as it likes
    sys.argv, given = sys.argv[:1], sys.argv[1:]  # it reads the words of the command line, too
    main(given[0], json.loads(given[1]))
