"""An optimiser composed from building blocks."""

from __future__ import annotations

from envs.autotune_env.optimizers.process import Process
from envs.autotune_env.optimizers.search import Search, Searcher, View


class Evolved(Searcher):
    """After 3 rows at random, the greatest expected improvement for its seconds by a Gaussian process with
    weights fitted.
    """

    __slots__ = ()

    def search(self, view: View) -> Search:
        process = Process(view, reach=1.0, jump=0.1, power=2.0, noise=0.0001, fitted=True, room=80, candidates=600)
        for row in view.samples(3):
            yield row
        while True:
            yield process.choose(thrift=0.5)
