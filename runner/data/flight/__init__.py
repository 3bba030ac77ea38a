"""A data service: servers read and encode rows, trainers receive them as ready batches."""
