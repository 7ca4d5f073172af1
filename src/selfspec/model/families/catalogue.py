"""All families."""

from __future__ import annotations

from selfspec.model.families.gemma import GEMMAS
from selfspec.model.families.hybrids import HYBRIDS
from selfspec.model.families.llama import DENSE
from selfspec.model.families.mixtures import MIXTURES
from selfspec.model.families.others import OTHERS

FAMILIES = (*DENSE, *GEMMAS, *OTHERS, *MIXTURES, *HYBRIDS)
