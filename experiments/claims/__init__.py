"""Published claims about serving, tried again: the code behind `bench experiment` and the notebooks.

Each module is one experiment with a `run` that gives tables, charts and computed verdicts (`experiments.claims.base`);
`experiments.claims.registry` has them by name.
"""
