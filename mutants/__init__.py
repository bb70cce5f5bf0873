"""Mutation tests of the Python code: random single-point changes that the suite must notice.

``make mutants N=200 SEED=1`` draws N changes, runs the tests that execute the changed line on a
copy of the tree, and prints the changes that no test noticed. ``make coverage`` records which
test executes which line. See `mutants.changes` for what is changed, and
`mutants.equivalent` for the changes that nobody can notice.
"""
