"""santa_sim: what stochastic sparse attention costs on adder-centric and other machines.

`run` runs a method on a workload and plays its trace on a machine; `attention` runs a method on your tensors;
`simulate` plays a saved or home-made trace.
"""

from importlib import metadata as _metadata
from importlib import util as _util
from pathlib import Path as _Path

if _util.find_spec("santa_sim.workloads") is None:  # this folder shadows an installed copy: its siblings are our data
    __path__.append(str(_Path(__file__).parent.parent))

from .api import make_trace, run
from .attention import attention
from .errors import InputError, SimulationError
from .explore.amdahl import end_to_end_speedup
from .explore.compare import compare
from .explore.decode_step import decode_step
from .explore.generation import generation
from .explore.pareto import pareto
from .explore.sweep import sweep
from .hardware import Hardware, load_hardware
from .methods.spec import METHODS, PRECISIONS, SCORES
from .schema import shipped as _shipped
from .simulator import Result, simulate
from .simulator.dram import load_dram
from .trace import Trace
from .workload import Workload, load_workload

__version__ = _metadata.version("santa-sim")


def list_workloads() -> list[str]:
    """Names of the workloads that ship."""
    return list(_shipped("santa_sim.workloads"))


def list_hardware() -> list[str]:
    """Names of the machines that ship."""
    return list(_shipped("santa_sim.hwmodels"))


__all__ = [
    "METHODS", "PRECISIONS", "SCORES", "Hardware", "InputError", "Result", "SimulationError", "Trace", "Workload",
    "attention", "compare", "decode_step", "end_to_end_speedup", "generation", "list_hardware", "list_workloads", "load_dram", "load_hardware",
    "load_workload", "make_trace", "pareto", "run", "simulate", "sweep",
]  # fmt: skip
