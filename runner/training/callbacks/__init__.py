"""Code of one's own, called in the course of a training: see `listed.EVENTS` for when."""

from runner.training.callbacks.callback_set import EVENTS, Callbacks, check_callback

__all__ = ["EVENTS", "Callbacks", "check_callback"]
