"""Widths of tables: one for all, by patterns of names, and `auto`, checked and in models."""

from __future__ import annotations

import pytest
import torch

from runner.batch import Embeddings
from runner.embeddings.factory import build_tables
from runner.errors import ConfigError
from runner.models.dcn import DCN
from runner.models.dlrm import DLRM
from runner.models.mlp import MLP
from runner.models.table_widths import auto_width, check_widths, one_width, resolve_widths
from runner.models.wide_and_deep import WideAndDeep
from runner.optim.settings import SparseSettings
from runner.training.builder.model import with_table_widths
from tests.tiny import CPU, SCHEMA, random_batch

ROWS = {"user": 1_000_000, "user_city": 300, "day": 7}


def test_auto_is_six_times_the_fourth_root_rounded_up_to_a_multiple_of_4_and_at_most_64():
    """By hand: 6 * 7 ** .25 = 9.76, 6 * 256 ** .25 = 24, 6 * 300 ** .25 = 24.97."""
    rows = (1, 7, 256, 300, 12_000, 1_000_000)
    assert [auto_width(n) for n in rows] == [8, 12, 24, 28, 64, 64]


def test_the_first_pattern_that_fits_a_name_counts_and_default_takes_the_rest():
    setting = {"default": 10, "user*": "auto", "user_city": 3}
    assert resolve_widths(setting, ROWS) == {"user": 64, "user_city": 28, "day": 10}
    setting = {"user_city": 3, "default": 10, "user*": "auto"}
    assert resolve_widths(setting, ROWS) == {"user": 64, "user_city": 3, "day": 10}
    assert resolve_widths(5, ROWS) == dict.fromkeys(ROWS, 5)


def test_models_of_one_width_take_the_mean_of_auto_and_refuse_widths_that_differ():
    assert one_width("auto", ROWS, "DLRM") == 36  # (64 + 28 + 12) / 3 = 34.7
    assert one_width({"default": 6, "day": 6}, ROWS, "DLRM") == 6
    with pytest.raises(ConfigError, match=r"embedding_dim: DLRM takes one width"):
        one_width({"default": 6, "day": 8}, ROWS, "DLRM")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (0, "=0: must be a whole number from 1, or auto"),
        (True, "=True: must be"),
        (2.0, "=2.0: must be"),
        ("atuo", "nearest: 'auto'"),
        ({}, "names no table"),
        ({"user": 0}, r"embedding_dim\.user=0: must be"),
        (65537, "=65537: must be at most 65536, or auto"),
        ({"user": 100_000}, r"embedding_dim\.user=100000: must be at most 65536"),
        ({"user": {"a": 1}}, r"embedding_dim\.user: must be"),
    ],
)
def test_a_setting_that_is_no_width_is_refused(setting, says):
    with pytest.raises(ConfigError, match=says):
        check_widths(setting)


def test_a_pattern_without_a_table_and_a_table_without_a_width_are_refused():
    with pytest.raises(ConfigError, match=r"\.usr\*: fits no table; nearest: 'user'"):
        resolve_widths({"default": 4, "usr*": 8}, ROWS)
    with pytest.raises(ConfigError, match="defualt: fits no table; nearest: 'default'"):
        resolve_widths({"defualt": 8}, ROWS)
    check_widths({"default": 65536})
    with pytest.raises(ConfigError, match="table day has none; give a default"):
        resolve_widths({"user*": 8}, ROWS)


def net(name: str, widths):
    node = {"_target_": f"runner.models.{name}", "embedding_dim": widths}
    return with_table_widths(node, SCHEMA, ("runner",))["embedding_dim"]


def test_the_builder_gives_each_model_what_its_constructor_takes():
    several = {"default": 10, "b": 6}
    assert net("dcn.DCN", several) == {"a": 10, "b": 6, "m": 10}
    assert net("dcn.DCN", 10) == 10
    assert net("dlrm.DLRM", "auto") == 16  # of 16, 16, 16
    assert net("mlp.MLP", "auto") == {"a": 16, "b": 16, "m": 16}
    with pytest.raises(ConfigError, match="DLRM takes one width"):
        net("dlrm.DLRM", several)


WIDTHS = {"a": 10, "b": 3, "m": 8}
MODELS = {
    "mlp": lambda d: MLP(SCHEMA, embedding_dim=d, deep=[8]),
    "dcn": lambda d: DCN(
        SCHEMA,
        embedding_dim=d,
        num_layers=2,
        rank=None,
        num_experts=1,
        structure="parallel",
        deep=[8],
    ),
    "wide_and_deep": lambda d: WideAndDeep(SCHEMA, embedding_dim=d, deep=[8]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_looks_up_tables_of_several_widths_side_by_side(name):
    model = MODELS[name](WIDTHS)
    lookup = model.embedding
    settings = SparseSettings("adagrad", 0.1)
    tables = build_tables(lookup.specs, lookup.features, settings, seed=0, device=CPU)
    lookup.attach_tables(tables)
    batch = random_batch(6)
    pooled_BE = model.embed(batch).pooled_BE
    state, start = tables.state(), 0
    for feature in SCHEMA.sparse:
        jt = batch.sparse[feature.name]
        weight = state[f"{feature.name}/weight"]
        assert weight.shape == (feature.num_rows, WIDTHS[feature.name])
        twin = torch.nn.functional.embedding_bag(
            jt.values(), weight, jt.offsets(), mode="sum", include_last_offset=True
        )
        end = start + WIDTHS[feature.name]
        torch.testing.assert_close(pooled_BE[:, start:end], twin)
        start = end
    assert lookup.widths[0] == 21
    assert model.dense(Embeddings(pooled_BE), batch).logits_BT.shape == (6, 1)


def test_a_model_of_one_width_has_any_width():
    model = DLRM(SCHEMA, embedding_dim=7, bottom=[8], top=[8])
    assert [spec.dim for spec in model.embedding.specs] == [7, 7, 7]
