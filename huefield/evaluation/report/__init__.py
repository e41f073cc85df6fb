"""Figures, tables and the page of an evaluation."""
