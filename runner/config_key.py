"""What a key of the configuration may hold, written as an annotation of its field.

    batch_size: Annotated[int, Key("rows of one rank and micro-batch", ge=1, unit="rows")] = 4096

This is the only place where a key is described: the checks, `ls`, the signature and the reference
page (docs/reference.md) read it there, and a test holds the YAML against it. No torch here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from runner.errors import nearest_hint

# Whether a key enters the signature of a run, which names what makes its result.
# "when set": only if it is neither null nor false nor empty. "when on": the settings of a rule
# enter only while the rule is on. "in global_batch": as a factor of the rows of an update.
Signed = Literal["yes", "no", "when set", "when on", "in global_batch"]


@dataclass(frozen=True)
class Key:
    """The declaration of one key, beside the type of its field.

    Args:
        doc: what the key is; the comment behind it in the YAML is the same text.
        ge: the least number that is allowed.
        gt: a number that every allowed one is above.
        le: the greatest number that is allowed.
        lt: a number that every allowed one is below; `math.inf` refuses infinity.
        choices: the texts that are allowed; empty: any text.
        pattern: a regular expression for further texts beside the choices.
        interval: whether it is an interval such as `100` (updates), `5000ex` or `2ep`, which may
            also be a time where it is "progress or time".
        note: what is added to the message about a number that is out of range.
        unit: of a number.
        signed: whether the key enters the signature.
    """

    doc: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    interval: Literal["progress", "progress or time"] | None = None
    note: str = ""
    unit: str = ""
    signed: Signed = "yes"

    @property
    def range(self) -> str:
        """The values that are allowed, in a few words; empty: all of the type."""
        if self.interval:
            return "an interval" if self.interval == "progress" else "an interval, also a time"
        return "; ".join(filter(None, [", ".join(self.choices), " and ".join(self._bounds)]))

    def find_problem(self, key: str, value: Any) -> str | None:
        """Return a message if a value of the right type is out of range or no choice.

        Args:
            key: the dotted name of the key, for the message.
            value: as it stands in the configuration; whether it may be null is said by the type.
        """
        if isinstance(value, str):
            if not self.choices or value in self.choices or self._matches_pattern(value):
                return None
            listed = ", ".join(self.choices)
            return f"{key}={value}: one of {listed}{nearest_hint(value, self.choices)}"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or self._is_in_range(value):
            return None
        rule = " and ".join(self._bounds)
        rule = "must not be negative" if rule == "at least 0" else f"must be {rule}"
        return f"{key}={value}: {rule}{f'; {self.note}' if self.note else ''}"

    def _is_in_range(self, value: float) -> bool:
        # NaN fails every comparison, and so is refused wherever there is a bound.
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def _matches_pattern(self, value: str) -> bool:
        return self.pattern is not None and re.fullmatch(self.pattern, value) is not None

    @property
    def _bounds(self) -> list[str]:
        bounds = []
        if self.ge is not None:
            bounds.append(f"at least {self.ge:g}")
        if self.gt is not None:
            bounds.append(f"above {self.gt:g}")
        if self.le is not None:
            bounds.append(f"at most {self.le:g}")
        if self.lt is not None:
            bounds.append("finite" if self.lt == math.inf else f"below {_bound_text(self.lt)}")
        return bounds


def _bound_text(bound: float) -> str:
    is_power = isinstance(bound, int) and bound > 10**9 and bound & (bound - 1) == 0
    return f"2**{int(bound).bit_length() - 1}" if is_power else f"{bound:g}"
