"""What the columns of a sample hold: statistics, labels, roles, events, doubtful values."""
