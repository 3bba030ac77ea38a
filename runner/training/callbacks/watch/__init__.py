"""Callbacks that only watch: they never change a run's signature or its result.

`runner/config/signature.py` relies on it: a callback that may change a result belongs beside this
package, not in it.
"""
