"""Modules that every package uses: errors, settings, files, the console, the environment."""
