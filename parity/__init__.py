"""Does dew give the reference's number? Checks against torch and transformers."""

from parity.check import Verdict
from parity.running import certify, run

__all__ = ["Verdict", "certify", "run"]
