"""Early exits that choose among few tokens: the model's own norm and LM head, restricted to a draft vocabulary.

The LM head is a large part of a shallow draft step, and a narrow task uses few tokens (FR-Spec, arXiv 2502.14856;
VocabTrim, arXiv 2506.22694). A token outside has no mass in the draft, and verification adds it where the target
says it. Nothing is trained for it, but an exit must be right without a head: the models of `selfspec train
layerskip` are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from selfspec.drafters.exit_head import ExitHead
from selfspec.drafters.trained import Attachment
from selfspec.errors import OptionError
from selfspec.model.head_file import HeadFacts, HeadFile
from selfspec.model.reading import expanded, one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selfspec.drafters.base import Host
    from selfspec.drafters.trained import HeadOptions
    from selfspec.model.config import ModelConfig


class TrimmedExit(ExitHead):
    """Drafts with layers [0, k) and the rows of the model's LM head that belong to ``vocabulary``, rising ids.

    In the native core these rows are packed in ``head_bits`` (8 by default), if the model has more.
    """

    def __init__(self, options: HeadOptions, config: ModelConfig, layer: int, vocabulary: Sequence[int]) -> None:
        if (kind := config.layer(0).norm) not in ("rms", "rms_plus_one"):
            raise OptionError(
                f"{config.family} has norms of the kind {kind}, for which there are no draft vocabularies: set "
                "draft_vocabulary=all"
            )
        facts = HeadFacts("exit_head", "none", (layer,), config.hidden_size, eps=config.norm_eps)
        unknown = np.ones(config.hidden_size, np.float32)  # until an engine is there
        ids = np.asarray(vocabulary, np.int64)
        self._num_tokens = len(ids)
        super().__init__(options, config, layer, HeadFile(facts, {"norm.weight": unknown}, ids))

    def bind(self, host: Host) -> None:
        """Take the model's norm, and rows of its LM head."""
        blank = self._head.head
        assert blank.vocabulary is not None

        def made() -> HeadFile:
            found = host.runtime.weight("final_norm")
            assert found is not None, "a family with norms has one before its LM head"
            norm = found + np.float32(1.0) if self.config.layer(0).norm == "rms_plus_one" else found
            return HeadFile(blank.facts, {"norm.weight": np.asarray(norm, np.float32)}, blank.vocabulary)

        key = ("trimmed exit", blank.facts.taps, blank.vocabulary.tobytes())
        self._head = Attachment(self.config, self._options, host.kept(key, made))
        super().bind(host)

    @property
    def runs(self) -> str:
        """The layers, and how many tokens it chooses among."""
        return f"{self._plan} + {self._num_tokens} tokens"


def read_vocabulary(path: str) -> tuple[int, ...]:
    """The ids of a JSON file, rising: a list of them, or an object with `vocabulary`, as `exits.json` is one.

    Raises OptionError where it is something else.
    """
    file = expanded(path)
    try:
        found: Any = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"draft_vocabulary {quoted(file)} cannot be read as JSON ({one_line(error)})") from error
    ids = found.get("vocabulary") if isinstance(found, dict) else found
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise OptionError(
            f"draft_vocabulary {quoted(file)} has no token ids; it must be a JSON list of them, or an object with "
            "`vocabulary`"
        )
    return tuple(sorted(set(ids)))
