"""From prepared files to batches: order, decoding, collation and prefetching."""
