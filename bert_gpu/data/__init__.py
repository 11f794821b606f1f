"""Documents in, batches out."""
