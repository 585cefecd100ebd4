"""What is being learned: the parameters, the loss, what evaluation produces."""

from dew.objectives.base import Aux, EMASpec, Objective, Ratio, Step

__all__ = ["Aux", "EMASpec", "Objective", "Ratio", "Step"]
