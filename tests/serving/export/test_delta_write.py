"""What a delta holds: rows that differ in a bit, tables of other sizes, and what is refused."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.data.columns.column_specs import Declared, IdSpec
from runner.data.core.fitted import FittedTransforms
from runner.errors import UserError
from runner.serving.artifact.delta import Delta
from runner.serving.artifact.delta_moves import find_moves
from runner.serving.artifact.folder import GraphSpec, LookupGroup, open_artifact
from runner.serving.artifact.loaded_graph import write_weights
from runner.serving.artifact.onnx_weights import read_initializers, with_initializers
from runner.serving.artifact.weights import read_artifact_weights
from runner.serving.export.delta_write import Difference, check_same_model, find_difference
from runner.serving.rows.encode import Transforms
from runner.serving.scorer import Scorer
from runner.serving.write_aside import write_aside
from tests.serving.versions import Versions, served

TABLE, FIRST = "model/lookup.pooled.0.rows.weight", "model/lookup.pooled.0.first_F"


@pytest.mark.parametrize("mask", [0o077, 0o002])
def test_an_artifact_has_the_modes_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        with write_aside(tmp_path / "out") as folder:
            write_weights(folder / "weights.safetensors", {"a": np.ones(2, np.float32)})
    finally:
        os.umask(before)
    out = tmp_path / "out"
    assert list(tmp_path.iterdir()) == [out]
    assert out.stat().st_mode & 0o777 == 0o777 & ~mask
    assert (out / "weights.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask


def write_empty(out: Path) -> None:
    with write_aside(out):
        pass


def test_a_folder_that_another_command_writes_first_is_named(tmp_path, monkeypatch):
    out, rename = tmp_path / "out", os.rename

    def rename_second(source, target):
        (out / "of another").mkdir(parents=True)  # between the look and the rename
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_second)
    with pytest.raises(UserError, match="out: exists by now; nothing was written"):
        write_empty(out)
    assert list(tmp_path.iterdir()) == [out]


def test_what_a_killed_command_left_is_removed_and_not_what_another_writes(tmp_path):
    out, pid = tmp_path / "out", os.fork()
    if pid == 0:
        with write_aside(out) as folder:
            (folder / "weights").touch()
            os._exit(0)  # without cleaning up, as after a kill
    os.waitpid(pid, 0)
    (left,) = tmp_path.iterdir()
    with write_aside(out) as first:
        assert list(tmp_path.iterdir()) == [first.parent] != [left]
        with suppress(KeyboardInterrupt), write_aside(out):
            raise KeyboardInterrupt
        assert first.exists()
    assert list(tmp_path.iterdir()) == [out]


def stacked(sizes: list[int], seed: int) -> dict[str, np.ndarray]:
    """Tables one behind another, each with rows of its own number."""
    random = np.random.default_rng(seed)
    starts = np.cumsum([0, *sizes[:-1]])
    weights = random.normal(size=(sum(sizes), 3)).astype(np.float32)
    return {TABLE: weights, FIRST: starts[[1, 0, 1]], "model/model.bias": np.ones(2, np.float32)}


GRAPHS = (GraphSpec("model", (), (LookupGroup(("b", "a", "c")),), (), ("logits",)),)
SPECS = (IdSpec("a", "a"), IdSpec("b", "b"), IdSpec("c", "c", table="b"))


def raw(sizes: list[int], ids: list[list[int]] | None = None) -> Transforms:
    """Transforms of the tables `a` and `b`, whose rows are those of vocabularies if there are."""
    names = ("a", "b")
    found = {name: np.array(sorted(own), np.int64) for name, own in zip(names, ids or [])}
    return Transforms(
        Declared((), ids=SPECS), FittedTransforms(dict(zip(names, sizes)), vocabularies=found)
    )


def applied(difference: Difference, base: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    moved = {key: move.facts() for key, move in difference.moved.items()}
    delta = Delta(Path("delta"), {"moved": moved})
    vars(delta)["weights"] = difference.weights
    new = delta.new_weights("model", lambda name: base.get(f"model/{name}"))
    return base | {f"model/{name}": values for name, values in new.items()}


def test_only_rows_that_differ_in_a_bit_are_kept():
    base = stacked([4, 6], 0)
    new = {key: values.copy() for key, values in base.items()}
    assert find_difference(base, new).is_empty
    new[TABLE][2, 1] = np.nextafter(new[TABLE][2, 1], 9)
    new[TABLE][7, 0] = np.nan
    base[TABLE][5, 2], new[TABLE][5, 2] = 0.0, -0.0  # equal as numbers
    difference = find_difference(base, new)
    assert difference.weights[f"{TABLE}/rows"].tolist() == [2, 5, 7]
    assert not difference.moved
    for key, values in applied(difference, base).items():
        assert values.tobytes() == new[key].tobytes()
    assert find_difference(new, {k: x.copy() for k, x in new.items()}).is_empty


@pytest.mark.parametrize("sizes", [[4, 9], [2, 6], [7, 2], [1, 1]])
def test_tables_that_grew_or_shrank_keep_their_rows_and_mark_what_is_gone(sizes):
    base, new = stacked([4, 6], 0), stacked(sizes, 1)
    kept = [min(a, b) for a, b in zip([4, 6], sizes)]
    new[TABLE][: kept[0]] = base[TABLE][: kept[0]]
    new[TABLE][sizes[0] : sizes[0] + kept[1]] = base[TABLE][4 : 4 + kept[1]]
    moves = find_moves(base, new, GRAPHS, raw([4, 6]), raw(sizes))
    difference = find_difference(base, new, moves)
    for key, values in applied(difference, base).items():
        assert values.tobytes() == new[key].tobytes(), key
    new_rows = {*range(kept[0], sizes[0]), *range(sizes[0] + kept[1], sum(sizes))}
    assert set(difference.weights[f"{TABLE}/rows"].tolist()) == new_rows
    gone = {*range(kept[0], 4), *range(4 + kept[1], 10)}
    assert set(difference.weights[f"{TABLE}/deleted"].tolist()) == gone
    without = {key: values for key, values in base.items() if key != FIRST}  # as in ONNX
    if sizes[0] != 4:
        with pytest.raises(UserError, match="begin elsewhere than in the base, which an ONNX"):
            applied(difference, without)
    else:
        assert applied(difference, without)[TABLE].tobytes() == new[TABLE].tobytes()
    again = find_moves(without, new, GRAPHS, raw([4, 6]), raw(sizes))
    assert again[TABLE].facts() == moves[TABLE].facts()


def test_rows_stay_with_the_values_of_a_vocabulary_that_come_and_go():
    """A dictionary of value -> row tells what is expected."""
    before, after = [[30, 10, 50], [7, 1, 3, 9]], [[10, 20, 50, 60], [0, 1, 9]]
    sizes = [[2 + len(ids) for ids in version] for version in (before, after)]
    base, new = stacked(sizes[0], 0), stacked(sizes[1], 1)
    places = [
        {
            (table, id_): start + 2 + n
            for table, start in ((0, 0), (1, size[0]))
            for n, id_ in enumerate(sorted(ids[table]))
        }
        for ids, size in ((before, sizes[0]), (after, sizes[1]))
    ]
    for table in (0, 1):  # the shared rows, of unknown and missing values
        starts = [0, 0] if table == 0 else [sizes[0][0], sizes[1][0]]
        new[TABLE][starts[1] : starts[1] + 2] = base[TABLE][starts[0] : starts[0] + 2]
    for key, row in places[1].items():
        if key in places[0] and key != (1, 9):
            new[TABLE][row] = base[TABLE][places[0][key]]
    moves = find_moves(base, new, GRAPHS, raw(sizes[0], before), raw(sizes[1], after))
    difference = find_difference(base, new, moves)
    for key, values in applied(difference, base).items():
        assert values.tobytes() == new[key].tobytes(), key
    rows = difference.weights
    gone = [row for key, row in places[0].items() if key not in places[1]]
    come = [row for key, row in places[1].items() if key not in places[0]]
    assert rows[f"{TABLE}/deleted"].tolist() == sorted(gone)
    assert rows[f"{TABLE}/inserted"].tolist() == sorted(come)
    assert rows[f"{TABLE}/rows"].tolist() == sorted([*come, places[1][1, 9]])  # and what was learnt
    same = find_moves(base, base, GRAPHS, raw(sizes[0], before), raw(sizes[0], before))
    assert same == {}


def test_another_model_is_refused_with_what_differs(tmp_path):
    versions = Versions(tmp_path)
    base = open_artifact(versions.write_whole("base"))
    new = versions.now()
    check_same_model(base, new)
    for name, value in (("architecture", "dcn"), ("quantise", "int8"), ("weights", "ema")):
        with pytest.raises(UserError, match=rf"its {name} is .*{value}: export the model whole"):
            check_same_model(base, replace(new, facts={**new.facts, name: value}))
    with pytest.raises(UserError, match="other features"):
        check_same_model(base, replace(new, tasks=()))
    weights = dict(new.weights)
    key = next(key for key in weights if key.endswith(".bias"))
    weights[key] = np.ones(99, np.float32)
    with pytest.raises(UserError, match=rf"{key} is .* in the base"):
        find_difference(new.weights, weights)
    with pytest.raises(UserError, match=f"the base has no table {TABLE}: export the model whole:"):
        find_difference({}, stacked([4, 6], 0))
    other = {**stacked([4, 6], 0), FIRST: np.zeros(3, np.int64)}  # one table for all
    with pytest.raises(UserError, match="has other tables than the base: export the model whole"):
        find_moves(other, stacked([4, 9], 0), GRAPHS, raw([4, 6]), raw([4, 9]))


def test_the_weights_of_an_onnx_file_are_those_that_onnx_reads():
    onnx = pytest.importorskip("onnx")
    random = np.random.default_rng(0)
    weights = {
        "a": random.normal(size=(300, 7)).astype(np.float32),
        "b": random.integers(0, 255, (5, 3)).astype(np.uint8),
        "scalar": np.array(3, np.int64),
        "half": random.normal(size=4).astype(np.float16),
    }
    tensors = [onnx.numpy_helper.from_array(x, name) for name, x in weights.items()]
    graph = onnx.helper.make_graph([], "g", [], [], initializer=tensors)
    model = onnx.helper.make_model(graph).SerializeToString()
    found = read_initializers(model)
    assert found.keys() == weights.keys()
    assert all(
        found[n].tobytes() == x.tobytes() and found[n].shape == x.shape for n, x in weights.items()
    )
    changed = {"a": weights["a"] + 1, "scalar": np.array(-5, np.int64)}
    again = onnx.load_from_string(with_initializers(model, changed))
    read = {t.name: onnx.numpy_helper.to_array(t) for t in again.graph.initializer}
    for name, values in (weights | changed).items():
        assert (read[name].tobytes(), read[name].dtype) == (values.tobytes(), values.dtype)
    with pytest.raises(ValueError, match="whole ONNX"):
        read_initializers(model[:-3])


@pytest.mark.slow
def test_machine_code_takes_deltas_without_being_compiled_again(tmp_path):
    versions = Versions(tmp_path, formats=("pt2", "aoti"))
    base = versions.write_whole("base")
    native = Scorer.load(base, format="aoti", trust_native_code=True)
    plain = Scorer.load(base)
    for number in range(4):
        versions.train()
        path = versions.write_delta(f"delta-{number}", native.artifact)
        before, answer = native.snapshot(), served(native)
        native.apply_delta(path)
        plain.apply_delta(path)
        np.testing.assert_allclose(served(native), served(plain), rtol=1e-5)
        assert served(before).tobytes() == answer.tobytes()  # who has begun with it goes on with it
    [packages] = {graph._packages for graph in native._now.graphs.values()}
    del before
    assert len(packages.idle) == 1  # two copies in all, which take turns
    weights = read_artifact_weights(open_artifact(base))
    assert weights.keys() == versions.weights.keys()
