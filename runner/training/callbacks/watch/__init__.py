"""Callbacks that only watch: whatever they are set to, a run's signature and result are the same.

What may change a result stands beside this package, not in it: `runner/config/signature.py`
goes by that.
"""
