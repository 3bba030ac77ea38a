"""Callbacks: a user's own code, called while a training runs; `EVENTS` says when."""

from runner.training.callbacks.callback_set import EVENTS as EVENTS
from runner.training.callbacks.callback_set import Callbacks as Callbacks
from runner.training.callbacks.callback_set import check_callback as check_callback
