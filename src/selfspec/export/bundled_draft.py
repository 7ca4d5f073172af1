"""What a draft needs of a bundle: the same weights in fewer bits, and nothing that a box would not have."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from selfspec import drafters
from selfspec.drafters.auto import AutoOptions
from selfspec.errors import OptionError
from selfspec.loading import load
from selfspec.model.reading import expanded, quoted

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from selfspec.drafters.base import Drafter, Loaded
    from selfspec.engine import Engine


class _Watched:
    """An engine as the host of a drafter; ``bits`` are those in which its own files were opened again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.bits: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def open_model(self, model: str | os.PathLike[str] | None = None, **placement: Any) -> Loaded:
        """As `Engine.open_model`, for other bits alone."""
        if model is not None:
            raise OptionError(f"the draft opens {quoted(model)}, and a bundle has one model; name another draft")
        self.bits.append(placement["bits"])
        return self._engine.open_model(None, **placement)


def bits_of_draft(
    model: str | os.PathLike[str],
    bits: int | None,
    draft: str,
    has_profile: bool,
    told: tuple[Callable[[str], None], Callable[[int, int], None]],
) -> tuple[int, ...]:
    """In how many bits a draft opens the model beside the target's; it is made here, so it can be made on a box.

    Raises
    ------
    OptionError
        An unknown draft or option; one that names a file or another model, which a bundle would not have; or a
        profile for another draft than `auto`.
    """
    notify, progress = told
    engine = load(model, runtime="cpu", bits=bits, tuned=False, notify=notify, progress=progress)
    host = _Watched(engine)
    made = drafters.create(draft, engine.config, {}, host)
    for name, value in _named(made):
        if expanded(value).exists():
            raise OptionError(
                f"the draft has {name} {quoted(value)}, a file of this machine, which a bundle does not bring; "
                f"leave it out here, and give run.sh --{name.replace('_', '-')} on the box"
            )
    if has_profile and not isinstance(made.options, AutoOptions):
        raise OptionError(f"a profile is for the draft auto, and draft is {draft!r}; leave one of them out")
    return tuple(dict.fromkeys(host.bits))


_DRAFTERS = {"candidates", "stages", "wraps"}  # options that name drafters, no files


def _named(made: Drafter) -> Iterator[tuple[str, str]]:
    """The options of a drafter and of those that it asks which may name files."""
    for part in dict.fromkeys((made, *made.parts)):
        for field in fields(part.options):
            value = getattr(part.options, field.name)
            given = value if isinstance(value, tuple) else (value,)
            if field.metadata.get("opens") and field.name not in _DRAFTERS:
                yield from ((field.name, one) for one in given if isinstance(one, str) and one)
