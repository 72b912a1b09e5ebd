"""Language models as policies: of any search, as proposers, or step by step, as agents.

What a model says is data. It is cut to length, read, and checked against the problem before anything is done with
it; whatever can't be used is a refusal.
"""
