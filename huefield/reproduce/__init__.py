"""Reproduction of the paper's table and figures, with rows of our own beside the published ones."""
