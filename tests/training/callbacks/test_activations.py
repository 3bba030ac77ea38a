"""What `callbacks=activations` writes, against the model's own output and a gradient by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from runner.errors import ConfigError
from runner.training.callbacks.watch.activations import Activations
from runner.training.update.task import Supervised
from tests.conftest import TINY, Zygote
from tests.tiny import make_context, random_batch
from tests.whole.compare_runs import read_rows


class FakeTraining:
    """Stands for a `TrainingHandle` of which three updates are made."""

    def __init__(self, context, *, compiled=False) -> None:
        self.context, self.step, self.rows = context, 0, []
        self.job = SimpleNamespace(trainer=SimpleNamespace(compile=compiled))

    def log(self, split, numbers):
        self.rows.append((self.step, split, dict(numbers)))


@pytest.mark.parity("C6")
def test_the_row_holds_the_update_that_every_divides_and_no_evaluation():
    context = make_context()
    training, callback = FakeTraining(context), Activations(every=2, statistics=("rms", "mean"))
    callback.on_run_start(training)
    last = [name for name, _ in context.model.named_modules() if name.startswith("top.")][-1]
    for step in (1, 2, 3):
        batch = random_batch(8)
        with torch.no_grad():
            logits_B = context.model(batch).logits_BT[:, 0]
        context.model.eval()
        with torch.no_grad():  # an evaluation before the update
            Supervised().eval_step(context, random_batch(8, seed=step))
        context.model.train()
        Supervised().train_step(context, iter([batch]))
        training.step = step
        callback.on_update(training, None)
        if step == 2:
            expected_B = logits_B.double()
            slope_B = (expected_B.sigmoid() - batch.labels_BT[:, 0]) * batch.weights_B
            slope_B /= batch.weights_B.sum()
            loss_B = binary_cross_entropy_with_logits(
                expected_B, batch.labels_BT[:, 0].double(), reduction="none"
            )
    [(step, split, numbers)] = training.rows
    assert (step, split) == (2, "activations")
    assert numbers[f"{last}/output_rms"] == pytest.approx(float(expected_B.square().mean().sqrt()))
    assert numbers[f"{last}/output_mean"] == pytest.approx(float(expected_B.mean()))
    assert numbers["(loss)/output_mean"] == pytest.approx(float(loss_B.mean()))
    assert numbers[f"{last}/gradient_mean"] == pytest.approx(float(slope_B.mean()), rel=1e-4)
    callback.on_run_end(training, None)
    assert not any(module._forward_hooks for module in context.model.modules())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "at least 1"),
        ({"every": 1, "statistics": ["mena"]}, "nearest: 'mean'"),
        ({"every": 1000, "modules": ["topp.*"]}, "modules: 'topp.*' matches nothing"),
        ({"every": 1, "modules": ["("]}, "pattern"),
    ],
)
def test_mistakes_name_the_nearest_right_thing(settings, message):
    with pytest.raises(ConfigError) as error:
        Activations(**settings).on_run_start(FakeTraining(make_context()))
    assert message in str(error.value)


def test_a_compiled_dense_half_is_refused():
    with pytest.raises(ConfigError, match="compile=false"):
        Activations(every=1).on_run_start(FakeTraining(make_context(), compiled=True))


@pytest.mark.slow
def test_an_observed_run_equals_a_plain_one_also_when_it_is_resumed(runner: Zygote, tmp_path):
    def rows(folder, split):
        return read_rows(tmp_path / folder, split)

    def run(folder, *more):
        return runner.run(*TINY, f"hydra.run.dir={tmp_path / folder}", *more)

    observe = ("callbacks=activations", "callbacks.activations.every=6")
    run("plain").check()
    run("looked", *observe).check()
    run("cut", *observe, "trainer.max_steps=17").check()
    runner.run("resume", str(tmp_path / "cut"), "trainer.max_steps=40").check()
    for split in ("train", "validation", "test"):
        assert rows("looked", split) == rows("plain", split)
    assert [row["step"] for row in rows("looked", "activations")] == [6, 12, 18, 24, 30, 36]
    assert rows("cut", "activations") == rows("looked", "activations")
