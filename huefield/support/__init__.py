"""Configuration, files, checks and figures: nothing of the field."""
