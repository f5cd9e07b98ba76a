"""Combining adapters: pure numpy over states (PEFT key → array), one file an idea.

`mean` averages factors, `svd` and `fedex` serve Σ w·s·B·A itself, `feddraw` makes weights. A state
may be any mapping, also one that reads a tensor from disk when it is asked for: every function here
looks at one tensor or layer of the states at a time, so that memory does not grow with the sites;
what `fedex` returns does.
"""

from fedpref.federation.aggregation.feddraw import (
    FedDrawOptions,
    FedDrawTrace,
    beta_schedule,
    feddraw_trace,
    feddraw_weights,
    gamma_schedule,
)
from fedpref.federation.aggregation.fedex import (
    FedExAggregate,
    add_residuals,
    concatenate,
    fedex_aggregate,
)
from fedpref.federation.aggregation.mean import WeightedFold, weighted_mean
from fedpref.federation.aggregation.svd import svd_aggregate

__all__ = [
    "FedDrawOptions",
    "FedDrawTrace",
    "FedExAggregate",
    "WeightedFold",
    "add_residuals",
    "beta_schedule",
    "concatenate",
    "feddraw_trace",
    "feddraw_weights",
    "fedex_aggregate",
    "gamma_schedule",
    "svd_aggregate",
    "weighted_mean",
]
