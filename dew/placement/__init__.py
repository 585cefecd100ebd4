"""Where arrays live: the mesh of devices, the rules of a layout, and both together."""

from dew.placement.layout import Layout, LayoutRefused
from dew.placement.mesh import MeshSpec
from dew.placement.placement import Placement

__all__ = ["Layout", "LayoutRefused", "MeshSpec", "Placement"]
