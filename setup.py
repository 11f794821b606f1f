"""The one thing that setup.cfg cannot say: the sample text and the pairs stand at the top of the
repository, and a wheel holds copies of them in the package (bert_gpu/bundled/).

An editable install and a clone use those at the top; see bundled() in bert_gpu/cli/flags.py.
"""

import pathlib
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py

BUNDLED = ("sample_text.txt", "sample_text.md", "examples/pairs/*.tsv")


class BuildWithBundledFiles(build_py):
    def run(self):
        super().run()
        if self.editable_mode:
            return
        for pattern in BUNDLED:
            paths = sorted(pathlib.Path().glob(pattern))
            if not paths:
                raise FileNotFoundError(f"{pattern}: missing; a wheel needs it")
            for path in paths:
                copy = pathlib.Path(self.build_lib, "bert_gpu", "bundled", path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


setup(cmdclass={"build_py": BuildWithBundledFiles})
