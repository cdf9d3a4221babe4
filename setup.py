"""The optional compiled kernel; all other settings stand in setup.cfg."""

from Cython.Build import cythonize
from setuptools import Extension, setup

sources = Extension("filestream.codec._kernel", ["filestream/codec/_kernel.py"])
[kernel] = cythonize([sources], language_level=3)
# Said here because cythonize makes a new Extension and forgets it: a machine without a C
# compiler installs the pure codec and works.
kernel.optional = True
setup(ext_modules=[kernel])
