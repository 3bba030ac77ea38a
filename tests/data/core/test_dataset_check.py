"""A dataset of one's own: the page's example trains and resumes; what another one lacks is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import DataPosition, Schema, SequenceFeature, SparseFeature, TaskSpec
from runner.data.core.dataset import Dataset, DatasetWrapper
from runner.data.core.dataset_check import check_dataset, check_epoch, check_first_batch
from runner.errors import ConfigError, DataError
from tests.conftest import ROOT, Zygote
from tests.test_readme import write_clicks
from tests.whole.compare_runs import fingerprint, newest_checkpoint

PAGE = (ROOT / "docs" / "own_dataset.md").read_text()
FILES = dict(re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
CODE = FILES["mydata/clicks.py"]


def load_page(folder: Path) -> Any:
    """Write the page's files, and return its class."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    write_clicks(folder / "data" / "clicks.parquet")
    names: dict[str, Any] = {}
    exec(compile(CODE, "clicks.py", "exec"), names)
    return names["Clicks"]


@pytest.fixture
def clicks(tmp_path: Path) -> Any:
    return load_page(tmp_path)(path=str(tmp_path / "data" / "clicks.parquet"), num_users=500)


def check(dataset: Any, **more: int) -> None:
    check_dataset(dataset, **{"batch_size": 64, "seed": 0, **more})


@pytest.mark.parity("C7")
def test_the_example_of_the_page_has_at_most_40_lines_and_fits(clicks):
    assert len(CODE.splitlines()) <= 40
    check(clicks)
    check(clicks, batch_size=5000)  # one batch that holds all rows
    for rank in range(3):
        check(clicks, rank=rank, world_size=3)


def test_the_example_gives_each_row_once_on_any_number_of_ranks(clicks):
    one = [b.rows_B for b in clicks.batches("train", batch_size=30, seed=4)]
    ranks = [
        [b.rows_B for b in clicks.batches("train", batch_size=10, seed=4, rank=r, world_size=3)]
        for r in range(3)
    ]
    assert [torch.cat(parts).tolist() for parts in zip(*ranks, strict=True)] == [
        rows.tolist() for rows in one
    ]
    assert sorted(torch.cat(one).tolist()) == list(range(1800))


@pytest.mark.long
@pytest.mark.parity("C7")
def test_the_example_resumes_bit_for_bit_by_the_command_line(tmp_path, runner: Zygote):
    load_page(tmp_path)
    words = ("--config-dir", "myconf", "--allow", "mydata", "dataset=clicks", "report=false")
    small = ("trainer.batch_size=64", "trainer.num_threads=1", "model.net.dropout=0.1")
    for run, first in (("whole", 50), ("parts", 20)):
        length = (f"trainer.max_steps={first}", f"hydra.run.dir={run}")
        runner.run(*words, *small, *length, cwd=tmp_path).check()
    runner.run("resume", "parts", "--allow", "mydata", "trainer.max_steps=50", cwd=tmp_path).check()
    whole, parts = (
        {
            name: digest
            for name, digest in fingerprint(newest_checkpoint(tmp_path / run)).items()
            if name.startswith(("tables/", "dense"))
        }
        for run in ("whole", "parts")
    )
    assert whole
    assert whole == parts


@pytest.mark.long
@pytest.mark.parity("C7")
def test_a_batch_that_does_not_fit_is_told_before_a_training(tmp_path, runner: Zygote):
    load_page(tmp_path)
    words = ("--config-dir", "myconf", "--allow", "mydata", "dataset=clicks", "report=false")
    done = runner.run(*words, "dataset.num_users=100", "hydra.run.dir=run", cwd=tmp_path).check(2)
    assert "first batch of the train split: sparse: user has id" in done.text
    assert "outside [0, 100)" in done.text
    assert "Traceback" not in done.text
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bad_rows": {"examples": []}}, "bad_rows: must have a number `count`"),
        ({"bad_rows": None}, "bad_rows: must have"),
        ({"schema": {}}, "schema: must be a runner.Schema, not {}"),
        ({"num_rows": {"train": 5, "vali": 2}}, "there is no split 'vali'"),
        ({"num_rows": {"train": 0}}, "numbers of rows above 0"),
        ({"num_rows": {"validation": 3}}, "has no split 'train'"),
        ({"rest": "keep"}, "rest: must be one of short, drop, pad, not 'keep'"),
        ({"reachable": None}, "reachable: must be a mapping"),
        ({"save_fitted_transforms": None}, "save_fitted_transforms(folder): there is no such"),
        ({"batches": None}, "batches(split, *, batch_size, seed, start, rank, world_size)"),
        (
            {"batches": lambda split, *, batch_size, seed: iter(())},
            "does not take start, rank, world_size",
        ),
        ({"batches": lambda split, **more: iter(())}, "the train split gives no batch"),
    ],
)
def test_what_a_dataset_lacks_is_named(clicks, change, told):
    for name, value in change.items():
        setattr(clicks, name, value)
    with pytest.raises(ConfigError) as refused:
        check(clicks)
    assert told in str(refused.value)


def test_a_class_that_derives_from_nothing_is_told_of_all_that_it_lacks():
    with pytest.raises(ConfigError) as refused:
        check(type("Bare", (), {})())
    for name in ("schema", "num_rows", "rest", "reachable", "bad_rows", "save_fitted", "batches"):
        assert f"dataset: {name}" in str(refused.value)


class Changed(DatasetWrapper):
    """The page's dataset, with a change in each batch."""

    def __init__(self, dataset: Any, **changes: Any) -> None:
        super().__init__(dataset)
        self.changes = changes

    def batches(self, split: str, **options: Any) -> Iterator[Any]:
        for batch in self.dataset.batches(split, **options):
            yield replace(batch, **self.changes)


def kjt(keys=("user",), values=(), lengths=(), dtype=torch.int64) -> KeyedJaggedTensor:
    ids = torch.tensor(values or [0] * 64, dtype=dtype)
    return KeyedJaggedTensor(list(keys), ids, lengths=torch.tensor(lengths or [1] * 64))


@pytest.mark.parity("C7")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"labels_BT": None}, "labels_BT: must be float32 of [64, 1], not NoneType"),
        ({"labels_BT": torch.ones(63, 1)}, "labels_BT: must be float32 of [64, 1], not float32 of"),
        ({"labels_BT": torch.full((64, 1), 2.0)}, "the binary task click must be 0 or 1"),
        ({"labels_BT": torch.full((64, 1), torch.nan)}, "labels_BT: holds NaN"),
        ({"dense_BD": torch.zeros(64, 2)}, "must be float32 of [64, 1], not float32 of [64, 2]"),
        ({"dense_BD": torch.full((64, 1), torch.inf)}, "dense_BD: holds NaN or infinity"),
        ({"weights_B": -torch.ones(64)}, "weights_B: must be finite and not negative"),
        ({"weights_B": None}, "weights_B: must be float32 of [64], not NoneType"),
        ({"rows_B": torch.zeros(64)}, "rows_B: must be int64 of [64], not float32 of [64]"),
        ({"groups_BG": torch.zeros(64, 1).long()}, "groups_BG: must be int64 of [64, 0]"),
        ({"sparse": None}, "sparse: must be a torchrec KeyedJaggedTensor, not NoneType"),
        ({"sparse": kjt(["usr"])}, "must have the keys ['user'], in the schema's order"),
        ({"sparse": kjt(dtype=torch.int32)}, "ids must be int64"),
        ({"sparse": kjt(values=[-1] * 64)}, "user has id -1, outside [0, 500)"),
        ({"sparse": kjt(values=[500] * 64)}, "user has id 500, outside [0, 500)"),
        ({"sparse": kjt(lengths=[1] * 63)}, "has 63 lengths, not 1 x 64 rows"),
        ({"sparse": kjt(lengths=[2] * 64)}, "the lengths add up to 128, with 64 ids"),
        ({"sequences": kjt()}, "sequences: must have the keys [], in the schema's order"),
        ({"cursor": None}, "cursor: must be a runner.DataPosition, not NoneType"),
        ({"cursor": DataPosition(0, 1)}, "cursor: must be DataPosition(epoch=0, offset=64"),
    ],
)
def test_what_a_first_batch_lacks_is_named(clicks, change, told):
    with pytest.raises(ConfigError) as refused:
        check(Changed(clicks, **change))
    assert "dataset: first batch of the train split: " in str(refused.value)
    assert told in str(refused.value)


def test_all_that_a_first_batch_lacks_is_told_at_once(clicks):
    wrong = {
        "labels_BT": torch.ones(64),
        "dense_BD": torch.ones(64, 1).double(),
        "weights_B": torch.ones(64).long(),
        "rows_B": torch.arange(64).int(),
        "groups_BG": None,
        "sparse": kjt(dtype=torch.int32),
    }
    with pytest.raises(ConfigError) as refused:
        check(Changed(clicks, **wrong))
    told = str(refused.value)
    assert all(f"first batch of the train split: {name}: " in told for name in wrong)
    assert " rows, not" not in told


def test_a_weighted_feature_needs_weights(clicks):
    weighted = [replace(feature, weighted=True) for feature in clicks.schema.sparse]
    clicks.schema = replace(clicks.schema, sparse=tuple(weighted))
    with pytest.raises(ConfigError, match="a weighted feature, so the ids need weights"):
        check(clicks)


def test_a_batch_of_another_kind_or_size_is_told(clicks):
    clicks.batches = lambda split, **_: iter([{"user": 1}])
    with pytest.raises(ConfigError, match="is a dict, not a runner"):
        check(clicks)
    clicks.batches = lambda split, **_: iter([None])
    with pytest.raises(ConfigError) as refused:
        check(clicks)
    assert "first batch of the train split: is a NoneType, not a runner.Batch" in str(refused.value)
    assert "cursor" not in str(refused.value) and "gives no batch" not in str(refused.value)
    del clicks.batches
    original = clicks.batches
    clicks.batches = lambda split, *, batch_size, **more: original(split, batch_size=10, **more)
    with pytest.raises(ConfigError, match="has 10 rows, not 64"):
        check(clicks)


def test_sequences_that_are_too_long_or_out_of_range_are_told(clicks):
    clicks.schema = Schema(
        ("price",),
        (SparseFeature("user", 500),),
        (TaskSpec("click"),),
        sequences=(SequenceFeature("seen", 3, max_length=2),),
    )
    with pytest.raises(ConfigError, match="sequences: must be a torchrec KeyedJaggedTensor"):
        check(clicks)
    long = kjt(["seen"], values=[3] * 192, lengths=[3] * 64)
    with pytest.raises(ConfigError) as refused:
        check(Changed(clicks, sequences=long))
    assert "seen has id 3, outside [0, 3)" in str(refused.value)
    assert "seen is longer than its max_length=2" in str(refused.value)


def test_a_stream_of_ones_own_is_not_read_ahead_and_its_first_batch_is_checked(clicks):
    batches = clicks.batches

    def refuse(split: str, **options: Any) -> Iterator[Any]:
        raise AssertionError("read ahead")
        yield

    clicks.is_stream, clicks.num_rows, clicks.batches = True, {}, refuse
    check(clicks)
    checked = check_first_batch(batches("train", batch_size=64), clicks.schema, 64)
    assert [b.size for b in islice(checked, 3)] == [64] * 3
    with pytest.raises(ConfigError, match="first batch of the stream: has 64 rows, not 32"):
        next(check_first_batch(batches("train", batch_size=64), clicks.schema, 32))


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("start", [DataPosition(0, 0), DataPosition(3, 128)])
def test_an_epoch_that_ends_before_its_rows_is_told(clicks, kept, start):
    def batches() -> Iterator[Any]:
        return clicks.batches("train", batch_size=64, seed=0, start=start)

    whole = [batch.cursor for batch in batches()]
    assert [b.cursor for b in check_epoch(batches(), clicks, start, 64)] == whole
    shorter = check_epoch(islice(batches(), kept), clicks, start, 64)
    ended = start.offset + kept * 64
    with pytest.raises(DataError, match=f"epoch {start.epoch} ended at row {ended}, and num_rows"):
        list(shorter)


@pytest.mark.parametrize("rest", ["short", "pad"])
@pytest.mark.parametrize(
    ("num_rows", "world_size", "told"),
    [
        (99_999, 1, "epoch 2 ended at row {}, and num_rows says that there are 99,999"),
        (99_999, 2, "epoch 2 ended at row 1,856, and num_rows says that there are 99,999"),
        (1000, 1, "epoch 2 went on to row 1,024, and num_rows says that there are 1,000"),
    ],
)
def test_an_epoch_of_other_rows_than_it_says_is_told_before_it_turns(
    clicks, rest, num_rows, world_size, told
):
    start, size = DataPosition(2, 0), 64 // world_size

    def batches() -> Iterator[Any]:
        return clicks.batches("train", batch_size=size, start=start, world_size=world_size)

    clicks.rest = rest
    assert len([*check_epoch(batches(), clicks, start, size, world_size)]) == 29
    clicks.num_rows = {"train": num_rows}
    with pytest.raises(DataError) as refused:
        list(check_epoch(batches(), clicks, start, size, world_size))
    assert told.format("1,800" if rest == "short" else "1,856") in str(refused.value)


def test_a_last_batch_with_fewer_rows_than_are_left_is_told(clicks):
    clicks.num_rows = {"train": 1810}
    batches = clicks.batches("train", batch_size=64, seed=0)
    with pytest.raises(DataError, match=r"ended at row 1,800, and num_rows says .* 1,810$"):
        list(check_epoch(batches, clicks, DataPosition(), 64))


def test_a_class_without_batches_or_whose_batches_gives_none_is_told(clicks):
    class Lacking(Dataset):
        def __init__(self) -> None:
            self.schema, self.num_rows = clicks.schema, clicks.num_rows

    with pytest.raises(
        ConfigError, match=r"^dataset: batches\(split, .*: there is no such method$"
    ):
        check(Lacking())

    class Silent(Lacking):
        def batches(self, split, **options):
            for _ in clicks.batches(split, **options):
                pass

    with pytest.raises(
        ConfigError, match=r"batches\('train', ...\) returned NoneType, not an iter"
    ):
        check(Silent())


@pytest.mark.long
def test_a_class_that_derives_from_none_of_ours_is_told_all_that_it_lacks(tmp_path, runner: Zygote):
    load_page(tmp_path)
    code = CODE.replace("class Clicks(Dataset)", "class Clicks")
    (tmp_path / "mydata" / "clicks.py").write_text(code)
    words = ("--config-dir", "myconf", "--allow", "mydata", "dataset=clicks", "report=false")
    done = runner.run(*words, "hydra.run.dir=run", cwd=tmp_path)
    assert done.code == 2
    assert "dataset: rest: must be one of" in done.text
    assert "derive your class from runner.Dataset" in done.text
    assert "dataset: save_fitted_transforms(folder): there is no such method" in done.text
