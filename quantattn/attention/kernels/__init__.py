"""Portable Triton kernels: forward and backward of exact attention. Imported only inside device implementations."""
