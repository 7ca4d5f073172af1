"""Transformers' ``generate`` with and without drafts on one model, in turn, and the ratio of their times.

    python bench/hf_generate.py --draft early_exit --exit-layer 26 --gamma 2 --batch 1
    python bench/hf_generate.py --draft ngram --batch 4 --pairs 9

Both sides share tensors, prompts, precision and process; they alternate, and the ratio of each pair is plain's
seconds ÷ ours. The figure is their median with a bootstrap interval of 90 %. One JSON line ends the output.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import selfspec
from selfspec.measure.pairs import paired_ratio
from selfspec.model import EMBEDDED, find_checkpoint

TASKS = [
    "Repeat three times: the quick brown fox jumps over the lazy dog.",
    "Write the numbers from one to forty as words, one on each line.",
    "What is 17 plus 25? Explain each step.",
    "Rewrite this list in capital letters, then once more in small ones: apple, pear, plum, cherry, fig, lime.",
    "Name three primary colours, and three things that have each.",
    "Say how to bake bread, in five steps.",
    "Translate into French: the sea is calm this morning, and the boats are small.",
    "Describe a cat to somebody who has never seen one.",
]


def timed(call):
    """Seconds of a call, and what it gave."""
    started = time.perf_counter()
    made = call()
    return time.perf_counter() - started, made


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="a folder; by default the embedded model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--draft", default="early_exit")
    parser.add_argument("--exit-layer", type=int, default=None)
    parser.add_argument("--gamma", type=int, default=None)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    folder = args.model or find_checkpoint(EMBEDDED).folder
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype))
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    options = {"draft": args.draft, "exit_layer": args.exit_layer, "gamma": args.gamma}
    ours = {"custom_generate": selfspec.hf.generate, "return_dict_in_generate": True}
    ours |= {name: value for name, value in options.items() if value is not None}
    pairs, equal, told = [], 0, None
    for pair in range(args.pairs + 1):
        turns = [[{"role": "user", "content": TASKS[(pair + i) % len(TASKS)]}] for i in range(args.batch)]
        asked = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "padding": True}
        inputs = tokenizer.apply_chat_template(turns, **asked)
        how = {"max_new_tokens": args.tokens, "do_sample": False}
        runs = {}
        for name in ("plain", "ours") if pair % 2 else ("ours", "plain"):
            runs[name] = timed(
                lambda inputs=inputs, how=how | (ours if name == "ours" else {}): model.generate(**inputs, **how)
            )
        (plain, texts), (drafted, out) = runs["plain"], runs["ours"]
        if pair == 0:
            continue  # both have warmed up
        pairs.append((plain, drafted))
        equal += texts.shape == out.sequences.shape and torch.equal(texts, out.sequences)
        told = out.speculation
        print(f"plain {plain:6.2f} s   {args.draft} {drafted:6.2f} s   alpha {told.acceptance_rate}")
    found = paired_ratio([(drafted, plain) for plain, drafted in pairs])
    interval = f"{found.median:.2f}x [{found.low:.2f}, {found.high:.2f}]"
    print(
        f"generate with drafts against generate: {interval}, {found.verdict()}; {equal} of {len(pairs)} pairs equal"
    )
    print(
        json.dumps({"pairs": pairs, "equal": equal, "options": options, "batch": args.batch, "tokens": args.tokens})
    )


if __name__ == "__main__":
    main()
