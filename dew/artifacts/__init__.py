"""What evaluation produces, how it reaches the host, and how processes agree."""

from dew.artifacts.agreement import (
    AGREEMENT_PATIENCE_SECONDS,
    PeerFailure,
    agree_process_phase,
    agreed,
    broadcast_from_process_zero,
)
from dew.artifacts.coordination import this_process
from dew.artifacts.failure import (
    FAILURE_DIRECTORY,
    FAILURE_GRACE_SECONDS,
    FAILURE_KEY,
    end_pool_on_failure,
    publish_failure,
    withdraw_failure,
)
from dew.artifacts.gather import GATHER_BYTES, collective_host, host
from dew.artifacts.pixels import uint8_pixels
from dew.artifacts.values import (
    Artifact,
    Artifacts,
    ImageGrid,
    Predictions,
    Representations,
    TextSamples,
    TokenScores,
    VideoGrid,
)

__all__ = [
    "AGREEMENT_PATIENCE_SECONDS",
    "FAILURE_DIRECTORY",
    "FAILURE_GRACE_SECONDS",
    "FAILURE_KEY",
    "GATHER_BYTES",
    "Artifact",
    "Artifacts",
    "ImageGrid",
    "PeerFailure",
    "Predictions",
    "Representations",
    "TextSamples",
    "TokenScores",
    "VideoGrid",
    "agree_process_phase",
    "agreed",
    "broadcast_from_process_zero",
    "collective_host",
    "end_pool_on_failure",
    "host",
    "publish_failure",
    "this_process",
    "uint8_pixels",
    "withdraw_failure",
]
