"""What the sequence and retrieval models refuse, and with which words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import yaml

import runner.models
from runner.batch import SequenceFeature, SparseFeature, TaskSpec
from runner.data.read.block_dataset import drop_ids, pad_batch
from runner.models.layers.sequences import single_ids
from runner.models.losses import BCE, BPR, InBatchSoftmax, check_loss_inputs
from runner.models.misfits import find_misfits
from tests.models.scene import CONF, from_yaml
from tests.models.sequence_models import READ_BY_ITEM, SMALL, make
from tests.models.sequence_scene import SCHEMA, batch_of, jagged


def without(*names, **more):
    return replace(SCHEMA, sparse=tuple(f for f in SCHEMA.sparse if f.name not in names), **more)


def with_list(name):
    return replace(SCHEMA, sparse=tuple(replace(f, is_list=f.name == name) for f in SCHEMA.sparse))


OTHER_TABLE = (SequenceFeature("history", 50, 5),)
REFUSED = {
    "no sequence": (READ_BY_ITEM, replace(SCHEMA, sequences=()), {}, "needs a sequence"),
    "nothing that reads its table": (READ_BY_ITEM, without("item"), {}, "table.*'item'"),
    "sequence of another table": (
        ["sasrec"],
        replace(SCHEMA, sequences=OTHER_TABLE),
        {"item": "item"},
        "item=item: reads table 'item', but sequence 'history' reads 'history'",
    ),
    "a sequence it lacks": (["sasrec"], SCHEMA, {"sequence": "histroy"}, "nearest: 'history'"),
    "an item it lacks": (["sasrec"], SCHEMA, {"item": "itm"}, "item=itm.*nearest: 'item'"),
    "items it lacks": (["two_tower"], SCHEMA, {"item": ["itm"]}, "item=itm.*nearest: 'item'"),
    "which is the item": (
        ["two_tower"],
        replace(SCHEMA, sequences=()),
        {},
        "name the features of the item.*user, item, genres",
    ),
    "an item that is a list": (
        ["bert4rec", "gru4rec", "hstu", "sasrec", "two_tower"],
        with_list("item"),
        {},
        "^item=item: is a list of ids, but the item of a row is one id",
    ),
    "an item that is named twice": (
        ["two_tower"],
        SCHEMA,
        {"item": ["item", "user", "item"]},
        r"^item=\[item, user, item\]: names item more than once$",
    ),
    "a user that is a list": (
        ["two_tower"],
        with_list("genres"),
        {"exclude_known": True, "user": "genres"},
        "^user=genres: is a list of ids, but a row has one user",
    ),
    "drawn items have no genres": (
        ["two_tower"],
        SCHEMA,
        {"item": ["item", "genres"], "uniform": 5},
        r"only the id of a drawn item is known.*item=\[item\]",
    ),
    "a user that tells the item": (
        ["two_tower"],
        replace(
            SCHEMA,
            sparse=(*SCHEMA.sparse, SparseFeature("kind", 9)),
            sequences=(*SCHEMA.sequences, SequenceFeature("history_kind", 9, 5, "kind")),
        ),
        {},
        r"kind reads the table of sequence history_kind.*item=\[item,kind\]",
    ),
    "several sequences of features": (
        ["sasrec"],
        replace(SCHEMA, sequences=(*SCHEMA.sequences, SequenceFeature("users", 20, 5, "user"))),
        {},
        "several sequences; there are history, users",
    ),
    "no user": (
        ["two_tower"],
        replace(without("user", "genres"), dense=(), sequences=()),
        {"item": ["item"]},
        "a feature of the user",
    ),
    "two tasks": (
        ["sasrec", "two_tower"],
        replace(SCHEMA, tasks=(TaskSpec("a"), TaskSpec("b"))),
        {},
        r"one binary task.*a \(binary\), b",
    ),
    "a regression": (
        ["sasrec", "two_tower"],
        replace(SCHEMA, tasks=(TaskSpec("stars", "regression"),)),
        {},
        r"one binary task.*stars \(regression\)",
    ),
    "heads": (
        ["bst", "hstu", "sasrec"],
        SCHEMA,
        {"num_heads": 3},
        "num_heads=3: must divide embedding_dim=4",
    ),
    "nothing to compare with": (
        ["sasrec"],
        SCHEMA,
        {"uniform": 0},
        r"^model\.net\.uniform=0: leaves nothing to compare.*; model\.net\.uniform=30 draws items$",
    ),
    "all and some": (
        ["sasrec"],
        SCHEMA,
        {"every": True},
        r"^model\.net\.every=true: .*: model\.net\.uniform=0 model\.net\.popularity=0$",
    ),
    "more than there are": (
        ["sasrec"],
        SCHEMA,
        {"uniform": 31},
        r"^model\.net\.uniform=31: must be from 0 to the 30 items.*model\.net\.every=true",
    ),
    "temperature": (["two_tower"], SCHEMA, {"temperature": 0.0}, "temperature=0.0"),
    "half-life": (["two_tower"], SCHEMA, {"half_life": 0.0}, "half_life=0.0"),
    "attention of nothing": (["din"], SCHEMA, {"attention": [0]}, "widths"),
}


def test_of_several_sequences_that_of_the_item_is_read():
    more = replace(SCHEMA, sequences=(SequenceFeature("history_kind", 9, 5), *SCHEMA.sequences))
    assert from_yaml("sasrec", more, **SMALL["sasrec"]).history == "history"


@pytest.mark.parametrize(
    ("name", "schema", "settings", "message"),
    [(n, schema, s, m) for names, schema, s, m in REFUSED.values() for n in names],
    ids=[f"{what}-{n}" for what, (names, *_) in REFUSED.items() for n in names],
)
def test_what_is_missing_or_does_not_fit_is_refused_while_building(name, schema, settings, message):
    with pytest.raises(ValueError, match=message):
        from_yaml(name, schema, **{**SMALL[name], **settings})


def test_a_number_of_negatives_that_nobody_set_is_at_most_that_of_the_items():
    def sampler(schema, **settings):
        settings = {k: v for k, v in SMALL["sasrec"].items() if k != "uniform"} | settings
        return from_yaml("sasrec", schema, **settings).negatives

    more = [replace(f, num_rows=600) if f.name == "item" else f for f in SCHEMA.sparse]
    histories = tuple(replace(s, num_rows=600) for s in SCHEMA.sequences)
    large = replace(SCHEMA, sparse=tuple(more), sequences=histories)
    assert sampler(SCHEMA).uniform == 30 and sampler(large).uniform == 512
    assert sampler(SCHEMA, every=True).uniform == 0
    with pytest.raises(ValueError, match=r"model\.net\.uniform=512"):
        sampler(SCHEMA, uniform=512)


def test_a_loss_over_candidates_is_refused_for_a_model_that_has_none():
    din, towers_, sasrec = (make(name).model for name in ("din", "two_tower", "sasrec"))
    for model, loss in ((din, BCE), (towers_, InBatchSoftmax), (sasrec, BPR), (sasrec, BCE)):
        check_loss_inputs(model, loss(SCHEMA))
    with pytest.raises(ValueError, match="BPR needs candidates, which DIN does not"):
        check_loss_inputs(din, BPR(SCHEMA))
    with pytest.raises(ValueError, match=r"items of the other rows.*SASRec.*sampled_softmax"):
        check_loss_inputs(sasrec, InBatchSoftmax(SCHEMA))


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        (
            "teacher",
            "Own needs 'teacher' .its `requires`., and DIN offers logits .its `provides`.$",
        ),
        ("candidate", "needs 'candidate' .*; nearest: 'candidates'$"),
        (["logits"], r"needs \['logits'\] .its `requires`."),
    ],
)
def test_what_a_loss_of_ones_own_needs_is_named_with_what_the_model_offers(requires, message):
    loss = type("Own", (), {"requires": requires})()
    with pytest.raises(ValueError, match=message):
        check_loss_inputs(make("din").model, loss)


@pytest.mark.parametrize("name", ["BCE", "Focal", "JRC", "SelfDistillation", "AuxiliaryBCE", "BPR"])
def test_a_loss_of_binary_tasks_is_held_against_the_tasks_before_a_job_begins(name):
    schema = replace(SCHEMA, tasks=(TaskSpec("stars", "regression"),))
    with pytest.raises(ValueError, match="needs binary tasks; 'stars' is regression"):
        getattr(runner.models, name)(schema)
    [told] = find_misfits({"loss": {"_target_": f"runner.models.losses.{name}"}}, schema)
    assert "needs binary tasks; 'stars' is regression" in told


def test_every_model_and_loss_of_an_option_is_a_public_name():
    nodes = [yaml.safe_load(path.read_text()) for path in CONF.rglob("*.yaml")]
    targets = [(node.get("net") or node).get("_target_") for node in nodes]
    named = [t.rpartition(".")[2] for t in targets if t and t != "???"]  # a model of one's own
    assert len(named) > 30 and set(named) <= set(runner.models.__all__)
    assert all(isinstance(getattr(runner.models, name), type) for name in named)


def test_a_row_without_an_id_does_not_get_that_of_another_row():
    batch = replace(batch_of(3), sparse=jagged(["item"], [[[4], [], [7, 8]]]))
    with pytest.raises(ValueError, match="feature 'item': needs one id in every row"):
        single_ids(batch, "item")


@pytest.mark.parametrize("pad", [lambda batch: pad_batch(batch, 5), drop_ids])
def test_rows_that_only_pad_a_batch_have_no_id_and_are_no_mistake(pad):
    """Those of `dataset.rest=pad`, and of a rank without a row in the last batch."""
    batch = replace(batch_of(3), sparse=jagged(["item"], [[[4], [6], [7]]]))
    batch = replace(batch, weights_B=torch.ones(3) if pad is not drop_ids else torch.zeros(3))
    expected = [4, 6, 7, 0, 0] if pad is not drop_ids else [0, 0, 0]
    assert single_ids(pad(batch), "item").tolist() == expected
