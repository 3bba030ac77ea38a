"""A run directory's copy in an object store (`checkpoint.mirror`).

run.json           the files of the run with their digests: written last, by one request
objects/<sha256>   the content of a file; never changed, removed once no run.json names it

So a reader of `run.json` finds the run directory as it was at one instant, with complete
checkpoints, whenever the writer was killed.
"""
