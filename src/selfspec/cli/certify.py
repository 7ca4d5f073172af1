"""``selfspec certify``: proof, on the user's own model and machine, that speculation changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from selfspec.cli.flags import Flag, ModelCommand, draft_flags, model_flags
from selfspec.cli.opening import PLACING, open_engine
from selfspec.cli.output import check_target, emit_json, examples, facts, note
from selfspec.documents import finite, write_whole
from selfspec.errors import OptionError

if TYPE_CHECKING:
    from selfspec.engine import Engine
    from selfspec.measure.certificate import Certificate, Check
    from selfspec.measure.trial import Candidate

EXIT_BUG = 1

_EXAMPLES = examples(
    "selfspec certify",
    "selfspec certify --model ./my-llama --prompts prompts.txt --out certificate.json",
    "selfspec certify --draft early_exit --exit-layer 20 --gamma 3 --json",
)


class _CertifyCommand(ModelCommand):
    """The flags of a model and of the drafters, and how much to try; no request of the user is run."""

    def made_flags(self) -> list[Flag]:
        """Those of `ModelCommand` without the request's."""
        return [*model_flags(), *_effort_flags(), *draft_flags("four of them")]


def _effort_flags() -> list[Flag]:
    from selfspec.measure.certify import CertifyOptions

    default, section = CertifyOptions(), "Effort"
    tokens = f"Most tokens to write per text.  [default: {default.max_new_tokens}]"
    seed = f"Seed of the sampled texts.  [default: {default.seed}]"
    return [
        Flag("--max-new-tokens", type=int, section=section, help=tokens),
        Flag("--seed", type=int, section=section, help=seed),
    ]


@click.command("certify", cls=_CertifyCommand, epilog=_EXAMPLES)
@click.option(
    "--prompts",
    "prompt_file",
    metavar="FILE",
    help="A prompt per line, or JSON Lines with prompt, turns or messages.  [default: a dozen of our own]",
)
@click.option("--out", metavar="FILE", help="Write the certificate there, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as one JSON document.")
def command(prompt_file: str | None, out: str | None, as_json: bool, **options: Any) -> None:
    """Prove that drafts change nothing: on your model, in its precision, on this machine.

    Texts with and without a draft are compared, greedy, coupled and under penalties; caches with a fresh
    prefill; rows of a pass with rows alone; and the law of sampled texts with that of plain decoding,
    beside a broken verifier that must be caught. In float32 a text may differ at a near-tie only. Takes
    minutes; without --draft it tries look-up, two early exits and a comb.

    Exit code 0: nothing differs. 1: a bug, and the certificate says where.
    """
    from selfspec.measure.certify import CertifyOptions, certify

    effort = {name: options.pop(name) for name in ("max_new_tokens", "seed")}
    chosen = CertifyOptions(**{name: value for name, value in effort.items() if value is not None})
    placed = {name: options.pop(name) for name in ("model", *PLACING)}
    candidates = _candidates(options)
    if out is not None:
        check_target(Path(out))
    entries = _entries(prompt_file)
    engine = open_engine(placed)
    prompts = [engine.encode(**entry) for entry in entries]
    certificate = certify(engine, prompts, candidates, chosen, note)
    document = certificate.to_dict()
    if out is not None:
        write_whole(Path(out), json.dumps(finite(document), allow_nan=False, indent=2) + "\n")
    if as_json:
        emit_json(document)
    else:
        click.echo(_page(certificate, engine))
    click.get_current_context().exit(0 if certificate.passed else EXIT_BUG)


def _entries(file: str | None) -> list[dict[str, Any]]:
    from selfspec.cli.prompts import read_prompts
    from selfspec.measure.prompts import BUILT_IN

    return [{"prompt": prompt} for prompt in BUILT_IN] if file is None else read_prompts(file)


def _candidates(options: dict[str, Any]) -> list[Candidate] | None:
    """The one drafter that was asked for; None for those that are tried by default."""
    from selfspec.cli.flags import flag_name, given
    from selfspec.measure.trial import Candidate

    if options["draft"] is None:
        if lost := [flag_name(name) for name, value in options.items() if value not in (None, ())]:
            raise OptionError(f"{', '.join(lost)} is for one drafter; name it with --draft")
        return None
    asked = given(options)
    return [Candidate(asked.pop("draft"), asked)]


# -- the certificate --------------------------------------------------------------------------------------


def _page(certificate: Certificate, engine: Engine) -> str:
    """What people read."""
    subject = certificate.subject
    machine, prompts = subject["machine"], subject["prompts"]
    lines = [
        ("model", f"{engine.name}, {subject['precision']} on {subject['runs_on']}"),
        ("machine", f"{machine['processor']}, {machine['cores']} cores"),
        ("texts", f"{prompts['count']} prompts, up to {subject['max_new_tokens']} new tokens"),
        *(("drafter", drafter["label"]) for drafter in subject["drafters"]),
        *((check.name, _line(check)) for check in certificate.checks),
        ("verdict", certificate.verdict),
    ]
    return facts(lines)


def _line(check: Check) -> str:
    word = {True: "ok", False: "FAIL", None: "--"}[check.passed]
    return f"{word.ljust(4)}  {check.summary}"
