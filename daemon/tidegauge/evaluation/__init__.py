"""Simulations that measure what the detectors promise. Off the board: nothing here runs beside a product."""
