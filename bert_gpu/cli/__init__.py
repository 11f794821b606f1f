"""The command line: turns flags into settings, calls the library with them, and turns results into
exit codes.
"""
