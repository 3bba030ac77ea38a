from .checks import check_parts, resolve_automatic
from .job import launch, launch_run
from .spec import changed_data_note, run_spec
from .status import print_status

__all__ = [
    "changed_data_note",
    "check_parts",
    "launch",
    "launch_run",
    "print_status",
    "resolve_automatic",
    "run_spec",
]
