"""Skewed numbers that `schema` leaves as they are, where a label rises with the numbers."""

import numpy as np
import pyarrow as pa
import pytest

from runner.data.proposal.columns.column_statistics import compute_statistics
from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import draw_judging_sample
from runner.data.proposal.features.logarithms import drop_logarithms

ROWS = 4_000
NUMBER = {"type": "regression"}
SKEWED = Role("numeric", "named like a quantity", {"log1p": True, "standardise": True})


def drop(sales: np.ndarray, labels: dict[str, np.ndarray], kind: dict = NUMBER):
    table = pa.table({"sales": sales, **labels})
    roles = {"sales": SKEWED} | {name: Role("labels", settings=kind) for name in labels}
    return drop_logarithms(draw_judging_sample(table, roles), roles)


def draw() -> tuple[np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng, np.exp(rng.normal(4, 1, ROWS))


@pytest.mark.parametrize("margin", [(0.3, 0.1), (0.2, 0.3)], ids=["a sum", "a profit or a loss"])
def test_a_label_that_rises_with_amounts_drops_their_logarithm(margin):
    rng, sales = draw()
    profit = rng.normal(*margin, ROWS) * sales
    found, [note] = drop(sales, {"profit": profit})
    assert found == {"sales": Role("numeric", SKEWED.reason, {"standardise": True})}
    assert note == (
        "profit: rises with sales rather than with the logarithm, so no `log1p` is proposed"
    )


def test_labels_that_rise_with_the_logarithm_or_with_nothing_keep_it():
    rng, sales = draw()
    assert drop(sales, {"rating": np.log(sales) + rng.normal(size=ROWS)}) == ({}, [])
    assert drop(sales, {"rating": rng.normal(size=ROWS)}) == ({}, [])
    one_far = rng.normal(size=ROWS)
    one_far[sales.argmax()] = 1e4  # in one half of the rows alone
    assert drop(sales, {"rating": one_far}) == ({}, [])


def test_every_label_has_to_be_a_number_that_rises_with_the_amounts():
    rng, sales = draw()
    profit = rng.normal(0.3, 0.1, ROWS) * sales
    assert drop(sales, {"profit": profit, "rating": np.log(sales)}) == ({}, [])
    sold = (profit > np.median(profit)).astype(int)
    assert drop(sales, {"sold": sold}, {}) == ({}, [])
    assert drop(sales, {"profit": profit}, {**NUMBER, "link": "log"}) == ({}, [])


@pytest.mark.parametrize("far", [1e160, np.finfo(float).max])
@pytest.mark.filterwarnings("error")
def test_a_number_whose_square_is_too_large_is_judged_without_warnings(far):
    """Some tables have it in place of missing numbers; NumPy's warnings stood in the output."""
    rng, sales = draw()
    sales[::50] = far
    assert compute_statistics(pa.chunked_array([sales]), "sales").high == far
    assert drop(sales, {"rating": rng.normal(size=ROWS)}) == ({}, [])
