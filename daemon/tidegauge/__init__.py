"""Tidegauge: watches a TIDL accelerator against the same model in float on the CPU."""

__version__ = "0.1.0"
