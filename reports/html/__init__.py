"""Pages that stand alone: one HTML file, nothing from elsewhere; readable offline, in print, in light and dark."""

from __future__ import annotations

from reports.html.page import render_report
from reports.html.sweep_page import render_sweep

__all__ = ["render_report", "render_sweep"]
