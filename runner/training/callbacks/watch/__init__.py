"""Callbacks that only watch: they never change a run's signature or its result.

With batch norms on several threads the result of `activations` is rounded otherwise, since the
updates that it observes are computed by one thread (`RowThreads.is_watched`).
`runner/config/signature.py` relies on it: a callback that may change a result belongs beside this
package, not in it.
"""
