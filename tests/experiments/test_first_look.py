"""The page of what a newcomer gets has the results of the run directories."""

from __future__ import annotations

import json
import shutil

from experiments import first_look
from tests.whole.test_never_below_yardstick import Comparison


def write_run(folder, validation, test):
    folder.mkdir(parents=True)
    metrics = {"validation/auc": validation, "test/auc": test}
    result = {"status": "completed", "metrics": metrics, "active_s": 10.0}
    meta = {"seed": 0, "created": "2026-11-22T09:36:57+0000"}
    data = {"num_rows": {"train": 8000, "validation": 1000, "test": 1000}}
    for name, content in (("result", result), ("meta", meta), ("data", data)):
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_the_page_has_the_difference_to_logistic_regression_and_to_settings_by_hand(tmp_path):
    table, search = tmp_path / "two_commands" / "avazu", tmp_path / "quick_search" / "planted"
    write_run(table / "run", 0.7, 0.71)
    (table / "both.json").write_text(json.dumps({"ours": 0.71, "logistic_regression": 0.7064}))
    for trial, (validation, test) in enumerate([(0.75, 0.8), (0.77, 0.76), (0.76, 0.79)]):
        write_run(search / "quick" / str(trial), validation, test)
    write_run(search / "by_hand", 0.78, 0.77)
    page = tmp_path / "page.md"
    assert first_look.main(["--write-only", "--out", str(tmp_path), "--page", str(page)]) == 0
    lines = page.read_text().splitlines()
    assert "| avazu | 10,000 | 2026-11-22 | 0.7064 | 0.7100 | +0.0036 |" in lines
    assert "| planted | 2026-11-22 | 1,000 | 3 | 0.7700 | 0.7600 | 0.7700 | -0.0100 |" in lines
    assert "| frappe_bars | | | | | not run |" in lines
    shutil.rmtree(table)  # where its runs are not at hand, a row stays
    assert first_look.main(["--write-only", "--out", str(tmp_path), "--page", str(page)]) == 0
    assert page.read_text().splitlines() == lines


def test_what_was_found_by_hand_may_stand_in_the_table_of_the_experiments(tmp_path):
    [auc] = {
        line.split("| auc ")[1].split(" ")[0]
        for line in (first_look.HERE / "README.md").read_text().splitlines()
        if line.startswith("| `movielens_dcn` ")
    }
    assert first_look.read_by_hand("`movielens_dcn`", tmp_path) == float(auc)
    assert first_look.read_by_hand(["recipe=bars"], tmp_path) is None


def test_movielens_is_joined_into_one_table_without_what_tells_the_label(tmp_path):
    files = {
        "ratings.dat": ["1::7::5::978300760", "2::9::3::978300760", "2::7::1::978300760"],
        "users.dat": ["1::F::25::10::48067", "2::M::56::16::70072"],
        "movies.dat": ["7::Sabrina (1995)::Comedy|Romance", "9::Sudden: Death (1995)::Action"],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines), encoding="latin-1")
    first_look.write_movielens(tmp_path, tmp_path / "joined.csv")
    assert (tmp_path / "joined.csv").read_text().splitlines() == [
        "user,item,gender,age,occupation,zip,title,genres,label",
        "1,7,F,25,10,48067,Sabrina (1995),Comedy|Romance,1",
        "2,7,M,56,16,70072,Sabrina (1995),Comedy|Romance,0",
    ]


def test_the_two_commands_leave_both_aucs_for_the_page(tmp_path, monkeypatch):
    found = Comparison(0.71, 0.69, 0.7, 0.01, 0.01)
    monkeypatch.setattr(first_look, "PLANTED_ROWS", 200)
    monkeypatch.setattr(first_look, "run_two_commands", lambda *words: found)
    first_look.run_first_commands("avazu", tmp_path, tmp_path / "avazu")
    both = json.loads((tmp_path / "avazu" / "both.json").read_text())
    assert both == {"ours": 0.71, "logistic_regression": 0.7}
