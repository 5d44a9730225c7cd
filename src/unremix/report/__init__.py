"""Run folders as self-contained pages: one run, or several compared."""

from unremix.report.comparison import comparison_page, write_comparison, write_comparison_of
from unremix.report.page import write_report

__all__ = ["comparison_page", "write_comparison", "write_comparison_of", "write_report"]
