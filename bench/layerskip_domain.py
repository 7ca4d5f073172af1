"""LayerSkip in a domain: commands to a house as JSON (bench/utterances.py), learned with the recipe and plainly.

    python bench/layerskip_domain.py --out FOLDER [--only STEP,...] [--threads N]

The embedded model is fine-tuned twice on the same pairs, at most 100,000 tokens with prompts and chat template,
read once: with `selfspec train layerskip`, and, as the control, with --plain. Then it is measured

    exact       held-out utterances whose calls are right to the last character, both models in bf16
    accepted    α by exit layer: accepted ÷ judged (a draft is judged up to its first wrong token), in the domain,
                with the trimmed draft vocabulary and all tokens
    chat        the same on open chat at layers 8 and 12, before and after, and the perplexity of the base
                model's own answers to it
    speed       early exit and `quantized` in pairs with plain decoding of the same checkpoint, in bf16 and int8;
                answers are compared

Steps that are done are not done again, and training goes on where it was stopped. On one core of an EPYC with
AVX512-BF16, beside other work, the two trainings took 27 and 17 minutes; what follows took 8 on two cores, of it
`speed`, the only step that is about time (run nothing beside it), 2. The result is in FOLDER/result.json, and a
table is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import head_card
import utterances

import selfspec
from selfspec.cli.output import table
from selfspec.measure.tasks import read_prompts
from selfspec.train.data import read_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BASE = "smollm2-135m"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # where a chat names no other
MOST = 100_000  # tokens that are read in training, prompts and chat template included
TRAIN, HELD_OUT = 1665, 1000
EXITS = (6, 8, 10)
COMMON = (
    "--epochs", "1", "--batch-tokens", "128", "--learning-rate", "3e-4", "--held-out", "0.03",
    "--precision", "bfloat16", "--held-out-tokens", "600", "--checkpoint-minutes", "6", "--evaluate-minutes", "30",
)  # fmt: skip
RECIPE = (
    "--layers", ",".join(map(str, EXITS)), "--curriculum", "none", "--exit-weights", "uniform",
    "--exit-scale", "0.6", "--dropout", "0.05", "--draft-vocabulary", "640",
)  # fmt: skip
GAMMA = 6
SPEED = {
    16: "early_exit:exit_layer=6:gamma=4,early_exit:exit_layer=6:gamma=6,early_exit:exit_layer=8:gamma=6,"
    "early_exit:exit_layer=8:gamma=8,early_exit:exit_layer=10:gamma=8,quantized:draft_bits=4:gamma=4",
    8: "early_exit:exit_layer=6:gamma=4,early_exit:exit_layer=6:gamma=6,early_exit:exit_layer=8:gamma=4,"
    "early_exit:exit_layer=8:gamma=6,early_exit:exit_layer=10:gamma=6,quantized:draft_bits=4:gamma=3",
}
CHAT_LAYERS = (8, 12)
CHAT_PROMPTS, CHAT_TOKENS = 18, 64


class Domain:
    """The folder of a run, and its steps."""

    def __init__(self, out: Path, threads: int | None) -> None:
        self.out = out
        self.place: dict[str, Any] = {} if threads is None else {"threads": threads}
        self.flags = [] if threads is None else ["--threads", str(threads)]

    def steps(self) -> dict[str, Callable[[], Any]]:
        """In their order."""
        return {
            "data": self.data,
            "layerskip": lambda: self.train("layerskip", RECIPE),
            "plain": lambda: self.train("plain", ("--plain",)),
            "exact": self.exact,
            "accepted": self.accepted,
            "chat": self.chat,
            "speed": self.speed,
        }

    def data(self) -> dict[str, Any]:
        """Pairs, as texts of the base model with its chat template."""
        utterances.write(self.out, TRAIN, HELD_OUT, 0)
        texts, said = self.out / "data", self.out / "messages.jsonl"
        with said.open("w", encoding="utf-8") as file:
            for pair in _lines(self.out / "train.jsonl"):
                user, assistant = _turn("user", pair["prompt"]), _turn("assistant", pair["answer"])
                print(json.dumps({"messages": [_turn("system", ""), user, assistant]}), file=file)
        self._selfspec("train", "data", "--text", str(said), "--out", str(texts))
        found = read_data(texts)
        assert found.tokens <= MOST, f"{found.tokens} tokens to train on are more than {MOST}"
        return {"pairs": len(found), "tokens": found.tokens, "answer_tokens": found.answer_tokens}

    def train(self, name: str, recipe: Sequence[str]) -> dict[str, Any]:
        """One of the two models."""
        out = self.out / name
        self._selfspec("train", "layerskip", "--data", str(self.out / "data"), "--out", str(out), *COMMON, *recipe)
        _silence(out / "model")
        lines = [json.loads(line) for line in (out / "history.jsonl").read_text(encoding="utf-8").splitlines()]
        last = [line for line in lines if line["kind"] == "step"][-1]
        return {"steps": last["step"], "answer_tokens": last["tokens"], "seconds": round(last["seconds"])}

    def exact(self) -> dict[str, Any]:
        """How many held-out utterances each model understands to the last character."""
        pairs = [utterances.Pair(**pair) for pair in _lines(self.out / "held-out.jsonl")]
        found: dict[str, Any] = {}
        for name in ("layerskip", "plain"):
            engine = self._engine(name)
            asked = [{"prompt": pair.prompt} for pair in pairs]
            right = tokens = 0
            for index, result in engine.batch(asked, max_new_tokens=128):
                if isinstance(result, Exception):
                    raise result
                right += result.text.strip() == pairs[index].answer
                tokens += len(result.token_ids)
            found[name] = {"right": right, "of": len(pairs), "tokens": tokens}
        return found

    def accepted(self) -> dict[str, Any]:
        """α by exit layer on held-out utterances."""
        prompts = [pair["prompt"] for pair in _lines(self.out / "held-out.jsonl")][:40]
        found: dict[str, Any] = {}
        for name in ("layerskip", "plain"):
            engine = self._engine(name)
            for k in EXITS:
                for vocabulary in ("trimmed", "all") if name == "layerskip" else ("all",):
                    options = {} if vocabulary == "trimmed" else {"draft_vocabulary": "all"}
                    label = f"{name} {k} {vocabulary}"
                    found[label] = _acceptance(engine, prompts, 96, exit_layer=k, gamma=GAMMA, **options)
        return found

    def chat(self) -> dict[str, Any]:
        """Open chat: acceptance by layer, and the perplexity of answers that the base model wrote."""
        said = [p.turns[0] for p in read_prompts(None) if p.task in ("mt_bench", "qa", "math_reasoning")]
        base = self._engine(None)
        assert base.tokenizer is not None
        prompts = [base.tokenizer.encode_chat([_turn("user", prompt)]) for prompt in said[:CHAT_PROMPTS]]
        answers = [base.generate(prompt, draft="plain", max_new_tokens=CHAT_TOKENS) for prompt in prompts]
        found: dict[str, Any] = {"prompts": len(prompts)}
        for name in (None, "layerskip", "plain"):
            engine = self._engine(name)
            result: dict[str, Any] = {"perplexity": _perplexity(engine, prompts, [a.token_ids for a in answers])}
            for k in CHAT_LAYERS if name != "plain" else ():
                options = {"exit_layer": k, "gamma": 4, "draft_vocabulary": "all"}
                result[f"accepted at {k}"] = _acceptance(engine, prompts, CHAT_TOKENS, **options)
            found[name or "base"] = result
        return found

    def speed(self) -> dict[str, Any]:
        """In pairs with plain decoding of the same checkpoint, by `selfspec bench`, which compares the answers."""
        found: dict[str, Any] = {}
        for bits, drafts in SPEED.items():
            out = self.out / f"speed-{bits}.json"
            shape = ("--limit", "16", "--repeats", "1", "--max-new-tokens", "96")
            model = ("--model", str(self.out / "layerskip" / "model"), "--bits", str(bits))
            data = ("--data", str(self.out / "held-out.jsonl"), "--drafts", f"plain,{drafts}")
            self._selfspec("bench", *model, *self.flags, *data, *shape, "--out", str(out))
            found[str(bits)] = str(out)
        return found

    def _engine(self, name: str | None) -> selfspec.Engine:
        """The base model, or a trained one, in bf16."""
        model = BASE if name is None else self.out / name / "model"
        return selfspec.load(model, runtime="cpu", bits=16, tuned=False, draft="plain", **self.place)

    def _selfspec(self, *words: str) -> None:
        print("$ selfspec", *words, flush=True)
        subprocess.run([sys.executable, "-m", "selfspec", *words], check=True)  # noqa: S603 (our own command)


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _silence(model: Path) -> None:
    """A checkpoint of the domain has no system message by default: its 16 tokens say nothing to a house."""
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        file = model / name
        if file.exists():
            file.write_text(file.read_text(encoding="utf-8").replace(SYSTEM, ""), encoding="utf-8")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def _acceptance(
    engine: selfspec.Engine, prompts: Sequence[str | Sequence[int]], most: int, **options: Any
) -> dict[str, Any]:
    """α and τ over all prompts, and whether the texts are those of plain decoding."""
    drafted = accepted = judged = tokens = rounds = 0
    same = True
    for prompt in prompts:
        plain = engine.generate(prompt, draft="plain", max_new_tokens=most)
        done = engine.generate(prompt, draft="early_exit", max_new_tokens=most, **options)
        same &= plain.token_ids == done.token_ids
        drafted, accepted = drafted + done.stats.drafted, accepted + done.stats.accepted
        judged += sum(head_card.judged(done.stats))
        tokens, rounds = tokens + done.stats.tokens - 1, rounds + done.stats.rounds
    return {
        "alpha": accepted / max(1, judged),
        "accepted_of_drafted": accepted / max(1, drafted),
        "tokens_per_round": tokens / max(1, rounds),
        "equal": same,
    }


def _perplexity(
    engine: selfspec.Engine, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> float:
    """Of answers, their first token included."""
    losses: list[float] = []
    for asked, answer in zip(prompts, answers, strict=True):
        whole = [*asked, *answer]
        done = engine.generate(whole, max_new_tokens=1, draft="plain", prompt_logprobs=0)
        assert done.prompt_scores is not None
        losses += [-score.logprob for score in done.prompt_scores[len(asked) - 1 :]]
    return math.exp(statistics.fmean(losses))


def page(found: dict[str, Any]) -> str:
    """What was measured, for people."""
    rows: list[tuple[str, ...]] = [("what", "figure")]
    for name, facts in found.items():
        flat = facts.items() if isinstance(facts, dict) else [("", facts)]
        rows += [(f"{name} {key}".strip(), json.dumps(value)) for key, value in flat]
    return table(rows)


def main() -> None:
    """Do the steps that are asked for and not done."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="steps with commas: data, layerskip, plain, exact, ...")
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    domain = Domain(asked.out, asked.threads)
    asked.out.mkdir(parents=True, exist_ok=True)
    kept = asked.out / "result.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    steps = domain.steps()
    for name in asked.only.split(",") if asked.only else steps:
        if name not in steps:
            parser.error(f"there is no step {name!r}; there are {', '.join(steps)}")
        if name not in found:
            found[name] = steps[name]()
            kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(page(found))


if __name__ == "__main__":
    main()
