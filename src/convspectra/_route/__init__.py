"""Which algorithm does a job get, and why? Decided here, and followed everywhere.

`operator_norm`, `singular_values`, `clip` and `project` follow a route, `plan` prices
it, `NormBounds.method` names it, and tests ask for one by name. `norm.py` decides about
norms, by the tables below and by what `cost.py` predicts; `torus.py` about the second
of them; `values.py` and `bound.py` about the other jobs.

What certifies a norm (`method`), by the layer:

    no grid                                      supremum
    the Fourier basis makes it block diagonal    frequencies
    its matrix is small                          matrix
    its Gram matrix has a narrow band            banded
    it reads zeros outside of its input          compression of a torus to its grid
                                                 (before banded, if likely near enough;
                                                 block compression, if not near enough,
                                                 or before banded, if likely quicker)
    any other                                    embedding in a torus
    none of these is within the budget           reshaped: the kernel as one matrix

What is done with the matrices of a torus (`algorithm`), the first row that applies:

    all are the same real matrix                 one matrix
    few and small                                small matrices
    at most some thousands                       every frequency
    many and small                               search by values
    many and large                               search
"""
