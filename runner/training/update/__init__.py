"""One update: gradients, optimizers, averages, and the batches on their way to it."""
