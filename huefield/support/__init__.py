"""Configuration, files, checks and figures: nothing specific to force fields."""
