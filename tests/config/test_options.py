"""The groups and options on disk, and the fields that their YAMLs have."""

from runner.config.option_fields import read_fields
from runner.config.options import list_groups, read_first_comment


def test_every_option_of_the_project_says_what_it_is():
    groups = dict(list_groups())
    assert {"model", "dataset", "optimizer", "scheduler", "loop", "tracker", "experiments"} <= set(
        groups
    )
    silent = [
        f"{g}={o.name}" for g, options in groups.items() for o in options if not o.description
    ]
    assert silent == []


def test_the_first_comment_ends_where_the_yaml_begins(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("# @package _global_\n# One\n# two\nkey: 1\n# not this\n")
    assert read_first_comment(path) == "One two"
    path.write_text("key: 1\n")
    assert read_first_comment(path) == ""


def test_every_field_has_a_type_or_is_free_and_every_option_can_be_shown():
    for group, options in list_groups():
        for option in options:
            fields = read_fields(option.path, group.replace("/", "."))
            assert all(f.key and (f.type_name or f.default == "null") for f in fields), option.name


def test_comments_above_a_key_and_behind_it_are_its_documentation(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "# What it is\na: 1  # behind\n# above\nb: {c: 'x # y', d: [1, 2]}  # of b\ne:\n  f: null\n"
    )
    found = {f.key: (f.type_name, f.default, f.description) for f in read_fields(path, "g")}
    assert found == {
        "g.a": ("whole number", "1", "behind"),
        "g.b": ("group of keys", "", "above of b"),
        "g.b.c": ("text", "'x # y'", ""),
        "g.b.d": ("list of whole number", "[1, 2]", ""),
        "g.e.f": ("", "null", ""),
    }


def test_a_key_with_a_parser_of_its_own_says_all_that_it_takes():
    options = {(g, o.name): o.path for g, group in list_groups() for o in group}

    def kind_of(group: str, option: str, key: str) -> str:
        fields = read_fields(options[group, option], group)
        return next(f"{f.type_name}; {f.range}" for f in fields if f.key == f"{group}.{key}")

    width = "at least 1 and at most 65536; or auto"
    assert kind_of("model", "dlrm", "net.embedding_dim") == f"whole number; {width}"
    assert kind_of("model", "dcn", "net.embedding_dim") == f"whole number or group of keys; {width}"
    length = "updates, fraction of the run"
    assert kind_of("scheduler", "step", "warmup") == f"{length}, 2ep or auto; "
    assert kind_of("scheduler", "step", "every") == f"{length} or 2ep; "
    assert kind_of("scheduler", "wsd", "decay") == f"{length} or 2ep; "
    assert kind_of("scheduler", "cosine_restarts", "decay") == "number; "  # of a peak
    assert kind_of("scheduler", "piecewise", "at") == f"list of {length} or 2ep; "
    assert kind_of("scheduler", "inverse_sqrt", "scale") == f"{length}, 2ep or null; "
