"""The generations of attention kernels, one small file each: forward only, dense, for reading and for measuring.

They compute one function, softmax(q kᵀ · scale) v over every key that a query may see, and its logsumexp. They differ
in what goes through memory and in what waits for what. What the papers write for a block of rows i and of columns j
stands here in the letters of `AttentionState`:

    S_ij = Q_i K_jᵀ      scores      natural or base 2, as the file says
    m̃_ij, m_i            m           reference of a row, normally its running maximum
    ℓ̃_ij, ℓ_i            l           Σ exp(s − m)
    diag(ℓ_i) O_i        u           Σ exp(s − m) v; FlashAttention-1 keeps O_i = u / l instead
    P̃_ij                 p           exp(s − m)
    L_i                  lse         m + ln l
    B_r, B_c             BLOCK_M, BLOCK_N

`step.py` is what they share: where rows lie, the mask, one step of the algebra, the division at the end. `registry.py`
names them and runs one; `float8.py` is the third in eight bits. The kernels that the library itself uses are those of
the folder above; these leave out packs, windows, biases, grouped heads and NaN at hidden places, so that nothing stands
between a reader and the idea.
"""
