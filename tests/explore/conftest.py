import pytest

from santa_sim.explore import sweep as engine
from santa_sim.explore.sweep_parts import Parts


@pytest.fixture
def run_until(monkeypatch):
    """Run a sweep in this process until chunk `last` is kept; there it is interrupted."""

    def run(last, sweep, output, **options):
        add = Parts.add

        def stop(self, chunk, table):
            add(self, chunk, table)
            if chunk == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Parts, "add", stop)
            engine.run_sweep(sweep, output, jobs=1, **options)

    return run
