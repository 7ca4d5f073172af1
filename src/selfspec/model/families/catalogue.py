"""All families."""

from __future__ import annotations

from selfspec.model.families.gemma import GEMMAS
from selfspec.model.families.llama import DENSE

FAMILIES = (*DENSE, *GEMMAS)
