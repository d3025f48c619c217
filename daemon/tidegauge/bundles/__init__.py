"""Bundles: manifest and content-addressed blobs that reproduce one anomaly elsewhere."""
