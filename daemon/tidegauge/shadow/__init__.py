"""The shadow worker, its sampler and its CPU budget."""
