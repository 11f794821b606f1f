"""Profiles some steps of a run with TensorFlow's profiler (--profile_steps), for TensorBoard's page
"Profile". What goes wrong with it never ends a run.
"""

import tensorflow as tf


class Profiler:
    """Profiles from when `first` steps are finished until `last` are.

    Args of the constructor: span: (first, last), or None. folder: of TensorBoard's run, to which
      plugins/profile is added. console: console.Console.
    """

    def __init__(self, span, folder, console):
        self.span, self.folder, self.console, self.is_on = span, folder, console, False

    def before(self, step):
        """Starts, when it is time, before the call that begins after `step` steps."""
        if self.span is None or self.is_on or not self.span[0] <= step < self.span[1]:
            return
        self._try(tf.profiler.experimental.start, self.folder)
        self.is_on = self.span is not None

    def after(self, step, wait):
        """Stops, when it is time, after the call that ends with `step` steps. wait: returns when
        they are computed.
        """
        if self.is_on and step >= self.span[1]:
            wait()
            self.close()

    def close(self):
        """Writes the profile of what was run, if it is on."""
        if self.is_on:
            self.is_on = False
            self._try(tf.profiler.experimental.stop)
            if self.span is not None:
                self.console.say(f"profile: {self.folder}/plugins/profile")
                self.span = None

    def end(self, step):
        """As `close`, at the end of a session that has done `step` steps."""
        self.close()
        if self.span is not None and step <= self.span[0]:
            self.console.warn(
                f"--profile_steps={self.span[0]},{self.span[1]}: no profile is written, because "
                f"the training ended at step {step}"
            )

    def _try(self, act, *arguments):
        try:
            act(*arguments)
        except Exception as error:  # of TensorFlow, CUPTI or the disk
            reason = " ".join(str(error).split())[:150]
            self.console.warn(f"--profile_steps: no profile is written ({reason})")
            self.span = None
