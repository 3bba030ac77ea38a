"""A `.pt2` from a stranger: what would run code when it is loaded is refused before."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from runner.errors import UserError
from runner.serving.pt2_check import check_pt2

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
    program.example_inputs = None
    torch.export.save(program, str(path))
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


def first_node(values: dict) -> dict:
    node: dict = values["graph_module"]["graph"]["nodes"][0]
    return node


def test_a_plain_graph_is_taken_and_still_loads(plain, tmp_path):
    check_pt2(plain)
    same_again = changed(plain, tmp_path, same)
    check_pt2(same_again)
    loaded = torch.export.load(str(same_again)).module(check_guards=False)
    assert loaded(torch.ones(5, 2)).shape == (15,)


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


def test_a_second_table_of_contents_hides_nothing(plain, tmp_path):
    bad, bad_table, bad_count = tables_of(changed(plain, tmp_path, in_config).read_bytes())
    good, good_table, good_count = tables_of(changed(plain, tmp_path, same).read_bytes())
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
    path = tmp_path / "two.pt2"
    path.write_bytes(content)
    with zipfile.ZipFile(path) as seen:  # torch sees the first table, where weights are pickled
        config = next(name for name in seen.namelist() if name.endswith("weights_config.json"))
        assert not any(v["use_pickle"] for v in json.loads(seen.read(config))["config"].values())
    with pytest.raises(UserError, match="is pickled"):
        check_pt2(path)


def test_files_that_are_no_part_of_a_graph_are_refused(plain, tmp_path):
    buffer = io.BytesIO()
    torch.save({}, buffer)
    for name in ("data__weights__model.pt", "data__constants__x.pt", "data__aotinductor__m.so"):
        with pytest.raises(UserError, match="no part of an exported graph"):
            check_pt2(changed(plain, tmp_path, same, **{name: buffer.getvalue()}))
    (tmp_path / "x.pt2").write_bytes(b"no zip")
    with pytest.raises(UserError, match="not a readable"):
        check_pt2(tmp_path / "x.pt2")
