"""No defect."""

from . import Delegate, register

register(Delegate)
