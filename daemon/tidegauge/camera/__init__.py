"""The camera worker and its sources of frames."""
