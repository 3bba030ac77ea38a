"""Callbacks: a user's own code, called while a training runs; `EVENTS` says when."""

from runner.training.callbacks.callback_set import EVENTS, Callbacks, check_callback

__all__ = ["EVENTS", "Callbacks", "check_callback"]
