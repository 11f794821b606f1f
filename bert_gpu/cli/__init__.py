"""The command line: flags to settings, settings to calls, results to exit codes."""

import os
import sys

# TensorFlow reads these when it is imported, which the command modules do.
if "--verbose" not in sys.argv:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GLOG_minloglevel", "3")
