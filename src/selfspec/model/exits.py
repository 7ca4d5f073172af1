"""What training says of a model's exits: ``exits.json`` beside its weights (`selfspec train layerskip`).

A checkpoint whose exits were trained is an ordinary one; this note only says with which exit to begin, and which
tokens drafts may choose among. Whoever has none, as published LayerSkip checkpoints, names the layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec.errors import CorruptModelError
from selfspec.model.config import Exits
from selfspec.model.reading import Fields, quoted, read_json_if_there

if TYPE_CHECKING:
    from pathlib import Path

    from selfspec.model.config import ModelConfig

NOTE = "exits.json"
FORMAT = 1


def read_exits(folder: Path, config: ModelConfig) -> Exits | None:
    """The note of a folder, if it has one.

    Raises CorruptModelError where it is damaged, or names layers or tokens that the model does not have.
    """
    if not (found := read_json_if_there(folder / NOTE)):
        return None
    fields = Fields(found, quoted(folder / NOTE))
    if (given := fields.integer("format")) != FORMAT:
        raise CorruptModelError(
            f"{fields.source} has format {given}; this selfspec reads {FORMAT}: use the one that wrote it, or "
            "remove the file"
        )
    layers, vocabulary = fields.ids("layers"), fields.ids("vocabulary")
    if not layers or not all(1 <= k < config.num_layers for k in layers):
        raise CorruptModelError(
            f"{fields.source} has the exits {list(layers)}; this model has {config.num_layers} layers: remove the "
            "file"
        )
    if list(vocabulary) != sorted(vocabulary) or any(token >= config.vocab_size for token in vocabulary[-1:]):
        raise CorruptModelError(
            f"{fields.source} has a draft vocabulary that is not ascending, or not of this model: remove the file"
        )
    return Exits(layers, vocabulary)


def note_of(exits: Exits, **more: Any) -> dict[str, Any]:
    """The note as it is written; ``more`` is for people."""
    return {"format": FORMAT, "layers": list(exits.layers), "vocabulary": list(exits.vocabulary), **more}
