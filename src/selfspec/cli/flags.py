"""Flags of the verbs that run a model, made from the dataclasses that hold their defaults.

Help and parsing need those dataclasses, and they need NumPy: so the flags are made when they are asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from selfspec.cli.values import bias, chat_option, given_text, template_of, tools_of
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from _typeshed import DataclassInstance

    from selfspec.drafters.base import Drafter, DraftOptions

Wanted = TypeVar("Wanted", bound="DataclassInstance")
Command = TypeVar("Command", bound="Callable[..., Any]")
_KINDS: dict[str, type] = {"int": int, "float": float}

_REQUEST_HELP = {
    "max_new_tokens": "Most tokens to write.",
    "temperature": "0 is greedy; larger is more random.",
    "top_p": "Sample from the fewest tokens that hold this share of the probability; 1 is off.",
    "top_k": "Sample from this many of the likeliest tokens; 0 is off.",
    "min_p": "Sample from tokens with at least this share of the likeliest one's probability; 0 is off.",
    "typical_p": "Sample from the most typical tokens that hold this share of the probability; 1 is off.",
    "seed": "Repeat a sampled text exactly.",
    "coupled": "Sample the same text, token for token, whoever drafts; with --seed, over all runs.",
    "stop": "End before this text; may be given several times.",
    "ignore_eos": "Go on past end-of-text tokens.",
    "repetition_penalty": "Make tokens of prompt and answer less likely (above 1) or likelier; 1 is off.",
    "presence_penalty": "Lower the logits of tokens of the answer by this much, -2 to 2; 0 is off.",
    "frequency_penalty": "The same, times how often the token is there, -2 to 2; 0 is off.",
    "no_repeat_ngram_size": "Write no run of this many tokens twice, the prompt's included; 0 is off.",
    "min_tokens": "Fewest tokens to write before an end-of-text token.",
    "min_length": "The same, the prompt counted.",
    "forced_eos_token_id": "The last token if the answer ends by its length.",
}


# field -> its flag, metavar, type and help; each may be given several times
_REPEATED: dict[str, tuple[str, str, Callable[[str], Any], str]] = {
    "chat_options": (
        "--chat-option",
        "NAME=VALUE",
        chat_option,
        "Set a variable that the chat template reads, such as enable_thinking=false",
    ),
    "logit_bias": ("--logit-bias", "ID=BIAS", bias, "Add BIAS to the logit of token ID"),
    "bad_words": ("--bad-word", "TEXT", str, "Never write this text"),
    "suppress_tokens": ("--suppress-token", "ID", int, "Never write this token"),
}


_STRUCTURES = (
    ("json_schema", "JSON", "The answer is JSON that this schema allows; {} allows any."),
    ("regex", "REGEX", "The answer matches this regular expression, from its first to its last character."),
    ("grammar", "LARK", "The answer is what this grammar in Lark's notation allows."),
)


class Flag(click.Option):
    """An option with the heading under which ``--help`` lists it."""

    def __init__(self, *declarations: str, section: str, **attributes: Any) -> None:
        super().__init__(list(declarations), **attributes)
        self.section = section


class MadeCommand(click.Command, ABC):
    """A command with flags that are made from dataclasses, under headings."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its own parameters, then the flags that are made from dataclasses."""
        *own, last = super().get_params(ctx)
        return [*own, *self._made, last]

    @cached_property
    def _made(self) -> list[Flag]:
        taken = {param.name for param in self.params}
        made: dict[str | None, Flag] = {}
        for flag in self.made_flags():
            # a plug-in cannot redefine a flag of ours: such an option is for Python only
            if flag.name not in taken:
                made.setdefault(flag.name, flag)
        return list(made.values())

    @abstractmethod
    def made_flags(self) -> list[Flag]:
        """Those that are made from dataclasses; the first of a name counts."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) and not isinstance(param, click.Argument):
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


class ModelCommand(MadeCommand):
    """A command with the flags of a model, a request, and every installed drafter."""

    def made_flags(self) -> list[Flag]:
        """Model, text and drafting."""
        from selfspec.engine import DEFAULT_DRAFT

        who, *others = draft_flags(DEFAULT_DRAFT)
        text = "Draft as `selfspec tune` found here for this model, where no draft is named.  [default: on]"
        tuned = Flag("--tuned/--no-tuned", default=None, section="Drafting", help=text)
        return [*model_flags(), *_request_flags(), who, tuned, *others, *_refused_flags()]


class MeasuringCommand(MadeCommand):
    """A command with the flags of a model, and those of a dataclass that says what is measured."""

    section: ClassVar[str] = "Measuring"

    @abstractmethod
    def measured_by(self) -> type[DataclassInstance]:
        """The dataclass."""

    def made_flags(self) -> list[Flag]:
        """Those of the model, and the others under their heading."""
        asked = [
            _flag(field, field.metadata["help"], self.section, multiple=field.default == ())
            for field in fields(self.measured_by())
        ]
        return [*model_flags(), *asked]


def asked_of(kind: type[Wanted], options: Mapping[str, Any]) -> tuple[Wanted, dict[str, Any]]:
    """The options that a dataclass has, as one, and the flags that it does not have."""
    names = {field.name for field in fields(kind)}
    asked = {name: value for name, value in options.items() if name in names and value is not None}
    return kind(**asked), {name: value for name, value in options.items() if name not in names}


def model_flags() -> list[Flag]:
    """Which model, and where it runs."""
    from selfspec.model.embedded import EMBEDDED, PACKAGED

    section = "Model"
    return [
        Flag(
            "--model",
            default=EMBEDDED,
            section=section,
            help=f"Folder, .gguf file, hub id, or {' or '.join(PACKAGED)}.{_default(EMBEDDED)}",
        ),
        Flag(
            "--runtime",
            section=section,
            help="cpu (the native core), torch, or auto: torch on a GPU, else cpu.  [default: auto]",
        ),
        Flag("--bits", type=int, section=section, help="cpu: 4, 8, 16 or 32 a weight.  [default: as stored]"),
        Flag("--threads", type=int, section=section, help="cpu: how many threads.  [default: all it may use]"),
        Flag(
            "--kv",
            section=section,
            help="cpu: keys and values in float16, bfloat16, float32 or int8.  [default: float16]",
        ),
        Flag(
            "--dtype",
            section=section,
            help="torch: float64, float32, bfloat16, float16; int8 or int4 for the matrices.  [default: as stored]",
        ),
        Flag(
            "--device",
            section=section,
            help="torch: auto (a GPU if there is one), cpu, cuda, cuda:1, ...  [default: auto]",
        ),
        Flag(
            "--compile", section=section, help="torch: on, off, or auto: on where there is a GPU.  [default: auto]"
        ),
    ]


def _request_flags() -> list[Flag]:
    from selfspec.request import Request

    by_name = {field.name: field for field in fields(Request)}
    tools = "JSON file with the schemas of the tools that the model may call."
    template = "Which of the model's chat templates, or a .jinja file with one.  [default: the model's]"
    return [
        Flag("--tools", metavar="FILE", type=tools_of, section="Text", help=tools),
        Flag("--chat-template", metavar="NAME", type=template_of, section="Text", help=template),
        *(_flag(by_name[name], text, "Text", multiple=name == "stop") for name, text in _REQUEST_HELP.items()),
        *(_repeated(name, *declared) for name, declared in _REPEATED.items()),
        Flag(
            "--prediction",
            metavar="TEXT|@FILE",
            type=given_text,
            section="Text",
            help="Text that the answer is expected to hold, such as a file to change; look-up copies from it.",
        ),
        *(
            Flag(flag_name(kind), metavar=f"{what}|@FILE", type=given_text, section="Text", help=text)
            for kind, what, text in _STRUCTURES
        ),
    ]


def _refused_flags() -> list[Flag]:
    """Flags of other programs that `given` answers with the reason why they are none here; no help shows them."""
    from selfspec.modes import unverifiable

    return [Flag(flag_name(name), name, section="Text", hidden=True) for name in unverifiable()]


def _repeated(name: str, flag: str, metavar: str, kind: Callable[[str], Any], text: str) -> Flag:
    text += "; may be given several times."
    return Flag(flag, name, metavar=metavar, type=kind, section="Text", help=text, multiple=True)


def draft_flags(default: str) -> list[Flag]:
    """Who drafts, and one flag per option; drafters that share an option share its flag."""
    from selfspec.drafters.base import DraftOptions

    common = {field.name for field in fields(DraftOptions)}
    who = Flag(
        "--draft",
        metavar="DRAFTER",
        section="Drafting",
        help=f"Who drafts, or a chain ('suffix>early_exit'); `selfspec drafters` lists them.{_default(default)}",
    )
    flags = {"draft": who}
    for name, drafter in _installed():
        for field in described(drafter.Options):
            section = "Drafting" if field.name in common else f"Drafting with {name}"
            made = _flag(field, field.metadata["help"], section, multiple=field.default == ())
            flags.setdefault(field.name, made)
    return list(flags.values())


def _installed() -> Iterator[tuple[str, type[Drafter]]]:
    from selfspec.drafters import available, drafter_class

    for name in available():
        try:
            yield name, drafter_class(name)
        except OptionError:  # `selfspec drafters` shows what is wrong with it
            continue


def described(options: type[DraftOptions]) -> list[Field[Any]]:
    """The fields that are flags: those with a help text; the others are for Python only."""
    return [field for field in fields(options) if "help" in field.metadata]


def flag_name(option: str) -> str:
    """How an option is spelled on the command line."""
    return f"--{option.replace('_', '-')}"


def _kind(field: Field[Any]) -> str:
    """The type of an annotation such as ``int | None``, as it is written."""
    annotation = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return annotation.partition(" | ")[0]


def _default(value: object) -> str:
    return "" if value in (None, (), "") else f"  [default: {value}]"


def _flag(field: Field[Any], text: str, section: str, multiple: bool = False) -> Flag:
    """A flag whose value is None unless the user gave it, so that the dataclass keeps its own default."""
    name = flag_name(field.name)
    if _kind(field) != "bool":
        text += _default(field.default)
        kind = _KINDS.get(_kind(field), str)  # what is no number goes to the dataclass as it was typed
        return Flag(name, field.name, type=kind, section=section, help=text, multiple=multiple)
    if field.default is False and section == "Text":
        return Flag(name, field.name, is_flag=True, default=None, section=section, help=text)
    switch = f"{name}/--no-{name.removeprefix('--')}"
    text += _default("on" if field.default else "off")
    return Flag(switch, field.name, is_flag=True, default=None, section=section, help=text)


def wrapping(function: Command) -> Command:
    """The flags that say how a prompt is wrapped; `unwrapped` reads them."""
    function = click.option("--no-chat", is_flag=True, help="Take a prompt as it is, without the chat template.")(
        function
    )
    return click.option("--system", metavar="TEXT", help="System message of the chat template.")(function)


def unwrapped(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with those of `wrapping` as the fields of a request that they are."""
    found = {name: value for name, value in options.items() if name not in {"system", "no_chat"}}
    if options["system"] is not None:
        found["system"] = options["system"]
    if options["no_chat"]:
        found["chat"] = False
    return found


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the user gave, checked as far as that goes without a model.

    Raises OptionError for a value that is not allowed, an unknown drafter, or an option of another drafter.
    """
    from selfspec.engine import DEFAULT_DRAFT
    from selfspec.request import Request

    found = {name: value for name, value in options.items() if value is not None and value != ()}
    draft = found.get("draft", DEFAULT_DRAFT)
    asked = {field.name for field in fields(Request)}
    Request(**{name: value for name, value in found.items() if name in asked})
    rest = {name: value for name, value in found.items() if name not in asked}
    _check_draft(draft, rest)
    return found


def _check_draft(draft: str, options: Mapping[str, Any]) -> None:
    """Before the model is loaded, in the spelling of the command line."""
    from selfspec.drafters import over, resolve
    from selfspec.modes import refuse_unverifiable

    drafter, within = resolve(draft)
    known = [field.name for field in described(drafter.Options)]
    if unknown := [name for name in options if name not in known]:
        refuse_unverifiable(unknown)
        theirs, ours = (", ".join(map(flag_name, names)) for names in (unknown, known))
        have = [
            name for name, cls in _installed() if {*unknown} <= {field.name for field in described(cls.Options)}
        ]
        hint = f", and {', '.join(have)} would have {theirs}: add --draft {have[0]}" if have else ""
        raise OptionError(f"drafter {draft!r} has no {theirs}; it has {ours}{hint}")
    drafter.Options(**over(draft, within, dict(options)))
