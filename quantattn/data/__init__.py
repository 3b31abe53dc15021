"""Raw files to packed batches: sources, tokens, packing, and the protocol that decides what may be known when."""
