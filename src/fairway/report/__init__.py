"""Reports: what a run did, as a page to read, a table to compute with and a timeline to walk through."""

from fairway.report.html import render_html
from fairway.report.load import load_result, load_results
from fairway.report.perfetto import write_timeline
from fairway.report.table import comparison_rows, write_csv

__all__ = ["comparison_rows", "load_result", "load_results", "render_html", "write_csv", "write_timeline"]
