"""`python -m runner`: runs a verb, or what Hydra's grammar asks for. No torch here.

Exit codes: 0 done, 1 failed while running, 2 configuration or input wrong, 130 and 143 after
SIGINT and SIGTERM.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from runner.cli.commands import is_verb, run_verb
from runner.cli.flags import Flags, extract_allow
from runner.distributed.parent_death import stop_with_terminal
from runner.distributed.world_size import launched_rank
from runner.errors import (
    NO_ROOM,
    UserError,
    describe_raised_warning,
    first_line,
    is_drawable,
    is_interruption,
    wrap_words,
)
from runner.machine.free_memory import address_limit_hint, is_out_of_memory
from runner.machine.imports import postpone_full_collections, shadowed_modules_hint
from runner.rundir.masked_streams import (
    mask_standard_streams,
    open_closed_streams,
    replace_controls,
)
from runner.rundir.secrets import note_references

# a name with bytes that are invalid in this process's encoding, which no file can record
_UNREADABLE = re.compile(r"""[^\s"']*[\udc80-\udcff][^\s"']*""")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    restore_streams = mask_standard_streams()
    note_references(words)
    try:
        if argv is None:
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.default_int_handler)  # see runner/__init__.py
            stop_with_terminal()
        if any(map(_UNREADABLE.search, words)):
            return _tell(_unreadable_name(" ".join(words)), with_traceback=False)
        words, allow = extract_allow(words)
        verb = words and is_verb(words[0])
        code = run_verb(words, allow) if verb else _run_overrides(words, allow)
        return _flush_output(code)
    except BrokenPipeError:  # `... ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        return _tell(error, with_traceback="trainer.traceback=true" in words)
    finally:
        restore_streams()


def _flush_output(code: int) -> int:
    """Write the rest of a finished command's output; return its exit code, or 1 if output is lost.

    It is flushed here, where a closed pipe is expected, and not when Python ends.

    Raises:
        OSError: if it cannot be written for another reason than lack of space.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print_error(
            f"{error.strerror}: what this command prints is not complete. The command itself is "
            "done, and the files that it wrote are whole"
        )
        return code or 1
    return code


def _tell(error: BaseException, *, with_traceback: bool) -> int:
    """Print why the command failed; return its exit code."""
    if is_interruption(error):
        print_error("interrupted")
        # One that passed a text that was executed, as in a library's import, makes Python end with
        # the signal and not with the code, unless another text is executed.
        exec("")
        return 130
    cause = error.__cause__ if isinstance(error, UserError) else error  # of a file that was read
    if isinstance(cause, UnicodeEncodeError) and _UNREADABLE.search(cause.object):
        error = _unreadable_name(cause.object)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        error = UserError(f"{error.filename}: no file or folder may have a name this long")
    if isinstance(error, FileNotFoundError) and _is_folder_gone():
        error = UserError("the folder in which this command was started is gone; cd to another")
    if isinstance(error, PermissionError) and error.filename:
        error = UserError(f"{error.filename}: {error.strerror}")
    if isinstance(cause, OSError) and cause.errno in NO_ROOM:
        place = f"{cause.strerror}: {cause.filename or 'where this command writes'}"
        told = place if error is cause else str(error)
        print_error(f"{told}; with more room, the same command goes on")
        return 1
    if is_out_of_memory(error) and not with_traceback:
        print_error(f"out of memory: {first_line(error)}{address_limit_hint()}")
        return 1
    is_users = isinstance(error, UserError)  # or the machine's, or a bug outside of a job
    if with_traceback or not is_users:
        traceback.print_exception(error)
    if isinstance(error, Warning):
        print_error(describe_raised_warning(error))
    else:
        words = str(error)
        if not is_users:
            words = f"{type(error).__name__}: {words}{shadowed_modules_hint()}"
        print_error(words)
    return 2 if is_users else 1


def _unreadable_name(text: str) -> UserError:
    match = _UNREADABLE.search(text)
    name, encoding = match[0] if match else text, sys.getfilesystemencoding()
    hint = "rename it" if encoding == "utf-8" else "PYTHONUTF8=1 reads UTF-8, whatever the locale"
    return UserError(
        f"{name}: this name is no {encoding} text, so that no file can name it; {hint}"
    )


def _is_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _run_overrides(words: Sequence[str], allow: Sequence[str]) -> int:
    from runner.cli.flags import parse_flags
    from runner.config.targets import allowed_packages

    if "--version" in words:  # Hydra would print only its own version
        from runner.rundir.provenance import PACKAGES, package_versions

        versions = package_versions(("runner", *PACKAGES))
        print(*(f"{name} {version}" for name, version in versions.items()), sep="\n")
        return 0
    flags = parse_flags(words)
    allowed = allowed_packages(allow)
    if flags.help or flags.cfg or flags.is_hydra_only:
        from runner.cli.hydra_flags import answer_hydra_flags

        return answer_hydra_flags(flags)
    from runner.cli.flags import is_search, is_single_run, refuse_flags

    if flags.multirun or "hydra.mode=MULTIRUN" in flags.overrides or is_search(flags.overrides):
        return _multirun(flags, allowed, allow)
    from runner.config.compose import compose_job
    from runner.launch import launch

    refuse_flags(flags, "add -m")
    composed = compose_job(flags.overrides, config_dirs=flags.config_dirs)
    is_sweep = composed.is_multirun or composed.config.get("search")  # a YAML may set this too
    if is_sweep and not is_single_run(flags.overrides):
        return _multirun(flags, allowed, allow)
    if composed.config.get("remote"):
        from runner.remote import run_remotely

        dirs = [w for d in flags.config_dirs for w in ("--config-dir", os.path.abspath(d))]
        return run_remotely(composed, [*dirs, *(w for p in allow for w in ("--allow", p))], allowed)
    return launch(composed, allowed=allowed, command=sys.orig_argv)


def _multirun(flags: Flags, allowed: Sequence[str], allow: Sequence[str]) -> int:
    from runner.cli.multirun import multirun
    from runner.distributed.world_size import launched_world_size

    if (launched_world_size() or 1) > 1:
        raise UserError(
            "-m: a sweep starts its jobs itself: start it without torchrun, and "
            "trainer.num_processes=N gives each job N ranks"
        )
    return multirun(flags, allowed, allow)


def print_error(message: str) -> None:
    """Print one message on stderr, coloured on a terminal. Under torchrun only rank 0 prints."""
    with suppress(UserError):  # this message may be about a rank that is not a number
        if launched_rank():
            return
    colour = is_drawable(sys.stderr) and not os.environ.get("NO_COLOR")
    text = f"error: {replace_controls(message)}"
    if sys.stderr.isatty():
        text = wrap_words(text, shutil.get_terminal_size().columns, indent=3)
    if colour:
        text = text.replace("error:", "\x1b[1;31merror:\x1b[0m", 1)
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.flags.safe_path:  # by -P, which processes started by this one would not inherit
        os.environ["PYTHONSAFEPATH"] = "1"
    postpone_full_collections()
    open_closed_streams()
    mask_standard_streams()  # also for output of the interpreter after main has ended
    sys.exit(main())
