"""Planning of calls, which chooses a kernel from the parts, shapes and estimated costs of a call without its data."""

from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.plan import Plan
from qkv.plan.planner import plan_problem
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec

__all__ = ["Cost", "Kernel", "Plan", "Problem", "Result", "Spec", "plan_problem"]
