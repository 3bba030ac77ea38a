from copy import deepcopy

import pytest

from runner.config.compose import compose
from runner.config.signature import compute_signature, hash_fields, signature_fields
from runner.rundir.diff import diff_settings


@pytest.fixture(scope="module")
def config():
    return compose([]).config


def changed(config, key, value):
    other = deepcopy(config)
    node = other
    *path, last = key.split(".")
    for part in path:
        node = node[part]
    node[last] = value
    return other


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("trainer.batch_size", 8),
        ("trainer.max_epochs", 7),
        ("trainer.amp", True),
        ("trainer.eval_every", 10),
        ("trainer.deterministic", True),
        ("model.net.embedding_dim", 8),
        ("optimizer.dense.lr", 0.5),
        ("optimizer.sparse.lr", 0.5),
        ("scheduler.warmup", 10),
        ("checkpoint.monitor.direction", "min"),
        ("checkpoint.init_from", "/x"),
        ("checkpoint.init_average", True),
        ("task._target_", "runner.training.update.task.Other"),
    ],
)
def test_what_makes_a_result_makes_another_signature(config, key, value):
    assert compute_signature(changed(config, key, value), "d") != compute_signature(config, "d")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "x"),
        ("trainer.device", "cuda"),
        ("trainer.num_threads", 2),
        ("trainer.log_every", 3),
        ("trainer.traceback", True),
        ("checkpoint.save_every", 3),
        ("checkpoint.keep", 9),
        ("checkpoint.step", "last"),
        ("tracker", {"wandb": {"project": "x"}}),
        ("launcher", {"slots": 9}),
        ("dataset.prefetch", 4),
    ],
)
def test_how_a_run_is_watched_stored_or_computed_does_not(config, key, value):
    assert compute_signature(changed(config, key, value), "d") == compute_signature(config, "d")


def test_the_global_batch_counts_not_how_it_is_cut(config):
    whole = changed(config, "trainer.batch_size", 4096)
    cut = changed(changed(config, "trainer.batch_size", 1024), "trainer.accumulate", 4)
    assert compute_signature(whole, "d") == compute_signature(cut, "d")
    assert signature_fields(cut, "d")["global_batch"] == 4096


@pytest.mark.parametrize("words", [["model/loss=jrc"], ["model=two_tower"]])
def test_where_rows_are_compared_within_micro_batches_the_cut_counts_as_well(words):
    meant = ["model.loss.within=micro_batch", "trainer.batch_size=8"]
    cuts = (["trainer.accumulate=2"], ["trainer.num_processes=2"], ["trainer.batch_size=16"])
    found = [signature_fields(compose([*words, *meant, *cut]).config, "d") for cut in cuts]
    assert {parts["global_batch"] for parts in found} == {16}
    assert len({hash_fields(parts) for parts in found}) == 3
    keys = ("trainer.batch_size", "trainer.accumulate", "trainer.num_processes")
    assert [tuple(parts[key] for key in keys) for parts in found] == [
        (8, 2, 1),
        (8, 1, 2),
        (16, 1, 1),
    ]


@pytest.mark.parametrize("words", [["model.net.norm=batch"], ["model.net.activation=dice"]])
def test_statistics_within_micro_batches_are_signed_with_the_cut_and_those_of_updates_are_not(
    words,
):
    cuts = (["trainer.accumulate=2"], ["trainer.num_processes=2"], ["trainer.batch_size=16"])
    for scope, count in (("null", 1), ("micro_batch", 3)):
        more = [*words, f"model.net.norm_scope={scope}", "trainer.batch_size=8"]
        found = [compute_signature(compose([*more, *cut]).config, "d") for cut in cuts]
        assert len(set(found)) == count


@pytest.mark.parametrize("model", ["dlrm", "din", "ple"])
def test_settings_of_hidden_layers_that_came_later_are_signed_only_when_set(model):
    now = compose([f"model={model}"]).config
    before = deepcopy(now)
    for name in ("norm", "norm_place", "norm_scope", "activation", "init"):
        assert before["model"]["net"].pop(name) is None
        other = changed(now, f"model.net.{name}", "x")
        assert compute_signature(other, "d") != compute_signature(now, "d")
    before["model"]["net"].pop("attention_activation", None)
    assert signature_fields(now, "d") == signature_fields(before, "d")
    own = changed(now, "model.net._target_", "mine.Net")
    assert signature_fields(own, "d")["model.net.norm"] is None, "a net of the user's own"


@pytest.mark.parametrize("model", ["sasrec", "bert4rec", "gru4rec", "hstu"])
def test_negatives_that_nobody_counted_are_signed_as_the_number_that_options_once_had(model):
    null, given, more = (
        compute_signature(compose([f"model={model}", *words]).config, "data")
        for words in ((), ("model.net.uniform=512",), ("model.net.uniform=513",))
    )
    assert null == given != more
    every, without = (
        compute_signature(compose([f"model={model}", *words]).config, "data")
        for words in (("model.net.every=true",), ("model.net.every=true", "model.net.uniform=0"))
    )
    assert every == without != null


def test_a_loss_over_the_whole_update_has_the_signature_it_had_before_there_was_a_choice():
    now = compose(["model/loss=jrc"]).config
    before = deepcopy(now)
    del before["model"]["loss"]["within"]
    assert signature_fields(now, "d") == signature_fields(before, "d")
    cut = changed(changed(now, "trainer.batch_size", 1024), "trainer.accumulate", 4)
    assert compute_signature(cut, "d") == compute_signature(now, "d")


def test_other_data_make_another_signature(config):
    assert compute_signature(config, "a") != compute_signature(config, "b")


def test_a_signature_depends_on_no_order_of_keys_and_never_changes():
    parts = {"b": 1, "a": [1, 2.5, None, True], "c": "x"}
    assert hash_fields(parts) == hash_fields(dict(reversed(parts.items())))
    # Runs are found again by it: a change here would orphan every run there is.
    assert hash_fields(parts) == "7d04da0d"


def test_differences_name_the_key_and_both_values():
    before = {"a": {"b": 1, "c": [1]}, "d": None}
    now = {"a": {"b": 2, "c": [1]}, "e": {}}
    assert diff_settings(before, now) == [("a.b", 1, 2), ("e", None, {})]


def test_a_group_that_got_its_first_key_differs_by_that_key_alone():
    empty, filled = {"tables": {}}, {"tables": {"user": {"plan": "disk"}}}
    assert diff_settings(empty, filled) == [("tables.user.plan", None, "disk")]
    assert diff_settings(filled, empty) == [("tables.user.plan", "disk", None)]


USER_CALLBACK = {"_target_": "mine.Mine", "pull": 1}


@pytest.mark.parametrize("rule", ["early_stop", "lr_on_plateau", "batch_on_plateau"])
def test_a_rule_counts_once_it_is_on_and_then_with_all_its_settings(config, rule):
    off = changed(config, f"trainer.{rule}", {**config["trainer"][rule], "min_delta": 0.5})
    assert compute_signature(off, "d") == compute_signature(config, "d")
    on = changed(config, f"trainer.{rule}", {**config["trainer"][rule], "patience": 2})
    more = changed(on, f"trainer.{rule}.min_delta", 0.5)
    assert len({compute_signature(c, "d") for c in (config, on, more)}) == 3


def test_a_run_older_than_rules_and_callbacks_keeps_its_signature(config):
    old = deepcopy(config)
    del old["callbacks"]
    for rule in ("early_stop", "lr_on_plateau", "batch_on_plateau"):
        del old["trainer"][rule]
    assert compute_signature(old, "d") == compute_signature(config, "d")


def test_a_callback_counts_unless_it_only_watches(config):
    watching = changed(
        config, "callbacks", compose(["callbacks=[weights,time_limit]"]).config["callbacks"]
    )
    assert compute_signature(watching, "d") == compute_signature(config, "d")
    for node in ({"mine": USER_CALLBACK}, compose(["callbacks=loss_guard"]).config["callbacks"]):
        assert compute_signature(changed(config, "callbacks", node), "d") != compute_signature(
            config, "d"
        )
    assert "callbacks.mine.pull" in signature_fields(
        changed(config, "callbacks", {"mine": USER_CALLBACK}), "d"
    )
