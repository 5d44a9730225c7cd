"""Comparisons and reproductions: many runs, one table."""
