"""First-order tables: equal columns learn exactly as a table of one column for each sum would."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from runner.embeddings.factory import build_tables
from runner.embeddings.row_updates import ROWWISE_STATES, STATE_NAMES, UPDATE_RULES, UpdateStep
from runner.models.layers.embedding import TableLookup, count_equal_columns
from runner.models.layers.linear import FirstOrder
from runner.optim.settings import SPARSE_KINDS, parse_sparse
from runner.training.debugging.lookups import looked_up_ids, pooled_columns
from tests.tiny import CPU, SCHEMA, random_batch

RATE = 0.1


class NarrowTables:
    """Tables of a column for each sum in plain tensors, updated by the same rules, row by row."""

    def __init__(self, settings, schema, width):
        self.settings, self.schema, self.width = settings, schema, width
        self.weight = {f.name: torch.zeros(f.num_rows, width) for f in schema.sparse}
        rowwise = ROWWISE_STATES.get(settings.kind, ())
        self.states = {
            f.name: [
                torch.zeros(f.num_rows) if s in rowwise else torch.zeros(f.num_rows, width)
                for s in STATE_NAMES[settings.kind]
            ]
            for f in schema.sparse
        }

    def sums(self, batch):
        ids = batch.sparse.to_dict()
        total = torch.zeros(batch.size, self.width)
        for name, weight in self.weight.items():
            for row, own in enumerate(ids[name].values().split(ids[name].lengths().tolist())):
                total[row] += weight[own].sum(0)
        return total

    def update(self, batch, grad_BS, step):
        ids = batch.sparse.to_dict()
        for name, weight in self.weight.items():
            jagged = ids[name]
            grads_VS = grad_BS.repeat_interleave(jagged.lengths(), dim=0)
            rows = jagged.values().unique()
            grad_US = torch.stack([grads_VS[jagged.values() == row].sum(0) for row in rows])
            held, states = weight[rows], [state[rows] for state in self.states[name]]
            rule = UPDATE_RULES[self.settings.kind]
            rule(held, states, grad_US, UpdateStep(self.settings, RATE, step))
            weight[rows] = held
            for state, moved in zip(self.states[name], states):
                state[rows] = moved


@pytest.mark.parametrize("num_sums", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_it_learns_as_tables_of_a_column_a_sum_under_every_optimizer(kind, num_sums):
    schema = replace(SCHEMA, dense=())
    lookup = TableLookup(schema, 4, linear=num_sums)
    options = {"kind": kind, "lr": RATE, "eps": 1e-10}
    options |= {"weight_decay": 0.1} if "weight_decay" in SPARSE_KINDS[kind] else {}
    known = {k: v for k, v in options.items() if k in ("kind", "lr", *SPARSE_KINDS[kind])}
    settings = parse_sparse(known)
    tables = build_tables(lookup.specs, lookup.features, settings, seed=0, device=CPU)
    lookup.attach_tables(tables)
    first_order = FirstOrder(schema, num_sums)
    twin = NarrowTables(settings, schema, num_sums)
    for state in twin.weight.values():  # trust ratios of a weight of 0 are 0: nothing would move
        state.fill_(0.3)
    for name, state in tables.state().items():
        if name.endswith(":linear/weight"):
            assert not state.any()  # every model starts there
            state.fill_(0.3)
    for step in range(1, 5):
        batch = random_batch(16, step)
        tables.set_lr_and_step(RATE, step)
        _, linear_BE = lookup(batch).pooled_BE.split(lookup.widths, dim=1)
        sums_BS = first_order(linear_BE, batch.dense_BD[:, :0])
        torch.testing.assert_close(sums_BS, twin.sums(batch), rtol=1e-4, atol=1e-5)
        grad_BS = torch.randn(16, num_sums, generator=torch.Generator().manual_seed(step))
        sums_BS.backward(grad_BS)
        twin.update(batch, grad_BS, step)
    state = tables.state()
    for name, weight in twin.weight.items():
        ours = state[f"{name}:linear/weight"]
        equal = count_equal_columns(num_sums)
        assert torch.equal(ours, ours[:, ::equal].repeat_interleave(equal, dim=1))
        torch.testing.assert_close(ours[:, ::equal], weight, rtol=1e-4, atol=1e-5, msg=name)
    assert max(float((w - 0.3).abs().max()) for w in twin.weight.values()) > 1e-4


def test_tables_of_several_weights_an_id_are_no_wider_than_fbgemm_needs():
    widths = {n: TableLookup(SCHEMA, 8, linear=n).specs[-1].dim for n in range(1, 9)}
    assert widths == {1: 4, 2: 4, 3: 12, 4: 4, 5: 20, 6: 12, 7: 28, 8: 8}


def test_dense_features_enter_by_a_linear_function():
    first_order = FirstOrder(SCHEMA)
    batch = random_batch(8)
    zeros = torch.zeros(8, 3 * count_equal_columns(1))
    expected = batch.dense_BD @ first_order.dense.weight.T + first_order.dense.bias
    torch.testing.assert_close(first_order(zeros, batch.dense_BD), expected)


def test_first_order_tables_stand_behind_the_others_and_read_the_same_ids():
    lookup = TableLookup(SCHEMA, 8, linear=True)
    assert lookup.features == ("a", "b", "m", "a:linear", "b:linear", "m:linear")
    assert lookup.widths == [24, 12]
    assert [(s.name, s.dim, s.init_bound) for s in lookup.specs] == [
        ("a", 8, None),
        ("b", 8, None),
        ("m", 8, None),
        ("a:linear", 4, 0.0),
        ("b:linear", 4, 0.0),
        ("m:linear", 4, 0.0),
    ]
    batch = random_batch(16)
    ids = looked_up_ids(lookup, batch)
    for name, jagged in batch.sparse.to_dict().items():
        assert ids[name].equal(jagged.values())
        assert ids[f"{name}:linear"].equal(jagged.values())
    assert pooled_columns(lookup)["m:linear"] == [slice(32, 36)]


def test_features_of_one_table_share_their_first_order_table_too():
    a, b, m = SCHEMA.sparse
    shared = replace(SCHEMA, sparse=(a, replace(b, num_rows=50, table="a"), m))
    lookup = TableLookup(shared, 4, linear=True)
    assert [(s.name, s.features) for s in lookup.specs] == [
        ("a", ("a", "b")),
        ("m", ("m",)),
        ("a:linear", ("a:linear", "b:linear")),
        ("m:linear", ("m:linear",)),
    ]


def test_weights_of_ids_count_in_both():
    schema = replace(SCHEMA, dense=())
    lookup = TableLookup(schema, 4, linear=True)
    settings = parse_sparse({"kind": "sgd", "lr": 0.1})
    tables = build_tables(lookup.specs, lookup.features, settings, seed=0, device=CPU)
    lookup.attach_tables(tables)
    tables.set_lr_and_step(0.1, 1)
    for state in tables.state().values():
        state.fill_(1.0)
    batch = random_batch(8)
    weights_V = torch.rand(batch.sparse.values().numel())
    weighted = type(batch.sparse)(
        keys=batch.sparse.keys(),
        values=batch.sparse.values(),
        weights=weights_V,
        lengths=batch.sparse.lengths(),
    )
    pooled_BE, linear_BE = lookup(replace(batch, sparse=weighted)).pooled_BE.split(
        lookup.widths, dim=1
    )
    expected_B = torch.zeros(8)
    per_bag = weights_V.split(batch.sparse.lengths().tolist())
    for bag, own in enumerate(per_bag):
        expected_B[bag % 8] += own.sum()
    torch.testing.assert_close(linear_BE.sum(1) / count_equal_columns(1), expected_B)
    torch.testing.assert_close(pooled_BE.sum(1) / 4, expected_B)


@pytest.mark.parametrize("init", [0.0, 0.25])
def test_the_initial_bound_of_the_tables_is_the_setting(init):
    lookup = TableLookup(SCHEMA, 8, init=init)
    settings = parse_sparse({"kind": "sgd", "lr": 0.1})
    state = build_tables(lookup.specs, lookup.features, settings, seed=0, device=CPU).state()
    for weight in state.values():
        assert float(weight.abs().max()) <= init
        assert float(weight.std()) == pytest.approx(init / 3**0.5, rel=0.2)
