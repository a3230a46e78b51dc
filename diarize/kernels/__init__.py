"""GPU kernels, written with numba.cuda and inline PTX.

A kernel module holds factories: a function over tile sizes that returns a frozen description with the Python kernel,
its launch shape and its weight packing. Nothing here compiles, launches or allocates: that is the backend's part.
numba-cuda is imported when the first kernel is compiled, so the modules take it from `ptx`, never from numba.
"""
