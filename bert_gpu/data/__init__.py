"""Documents in, batches out: instances, masking, records, the input pipeline and the job that writes data sets."""
