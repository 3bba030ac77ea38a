"""Which pipeline a job gets. What it does on two ranks: tests/distributed/scenes.py."""

from __future__ import annotations

import pytest

from runner.batch import SequenceFeature
from runner.config.settings import TrainerSettings
from runner.errors import ConfigError, UserError
from runner.models.layers.sequences import SequenceLookup
from runner.training.builder.pipeline import choose_pipeline, declares_single_lookup
from runner.training.update.task import Supervised
from tests.tiny import SCHEMA, make_context, random_batch


class Own:
    def train_step(self, ctx, batches):
        raise AssertionError("never called")

    eval_step = train_step


class Changed(Supervised):
    def train_step(self, ctx, batches):
        batch = next(batches)
        ctx.model.embed(batch)
        return super().train_step(ctx, iter([batch]))


class Renamed(Supervised):
    pass


def sharded(monkeypatch, context):
    """Pretend that TorchRec holds the tables, as it does on two ranks."""
    monkeypatch.setattr(context.tables, "torchrec_modules", lambda: [context.model])


@pytest.mark.parametrize("kind", ["auto", "none"])
def test_on_cpu_ids_are_sent_early_only_where_the_settings_say_so(monkeypatch, kind):
    context = make_context()
    sharded(monkeypatch, context)
    settings = TrainerSettings(pipeline=kind)
    choose_pipeline(settings, context, context.model.embedding, Supervised())
    assert context.sparse_dist is None
    assert context.prefetch_to_device == (kind == "auto")


def test_a_refusal_of_sparse_dist_names_the_reason(monkeypatch):
    context, settings = make_context(), TrainerSettings(pipeline="sparse_dist")
    lookup = context.model.embedding
    with pytest.raises(ConfigError, match="no table is held by TorchRec"):
        choose_pipeline(settings, context, lookup, Supervised())
    sharded(monkeypatch, context)
    with pytest.raises(ConfigError, match="Own does not declare looks_up_once = True"):
        choose_pipeline(settings, context, lookup, Own())
    items = SequenceFeature("items", 50, 4, "a")
    draws = SequenceLookup(SCHEMA, 4, features=(), sequences=(items,), candidates="a")
    with pytest.raises(ConfigError, match="DLRM draws candidates"):
        choose_pipeline(settings, context, draws, Supervised())
    assert context.sparse_dist is None
    choose_pipeline(settings, context, lookup, Supervised())
    assert context.sparse_dist is not None
    with pytest.raises(UserError, match=r"looks up something else, or twice; trainer.pipeline"):
        context.sparse_dist._check_lookup(random_batch(4))  # which was not handed out


def test_a_declaration_of_a_task_does_not_hold_for_methods_of_a_subclass():
    assert [declares_single_lookup(task) for task in (Supervised, Renamed)] == [True, True]
    assert [declares_single_lookup(task) for task in (Changed, Own)] == [False, False]
    redeclared = [
        type("Anew", (Changed,), {"looks_up_once": declared}) for declared in (True, False)
    ]
    assert [declares_single_lookup(task) for task in redeclared] == [True, False]
