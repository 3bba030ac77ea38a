"""`python -m runner.data.flight.ask`: prints what data servers provide, for settings on stdin."""

from __future__ import annotations

import json
import sys

from runner.data.flight.servers import Servers
from runner.data.flight.settings import FlightRecipe
from runner.errors import UserError


def main() -> int:
    """Ask all servers; return the exit code: 2 if an error was printed."""
    try:
        print(Servers(FlightRecipe(**json.load(sys.stdin))).describe().to_json())
    except UserError as error:
        print(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
