from __future__ import annotations

import os

import pytest

from runner.data.core.source_files import fingerprint_path
from runner.data.prepare.fingerprint import fingerprint
from runner.errors import ConfigError, DataError
from tests.conftest import python
from tests.data.sets.synthetic_settings import dataset_settings, small_synthetic

PRINT_IMPORTS = """
import sys
class NoPandas:  # Arrow imports it where it is installed; we do not
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoPandas())
from runner.data.prepare.fingerprint import fingerprint, build_recipe
from runner.data.prepare.recipe import prepare
from tests.data.sets.synthetic_settings import small_synthetic
settings = small_synthetic(rows={"train": 100, "validation": 100, "test": 100})
print(len(fingerprint(settings)))
prepare(build_recipe(settings))
print(sorted({"torch", "torchrec", "hydra", "omegaconf"} & set(sys.modules)))
"""


def test_fingerprint_and_preparation_import_no_torch(tmp_path):
    done = python("-c", PRINT_IMPORTS, RUNNER_CACHE=str(tmp_path))
    assert done.stdout.splitlines() == ["16", "[]"]


@pytest.fixture
def criteo(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(b"0" + b"\t" * 39 + b"\n" + b"1" + b"\t" * 39 + b"\n")
    return path


def fingerprint_of(path, **changes):
    return fingerprint(dataset_settings("criteo", path=str(path), **changes))


def test_it_follows_content_not_time_or_place(criteo, tmp_path, monkeypatch):
    before = fingerprint_of(criteo)
    os.utime(criteo, (1, 1))
    assert fingerprint_of(criteo) == before
    (tmp_path / "other").mkdir()
    moved = criteo.rename(tmp_path / "other" / "train.txt")
    assert fingerprint_of(moved) == before
    monkeypatch.chdir(tmp_path)
    assert fingerprint_of("other/../other/train.txt") == before
    moved.write_bytes(moved.read_bytes().replace(b"0", b"1", 1))
    assert fingerprint_of(moved) != before


def test_it_follows_all_of_a_large_file(criteo):
    line = b"0" + b"\t" * 39 + b"\n"
    prints = set()
    for change in (b"", b"head", b"middle", b"tail", b"more"):
        content = bytearray(line * 100_000)
        if change == b"head":
            content[0:1] = b"1"
        elif change == b"middle":
            content[41 * 50_000 : 41 * 50_000 + 1] = b"1"
        elif change == b"tail":
            content[-41:-40] = b"1"
        elif change == b"more":
            content += line
        criteo.write_bytes(content)
        prints.add(fingerprint_of(criteo))
    assert len(prints) == 5


def test_it_follows_what_shapes_the_batches_and_nothing_else(criteo):
    before = fingerprint_of(criteo)
    assert fingerprint_of(criteo, prefetch=4) == before
    assert fingerprint_of(criteo, hash_rows=7) == before  # no hash is used
    others = [
        fingerprint_of(criteo, window_rows=7),
        fingerprint_of(criteo, split_seed=1),
        fingerprint_of(criteo, min_count=2),
        fingerprint_of(criteo, encode="hash"),
        fingerprint_of(criteo, encode="hash", hash_rows=7),
        fingerprint_of(criteo, encode="hash", hash_salt=1),
        fingerprint_of(criteo, fractions={"train": 0.5, "validation": 0.25, "test": 0.25}),
        fingerprint(small_synthetic()),
        fingerprint(small_synthetic(data_seed=1)),
    ]
    assert len({before, *others}) == 10


def test_a_dataset_of_somebody_else_is_known_by_settings_and_content(tmp_path):
    (tmp_path / "x").write_text("1")
    settings = {"_target_": "elsewhere.data.Own", "path": str(tmp_path / "x"), "size": 3}
    before = fingerprint(settings)
    assert fingerprint({**settings, "size": 4}) != before
    assert fingerprint({**settings, "prefetch": 4}) == before
    (tmp_path / "x").write_text("2")
    assert fingerprint(settings) != before
    with pytest.raises(DataError, match="no such path"):
        fingerprint({**settings, "path": str(tmp_path / "y")})


def test_a_folder_of_somebody_else_is_known_by_the_files_at_any_depth(tmp_path):
    below = tmp_path / "x" / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "x" / "top").write_text("0")
    found = []
    for name, text in (("one", "1"), ("one", "2"), ("two", "2")):
        (below / name).write_text(text)
        found.append(fingerprint({"_target_": "elsewhere.data.Own", "path": str(tmp_path / "x")}))
    (below / "one").unlink()
    below.rename(tmp_path / "x" / "a" / "c")
    found.append(fingerprint({"_target_": "elsewhere.data.Own", "path": str(tmp_path / "x")}))
    assert len({*found}) == 4
    (tmp_path / "x" / "a" / ".git").mkdir()
    (tmp_path / "x" / "a" / ".git" / "HEAD").write_text("1")  # a hidden file is no data
    again = fingerprint({"_target_": "elsewhere.data.Own", "path": str(tmp_path / "x")})
    assert again == found[-1]
    content = fingerprint_path(tmp_path / "x" / "a" / "c")
    assert content == [["two", 1, content[0][2]]]  # as before there were folders in it


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("movielens_1m", None, r"dataset\.path is not set.*grouplens\.org"),
        ("movielens_1m", "ml-1", r"no such path .*nearest: 'ml-1m'.*grouplens\.org"),
        ("movielens_1m", "ml-1m/users.dat", "is a file; it must be the folder"),
        ("movielens_1m", "ml-1m", r"has no ratings\.dat; nearest: 'rating\.dat'.*grouplens"),
        ("criteo", None, r"dataset\.path is not set.*criteo"),
        ("criteo", "ml-1m", r"is a folder; it must be a file \(there are: .*users\.dat"),
        ("criteo", "ml-1m/user.dat", r"no such path .*nearest: 'users\.dat'.*Kaggle"),
    ],
)
def test_a_path_that_is_not_there_says_where_to_get_the_data(
    tmp_path, monkeypatch, name, path, message
):
    (tmp_path / "ml-1m").mkdir()
    for file in ("users.dat", "movies.dat", "rating.dat"):
        (tmp_path / "ml-1m" / file).write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message):
        fingerprint(dataset_settings(name, path=path))


def test_an_unknown_or_absent_setting_is_named():
    with pytest.raises(ConfigError, match=r"dataset\.zpif: no such setting; nearest: 'zipf'"):
        fingerprint({**small_synthetic(), "zpif": 1.0})
    settings = small_synthetic()
    del settings["zipf"]
    with pytest.raises(ConfigError, match=r"dataset\.zipf is not set"):
        fingerprint(settings)
