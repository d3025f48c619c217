"""Detectors: pure, fed one observation at a time."""
