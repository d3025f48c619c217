"""A comparison for people: one self-contained HTML page, and a table for the terminal."""

from __future__ import annotations

from tidegauge.compare.report.exact import print_exact
from tidegauge.compare.report.html import render_exact, render_html
from tidegauge.compare.report.terminal import print_comparison

__all__ = ["print_comparison", "print_exact", "render_exact", "render_html"]
