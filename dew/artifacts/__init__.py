"""What an objective's evaluation produces, as typed values, and how they reach the host."""

from dew.artifacts.values import Artifact, Artifacts, TextSamples, TokenScores, host

__all__ = ["Artifact", "Artifacts", "TextSamples", "TokenScores", "host"]
