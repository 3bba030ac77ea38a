"""Every model as a graph, in every format, gives what the model gives in the project."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, Schema, SequenceFeature, SparseFeature, TaskSpec
from runner.cli.init import render
from runner.errors import UserError
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.serving.artifact.folder import GraphSpec, graph_file
from runner.serving.artifact.formats import save_graph
from runner.serving.artifact.loaded_graph import OnnxGraph, load_graph
from runner.serving.export.graphs import TableChoice, build_graphs, export_graph, without_tables
from tests.models.scene import CONF, SMALL, from_yaml, make_model
from tests.tiers import fast
from tests.tiny import make_context

SIZES = (1, 2, 17, 1024)
ROWS = Schema(
    dense=("d0", "d1"),
    sparse=(
        SparseFeature("a", 50),
        SparseFeature("b", 20),
        SparseFeature("m", 30),
        SparseFeature("mean", 30, pooling="mean"),
    ),
    tasks=(TaskSpec("click"),),
)
ITEMS = Schema(
    dense=("d0",),
    sparse=(SparseFeature("item", 40, table="item"), SparseFeature("m", 30)),
    tasks=(TaskSpec("click"),),
    sequences=(SequenceFeature("history", 40, 6, table="item"),),
)
NEXT_ITEM = ("bert4rec", "gru4rec", "hstu", "sasrec")
OF_ITEMS = ("bst", "dien", "din", *NEXT_ITEM, "two_tower")
NAMES = sorted(p.stem for p in CONF.glob("*.yaml") if p.stem != "own")
WEIGHTED = replace(
    ROWS, sparse=(*ROWS.sparse[:2], replace(ROWS.sparse[2], weighted=True), ROWS.sparse[3])
)


def batch_of(schema: Schema, size: int) -> Batch:
    """Single ids, and lists of which some are empty and one is long."""
    g = torch.Generator().manual_seed(size)
    single = {f.name for f in schema.sparse if f.name in ("a", "b", "item")}
    lengths, ids = [], []
    for f in schema.sparse:
        length_B = torch.ones(size, dtype=torch.int64)
        if f.name not in single:
            length_B = torch.randint(0, 4, (size,), generator=g)
            length_B[-1], length_B[0] = 300, 0
        lengths.append(length_B)
        ids.append(torch.randint(0, f.num_rows, (int(length_B.sum()),), generator=g))
    values = torch.cat(ids)
    weights = None
    if any(f.weighted for f in schema.sparse):  # ids of other features have weight 1
        of_feature = [
            torch.rand(len(x), generator=g) if f.weighted else torch.ones(len(x))
            for f, x in zip(schema.sparse, ids)
        ]
        weights = torch.cat(of_feature)
    sparse = KeyedJaggedTensor(
        keys=[f.name for f in schema.sparse],
        values=values,
        lengths=torch.cat(lengths),
        weights=weights,
    )
    sequences = None
    if schema.sequences:
        [s] = schema.sequences
        length_B = torch.randint(0, s.max_length + 1, (size,), generator=g)
        length_B[-1], length_B[0] = s.max_length, 0
        events = torch.randint(0, s.num_rows, (int(length_B.sum()),), generator=g)
        sequences = KeyedJaggedTensor(keys=[s.name], values=events, lengths=length_B)
    num_tasks = len(schema.tasks)
    return Batch(
        dense_BD=torch.randn(size, len(schema.dense), generator=g),
        sparse=sparse,
        sequences=sequences,
        labels_BT=(torch.rand(size, num_tasks, generator=g) < 0.4).float(),
        weights_B=torch.ones(size),
        rows_B=torch.arange(size),
        groups_BG=torch.empty(size, 0, dtype=torch.int64),
        cursor=DataPosition(0, size),
    )


def arrays(spec: GraphSpec, batch: Batch) -> list[np.ndarray]:
    """The inputs of a graph from a batch, as docs/export.md describes them."""
    found = [batch.dense_BD] if spec.dense else []
    for group in spec.groups:
        jagged = [batch.sparse[name] for name in group.features]
        found += [torch.cat([j.values() for j in jagged])]
        found += [torch.stack([j.lengths() for j in jagged]).long()]
        found += [torch.cat([j.weights() for j in jagged])] if group.weighted else []
    for sequence in spec.sequences:
        assert batch.sequences is not None
        jagged = batch.sequences[sequence.name]
        ids_BL = torch.zeros(batch.size, sequence.max_length, dtype=torch.int64)
        for row, events in enumerate(jagged.to_dense()):
            ids_BL[row, : len(events)] = events
        found += [ids_BL, jagged.lengths().long()]
    return [tensor.numpy() for tensor in found]


def model_of(stem: str, schema: Schema | None = None):
    """A model in a small size, with tables that are not all alike."""
    if stem in OF_ITEMS:
        more = {"uniform": 3} if stem in NEXT_ITEM else {}
        small = {"user_tower": [8], "out": 4, "item": ["item"]} if stem == "two_tower" else more
        model = from_yaml(stem, schema or ITEMS, embedding_dim=4, **small)
        schema = schema or ITEMS
    else:
        names = [name for name in SMALL if name.partition(" ")[0] == stem and name == stem]
        schema = schema or ROWS
        more = {} if names else {"embedding_dim": 4}
        model = make_model(stem, schema) if names else from_yaml(stem, schema, **more)
    context = make_context(model=model)
    for name, weight in context.tables.state().items():
        if name.endswith("/weight"):
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    model.eval()
    return model, schema


def exported(model, schema: Schema, format_: str, folder: Path, quantise: str | None = None):
    """Write all graphs of a model and load them: [(specification, function)]."""
    found = []
    for spec, module in build_graphs(model, schema, TableChoice(quantise, format_ == "onnx")):
        path = folder / graph_file(spec.name, format_)
        with without_tables(model):
            save_graph(export_graph(spec, module), spec, path, format_, portable=False)
        found.append((spec, load_graph(path, format_, spec)))
    return found


def logits(graphs, batch: Batch) -> np.ndarray:
    outputs = {spec.name: run(arrays(spec, batch)) for spec, run in graphs}
    if "model" in outputs:
        return outputs["model"][0]
    return (outputs["query"][0] * outputs["items"][0]).sum(1, keepdims=True)


def check(model, schema: Schema, graphs, tolerance: float) -> None:
    for size in SIZES:
        batch = batch_of(schema, size)
        with torch.no_grad():
            expected = model(batch).logits_BT.numpy()
        found = logits(graphs, batch)
        assert found.shape == expected.shape, size
        np.testing.assert_allclose(
            found, expected, rtol=tolerance, atol=tolerance, err_msg=str(size)
        )
        assert np.abs(expected).max() > 1e-3, "a comparison with nothing"


# the graph has the very operators; sums of another order differ in the last digits
@pytest.mark.long
@pytest.mark.parametrize("stem", fast("dlrm", "ple", "sasrec", of=NAMES))
def test_every_model_as_pt2_equals_the_model(stem, tmp_path):
    model, schema = model_of(stem)
    check(model, schema, exported(model, schema, "pt2", tmp_path), 1e-5)


def test_a_model_of_a_users_own_as_pt2_equals_the_model(tmp_path):
    code = render("shop")["shop/model.py"]
    exec(compile(code, "model.py", "exec"), names := {"__name__": "shop.model"})
    model = names["Gated"](ROWS, embedding_dim=4)
    make_context(model=model)
    check(model.eval(), ROWS, exported(model, ROWS, "pt2", tmp_path), 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("stem", fast("dlrm", of=NAMES))
def test_every_model_as_onnx_equals_the_model(stem, tmp_path):
    pytest.importorskip("onnxruntime")
    model, schema = model_of(stem)
    check(model, schema, exported(model, schema, "onnx", tmp_path), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stem", NAMES)
def test_every_model_as_machine_code_equals_the_model(stem, tmp_path):
    model, schema = model_of(stem)
    check(model, schema, exported(model, schema, "aoti", tmp_path), 1e-4)


@pytest.mark.long
@pytest.mark.parametrize("stem", sorted({name.partition(" ")[0] for name in SMALL}))
def test_a_graph_repeats_the_model_to_the_last_bit(stem, tmp_path):
    model, schema = model_of(stem)
    graphs = exported(model, schema, "pt2", tmp_path)
    for size in SIZES:
        batch = batch_of(schema, size)
        with torch.no_grad():
            assert np.array_equal(logits(graphs, batch), model(batch).logits_BT.numpy()), size


@pytest.mark.long
@pytest.mark.parametrize("format_", ["pt2", "onnx"])
def test_weights_of_ids_tables_of_several_widths_and_no_numbers(format_, tmp_path):
    schema = replace(WEIGHTED, dense=())
    model = from_yaml("mlp", schema, deep=[8], embedding_dim={"a": 3, "b": 5, "m": 3, "mean": 8})
    make_context(model=model)
    model.eval()
    graphs = exported(model, schema, format_, tmp_path)
    [(spec, _)] = graphs
    assert [group.features for group in spec.groups] == [("a", "m"), ("b",), ("mean",)]
    assert [group.weighted for group in spec.groups] == [True, False, False]
    check(model, schema, graphs, 1e-4)


@pytest.mark.long
@pytest.mark.parametrize("stem", fast("din", of=["deepfm", "din"]))
@pytest.mark.parametrize(("kind", "tolerance"), [("fp16", 0.02), ("int8", 0.1), ("int4", 1.5)])
def test_quantised_tables_are_near_the_whole_ones(stem, kind, tolerance, tmp_path):
    model, schema = model_of(stem)
    graphs = exported(model, schema, "pt2", tmp_path, kind)
    batch = batch_of(schema, 64)
    with torch.no_grad():
        expected = model(batch).logits_BT.numpy()
    found = logits(graphs, batch)[1:-1]  # without the row whose list has 300 ids
    assert 0 < np.abs(found - expected[1:-1]).max() < tolerance


@pytest.mark.long
@pytest.mark.parametrize("stem", fast("din", of=["dlrm", "din", "two_tower"]))
@pytest.mark.parametrize("kind", fast("int4", of=["fp16", "int8", "int4"]))
def test_quantised_tables_score_alike_as_onnx_and_as_pt2(stem, kind, tmp_path):
    pytest.importorskip("onnxruntime")
    model, schema = model_of(stem)
    batch = batch_of(schema, 64)
    formats = ("pt2", "onnx")
    pt2, onnx = (logits(exported(model, schema, f, tmp_path, kind), batch) for f in formats)
    np.testing.assert_allclose(onnx, pt2, rtol=1e-4, atol=1e-4)


def test_quantised_rows_are_those_of_a_hand_calculation():
    from runner.serving.export.stacked_tables import IntegerRows

    weight = torch.tensor([[0.0, 1.0, 0.41], [2.0, 2.0, 2.0], [-1.0, 14.0, 0.1]])
    rows = IntegerRows(weight, 4)(torch.arange(3))
    torch.testing.assert_close(rows[0], torch.tensor([0.0, 1.0, 6 / 15]))
    assert rows[1].tolist() == [2.0, 2.0, 2.0]
    assert rows[2].tolist() == [-1.0, 14.0, 0.0]
    assert torch.equal(IntegerRows(weight, 4, for_onnx=True)(torch.arange(3)), rows)
    eight = IntegerRows(weight, 8)(torch.tensor([2]))
    torch.testing.assert_close(eight, weight[2:], rtol=0, atol=15 / 255 / 2)


def test_rows_are_quantised_alike_in_blocks_and_at_once(monkeypatch):
    from runner.serving.export import stacked_tables

    weight = torch.randn(10, 5)
    for bits in (4, 8):
        whole = stacked_tables.IntegerRows(weight, bits)
        with monkeypatch.context() as patched:
            patched.setattr(stacked_tables, "BLOCK_ROWS", 3)
            blocks = stacked_tables.IntegerRows(weight, bits)
        assert torch.equal(whole.codes, blocks.codes)
        assert torch.equal(whole.scale_low, blocks.scale_low)


def test_a_table_is_copied_only_where_it_is_part_of_something_larger():
    """A file gets the whole storage of a weight."""
    from runner.serving.export.stacked_tables import StackedTables

    weight = torch.randn(6, 4)
    alone = StackedTables([weight], [0], [False])
    assert alone.rows.weight.data_ptr() == weight.data_ptr()
    part = StackedTables([weight[:3]], [0], [False])
    assert part.rows.weight.untyped_storage().nbytes() == 3 * 4 * 4
    assert torch.equal(part.rows.weight, weight[:3])


@pytest.mark.long
@pytest.mark.parametrize("format_", ["pt2", "onnx"])
@pytest.mark.parametrize("num_tasks", [2, 3])
def test_linear_weights_of_each_task_are_exported(num_tasks, format_, tmp_path):
    if format_ == "onnx":
        pytest.importorskip("onnxruntime")
    schema = replace(ROWS, tasks=tuple(TaskSpec(f"t{n}") for n in range(num_tasks)))
    model, _ = model_of("wide_and_deep", schema)
    check(model, schema, exported(model, schema, format_, tmp_path), 1e-4)


@pytest.mark.long
def test_tasks_have_outputs_of_their_names(tmp_path):
    tasks = (TaskSpec("click"), TaskSpec("price", "regression"))
    schema = replace(ROWS, tasks=tasks)
    model, _ = model_of("mmoe", schema)
    [(spec, run)] = exported(model, schema, "pt2", tmp_path)
    assert spec.outputs == ("logits", "click", "price")
    x, click, price = run(arrays(spec, batch_of(schema, 17)))
    np.testing.assert_allclose(click, 1 / (1 + np.exp(-x[:, 0])), rtol=1e-6)
    assert np.array_equal(price, x[:, 1])


def test_retrieval_models_have_two_halves():
    for stem in (*NEXT_ITEM, "two_tower"):
        model, schema = model_of(stem)
        assert isinstance(model, RetrievalModel)
        names = [spec.name for spec, _ in build_graphs(model, schema, TableChoice())]
        assert names == ["query", "items"]


def test_torch_does_not_warn_of_the_weights_of_a_gru():
    model, schema = model_of("gru4rec")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for spec, module in build_graphs(model, schema, TableChoice()):
            with without_tables(model):
                export_graph(spec, module)
    assert [str(w.message) for w in caught if "tensor attributes" in str(w.message)] == []


def test_onnxruntime_does_not_warn_of_what_nobody_can_change(capfd):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, float_, bool_ = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL
    values = [helper.make_tensor("a", bool_, [1], [1]), helper.make_tensor("b", float_, [1], [2])]
    nodes = [
        helper.make_node("CastLike", ["a", "b"], ["one"]),  # which it cannot compute beforehand
        helper.make_node("Add", ["dense", "one"], ["logits"]),
    ]
    ends = [[helper.make_tensor_value_info(name, float_, ["B"])] for name in ("dense", "logits")]
    graph = helper.make_graph(nodes, "graph", *ends, values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    spec = GraphSpec("model", ("x",), (), (), ("logits",))
    loaded = OnnxGraph(model.SerializeToString(), spec, 1)
    assert loaded([np.float32([1, 2])])[0].tolist() == [2, 3]
    assert capfd.readouterr().err == ""


def test_a_delta_is_not_laid_on_an_onnx_file_that_was_replaced_since_it_was_loaded(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, float_, path = onnx.helper, onnx.TensorProto.FLOAT, tmp_path / "model.onnx"

    def write(value: float) -> None:
        ends = [[helper.make_tensor_value_info(name, float_, [1])] for name in ("dense", "logits")]
        weight = onnx.numpy_helper.from_array(np.float32([value]), "w")
        nodes = [helper.make_node("Mul", ["dense", "w"], ["logits"])]
        graph = helper.make_graph(nodes, "graph", *ends, [weight])
        opset = [helper.make_opsetid("", 20)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)

    write(2)
    loaded = OnnxGraph(path, GraphSpec("model", ("x",), (), (), ("logits",)), 1)
    assert loaded([np.float32([3])])[0].tolist() == [6]
    write(5)
    with pytest.raises(UserError, match=r"model\.onnx: was changed since the model was loaded"):
        loaded.weight("w")
