"""Kernels for sm_90 in Gluon: loads by a warp of their own, products that overlap with the softmax."""
