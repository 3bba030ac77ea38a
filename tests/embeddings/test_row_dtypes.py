"""Rows of tables in 16 bits: the rounding, and updates beside those of rows in fp32."""

from __future__ import annotations

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.config.signature import active_settings
from runner.embeddings.factory import build_tables, build_uninitialized_tables
from runner.embeddings.interface import TableSpec
from runner.embeddings.stochastic_rounding import RowRounding
from runner.errors import ConfigError
from runner.optim.settings import SPARSE_KINDS, SparseSettings, parse_sparse

CPU = torch.device("cpu")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SPECS = (
    TableSpec("a", 50, 8, ("f", "h")),
    TableSpec("b", 30, 4, ("g",), pooling="mean"),
    TableSpec("c", 20, 10, ("i",)),
)
ORDER = ("g", "f", "h", "i")


def random_ids(batch_size: int = 16, seed: int = 0, *, weighted: bool = False) -> KeyedJaggedTensor:
    """Features with 0 to 3 ids a row each."""
    g = torch.Generator().manual_seed(seed)
    rows = {name: spec.num_rows for spec in SPECS for name in spec.features}
    lengths = torch.randint(0, 4, (len(ORDER), batch_size), generator=g)
    ids = [torch.randint(0, rows[n], (int(c.sum()),), generator=g) for n, c in zip(ORDER, lengths)]
    values = torch.cat(ids)
    weights = torch.rand(len(values), generator=g) if weighted else None
    return KeyedJaggedTensor(
        keys=list(ORDER), values=values, lengths=lengths.flatten(), weights=weights
    )


def settings(kind: str = "sgd", dtype: str = "bf16") -> SparseSettings:
    return parse_sparse({"kind": kind, "lr": 0.1, "dtype": dtype})


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_number_becomes_either_neighbour_as_often_as_it_lies_near_it(dtype):
    """The neighbours are those of torch, and the mean over many updates is the number."""
    g = torch.Generator().manual_seed(1)
    # from below the smallest number of fp16 up to a thousand
    exact_UD = torch.randn(40, 8, generator=g) * 10.0 ** torch.linspace(-8, 3, 40)[:, None]
    rounding, rows_U = RowRounding([TableSpec("t", 40, 8, ("f",))], 3, dtype), torch.arange(40)
    found = [rounding.round(exact_UD.clone(), rows_U, step).float() for step in range(500)]
    nearest_UD = exact_UD.to(dtype)
    inf = torch.full_like(nearest_UD, float("inf"))
    below_UD = torch.where(
        nearest_UD.float() > exact_UD, torch.nextafter(nearest_UD, -inf), nearest_UD
    ).float()
    above_UD = torch.where(
        nearest_UD.float() < exact_UD, torch.nextafter(nearest_UD, inf), nearest_UD
    ).float()
    for rounded_UD in found:
        assert ((rounded_UD == below_UD) | (rounded_UD == above_UD)).all()
    gap_UD = (above_UD - below_UD).clamp(min=1e-30)
    error_UD = (torch.stack(found).mean(0) - exact_UD) / gap_UD
    assert error_UD.abs().max() < 5 * 0.5 / 500**0.5  # five standard deviations
    assert torch.equal(rounding.round(nearest_UD.float(), rows_U, 7), nearest_UD)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_part_of_the_rows_is_rounded_like_the_whole(dtype):
    """By seed, table, row, column and update alone: whatever lies beside the rows."""
    weight_RD = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    specs = [TableSpec("s", 7, 4, ("e",)), TableSpec("t", 30, 4, ("f",))]
    whole = RowRounding(specs, 5, dtype).round(weight_RD.clone(), torch.arange(7, 37), 9)
    part = RowRounding([TableSpec("t", 10, 4, ("f",), first_row=20)], 5, dtype)
    assert torch.equal(part.round(weight_RD[20:].clone(), torch.arange(10), 9), whole[20:])
    for seed, step in ((6, 9), (5, 10)):
        other = RowRounding(specs, seed, dtype).round(weight_RD.clone(), torch.arange(7, 37), step)
        assert not torch.equal(other, whole)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_an_update_is_that_of_fp32_rounded_to_a_neighbour(kind, dtype, weighted):
    ids = random_ids(weighted=weighted)
    ours = build_tables(SPECS, ORDER, settings(kind, dtype), seed=0, device=CPU)
    exact = build_tables(SPECS, ORDER, settings(kind, "fp32"), seed=0, device=CPU)
    for key, tensor in ours.state().items():
        assert tensor.dtype == (DTYPES[dtype] if key.endswith("/weight") else torch.float32)
        exact.state()[key].copy_(tensor)
    for step in (1, 2):
        pooled = []
        for tables in (ours, exact):
            tables.set_lr_and_step(0.1, step)
            pooled.append(tables(ids))
        assert pooled[0].dtype == torch.float32
        torch.testing.assert_close(*pooled, rtol=1e-6, atol=1e-6)
        grad_BE = torch.randn(pooled[0].shape, generator=torch.Generator().manual_seed(step))
        for output in pooled:
            output.backward(grad_BE)
        eps = torch.finfo(DTYPES[dtype]).eps
        for key, tensor in ours.state().items():
            tolerance = {"rtol": eps, "atol": 1e-7} if key.endswith("/weight") else {}
            expected = exact.state()[key]
            torch.testing.assert_close(tensor.float(), expected, **(tolerance or TOLERANCE))
            expected.copy_(tensor)


TOLERANCE = {"rtol": 1e-5, "atol": 1e-7}


def test_steps_too_small_for_bf16_add_up():
    """Two hundred steps of a sixteenth of the distance to the next number, of 256 weights of 1."""
    spec = TableSpec("t", 64, 4, ("f",))
    tables = build_tables([spec], ("f",), settings(), seed=0, device=CPU)
    weight_RD = tables.state()["t/weight"]
    weight_RD.fill_(1.0)
    ids = KeyedJaggedTensor(keys=["f"], values=torch.arange(64), lengths=torch.ones(64).long())
    for step in range(1, 201):
        tables.set_lr_and_step(2.0**-12, step)  # the distance below 1 is 2 ** -8
        tables(ids).backward(torch.ones(64, 4))
    assert float(weight_RD.float().mean()) == pytest.approx(1 - 200 * 2.0**-12, abs=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_id_outside_its_table_is_refused(dtype):
    tables = build_tables(SPECS[:1], ("f", "h"), settings("adam", dtype), seed=0, device=CPU)
    ids = KeyedJaggedTensor(
        keys=["f", "h"], values=torch.tensor([50, 1]), lengths=torch.ones(2).long()
    )
    with pytest.raises((IndexError, RuntimeError)):
        tables(ids)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"dtype": "fp8"}, "sparse.dtype=fp8: must be one of"),
        ({"dtype": "bf16", "every_row": True}, "sparse.dtype=bf16: does not work with"),
        ({"dtype": "fp16", "l2_tables": 0.1}, "which passes over all rows"),
    ],
)
def test_what_cannot_be_is_refused(more, says):
    with pytest.raises(ConfigError) as caught:
        parse_sparse({"kind": "sgd", "lr": 0.1, **more})
    assert says in str(caught.value)


def test_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="16-bit rows are for CPU"):
        build_uninitialized_tables(SPECS, ORDER, settings(), torch.device("cuda"))


def test_fp32_signs_like_no_dtype():
    def signed(sparse, parts=()):
        return active_settings({"optimizer": {"sparse": sparse, "parts": list(parts)}})["optimizer"]

    plain = {"kind": "sgd", "lr": 0.1}
    fp32, bf16 = plain | {"dtype": "fp32"}, plain | {"dtype": "bf16"}
    assert signed(fp32) == signed(plain) != signed(bf16)
    assert signed(fp32, [{"sparse": {"dtype": "fp32"}}]) == signed(plain, [{"sparse": {}}])
    assert signed(bf16, [{"sparse": {"dtype": "fp32"}}]) != signed(bf16, [{"sparse": {}}])
