"""What `schema` proposes for tables of queries, whose rows have grades of relevance."""

from __future__ import annotations

import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from runner.cli.schema import schema
from runner.config.overrides import parse_job_overrides
from runner.data.proposal.columns.label_leaks import has_one_positive_each
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import UserError

QUERIES, LENGTH = 150, 8
ROWS = QUERIES * LENGTH
QID = np.repeat(np.arange(QUERIES), LENGTH)
GRADES = np.random.default_rng(3).choice(5, ROWS, p=[0.5, 0.25, 0.15, 0.07, 0.03])
CLICKS = np.random.default_rng(4).integers(0, 2, ROWS)
BY_QUERY = {"train": 0.8, "validation": 0.1, "test": 0.1}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def propose(tmp_path, capsys):
    """Run the verb on columns; return the YAML, what was shown, and the overrides to train with."""

    def run(*flags: str, **columns) -> tuple[dict, str, list[str]]:
        rng = np.random.default_rng(0)
        path, out = tmp_path / "x.parquet", tmp_path / "s.yaml"
        usual = {"doc_id": np.arange(ROWS), "bm25": rng.normal(size=ROWS)}
        pq.write_table(pa.table({**usual, **columns}), path)
        out.unlink(missing_ok=True)
        assert schema([str(path), *flags, "--out", str(out)], ()) == 0
        shown = " ".join(capsys.readouterr().out.split())
        words = shlex.split(shown.partition("python -m runner ")[2])
        parse_job_overrides(words)
        return yaml.safe_load(out.read_text()), shown, words

    return run


@pytest.mark.parametrize(
    ("query", "label"),
    [("qid", "relevance"), ("query_id", "label"), ("srch_id", "relevance_label"), ("qid", "rel")],
)
def test_grades_are_a_regression_and_the_rows_of_a_query_one_group_in_one_split(
    propose, tmp_path, query, label
):
    proposed, _, words = propose(**{query: QID, label: GRADES})
    assert proposed["labels"] == {label: {"type": "regression"}}
    assert proposed["groups"] == [query] and query not in proposed["categorical"]
    assert proposed["split"] == {"group": query, **BY_QUERY}
    assert "metrics.eval=[ndcg@10,mae,mse,rmse,r2]" in words and "model/loss=by_kind" in words
    recipe = TableRecipe("parquet", None, str(tmp_path / "s.yaml"))
    data = open_table(recipe, window_rows=1 << 17, prefetch=0)
    seen = [
        set(next(data.batches(split, batch_size=rows)).groups_BG[:, 0].tolist())
        for split, rows in data.num_rows.items()
    ]
    assert sum(map(len, seen)) == len(set.union(*seen)) == QUERIES


@pytest.mark.parametrize("label", ["relevance", "esci_label"])
@pytest.mark.parametrize(
    "scale",
    [
        ["Bad", "Fair", "Good", "Excellent", "Perfect"],
        ["I", "C", "S", "E"],
        ["not_relevant", "partially_relevant", "relevant", "highly_relevant"],
    ],
)
def test_texts_of_a_known_scale_are_grades_in_its_order(propose, tmp_path, label, scale):
    grades = np.minimum(GRADES, len(scale) - 1)
    proposed, *_ = propose(qid=QID, **{label: np.array(scale)[grades]})
    assert proposed["labels"] == {label: {"type": "regression", "grades": scale}}
    recipe = TableRecipe("parquet", None, str(tmp_path / "s.yaml"), mix=False)
    data = open_table(recipe, window_rows=1 << 17, prefetch=0)
    found = [
        next(data.batches(split, batch_size=rows)).labels_BT[:, 0].tolist()
        for split, rows in data.num_rows.items()
    ]
    assert sorted(y for labels in found for y in labels) == sorted(grades.tolist())


def test_two_texts_of_a_scale_are_a_binary_label_whichever_is_rarer(propose):
    texts = np.where(CLICKS | (GRADES > 0), "relevant", "irrelevant")
    proposed, *_ = propose(qid=QID, relevance=texts)
    assert proposed["labels"] == {"relevance": {"positive": ["relevant"]}}


def test_texts_of_no_known_scale_are_refused_with_what_makes_numbers_of_them(propose):
    with pytest.raises(
        UserError, match=r"for grades, `\{type: regression, grades: \[LOWEST, \.\.\.,"
    ):
        propose(
            "--label", "relevance", qid=QID, relevance=np.array(["a", "b", "c", "d", "e"])[GRADES]
        )


def test_beside_a_click_the_grade_is_taken_and_the_click_left_out_unless_a_flag_says_so(propose):
    proposed, shown, _ = propose(qid=QID, click=CLICKS, relevance=GRADES)
    assert list(proposed["labels"]) == ["relevance"]
    assert "click" not in {**proposed["numeric"], **proposed["categorical"]}
    told = (
        "label relevance: is taken since it grades relevance; click may be the label as well, and"
    )
    assert f"{told} is left out: --label click predicts it" in shown
    proposed, shown, _ = propose("--label", "click", qid=QID, click=CLICKS, relevance=GRADES)
    assert proposed["labels"] == {"click": {}} and "is taken since" not in shown
    assert "relevance" not in {**proposed["numeric"], **proposed["categorical"]}


def test_binary_relevance_is_judged_by_list_and_a_clicked_query_stays_a_feature(propose):
    proposed, _, words = propose(query_id=QID, relevance=CLICKS)
    assert proposed["labels"] == {"relevance": {}} and proposed["groups"] == ["query_id"]
    assert "metrics.eval=[ndcg@10,auc,log_loss,normalized_entropy,calibration]" in words
    proposed, _, words = propose(query_id=QID, click=CLICKS)
    assert "query_id" in proposed["categorical"] and proposed["groups"] == ["query_id"]
    assert "random" in proposed["split"] and not [w for w in words if "ndcg" in w]


def test_rows_of_which_one_is_chosen_are_a_group_in_one_split(propose):
    order = np.random.default_rng(5).permutation(ROWS)  # the rows of a choice lie apart
    chosen = np.tile(np.arange(LENGTH) == 3, QUERIES)[order]
    columns = {"case": QID[order], "chosen": chosen, "shop": np.arange(ROWS) % 40}
    proposed, shown, words = propose("--label", "chosen", **columns)
    assert proposed["groups"] == ["case"] and "case" not in proposed["categorical"]
    assert proposed["split"] == {"group": "case", **BY_QUERY}
    assert "one row of each value has label 1; --categorical case makes a feature of it" in shown
    assert "metrics.eval=[ndcg@10,auc,log_loss,normalized_entropy,calibration]" in words
    proposed, *_ = propose("--label", "chosen", "--categorical", "case", **columns)
    assert "case" in proposed["categorical"] and "random" in proposed["split"]
    columns["chosen"] = chosen | (QID[order] % 10 == 0)  # all rows of every tenth choice
    proposed, *_ = propose("--label", "chosen", **columns)
    assert "case" in proposed["categorical"] and "random" in proposed["split"]


def test_a_missing_number_of_a_choice_is_in_none():
    numbers = pa.chunked_array([[None, None, *QID.tolist()]])
    label_R = np.concatenate([[1, np.nan], np.tile(np.arange(LENGTH) == 3, QUERIES)])
    assert has_one_positive_each(numbers, label_R)
    assert not has_one_positive_each(numbers, 1 - label_R)


def test_a_number_that_a_query_has_once_names_no_list(propose):
    proposed, *_ = propose(qid=np.arange(ROWS), relevance=GRADES)
    assert "groups" not in proposed and "random" in proposed["split"]
    proposed, *_ = propose("--categorical", "qid", qid=QID, relevance=GRADES)
    assert "qid" in proposed["categorical"] and "random" in proposed["split"]


def test_ratings_that_are_predicted_as_numbers_are_ranked_for_each_user(propose):
    proposed, _, words = propose("--task", "regression", user_id=QID, rating=GRADES + 1)
    assert proposed["labels"] == {"rating": {"type": "regression"}}
    assert proposed["groups"] == ["user_id"] and "user_id" in proposed["categorical"]
    assert "metrics.eval=[ndcg@10,mae,mse,rmse,r2]" in words


def test_a_text_among_ids_that_are_a_number_too_is_a_bad_row(tmp_path, capsys):
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 1500, 8000)
    clicks = rng.random(8000) < 1 / (1 + np.exp((750 - codes) / 300))
    lines = [f"{code},{click:d}" for code, click in zip(codes, clicks)]
    lines[7900] = "unkonwn,0"  # as in MovieLens-100K, behind what tells the types
    lines = [f"{line},{'x' * 300}" for line in lines]
    (tmp_path / "x.csv").write_text("\n".join(["release_code,click,note", *lines, ""]))
    out = tmp_path / "s.yaml"
    assert schema([str(tmp_path / "x.csv"), "--out", str(out)], ()) == 0
    assert "release_code_number" in yaml.safe_load(out.read_text())["numeric"]
    assert "dataset.on_bad_rows=skip" in capsys.readouterr().out
