"""The steps from a PyTorch module to LEIR, in order: export, forms, relax, sblocks, tidy.

`forms` writes operators out in elementary PyTorch, `relax` takes the result through TVM's importer and
legalisation, `sblocks` makes one equation of each block, and `tidy` makes a readable program of those, with
`fold` for expressions, `relayout` for layouts and `names` for names. `from_torch` runs them.
"""
