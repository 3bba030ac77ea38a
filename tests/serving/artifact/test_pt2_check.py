"""A `.pt2` from a stranger: what would run code when it is loaded is refused before."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._export.serde.schema import SCHEMA_VERSION

from runner.errors import UserError
from runner.serving.artifact.folder import GraphSpec
from runner.serving.artifact.formats import save_program
from runner.serving.artifact.loaded_graph import load_graph
from runner.serving.artifact.pt2_check import check_pt2

CODE = "__import__('os').system('true')"


class Attack:
    def __reduce__(self):
        return exec, ("raise SystemExit",)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "model.pt2"
    rows = torch.export.Dim("B", min=1)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Flatten(0))
    program = torch.export.export(net, (torch.zeros(4, 2),), dynamic_shapes=({0: rows},))
    save_program(program, path)
    return path


def changed(
    plain: Path, folder: Path, change: Callable[[str, bytes], bytes], **more: bytes
) -> Path:
    path = folder / "changed.pt2"
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.infolist():
            target.writestr(entry.filename, change(entry.filename, source.read(entry)))
        for name, content in more.items():
            target.writestr(f"model/{name.replace('__', '/')}", content)
    return path


def graph(change: Callable[[dict], None]) -> Callable[[str, bytes], bytes]:
    def apply(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        values = json.loads(content)
        change(values)
        return json.dumps(values).encode()

    return apply


def same(name: str, content: bytes) -> bytes:
    return content


def in_config(name: str, content: bytes) -> bytes:
    if not name.endswith("weights_config.json"):
        return content
    values = json.loads(content)
    next(iter(values["config"].values()))["use_pickle"] = True
    return json.dumps(values).encode()


def in_example(name: str, content: bytes) -> bytes:
    return pickle.dumps(Attack()) if "sample_inputs" in name else content


def replaced(old: str, new: str) -> Callable[[str, bytes], bytes]:
    def apply(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        text = content.decode()
        assert old in text
        return text.replace(old, new).encode()

    return apply


def signature(values: dict) -> dict:
    found: dict = values["graph_module"]["module_call_graph"][0]["signature"]
    return found


def in_tree(context: object, type_: str = "builtins.tuple") -> Callable[[str, bytes], bytes]:
    tree = {"type": type_, "context": json.dumps(context), "children_spec": []}
    return graph(lambda v: signature(v).update(in_spec=json.dumps([1, tree])))


def rename_input(values: dict, name: str) -> None:
    """Give the input of the graph another name, and its size an expression that is code."""
    inner = values["graph_module"]["graph"]
    old = inner["inputs"][-1]["as_tensor"]["name"]

    def renamed(value: object) -> object:
        if isinstance(value, dict):
            return {name if key == old else key: renamed(v) for key, v in value.items()}
        if isinstance(value, list):
            return [renamed(v) for v in value]
        return name if value == old else value

    values["graph_module"]["graph"] = found = renamed(inner)
    found["tensor_values"][name]["sizes"][0] = {"as_expr": {"expr_str": CODE, "hint": None}}


def add_keyword(values: dict, keyword: str) -> None:
    """Let the graph take an input by a keyword."""
    leaf = {"type": None, "context": None, "children_spec": []}
    kinds = (("builtins.tuple", None, []), ("builtins.dict", [keyword], [leaf]))
    inputs = [{"type": t, "context": json.dumps(c), "children_spec": k} for t, c, k in kinds]
    tree = {"type": "builtins.tuple", "context": "null", "children_spec": inputs}
    signature(values).update(in_spec=json.dumps([1, tree]), forward_arg_names=[])


def first_node(values: dict) -> dict:
    node: dict = values["graph_module"]["graph"]["nodes"][0]
    return node


def test_a_plain_graph_is_taken_and_still_loads(plain, tmp_path):
    check_pt2(plain)
    same_again = changed(plain, tmp_path, same)
    check_pt2(same_again)
    loaded = load_graph(same_again, "pt2", GraphSpec("model", ("x",), (), (), ("y",)))
    assert np.stack(loaded([np.ones((5, 2), np.float32)])).shape == (15,)


ATTACKS = {
    "pickled weights": in_config,
    "example inputs": in_example,
    "an expression": replaced("Symbol(", f"{CODE} + Symbol("),
    "an expression without quotes": replaced("Symbol(", "breakpoint() + Symbol("),
    "another operator": replaced("torch.ops.aten.relu.default", "torch.hub.load"),
    "another module": replaced("torch.ops.aten.relu.default", "math.exp"),
    "an argument's name": graph(
        lambda v: first_node(v)["inputs"][0].update(name=f"x=1) or {CODE}", kind=2)
    ),
    "an expression that never ends": replaced("Symbol(", "9**9**9**9 + Symbol("),
    "a size of a tensor called as a note is": graph(lambda v: rename_input(v, "metadata")),
    "a keyword that is code": graph(lambda v: add_keyword(v, f"x={CODE}")),
    "an operator that writes files": replaced("aten.relu.default", "aten.from_file.default"),
    "a module in the tree of inputs": in_tree({"__enum__": 1, "fqn": "this:s", "name": "s"}),
    "a function in the tree of inputs": in_tree(
        {"default_factory_module": "this", "default_factory_name": "s", "dict_context": []},
        "collections.defaultdict",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_would_run_code_is_refused(plain, tmp_path, attack):
    with pytest.raises(UserError, match="not loaded"):
        check_pt2(changed(plain, tmp_path, attack))


def tables_of(content: bytes) -> tuple[bytes, bytes, int]:
    """Return the files of a zip, its table of contents, and the number of its entries."""
    end = content.rindex(b"PK\5\6")
    count, size, start = struct.unpack_from("<HII", content, end + 10)
    return content[:start], content[start : start + size], count


def moved(table: bytes, by: int) -> bytes:
    """Return a table of contents whose files lie behind `by` further bytes."""
    changed, at = bytearray(table), 0
    while at < len(changed):
        lengths = struct.unpack_from("<HHH", changed, at + 28)
        struct.pack_into("<I", changed, at + 42, struct.unpack_from("<I", changed, at + 42)[0] + by)
        at += 46 + sum(lengths)
    return bytes(changed)


def with_two_tables(first: bytes, second: bytes) -> bytes:
    """Return a zip in which torch's reader finds the first files, and Python's the second."""
    bad, bad_table, bad_count = tables_of(first)
    good, good_table, good_count = tables_of(second)
    end64 = struct.Struct("<IQHHIIQQQQ")
    before = bad + bad_table
    before += end64.pack(
        0x06064B50, 44, 45, 45, 0, 0, bad_count, bad_count, len(bad_table), len(bad)
    )
    start = len(before) + len(good)
    content = before + good + moved(good_table, len(before))
    content += end64.pack(
        0x06064B50, 44, 45, 45, 0, 0, good_count, good_count, len(good_table), start
    )
    content += struct.pack("<IIQI", 0x07064B50, 0, len(bad) + len(bad_table), 1)
    content += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)
    return content


def test_a_second_table_of_contents_hides_nothing(plain, tmp_path):
    bad = changed(plain, tmp_path, in_config).read_bytes()
    path = tmp_path / "two.pt2"
    path.write_bytes(with_two_tables(bad, changed(plain, tmp_path, same).read_bytes()))
    with zipfile.ZipFile(path) as seen:  # torch sees the first table, where weights are pickled
        config = next(name for name in seen.namelist() if name.endswith("weights_config.json"))
        assert not any(v["use_pickle"] for v in json.loads(seen.read(config))["config"].values())
    with pytest.raises(UserError, match="is pickled"):
        check_pt2(path)


@pytest.mark.parametrize("has_graph", [True, False])
def test_nothing_is_read_by_the_reader_of_an_older_format(plain, tmp_path, has_graph):
    """`torch.export.load` unpickles such files where its first reader finds no graph, or fails."""
    new, old = tmp_path / "new.zip", tmp_path / "old.zip"
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(new, "w") as target:
        for entry in source.infolist():
            if has_graph or "/models/" not in entry.filename:
                target.writestr(entry.filename, source.read(entry))
        graph_json = source.read(next(n for n in source.namelist() if n.endswith("model.json")))
    pickled = io.BytesIO()
    torch.save(Attack(), pickled)
    with zipfile.ZipFile(old, "w") as target:
        target.writestr("version", ".".join(map(str, SCHEMA_VERSION)))
        target.writestr("serialized_exported_program.json", graph_json)
        for name in ("state_dict", "constants", "example_inputs"):
            target.writestr(f"serialized_{name}.pt", pickled.getvalue())
    path = tmp_path / "two.pt2"
    path.write_bytes(with_two_tables(new.read_bytes(), old.read_bytes()))
    spec = GraphSpec("model", ("x",), (), (), ("y",))
    if has_graph:
        assert len(load_graph(path, "pt2", spec)([np.ones((1, 2), np.float32)])) == 3
        return
    with pytest.raises(SystemExit):
        torch.export.load(str(path))
    with pytest.raises(UserError, match=r"holds no models/model\.json"):
        load_graph(path, "pt2", spec)


def test_files_that_are_no_part_of_a_graph_are_refused(plain, tmp_path):
    buffer = io.BytesIO()
    torch.save({}, buffer)
    for name in ("data__weights__model.pt", "data__constants__x.pt", "data__aotinductor__m.so"):
        with pytest.raises(UserError, match="no part of an exported graph"):
            check_pt2(changed(plain, tmp_path, same, **{name: buffer.getvalue()}))
    (tmp_path / "x.pt2").write_bytes(b"no zip")
    with pytest.raises(UserError, match="not a readable"):
        check_pt2(tmp_path / "x.pt2")
