from .checks import check_parts as check_parts
from .checks import resolve_automatic as resolve_automatic
from .job import launch as launch
from .job import launch_run as launch_run
from .spec import changed_data_note as changed_data_note
from .spec import run_spec as run_spec
from .spec import with_kept_schema as with_kept_schema
from .status import print_status as print_status
