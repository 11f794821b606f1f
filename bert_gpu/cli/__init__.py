"""The command line: flags to settings, settings to calls, results to exit codes."""
