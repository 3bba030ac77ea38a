"""`apply MODEL DELTA... --out NEW`: brings an exported model on by deltas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.cli.verb_parser import VerbParser
from runner.errors import already_exists, raise_combined


def apply(words: Sequence[str], allow: Sequence[str]) -> int:
    """Write an artifact with the weights of the last delta.

    Raises:
        UserError: for deltas that do not continue the model, before anything is written.
    """
    from runner.launch import print_status

    args = make_parser().parse(words)
    raise_combined(_find_problems(args.folders, args.out))
    from runner.serving.apply import apply_deltas

    model, *deltas = args.folders
    artifact = apply_deltas(model, deltas, Path(args.out), trust_native_code=args.trust_native_code)
    print_status(f"wrote {args.out}: version {artifact.version} (step {artifact.step})")
    return 0


def _find_problems(folders: Sequence[str], out: str | None) -> Iterator[str]:
    if len(folders) < 2:
        yield "apply: name a model and its deltas in their order: apply MODEL DELTA... --out NEW"
    if out is None:
        yield "apply: --out is not set: the folder to write"
    elif Path(out).exists():
        yield already_exists("--out", out)


def make_parser() -> VerbParser:
    """Return the parser of the words after `apply`."""
    parser = VerbParser(
        "apply",
        "Write a new exported model: MODEL with the changes of the deltas, which are applied in\n"
        "the order of their versions. Each must start from the version before it. The result\n"
        "equals a full export of the last delta's checkpoint, to the last bit; nothing is\n"
        "compiled again.",
        examples=("apply model delta-1 delta-2 --out newer",),
    )
    parser.add_words("folders", "MODEL DELTA...", "an exported model, then its deltas")
    parser.add_value("--out", "NEW", "the folder to write; must not exist")
    parser.add_switch(
        "--trust-native-code", "run the model's machine code (aoti) for its example rows"
    )
    return parser
