"""What `--learn` shows: a line about what was learned, and where it was kept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from selfspec.measure.quantities import size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from selfspec.engine import Engine


def learns(options: Mapping[str, Any]) -> bool:
    """Whether flags, or the options in the name of a drafter, ask for learning."""
    return bool(options.get("learn")) or bool(re.search(r":learn=(on|true)\b", options.get("draft") or ""))


def in_short(facts: Mapping[str, Any]) -> str:
    """The change of held-out α, for a summary."""
    if facts["failure"]:
        return "learning has ended"
    if not facts["kept"]:
        return "nothing learned yet"
    return f"learned: held-out α {facts['first_alpha']:.2f} -> {facts['alpha']:.2f}"


def in_full(facts: Mapping[str, Any]) -> str:
    """All that is known of a learner, on one line."""
    parts = [
        f"learned from {facts['rows']:,} rows" + (f" ({facts['dropped']:,} dropped)" if facts["dropped"] else "")
    ]
    parts.append(f"{facts['steps']:,} steps")
    parts.append(f"{facts['kept']} of {facts['kept'] + facts['thrown_away']} heads kept")
    if facts["alpha"] is not None:
        parts.append(f"held-out α {facts['first_alpha']:.2f} -> {facts['alpha']:.2f}")
    if facts["vocabulary"] is not None:
        parts.append(f"{facts['vocabulary']:,} draft tokens")
    parts.append(f"{facts['cpu_seconds']:.1f} s of CPU, at most {100 * facts['share']:g} % of a core")
    parts.append(size(facts["memory_bytes"]))
    if facts["failure"]:
        parts.append(f"ended: {facts['failure']}")
    return " · ".join(parts)


def close_learners(engine: Engine, tell: Callable[[str], None]) -> None:
    """End what learns beside an engine, and say where it is kept."""
    for learner in engine.learners:
        learner.close()
        facts = learner.facts()
        if facts["saved"]:
            tell(f"what was learned is in {facts['saved']}; go on with --head {facts['saved']}")
        elif facts["out"] and not facts["kept"]:
            tell(f"nothing was learned, so {facts['out']} was not written")
