"""`export DIR --out MODEL`: writes a trained model for use without this project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.cli.verb_parser import VerbParser
from runner.errors import shell_path


def export(words: Sequence[str], allow: Sequence[str]) -> int:
    """Export the model of a run.

    Raises:
        UserError: for what cannot be exported, before anything is written.
    """
    from runner.config.targets import allowed_packages
    from runner.launch import changed_data_note, print_status
    from runner.machine.cores import set_thread_environment, usable_cores
    from runner.rundir.json_files import read_json
    from runner.rundir.provenance import changed_code_note
    from runner.rundir.run_files import read_meta
    from runner.serving.export.plan import ExportSettings, plan_export, settings_of_base

    args = make_parser().parse(words)
    formats = None if args.format is None else tuple(dict.fromkeys(args.format.split(",")))
    settings = ExportSettings(
        formats or ("pt2",),
        args.quantise,
        args.weights,
        args.portable,
        tuple(args.rows_from or ()),
        args.since,
        args.trust_native_code,
    )
    if args.since is not None:
        settings = settings_of_base(settings, formats)
    allowed = allowed_packages(allow)
    composed = plan_export(args.folder, args.out, settings, args.overrides, allowed)
    meta = read_meta(Path(composed.config["run"]))
    for note in [*changed_code_note(meta), *changed_data_note(composed)]:
        print_status(note)
    tracked = None
    if args.wandb:
        from runner.reporting.trackers.wandb import TrackedExport

        tracked = TrackedExport(Path(composed.config["run"]))
    set_thread_environment(composed.config["trainer"]["num_threads"] or usable_cores())
    from runner.reporting.console import View
    from runner.serving.export.export import export_delta, export_run

    out = Path(args.out)
    write = export_run if args.since is None else export_delta
    write(composed.config, out, settings, view=View(), allowed=allowed, say=print)
    if tracked is not None:
        tracked.log(out, read_json(out / "manifest.json")["checkpoint"]["step"], print)
    command = f"python {shell_path(out / 'score.py')}"
    if args.since is not None:
        command = f"python -m runner apply {shell_path(args.since)} {shell_path(out)} --out NEW"
    use = "shows how it is loaded" if args.since is None else "brings the model on"
    print_status(f"wrote {out}; `{command}` {use}")
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `export`."""
    parser = VerbParser(
        "export",
        "Write the model of a run as one folder that scores raw rows: graphs, transforms,\n"
        "metrics, hashes. It is scored on the run's own test split first, and not written\n"
        "if it is not what was evaluated.",
        examples=(
            "export outputs/dlrm --out model",
            "export outputs/dlrm --out m --format aoti",
            "export outputs/dlrm --since model --out delta checkpoint.step=last",
        ),
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the run")
    parser.add_words("overrides", "KEY=VALUE", "such as checkpoint.step=last")
    parser.add_value("--out", "MODEL", "the folder to write; must not exist")
    parser.add_value(
        "--format",
        "FORMAT",
        "pt2 (torch.export, the default), aoti (machine code), onnx; or several: pt2,onnx",
    )
    parser.add_value("--quantise", "KIND", "store the tables as fp16, int8 or int4; default: whole")
    parser.add_value(
        "--weights",
        "WHICH",
        "ema or trained; default: those that evaluations take (trainer.ema.evaluate)",
    )
    parser.add_argument(
        "--rows-from",
        metavar="FILE",
        action="append",
        help="labelled rows on which it is compared in place of the run's test split; a run on a "
        "stream has none. May be given several times; folders, globs and URLs too",
    )
    parser.add_switch(
        "--portable", "aoti: for any x86-64-v3 processor, not only for this machine's"
    )
    parser.add_value(
        "--since", "MODEL", "write only what changed since this exported model: a delta for `apply`"
    )
    parser.add_switch(
        "--wandb", "add MODEL to the run's W&B run as an artifact by reference; nothing is uploaded"
    )
    parser.add_switch(
        "--trust-native-code", "with --since: run the machine code (aoti) of MODEL, which is yours"
    )
    return parser
