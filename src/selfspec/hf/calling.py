"""What transformers calls: the loop of ``generate``, once it has prepared inputs, processors and criteria."""

from __future__ import annotations

import inspect
import sys
from contextlib import closing, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationMixin, StoppingCriteriaList, StopStringCriteria

from selfspec import drafters
from selfspec.errors import OptionError
from selfspec.flight import Flight
from selfspec.hf.checks import check_call, prompts_of
from selfspec.hf.engines import engine_of
from selfspec.hf.results import Speculation, Streamed, output
from selfspec.hf.rows import Row, check_rules, draft_sampling
from selfspec.request import Completion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from selfspec.drafters.base import Drafter
    from selfspec.engine import Engine
    from selfspec.generation import Generation

OWN = ("draft", "seed", "coupled", "prediction")  # of a request; all else of one is transformers'
_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


@cache
def option_names() -> tuple[str, ...]:
    """What may be given beside the arguments of ``generate``: `OWN`, and the options of every drafter."""
    names = dict.fromkeys(OWN)
    for drafter in drafters.available():
        with suppress(OptionError):  # a plug-in that does not load is an error where it is asked for
            names |= dict.fromkeys(drafters.option_names(drafters.drafter_class(drafter)))
    return tuple(names)


class Generate:
    """The loop of ``generate`` with drafts: ``custom_generate=selfspec.hf.generate``.

    It decides by the processors, criteria and settings that transformers has prepared, called for one text at a
    time: for each text exactly the calls of plain decoding. What it cannot do is refused by name.

    Greedy texts are those of plain ``generate`` in the same precision, sampled ones have its law. They are drawn
    with random numbers of their own, seeded by torch's global generator unless ``seed`` is given.

    Raises
    ------
    SelfspecError
        Something in the call, or the model, has no place here: what it is, and what to do.
    """

    __name__ = "generate"

    @property
    def __signature__(self) -> inspect.Signature:
        """Transformers passes on only those options of a callable that its signature names."""
        names = [*inspect.signature(GenerationMixin._sample).parameters, *option_names()]
        return inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in dict.fromkeys(names)]
        )

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        /,
        *,
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: Any,
        **others: Any,
    ) -> Any:
        """Answer the rows of ``input_ids`` [B, n], padded on their left; [B, n + new], or a `SpeculativeOutput`."""
        caller = _arguments_of(sys._getframe(1))
        options = {name: others.pop(name) for name in option_names() if name in others}
        check_call(generation_config, caller, others, input_ids)
        rules = (logits_processor, stopping_criteria)
        check_rules(*rules, len(input_ids))
        engine = engine_of(model)
        prompts = prompts_of(input_ids, others.get("attention_mask"))
        rows = [Row((input_ids, i), pads, rules, generation_config) for i, (pads, _) in enumerate(prompts)]
        texts = _prepare(engine, prompts, rows, options)
        streamed = Streamed(caller.get("streamer"), rows, generation_config)
        ended = _run(engine, texts, streamed)
        return output(input_ids, rows, generation_config, Speculation(ended))


generate = Generate()


def from_folder(model: Any, *, tokenizer: Any = None, stop_strings: Any = None, **arguments: Any) -> Any:
    """``generate`` of ``model`` with drafts, called with all that ``model.generate`` was given: the folder form.

    Stop strings, whose tokenizer transformers keeps from a callable, are made into a criterion here.
    """
    config: Any = arguments.get("generation_config")
    if stop_strings is None and getattr(config, "stop_strings", None) is not None:
        stop_strings = config.stop_strings
        arguments["generation_config"] = config = type(config).from_dict(config.to_dict() | {"stop_strings": None})
    if stop_strings is None and model.generation_config.stop_strings is not None:
        raise OptionError("stop_strings stands in the model's generation config; give it to generate")
    if stop_strings is not None:
        if tokenizer is None:
            raise OptionError("stop_strings needs the tokenizer; give tokenizer=... to generate")
        criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)
        given = arguments.get("stopping_criteria")
        arguments["stopping_criteria"] = StoppingCriteriaList([*(given or ()), criterion])
    # the class's own: a model that brings such a folder has this very function as its `generate`
    return GenerationMixin.generate(model, custom_generate=generate, **arguments)


def _arguments_of(frame: Any) -> Mapping[str, Any]:
    """The arguments of the ``generate`` that calls us: it drops some of them for a callable, without a word."""
    return frame.f_locals if frame.f_code is _GENERATE else {}


def _prepare(
    engine: Engine, prompts: Sequence[tuple[int, list[int]]], rows: Sequence[Row], options: dict[str, Any]
) -> list[Generation]:
    """A generation for every row, ruled by transformers' processors and criteria."""
    made: list[Drafter] = []
    texts = []
    first = options.pop("seed", None)
    coupled = bool(options.get("coupled", False))
    for i, (row, (_, prompt)) in enumerate(zip(rows, prompts, strict=True)):
        room = row.most - row.length
        if row.most - row.pads > engine.config.context_length:
            raise OptionError(
                f"max_length leaves room for {row.most - row.pads} tokens; this model's context is "
                f"{engine.config.context_length}: lower max_new_tokens"
            )
        seed = int(torch.randint(2**31, ())) if first is None else first + i if isinstance(first, int) else first
        text = engine.prepare(prompt, made=made, max_new_tokens=room, seed=seed, **options)
        text.decide_by(row.sampling(draft_sampling(row.config, row.pads, engine.config), coupled), row.ends)
        texts.append(text)
    return texts


def _run(engine: Engine, texts: Sequence[Generation], streamed: Streamed) -> tuple[Completion, ...]:
    """All of them in one loop, to their ends; what goes wrong with one is raised."""
    ended: dict[int, Completion] = {}
    with closing(Flight(engine.runtime, len(texts), max(text.limit for text in texts))) as flight:
        for index, text in enumerate(texts):
            flight.board(index, text)
        progress = flight.fill()
        while progress:
            for step in progress:
                if isinstance(step.end, Exception):
                    raise step.end
                if step.end is not None:
                    ended[step.index] = step.end
            streamed.put(ended)
            progress = flight.turn()
    streamed.end()
    return tuple(ended[index] for index in range(len(texts)))
