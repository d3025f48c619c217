"""The board's durable queue of bundles."""
