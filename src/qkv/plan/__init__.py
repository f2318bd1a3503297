"""The planner: a spec and shapes become a plan, by facts and costs, never by data."""

from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.plan import Plan
from qkv.plan.planner import plan_problem
from qkv.plan.problem import Problem
from qkv.plan.spec import Spec

__all__ = ["Cost", "Kernel", "Plan", "Problem", "Result", "Spec", "plan_problem"]
