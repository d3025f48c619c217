"""The pipeline worker, the trace worker, and what crosses between processes."""
