"""The trials of a search, as Optuna keeps them in `study.db`. Only the sweep's process writes them.

Choices are made in a copy of the study in memory. A trial is written to the database in one
transaction before its job can start. So a kill leaves no incomplete trial, and a sweep continues
from the database as if it had never been killed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import check_distribution_compatibility
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from runner.config.settings import SearchSettings
from runner.sweep.database import DATABASE_FILE, LOCK_TIMEOUT_S, SweepDatabaseError
from runner.sweep.optuna_samplers import (
    make_distribution,
    make_pruner,
    make_sampler,
    predetermined_params,
)
from runner.sweep.space import Space

optuna.logging.set_verbosity(optuna.logging.ERROR)

_RETRY_OF = "again_of"  # attribute of a trial: the number of the trial whose job failed first
_ANSWER = "runner:answer"  # attribute of a trial: the last evaluation, and whether the job stops
_TRIAL_STATES = {
    "completed": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True)
class Trial:
    """A trial: its number, from 0, and the value that was chosen for each key of the space."""

    number: int
    params: Mapping[str, Any]


class Trials:
    """The search of one sweep directory."""

    def __init__(
        self,
        directory: Path,
        space: Space,
        settings: SearchSettings,
        objectives: Mapping[str, str],
        slots: int,
    ) -> None:
        """Open the search's study in the database, or make one, and copy it into memory.

        Args:
            objectives: metrics and their directions.

        Raises:
            SweepDatabaseError: if the database cannot be read or written, or has another search.
        """
        self.space, self.settings, self.slots = space, settings, slots
        self.distributions = {d.key: make_distribution(d) for d in space}
        self.pruner = make_pruner(settings)
        self._path = directory / DATABASE_FILE
        self._memory_storage = InMemoryStorage()
        best = {"max": StudyDirection.MAXIMIZE, "min": StudyDirection.MINIMIZE}
        directions = [best[direction] for direction in objectives.values()]
        with database_errors(self._path):
            self._disk_storage = open_storage(self._path)
            self._disk_study = optuna.create_study(
                storage=self._disk_storage,
                study_name=directory.name,
                directions=directions,
                load_if_exists=True,
            )
            known = self._disk_study.get_trials(deepcopy=False)
            if known:
                self._check_same_search(known, objectives, directions)
            with warnings.catch_warnings(action="ignore"):  # Optuna warns that it is experimental
                self._disk_study.set_metric_names(list(objectives))
            self._memory_study = optuna.create_study(
                storage=self._memory_storage, directions=directions
            )
            # Optuna's number of each trial of the search. They differ from ours, as a job that
            # failed first and was completed later has one more trial in Optuna's study.
            self._optuna_numbers: list[int] = []
            self._retried: set[int] = set()
            for trial in known:
                self._memory_study.add_trial(trial)
                if _RETRY_OF in trial.user_attrs:
                    self._retried.add(trial.user_attrs[_RETRY_OF])
                else:
                    self._optuna_numbers.append(trial.number)

    def _check_same_search(
        self,
        known: Sequence[FrozenTrial],
        objectives: Mapping[str, str],
        directions: Sequence[StudyDirection],
    ) -> None:
        """Check that trials have the keys and the objectives of this search.

        Raises:
            SweepDatabaseError: naming those of the other search.
        """
        names = self._disk_study.metric_names or [*objectives]  # earlier versions wrote none
        if (names, self._disk_study.directions) != ([*objectives], directions):
            raise self._of_another_search(f"optimises {', '.join(names)}")
        for trial in known:
            if trial.params.keys() != self.distributions.keys():
                raise self._of_another_search(f"chooses {', '.join(trial.params)}")

    def check_values(self) -> None:
        """Check that Optuna takes the values of all trials for those of this search.

        A range may have got other ends.

        Raises:
            SweepDatabaseError: naming the key that had other choices, or another kind of range.
        """
        for trial in self._memory_study.get_trials(deepcopy=False):
            for key, old in trial.distributions.items():
                try:
                    check_distribution_compatibility(old, self.distributions[key])
                except ValueError as error:
                    raise self._of_another_search(f"chooses {key} from other values") from error

    def _of_another_search(self, what: str) -> SweepDatabaseError:
        return SweepDatabaseError(
            f"{self._path}: holds the trials of another search, which {what}; another "
            "hydra.sweep.dir begins a new one"
        )

    def list_trials(self) -> list[Trial]:
        """Return all trials in order, including those of earlier starts."""
        trials = self._memory_study.get_trials(deepcopy=False)
        return [Trial(number, trials[n].params) for number, n in enumerate(self._optuna_numbers)]

    def ask(self) -> Trial:
        """Choose the next trial, and record it as running."""
        number = len(self._optuna_numbers)
        params = predetermined_params(self.settings, self.space, number)
        attributes: dict[str, Any] = {}
        if params is None:
            params, attributes = self._sample(number)
        trial = create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=self.distributions,
            system_attrs=attributes,
        )
        self._optuna_numbers.append(self._add(trial))
        return Trial(number, params)

    def _add(self, trial: FrozenTrial) -> int:
        with database_errors(self._path):
            self._disk_study.add_trial(trial)
        self._memory_study.add_trial(trial)
        return len(self._memory_study.get_trials(deepcopy=False)) - 1

    def _sample(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask a sampler in a throw-away study. The trial itself gets the rounded values.

        Returns:
            The parameters, and what the sampler noted about the trial.
        """
        study = optuna.create_study(
            storage=self._memory_storage,
            study_name=f"ask {number}",
            directions=self._memory_study.directions,
            sampler=make_sampler(self.settings, number, slots=self.slots),
        )
        study.add_trials(self._memory_study.get_trials(deepcopy=False))
        trial = study.ask(self.distributions)
        params = {d.key: d.round_value(trial.params[d.key]) for d in self.space}
        attributes = dict(study.get_trials(deepcopy=False)[-1].system_attrs)
        self._memory_storage.delete_study(study._study_id)
        return params, attributes

    def report(self, number: int, evaluation: int, value: float) -> bool:
        """Take a value that a job has measured, and decide whether the job should stop.

        A job that was killed before it got the answer asks again, and gets the same answer.

        Args:
            evaluation: of the job, counted from 1.
        """
        trial_id = self._memory_id(number)
        trial = self._memory_storage.get_trial(trial_id)
        if trial.state.is_finished():
            return False  # a failed job that is tried again is never stopped early
        if evaluation not in trial.intermediate_values:
            self._memory_storage.set_trial_intermediate_value(trial_id, evaluation, value)
            with database_errors(self._path):
                disk_id = self._disk_id(number)
                self._disk_storage.set_trial_intermediate_value(disk_id, evaluation, value)
        # Some pruners answer with numpy's bool, which JSON does not take.
        should_stop = bool(
            self.pruner.prune(self._memory_study, self._memory_storage.get_trial(trial_id))
        )
        answered, was_stopped = trial.system_attrs.get(_ANSWER, (0, False))
        if evaluation <= answered:
            should_stop = was_stopped and evaluation == answered
        else:
            self._memory_storage.set_trial_system_attr(trial_id, _ANSWER, (evaluation, should_stop))
        with database_errors(self._path):  # keep what the pruner noted, such as a rung reached
            # store the answer first: with a noted rung the pruner would answer otherwise next time
            notes = self._memory_storage.get_trial(trial_id).system_attrs.items()
            for key, note in sorted(notes, key=lambda item: item[0] != _ANSWER):
                if trial.system_attrs.get(key) != note:
                    self._disk_storage.set_trial_system_attr(self._disk_id(number), key, note)
        return should_stop

    def tell(self, number: int, status: str, values: Sequence[float | None]) -> None:
        """Record the end of a job. An ended trial does not change, unless it had failed.

        Args:
            status: completed, pruned or failed.
        """
        state = _TRIAL_STATES[status]
        trial = self._memory_storage.get_trial(self._memory_id(number))
        old_state = trial.state
        is_retry = old_state == TrialState.FAIL and state == TrialState.COMPLETE
        if old_state.is_finished() and not is_retry:
            return
        known = [v for v in values if v is not None and not math.isnan(v)]
        if state == TrialState.COMPLETE and len(known) < len(values):
            state = TrialState.FAIL  # without its values it cannot be compared
        objective_values = known if state == TrialState.COMPLETE else None
        if is_retry:
            if objective_values is not None and number not in self._retried:
                self._retried.add(number)
                retry = create_trial(
                    values=objective_values,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs={_RETRY_OF: number},
                )
                self._add(retry)
            return
        self._memory_study.tell(self._optuna_numbers[number], objective_values, state=state)
        with database_errors(self._path):
            self._disk_study.tell(self._optuna_numbers[number], objective_values, state=state)

    def pareto_front(self) -> set[int]:
        """Return the numbers of the trials of the Pareto front."""
        numbers = {n: number for number, n in enumerate(self._optuna_numbers)}
        best = self._memory_study.best_trials
        return {t.user_attrs.get(_RETRY_OF, numbers.get(t.number, -1)) for t in best}

    def close(self) -> None:
        self._disk_storage.remove_session()
        self._disk_storage.engine.dispose()

    def _memory_id(self, number: int) -> int:
        return self._memory_storage.get_trial_id_from_study_id_trial_number(
            self._memory_study._study_id, self._optuna_numbers[number]
        )

    def _disk_id(self, number: int) -> int:
        return self._disk_storage.get_trial_id_from_study_id_trial_number(
            self._disk_study._study_id, self._optuna_numbers[number]
        )


def open_storage(path: Path) -> RDBStorage:
    """Return Optuna's view of a `study.db`, whose tables `SweepDatabase` has made."""
    storage = RDBStorage(
        f"sqlite:///{path.absolute()}",
        engine_kwargs={"connect_args": {"timeout": LOCK_TIMEOUT_S}},
        skip_compatibility_check=True,
        skip_table_creation=True,
    )

    def set_up(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")  # as in SweepDatabase: a kill loses nothing

    event.listen(storage.engine, "connect", set_up)
    storage.engine.dispose()
    return storage


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Translate errors of the database into one with a clear message.

    Raises:
        SweepDatabaseError: for an error of the database in the body.
    """
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise SweepDatabaseError(
            f"{path}: {reason}; once that is mended, the same command goes on"
        ) from error
