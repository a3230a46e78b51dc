"""CPU kernels: numba functions whose inner loops are vector code emitted through LLVM.

They are the float32 truth for the GPU kernels. Nothing here starts a thread: callers split the work, and every output
element is computed by the same sequence of operations whatever it is batched with.
"""
