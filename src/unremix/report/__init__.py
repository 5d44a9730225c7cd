"""A run folder as one self-contained page, and figures."""

from unremix.report.page import write_report

__all__ = ["write_report"]
