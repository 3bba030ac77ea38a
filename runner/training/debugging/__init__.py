"""Looking inside an update: non-finite values, statistics, times. Used by loops, knows none."""
