"""Preflight: every precondition of a board tried before anything is opened on its accelerator, each with its cure."""
