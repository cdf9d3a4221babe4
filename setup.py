"""The optional compiled kernel; all other settings stand in setup.cfg."""

from Cython.Build import cythonize
from setuptools import Extension, setup

# optional=True: a machine without a C compiler installs the pure codec and works.
kernel = Extension("filestream.codec._kernel", ["filestream/codec/_kernel.py"], optional=True)
kernel.extra_compile_args = ["-O3"]
setup(ext_modules=cythonize([kernel], language_level=3))
