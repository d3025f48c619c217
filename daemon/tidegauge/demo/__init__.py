"""The main job, end to end, on a virtual board."""
