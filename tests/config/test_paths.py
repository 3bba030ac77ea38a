"""Paths of a configuration hold in whatever folder a later command runs."""

import copy
import os
import re

from runner.cli.completion import complete_words
from runner.config.compose import compose
from runner.config.option_fields import read_fields
from runner.config.options import list_groups
from runner.config.paths import PATH_KEYS, make_paths_absolute

ON_THE_CLUSTER = {"remote.dir"}
SAYS_PATH = re.compile(r"\b(file|files|folder|directory)\b")
NAMED_PATH = re.compile(r"(^|_)(path|dir|folder|file|to|from|roots|table|learnt|schema)$")


def path_keys() -> set[str]:
    """Every key that takes a text and is called or described as a file or folder."""
    found = set()
    for group, options in list_groups():
        for option in options if group not in ("experiments", "recipe") else ():
            for field in read_fields(option.path, group.replace("/", ".")):
                is_text = field.type_name in ("", "text", "text or null") and not field.range
                name = field.key.rpartition(".")[2]
                if is_text and (SAYS_PATH.search(field.description) or NAMED_PATH.search(name)):
                    found.add(field.key)
    return found


def test_every_key_that_takes_a_path_is_known_as_one():
    assert {".".join(key) for key in PATH_KEYS} == path_keys() - ON_THE_CLUSTER


def test_files_are_offered_for_every_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").touch()
    for key in map(".".join, PATH_KEYS):
        options = ["dataset=flight"] if key == "dataset.tls_roots" else []
        assert list(complete_words([*options, f"{key}=he"])) == [f"{key}=here.txt"]


def test_relative_paths_become_absolute_also_in_a_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["delivery.every=2", "delivery.to=out", "delivery.rows_from=rows.csv"]
    words += ["model=two_tower", "model.net.hard_table=neg.csv"]
    words += ["dataset=parquet", "dataset.path=[a.parquet, s3://b/c.parquet]"]
    words += ["dataset.schema={columns: {}}"]
    composed = compose(words)
    for config in (composed.config, composed.saved_config):
        assert config["delivery"]["to"] == str(tmp_path / "out")
        assert config["delivery"]["rows_from"] == str(tmp_path / "rows.csv")
        assert config["model"]["net"]["hard_table"] == str(tmp_path / "neg.csv")
        assert config["dataset"]["path"] == [str(tmp_path / "a.parquet"), "s3://b/c.parquet"]
        assert config["dataset"]["schema"] == {"columns": {}}
    flight = compose(["dataset=flight", "dataset.tls_roots='~/roots.pem'"])
    assert flight.config["dataset"]["tls_roots"] == os.path.expanduser("~/roots.pem")


def test_a_run_that_a_link_names_is_the_one_that_it_names_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs/first").mkdir(parents=True)
    (tmp_path / "outputs/latest").symlink_to("first")
    tables = {"user": {"from": "outputs/latest"}}
    config = {"checkpoint": {"init_from": "outputs/latest", "init_tables": tables}}
    saved = copy.deepcopy(config)
    make_paths_absolute(config, saved, {})
    for found in (config["checkpoint"], saved["checkpoint"]):
        assert found["init_from"] == str(tmp_path / "outputs/first")
        assert found["init_tables"]["user"]["from"] == str(tmp_path / "outputs/first")
    kept = {"checkpoint": {"init_from": str(tmp_path / "outputs/latest")}}
    make_paths_absolute(kept, {"checkpoint": dict(kept["checkpoint"])}, kept)
    assert kept["checkpoint"]["init_from"] == str(tmp_path / "outputs/latest")


def test_a_relative_path_that_an_earlier_version_has_signed_stays():
    config = {"model": {"net": {"hard_table": "neg.csv"}}, "delivery": {"to": "new"}}
    saved = {"model": {"net": {"hard_table": "neg.csv"}}, "delivery": {"to": "new"}}
    make_paths_absolute(config, saved, {"model": {"net": {"hard_table": "neg.csv"}}})
    for found in (config, saved):
        assert found["model"]["net"]["hard_table"] == "neg.csv"
        assert found["delivery"]["to"] == os.path.abspath("new")
