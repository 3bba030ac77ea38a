"""The end of a stream. No torch here."""


class EndOfStream(Exception):  # noqa: N818  (no error: what its iterator says instead of waiting)
    """A stream gives out no more batches for now; a run may go on from its position later."""
